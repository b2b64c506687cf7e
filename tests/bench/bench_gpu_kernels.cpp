// The kernels of this project on one GPU: medians with spread, against what each is held to and
// against what a peer takes (tests/bench/gpu_peers.py) on the same device.

#include <fmt/format.h>

#include <cstdio>
#include <optional>
#include <string>

#include "kernels/measure/benchmarks/run_benchmarks.hpp"
#include "kernels/measure/devices/machine.hpp"
#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/text.hpp"
#include "tests/support/utc.hpp"

namespace measure = moesim::kernels::measure;

namespace {

constexpr const char* usage =
    "usage: bench_gpu_kernels [--out FOLDER] [--peers FILE] [--timeout S]\n"
    "  --out FOLDER   also write gpu_kernels.json and gpu_kernels.csv there, whole after each row\n"
    "  --peers FILE   peers.json of tests/bench/gpu_peers.py, from the same device\n"
    "  --timeout S    begin no benchmark after so many seconds (default: 0, no limit)\n"
    "Exit code: 0 all bars met, 2 a wrong option, 3 no GPU, 4 a result was wrong or could not be\n"
    "had, 5 a bar is not met, 124 all was right and met that there was time for.\n";

double seconds(const std::string& text) {
  const std::optional<double> value = moesim::parse_number<double>(text);
  if (!value || !(*value >= 0)) {
    throw moesim::UsageError(fmt::format("--timeout '{}': expected seconds, 0 or more", text));
  }
  return *value;
}

void write(const measure::BenchmarkReport& report, const std::string& out) {
  if (out.empty()) return;
  moesim::write_file_atomically(out + "/gpu_kernels.json", report.json().dump(1) + "\n");
  moesim::write_file_atomically(out + "/gpu_kernels.csv", report.csv());
}

moesim::ExitCode run(int count, char** words) {
  std::string out, peers_path, timeout = "0";
  for (int at = 1; at < count; ++at) {
    const std::string word = words[at];
    if (word == "--help") {
      std::fputs(usage, stdout);
      return moesim::ExitCode::ok;
    }
    if ((word != "--out" && word != "--peers" && word != "--timeout") || at + 1 == count) {
      throw moesim::UsageError(fmt::format("unknown option '{}', or its value is missing", word));
    }
    (word == "--out" ? out : word == "--peers" ? peers_path : timeout) = words[++at];
  }
  measure::BenchmarkOptions options;
  options.timeout_s = seconds(timeout);
  options.date = moesim::testing::utc_now();
  options.on_benchmark = [](const std::string& id) { std::fprintf(stderr, "%s\n", id.c_str()); };
  options.on_row = [&out](const measure::BenchmarkReport& report) { write(report, out); };
  const measure::PeerRun peers =
      peers_path.empty() ? measure::PeerRun{} : measure::load_peers(peers_path);
  if (!out.empty()) moesim::check_writable(out + "/gpu_kernels.json");
  const auto machine = measure::open_machine();
  measure::SoloGroup alone;
  const auto device = machine->open(0, alone);
  constexpr std::uint64_t seed = 1;
  const measure::BenchmarkReport report =
      measure::run_benchmarks(*device, measure::kernel_benchmarks(), peers, seed, options);
  std::fputs(report.table().c_str(), stdout);
  if (!report.all_right()) return moesim::ExitCode::verification_failed;
  if (!report.all_met()) return moesim::ExitCode::quality_bar_not_met;
  return report.any_late() ? moesim::ExitCode::timeout : moesim::ExitCode::ok;
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
