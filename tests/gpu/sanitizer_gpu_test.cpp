// What gpu-check runs under compute-sanitizer: this project's kernels on some 200 tokens, no
// library.
#include "kernels/base/bfloat16.cuh"
#include "kernels/base/device_buffer.hpp"
#include "kernels/experts/launch.hpp"
#include "kernels/layer/launch.hpp"
#include "kernels/measure/benchmarks/kernel_benchmarks.hpp"
#include "kernels/measure/devices/machine.hpp"
#include "tests/gpu/device.hpp"
#include "tests/support/catch.hpp"

namespace kernels = moesim::kernels;
namespace measure = moesim::kernels::measure;

TEST_CASE("own kernels give right results on 200 tokens", "[sanitizer]") {
  MOESIM_NEEDS_GPU();
  const auto machine = measure::open_machine();
  measure::SoloGroup alone;
  const auto device = machine->open(0, alone);
  for (const measure::PointSpec& spec : measure::sanitizer_points()) {
    INFO(spec.label());
    CHECK_THAT(device->prepare(spec, 7)->verify(), Catch::Matchers::Equals(""));
  }
}

TEST_CASE("activation and narrowing run on 200 rows", "[sanitizer]") {
  MOESIM_NEEDS_GPU();
  constexpr std::int64_t rows = 200;
  constexpr int ffn = 344;
  constexpr auto cells = static_cast<std::size_t>(rows * ffn);
  const std::vector<kernels::Bfloat16> ones(2 * cells, kernels::to_bfloat16(1.0F));
  const kernels::DeviceBuffer<kernels::Bfloat16> hidden(ones), upstream(ones);
  kernels::DeviceBuffer<kernels::Bfloat16> out(cells), gradient(2 * cells), narrowed(cells);
  kernels::experts::launch_swiglu({rows, ffn, hidden.data(), out.data()}, nullptr);
  kernels::experts::launch_swiglu_backward(
      {rows, ffn, hidden.data(), upstream.data(), gradient.data()}, nullptr);
  const std::vector<float> wide(cells, 2.0F);
  const kernels::DeviceBuffer<float> from(wide);
  kernels::layer::launch_narrow(from.data(), narrowed.data(), rows * ffn, nullptr);
  // silu(1) = 0.731.
  for (const kernels::Bfloat16 each : out.download()) {
    REQUIRE(std::abs(kernels::to_float(each) - 0.731F) < 0.004F);
  }
  for (const kernels::Bfloat16 each : narrowed.download()) REQUIRE(kernels::to_float(each) == 2.0F);
}
