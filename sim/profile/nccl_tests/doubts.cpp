#include "sim/profile/nccl_tests/doubts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

namespace moesim::profile {
namespace {

// The share by which a time may fall from one size to a larger one before a row is in doubt. None
// of 403 public curves inside a node (tests/data/nccl_intranode.csv.gz) falls from 2 MiB on by even
// 5 %; from 256 KiB on 8 fall by 15 % or more, below 4 by half: NCCL changes its protocol there.
double usual_fall(double bytes) {
  constexpr double kib = 1024;
  return bytes >= 2048 * kib ? 0.1 : bytes >= 256 * kib ? 0.15 : 0.5;
}

std::string place_of(const NcclTestsRow& row) {
  const std::string line = row.line == 0 ? "" : fmt::format(" (line {})", row.line);
  return fmt::format("{:.0f} bytes{}", row.bytes, line);
}

}  // namespace

bool rate_agrees(double bytes, double time_us, double algorithm_gb_s) {
  constexpr double digits = 0.02;
  constexpr double last_decimal = 0.006;
  const double rate = bytes / (1e3 * time_us);
  const double from_time = rate * last_decimal / time_us;
  return std::abs(algorithm_gb_s - rate) <= digits * rate + last_decimal + from_time;
}

void doubt_rate(NcclTestsRun& run, const std::string& where, const NcclTestsRow& row,
                double algorithm_gb_s) {
  if (row.bytes <= 0 || row.time_us <= 0 || run.doubts.size() >= most_doubts) return;
  if (rate_agrees(row.bytes, row.time_us, algorithm_gb_s)) return;
  run.doubts.push_back(fmt::format(
      "{}: {:.0f} bytes in {:g} us are {:.2f} GB/s, but algbw says {:g}: one of these is wrong; "
      "the time is taken, look at the row",
      where, row.bytes, row.time_us, row.bytes / (1e3 * row.time_us), algorithm_gb_s));
}

void doubt_falls(NcclTestsRun& run) {
  struct Fall {
    const NcclTestsRow* smaller;
    const NcclTestsRow* larger;
    double lost_us() const { return smaller->time_us - larger->time_us; }
  };
  std::map<std::pair<std::string, std::string>, std::map<double, const NcclTestsRow*>> curves;
  for (const NcclTestsRow& row : run.rows)
    curves[{row.dtype, row.redop}].try_emplace(row.bytes, &row);
  std::vector<Fall> falls;
  for (const auto& [type, curve] : curves) {
    const NcclTestsRow* before = nullptr;
    for (const auto& [bytes, row] : curve) {
      const NcclTestsRow* const smaller = std::exchange(before, row);
      if (smaller == nullptr) continue;
      const double fall = 1 - row->time_us / smaller->time_us;
      if (fall >= usual_fall(smaller->bytes)) falls.push_back({smaller, row});
    }
  }
  std::stable_sort(falls.begin(), falls.end(),
                   [](const Fall& a, const Fall& b) { return a.lost_us() > b.lost_us(); });
  const std::size_t told = std::min(falls.size(), most_doubts);
  for (std::size_t fall = 0; fall < told; ++fall) {
    const auto& [smaller, larger] = falls[fall];
    run.doubts.push_back(fmt::format(
        "warning: {}: {} in {:.2f} us, but {} in {:.2f} us, {:.0f} % less: one of the two was "
        "disturbed, or NCCL changes its protocol there: look at the lines, run "
        "nccl-tests again with more iterations (-n)",
        run.file, place_of(*smaller), smaller->time_us, place_of(*larger), larger->time_us,
        100 * falls[fall].lost_us() / smaller->time_us));
  }
  if (falls.size() > told) {
    run.doubts.back() += fmt::format("; and {} more that lose less time", falls.size() - told);
  }
}

std::string grouping_of(const std::string& group, const std::string& graph) {
  if (group != "1") return fmt::format("{} operations in one group (-m)", group);
  return graph == "0" ? "" : fmt::format("{} operations in one CUDA graph (-G)", graph);
}

std::string grouping_doubt(const std::string& where, const std::string& grouping) {
  return fmt::format(
      "warning: {}: {}: times of small sizes are shorter than those of exchanges one by one, which "
      "layers wait for",
      where, grouping);
}

}  // namespace moesim::profile
