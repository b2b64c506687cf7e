
#include <algorithm>
#include <chrono>
#include <map>
#include <thread>
#include <vector>

#include "kernels/measure/benchmarks/run_benchmarks.hpp"
#include "kernels/measure/cuda/device/stream_timer.hpp"
#include "kernels/measure/devices/machine.hpp"
#include "kernels/measure/sessions/offers.hpp"
#include "kernels/measure/sessions/plan.hpp"
#include "kernels/measure/sessions/trial.hpp"
#include "sim/base/statistics.hpp"
#include "tests/gpu/device.hpp"
#include "tests/gpu/several_gpus.hpp"
#include "tests/support/catch.hpp"

namespace measure = moesim::kernels::measure;

namespace {

measure::Point measure_one(measure::Device& device, const std::string& suite,
                           const std::vector<std::string>& words) {
  measure::Selection selection;
  selection.suites = {suite};
  selection.only = words;
  const measure::Plan plan = measure::make_plan(selection, 1, {});
  INFO(plan.points.front().spec.label());
  measure::SoloGroup group;
  return measure::measure_point(device, group, plan.points.front().spec, suite, 1);
}

// What a cold kernel has written is still in the L2 when it ends, and nobody waits for it to reach
// memory; of hot calls each pays for the one before. So where the output fits the L2 and memory is
// what takes the time, as much written as read makes hot up to twice as slow, and noise. Permute
// writes twice as much, but the L2 takes its time for that in cold calls too.
constexpr double hot_of_unpaid_writes = 2.2;

// `most`: of the hot time over the cold one. A copy of what just ran may still lie in the L2, so
// hot is no slower but for noise where little is written.
void check_sound(const measure::Point& point, double most = 1.2) {
  CHECK(point.verify == "passed");
  REQUIRE(point.cold);
  REQUIRE(point.hot);
  CHECK(point.cold->summary.median > 0);
  CHECK(point.hot->summary.median < most * point.cold->summary.median);
  CHECK(point.clock_mhz > 200);
  CHECK(point.clock_mhz < 4000);
}

}  // namespace

TEST_CASE("the GPU measures one point of every suite, and its results are right") {
  MOESIM_NEEDS_GPU();
  const auto machine = measure::open_machine();
  measure::SoloGroup alone;
  const auto device = machine->open(0, alone);
  check_sound(measure_one(*device, "gemm", {"m=1024", "n=4096", "k=4096"}));
  for (const char* kernel : {"streaming", "activation", "normalization"}) {
    check_sound(measure_one(*device, "memory", {std::string("kernel=") + kernel, "rows=4096"}),
                hot_of_unpaid_writes);
  }
  for (const char* op : {"permute", "combine"}) {
    check_sound(measure_one(*device, "permute", {op, "tokens=1024", "router=top2"}),
                hot_of_unpaid_writes);
  }
  check_sound(measure_one(*device, "routing", {"route", "tokens=1024", "router=top2+fr+ir"}));
  check_sound(measure_one(*device, "routing", {"gate", "tokens=1024", "experts=8"}));
  for (const char* pass : {"pass=forward", "pass=backward"}) {
    check_sound(measure_one(*device, "experts", {"layout=padded", pass, "rows=512", "experts=8"}));
  }
  check_sound(measure_one(*device, "experts", {"layout=ragged", "rows=512", "experts=8"}));
}

TEST_CASE("the GPU offers every kind of point; FP8 is asked of Hopper alone") {
  MOESIM_NEEDS_GPU();
  const auto machine = measure::open_machine();
  measure::SoloGroup alone;
  const auto device = machine->open(0, alone);
  for (const measure::Offer& offer : measure::examine(*device, 1)) {
    const bool fp8 = offer.kind.find("fp8") != std::string::npos;  // of `sustained` too
    if (fp8 && device->facts().compute_major != 9) continue;
    INFO(offer.suite << ": " << offer.kind << ": " << offer.trouble);
    CHECK(offer.trouble.empty());
  }
}

