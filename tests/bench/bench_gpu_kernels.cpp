// The kernels of this project on one GPU: medians with spread, against what each is held to and
// against what a peer takes (tests/bench/gpu_peers.py) on the same device.

#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "kernels/measure/benchmarks/run_benchmarks.hpp"
#include "kernels/measure/devices/machine.hpp"
#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "tests/support/utc.hpp"

namespace measure = moesim::kernels::measure;

namespace {

constexpr const char* usage =
    "usage: bench_gpu_kernels [--out FOLDER] [--peers FILE]\n"
    "  --out FOLDER   also write gpu_kernels.json and gpu_kernels.csv there\n"
    "  --peers FILE   peers.json of tests/bench/gpu_peers.py, from the same device\n"
    "Exit code: 0 all bars met, 2 a wrong option, 3 no GPU, 4 a result was wrong or could not be\n"
    "had, 5 a bar is not met.\n";

moesim::ExitCode run(int count, char** words) {
  std::string out, peers_path;
  for (int at = 1; at < count; ++at) {
    const std::string word = words[at];
    if (word == "--help") {
      std::fputs(usage, stdout);
      return moesim::ExitCode::ok;
    }
    if ((word != "--out" && word != "--peers") || at + 1 == count) {
      throw moesim::UsageError(fmt::format("unknown option '{}', or its value is missing", word));
    }
    (word == "--out" ? out : peers_path) = words[++at];
  }
  const measure::PeerRun peers =
      peers_path.empty() ? measure::PeerRun{} : measure::load_peers(peers_path);
  if (!out.empty()) moesim::check_writable(out + "/gpu_kernels.json");
  const auto machine = measure::open_machine();
  measure::SoloGroup alone;
  const auto device = machine->open(0, alone);
  constexpr std::uint64_t seed = 1;
  measure::BenchmarkReport report = measure::run_benchmarks(
      *device, measure::kernel_benchmarks(), peers, seed, {},
      [](const std::string& id) { std::fprintf(stderr, "%s\n", id.c_str()); });
  report.date = moesim::testing::utc_now();
  std::fputs(report.table().c_str(), stdout);
  if (!out.empty()) {
    moesim::write_file_atomically(out + "/gpu_kernels.json", report.json().dump(1) + "\n");
    moesim::write_file_atomically(out + "/gpu_kernels.csv", report.csv());
  }
  if (!report.all_right()) return moesim::ExitCode::verification_failed;
  return report.all_met() ? moesim::ExitCode::ok : moesim::ExitCode::quality_bar_not_met;
}

}  // namespace

int main(int count, char** words) {
  try {
    return static_cast<int>(run(count, words));
  } catch (const moesim::Error& error) {
    std::fprintf(stderr, "bench_gpu_kernels: %s\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_gpu_kernels: %s\n", error.what());
    return static_cast<int>(moesim::ExitCode::failure);
  }
}
