#include "sim/study/validation/exchanges/validate_rack_exchanges.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "sim/base/formats/csv.hpp"
#include "sim/base/formats/gzip.hpp"
#include "sim/base/units.hpp"
#include "sim/profile/profile.hpp"
#include "sim/study/validation/exchanges/cut_curve.hpp"
#include "sim/study/validation/exchanges/exchange_errors.hpp"
#include "sim/study/validation/tables/band_points.hpp"

namespace moesim::study {
namespace {

using profile::Collective;
using profile::Profile;

constexpr double largest_measured = 512 * bytes_per_mib;
constexpr double faster_from_per_peer = 64 * bytes_per_mib;
constexpr double bar = 0.10;

struct RackRow {
  int run = 0;  // the same GPU counts, measured twice
  int gpus = 0;
  double bytes = 0;
  double time_us = 0;
};

std::vector<RackRow> load(const std::string& path) {
  const CsvTable table = CsvTable::parse(read_plain_or_packed(path), path);
  std::vector<RackRow> rows;
  for (std::size_t at = 0; at < table.rows.size(); ++at) {
    if (table.text(at, "system").rfind("GB300", 0) != 0 ||
        table.text(at, "internode") != "NVLink domain") {
      continue;
    }
    RackRow row;
    row.gpus = static_cast<int>(table.positive(at, "gpus"));
    row.bytes = table.positive(at, "size_bytes");
    const double sent = row.bytes * (row.gpus - 1) / row.gpus;
    row.time_us = sent / (table.positive(at, "value") * 1e3);
    // One run after the other, GPU counts ascending in each.
    if (!rows.empty()) row.run = rows.back().run + (row.gpus < rows.back().gpus ? 1 : 0);
    rows.push_back(row);
  }
  return rows;
}

// GB200's curve, straight on from the last measured octave, `factor` times faster from 64 MiB per
// peer on.
double predicted_us(const Profile& gb200, int gpus, double bytes, double factor) {
  const auto measured = [&](double size) {
    return gb200.collective(Collective::all_to_all, gpus, size).time_us;
  };
  const double last = measured(largest_measured);
  const double slope = (last - measured(largest_measured / 2)) / (largest_measured / 2);
  const double start = std::max(largest_measured, faster_from_per_peer * gpus);
  return last + slope * (std::min(bytes, start) - largest_measured +
                         std::max(bytes - start, 0.0) / factor);
}

double choose_factor(const Profile& gb200, const std::vector<RackRow>& rows) {
  double best = 1;
  double least = INFINITY;
  for (int step = 0; step <= 100; ++step) {
    const double factor = 1 + 0.005 * step;
    double cost = 0;
    for (const RackRow& row : rows) {
      const double error = std::log(row.time_us / predicted_us(gb200, row.gpus, row.bytes, factor));
      cost += error * error;
    }
    if (cost >= least) continue;
    least = cost;
    best = factor;
  }
  return best;
}

// Adds each row by the factor that the rows of other values of `key` choose.
void leave_out(const Profile& gb200, const std::vector<RackRow>& rows, const char* what,
               const std::function<int(const RackRow&)>& key, Validation& validation) {
  std::set<int> values;
  for (const RackRow& row : rows) values.insert(key(row));
  if (values.size() < 2) return;
  Comparison errors;
  for (const int value : values) {
    std::vector<RackRow> others;
    std::copy_if(rows.begin(), rows.end(), std::back_inserter(others),
                 [&](const RackRow& row) { return key(row) != value; });
    const double factor = choose_factor(gb200, others);
    for (const RackRow& row : rows) {
      if (key(row) != value) continue;
      const std::string where = fmt::format("{} among {} GPUs", size_text(row.bytes), row.gpus);
      errors.law.add(row.time_us, predicted_us(gb200, row.gpus, row.bytes, factor), where);
      const double as_four = row.bytes * (1 - 1.0 / row.gpus) / 0.75;
      errors.equal_bytes.add(row.time_us, predicted_us(gb200, 4, as_four, 1), where);
      errors.nearest_row.add(row.time_us, predicted_us(gb200, 4, row.bytes, 1), where);
    }
  }
  const std::string subject = fmt::format("GB300 in one rack: all-to-all, {} left out", what);
  validation.rows.push_back(report_row(errors, subject));
  const double error = errors.law.median_abs();
  validation.verdicts.push_back(
      {"exchanges",
       fmt::format("{}: {:.1f} % in the median, bar {:.0f} %", subject, error * 100, bar * 100),
       error <= bar});
}

// The runs cut to their smaller GPU counts and asked for the larger ones, as `predict` answers from
// a profile that has measured no more.
void ask_for_more_gpus(const profile::NodeLinks& links, const std::vector<RackRow>& rows,
                       Validation& validation) {
  std::map<int, Counts> runs;
  for (const RackRow& row : rows) runs[row.run][row.gpus].emplace_back(row.bytes, row.time_us);
  std::map<std::string, Comparison> comparisons;
  std::vector<BandPoint> points;
  for (const auto& [run, counts] : runs) {
    std::vector<int> kept;
    for (const auto& [most, samples] : counts) {
      kept.push_back(most);
      if (most == counts.rbegin()->first) break;
      const int up_to = counts.rbegin()->first;
      const auto curve = curve_cut_to(Collective::all_to_all, links, counts, kept, up_to, {});
      const auto known = curve_through(samples, 0);
      if (!curve || !known) continue;
      for (const RackRow& row : rows) {
        if (row.run != run || row.gpus <= most) continue;
        const profile::Estimate estimate = curve->estimate(row.gpus, row.bytes, true);
        Comparison& errors =
            comparisons[fmt::format("{} GPUs from {}", row.gpus, fmt::join(kept, " and "))];
        const std::string where = fmt::format("{} in run {}", size_text(row.bytes), run + 1);
        errors.law.add(row.time_us, estimate.time_us, where);
        const double ratio = (1 - 1.0 / row.gpus) / (1 - 1.0 / most);
        errors.equal_bytes.add(row.time_us, known->time_us(row.bytes * ratio), where);
        errors.nearest_row.add(row.time_us, known->time_us(row.bytes), where);
        points.push_back({fmt::format("run {}", run + 1),
                          std::log(row.time_us / estimate.time_us),
                          {std::log(estimate.time_us_p05 / estimate.time_us),
                           std::log(estimate.time_us_p95 / estimate.time_us)}});
      }
    }
  }
  for (const auto& [what, errors] : comparisons) {
    validation.rows.push_back(
        report_row(errors, fmt::format("GB300 in one rack: all-to-all by predict, {}", what)));
  }
  report_bands("exchanges", "GB300 in one rack: all-to-all by predict", points, true, validation);
}

}  // namespace

void compare_rack_exchanges(const std::string& folder, Validation& validation) {
  const std::string path = folder + "/internode_alltoall.csv";
  if (!std::filesystem::exists(path) && !std::filesystem::exists(path + ".gz")) return;
  const std::vector<RackRow> rows = load(path);
  if (rows.empty()) return;
  const Profile gb200 = Profile::load("gb200");
  leave_out(
      gb200, rows, "run", [](const RackRow& row) { return row.run; }, validation);
  leave_out(
      gb200, rows, "GPU count", [](const RackRow& row) { return row.gpus; }, validation);
  const Profile gb300 = Profile::load("gb300");
  ask_for_more_gpus(gb300.links(), rows, validation);
  const auto inside = std::count_if(rows.begin(), rows.end(), [&](const RackRow& row) {
    const auto estimate = gb300.collective(Collective::all_to_all, row.gpus, row.bytes);
    return row.time_us >= estimate.time_us_p05 && row.time_us <= estimate.time_us_p95;
  });
  validation.verdicts.push_back(
      {"exchanges",
       fmt::format("GB300 in one rack: {} of {} points in the 90 % band of profile gb300, which "
                   "knows them",
                   inside, rows.size()),
       std::nullopt});
}

}  // namespace moesim::study