TEST_CASE("on the GPU FP8 products by cuBLASLt agree with fp64 sums, for both kinds of scales") {
  MOESIM_NEEDS_GPU();
  const auto machine = measure::open_machine();
  measure::SoloGroup alone;
  const auto device = machine->open(0, alone);
  const measure::DeviceFacts facts = device->facts();
  const int capability = 10 * facts.compute_major + facts.compute_minor;
  for (const char* dtype : {"dtype=fp8", "dtype=fp8_block"}) {
    CAPTURE(dtype);
    const bool has = std::string(dtype) == "dtype=fp8" ? capability >= 89 : capability == 90;
    // 768 and 2,048 wide: 6 blocks of k, which the weights' scales pad to 8, and 16.
    for (const auto& words : {std::vector<std::string>{dtype, "m=1024", "n=2048", "k=768"},
                              {dtype, "m=16", "n=768", "k=2048"},
                              {dtype, "m=4096", "n=4096", "k=14336"}}) {
      if (has) {
        check_sound(measure_one(*device, "gemm-fp8", words));
      } else {
        CHECK_THROWS_AS(measure_one(*device, "gemm-fp8", words), measure::NotMeasurable);
      }
    }
  }
}

TEST_CASE("on the GPU launches, waits, events and copies to the host take plausible times") {
  MOESIM_NEEDS_GPU();
  const auto machine = measure::open_machine();
  measure::SoloGroup alone;
  const auto device = machine->open(0, alone);
  for (const char* what : {"kernel", "queueing", "launch-and-wait", "event-pair"}) {
    CAPTURE(what);
    const auto point = measure_one(*device, "launch", {std::string("what=") + what});
    CHECK(point.verify == "passed");
    REQUIRE(point.time_us());
    CHECK(*point.time_us() > 0.1);
    CHECK(*point.time_us() < 200);
  }
  for (const char* direction : {"direction=to-device", "direction=to-host"}) {
    CAPTURE(direction);
    const auto word = measure_one(*device, "launch", {direction, "bytes=4"});
    const auto many = measure_one(*device, "launch", {direction, "bytes=67108864"});
    CHECK(word.verify == "passed");
    CHECK(many.verify == "passed");
    REQUIRE(word.time_us());
    REQUIRE(many.time_us());
    CHECK(*word.time_us() < *many.time_us());
    CHECK(67108864 / *many.time_us() < 4.5e5);  // of NVLink-C2C, 450 GB/s
  }
}

TEST_CASE("on the GPU attention by cuDNN agrees with an fp64 softmax") {
  MOESIM_NEEDS_GPU();
  const auto machine = measure::open_machine();
  measure::SoloGroup alone;
  const auto device = machine->open(0, alone);
  for (const char* width : {"head_dim=64", "head_dim=128", "head_dim=256"}) {
    // Not skipped where cuDNN refuses or is missing: a machine that has a GPU is to measure it.
    check_sound(measure_one(*device, "attention", {width, "sequence=1024", "batch=4"}));
  }
}

TEST_CASE("on the GPU attention's gradients by cuDNN agree with fp64 ones") {
  MOESIM_NEEDS_GPU();
  const auto machine = measure::open_machine();
  measure::SoloGroup alone;
  const auto device = machine->open(0, alone);
  for (const auto& words : {std::vector<std::string>{"batch=4", "sequence=1024", "kv_heads=32"},
                            {"batch=1", "sequence=2048", "heads=32", "kv_heads=8"},
                            {"batch=1", "sequence=512", "head_dim=64"},
                            {"batch=1", "sequence=512", "head_dim=256"}}) {
    check_sound(measure_one(*device, "attention-backward", words));
  }
}

TEST_CASE("on the GPU a product beside a copy takes longer than alone, and so does the copy") {
  MOESIM_NEEDS_GPU();
  const auto machine = measure::open_machine();
  measure::SoloGroup alone;
  const auto device = machine->open(0, alone);
  for (const std::string timed : {"gemm", "exchange"}) {
    const std::string other = timed == "gemm" ? "exchange" : "gemm";
    std::map<std::string, double> clocks, times;
    for (const std::string& beside : {std::string("nothing"), other}) {
      const auto point = measure_one(
          *device, "overlap", {"timed=" + timed, "beside=" + beside, "m=4096", "bytes=134217728"});
      CHECK(point.verify == "passed");
      CHECK(point.synthetic);
      REQUIRE(point.cold);
      times[beside] = point.cold->summary.median;
      clocks[beside] = point.clock_mhz;
    }
    INFO(timed << ": alone " << times["nothing"] << " us at " << clocks["nothing"]
               << " MHz, beside " << times[other] << " us at " << clocks[other] << " MHz");
    // Both want the same memory: neither is faster for the other's company, but for noise. A
    // product alone draws more power and so has a lower clock.
    const double scale = timed == "gemm" ? clocks[other] / clocks["nothing"] : 1;
    CHECK(times[other] * scale > 0.98 * times["nothing"]);
  }
}

TEST_CASE("two GPUs of one process exchange what each sends, and a product runs beside", "[gpus]") {
  MOESIM_NEEDS_GPUS(2);
  std::vector<measure::PointSpec> specs;
  for (const auto& spec : measure::find_suite("collectives").points(2)) {
    const std::int64_t bytes = spec.params.at("bytes");
    if (bytes == 4096 || bytes == std::int64_t{16} << 20) specs.push_back(spec);
  }
  const auto overlaps = measure::find_suite("overlap").points(2);
  specs.insert(specs.end(), overlaps.begin(), overlaps.begin() + 4);  // of one product and size
  const auto machine = measure::open_machine();
  std::vector<measure::Point> points;  // of rank 0
  moesim::kernels::on_gpus(2, [&](measure::Group& group, const measure::OnPhase& on_phase) {
    const auto device = machine->open(group.rank(), group);
    for (const measure::PointSpec& spec : specs) {
      const auto point = measure::measure_point(*device, group, spec, "several", 1, {}, on_phase);
      if (group.rank() == 0) points.push_back(point);
    }
  });
  REQUIRE(points.size() == specs.size());
  for (std::size_t at = 0; at < specs.size(); ++at) {
    INFO(specs[at].label() << ": " << points[at].verify);
    CHECK(points[at].verify == "passed");
    CHECK_FALSE(points[at].synthetic);
    REQUIRE(points[at].cold);
    if (specs[at].op == "overlap") continue;
    // NVLink 5, the fastest link there is, has 0.9 TB/s in a direction.
    CHECK(specs[at].sent_bytes / points[at].cold->summary.median < 1e6);
  }
}

TEST_CASE("every kernel that is benchmarked gives right results on the GPU, cold and hot") {
  MOESIM_NEEDS_GPU();
  const auto machine = measure::open_machine();
  measure::SoloGroup alone;
  const auto device = machine->open(0, alone);
  for (const measure::Benchmark& benchmark : measure::kernel_benchmarks()) {
    INFO(benchmark.id);
    const auto workload = device->prepare(benchmark.spec, 7);
    CHECK_THAT(workload->verify(), Catch::Matchers::Equals(""));
    CHECK(workload->cold().time_us > 0);
    CHECK(workload->hot(3) > 0);
    CHECK_THAT(workload->verify(), Catch::Matchers::Equals(""));
  }
}

// Not run unless asked for: no hold, which a profiler that runs one kernel after another would wait
// for. ncu test_gpu '[once]'
TEST_CASE("every kernel that is benchmarked runs once for a profiler", "[.][once]") {
  MOESIM_NEEDS_GPU();
  const auto machine = measure::open_machine();
  measure::SoloGroup alone;
  const auto device = machine->open(0, alone);
  for (const measure::Benchmark& benchmark : measure::kernel_benchmarks()) {
    INFO(benchmark.id);
    CHECK_THAT(device->prepare(benchmark.spec, 7)->verify(), Catch::Matchers::Equals(""));
  }
}

TEST_CASE("a stream that the host keeps waiting for 2 s says that it was not held") {
  MOESIM_NEEDS_GPU();
  measure::cuda::StreamTimer timer(1 << 20, 1);
  const auto nothing = [] {};
  CHECK(timer.cold(nothing).held);
  CHECK_FALSE(
      timer.cold(nothing, [] { std::this_thread::sleep_for(std::chrono::milliseconds(2200)); })
          .held);
  CHECK(timer.cold(nothing).held);
}

TEST_CASE("a kernel after a flush that reads does not pay for what the flush wrote") {
  MOESIM_NEEDS_GPU();
  cudaDeviceProp properties{};
  MOESIM_CUDA(cudaGetDeviceProperties(&properties, 0));
  // Half of the L2: its lines replace as many that the flush left.
  const auto bytes = static_cast<std::size_t>(properties.l2CacheSize) / 4 / 16 * 16;
  moesim::kernels::DeviceBuffer<std::uint8_t> from(bytes), to(bytes);
  std::vector<double> medians;
  for (const auto flush : {measure::cuda::Flush::fill, measure::cuda::Flush::fill_and_read}) {
    measure::cuda::StreamTimer timer(properties.l2CacheSize, properties.multiProcessorCount, flush);
    std::vector<double> times;
    for (int run = 0; run < 50; ++run) {
      times.push_back(timer
                          .cold([&] {
                            measure::cuda::launch_copy(from.data(), to.data(), bytes,
                                                       timer.stream());
                          })
                          .time_us);
    }
    medians.push_back(moesim::median(times));
  }
  // Both are told, since which is right is to be seen once on a device.
  WARN("copy of " << bytes << " bytes: after a fill " << medians[0] << " us, after fill and read "
                  << medians[1] << " us");
  CHECK(medians[1] < 1.03 * medians[0]);
}

TEST_CASE("on the GPU every third element is gathered") {
  MOESIM_NEEDS_GPU();
  std::vector<std::uint16_t> values(3 * 1000);
  for (std::size_t at = 0; at < values.size(); ++at) values[at] = static_cast<std::uint16_t>(at);
  moesim::kernels::DeviceBuffer<std::uint16_t> from(values.size()), to(1000);
  MOESIM_CUDA(cudaMemcpy(from.data(), values.data(), 2 * values.size(), cudaMemcpyHostToDevice));
  measure::cuda::launch_gather(from.data() + 1, to.data(), to.size(), 3, nullptr);
  std::vector<std::uint16_t> got(to.size());
  MOESIM_CUDA(cudaMemcpy(got.data(), to.data(), 2 * got.size(), cudaMemcpyDeviceToHost));
  for (std::size_t at = 0; at < got.size(); ++at) REQUIRE(got[at] == 3 * at + 1);
}

TEST_CASE("on the GPU more work takes longer, and twice the calls twice as long") {
  MOESIM_NEEDS_GPU();
  const auto machine = measure::open_machine();
  measure::SoloGroup alone;
  const auto device = machine->open(0, alone);
  const auto small = measure_one(*device, "memory", {"kernel=streaming", "rows=16384"});
  const auto large = measure_one(*device, "memory", {"kernel=streaming", "rows=65536"});
  // What is written last stays in the L2 and is not waited for, as many bytes of both; so four
  // times the bytes take up to (4 S - L2) / (S - L2) times as long, and less where launching
  // counts.
  const double moved = 2.0 * 2 * 16384 * 4096;  // S: bf16, read and written
  const double unpaid = std::min(static_cast<double>(device->facts().l2_bytes), moved / 2);
  const double ratio = large.cold->summary.median / small.cold->summary.median;
  CHECK(ratio > 3);
  CHECK(ratio < 1.05 * (4 * moved - unpaid) / (moved - unpaid));
}

TEST_CASE("a point that does not fit the GPU's memory is said to, and the next one runs") {
  MOESIM_NEEDS_GPU();
  const auto machine = measure::open_machine();
  measure::SoloGroup alone;
  const auto device = machine->open(0, alone);
  measure::PointSpec huge = measure::find_suite("memory").points(1).front();
  huge.params["rows"] = std::int64_t{1} << 30;  // 8 TiB
  CHECK_THROWS_AS(device->prepare(huge, 1), measure::OutOfDeviceMemory);
  check_sound(measure_one(*device, "memory", {"kernel=streaming", "rows=4096"}),
              hot_of_unpaid_writes);
}
