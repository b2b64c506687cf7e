#include "sim/study/validation/exchanges/validate_exchanges.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <tuple>

#include "sim/base/error.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/statistics.hpp"
#include "sim/base/units.hpp"
#include "sim/profile/gpu_count_law.hpp"
#include "sim/profile/profile.hpp"
#include "sim/study/validation/exchanges/exchange_coverage.hpp"
#include "sim/study/validation/exchanges/exchange_errors.hpp"
#include "sim/study/validation/exchanges/exchange_tables.hpp"
#include "sim/study/validation/exchanges/validate_domain_curves.hpp"
#include "sim/study/validation/exchanges/validate_exchange_runs.hpp"
#include "sim/study/validation/exchanges/validate_moe_exchanges.hpp"
#include "sim/study/validation/exchanges/validate_more_gpus.hpp"
#include "sim/study/validation/exchanges/validate_node_crossings.hpp"
#include "sim/study/validation/exchanges/validate_rack_exchanges.hpp"

namespace moesim::study {
namespace {

using profile::Collective;
using profile::CountCurve;
using profile::NodeLinks;

constexpr const char* study_name = "exchanges";
// Below, latencies rule and a disturbance takes multiples: the least of the repeats is held
// against the prediction. From here on, every row.
constexpr double large = bytes_per_mib;

// Bars on the median error of all-to-all among 8 GPUs from 2 and 4, all NCCL versions that were
// measured among these and no others together.
const std::vector<int> bar_counts = {2, 4, 8};
struct Bar {
  const char* system;
  double from_large;
  double below;
};
constexpr Bar bars[] = {{"h100_sxm", 0.025, 0.12}, {"a100_sxm", 0.025, 0.04}};

using Counts = std::map<int, Samples>;  // by GPU count

struct Regions {
  Comparison below;
  Comparison from;
  std::vector<HeldOutRow> held_out;  // by the law
  void add(const Regions& other) {
    below.add(other.below);
    from.add(other.from);
    held_out.insert(held_out.end(), other.held_out.begin(), other.held_out.end());
  }
};

// Whatever the switch does with them.
double sent(Collective kind, int gpus) { return profile::sent_share(kind, gpus, false); }

bool same_device(const std::string& shipped, const std::string& name) {
  if (name.empty() || shipped.empty()) return false;
  const std::string& shorter = shipped.size() < name.size() ? shipped : name;
  const std::string& longer = shipped.size() < name.size() ? name : shipped;
  return longer.rfind(shorter, 0) == 0 &&
         (longer.size() == shorter.size() || longer[shorter.size()] == ' ');
}

// How the GPUs of each system of the table are joined: as the shipped profile of its device says.
std::map<std::string, NodeLinks> links_of_systems(const std::vector<CollectiveRow>& rows) {
  std::vector<profile::Profile> profiles;
  for (const std::string& name : shipped_names("hardware")) {
    profiles.push_back(profile::Profile::load(name));
  }
  std::map<std::string, NodeLinks> links;
  for (const CollectiveRow& row : rows) {
    if (links.count(row.system) != 0) continue;
    for (const profile::Profile& each : profiles) {
      if (!same_device(each.device().name, row.device)) continue;
      links.emplace(row.system, each.links());
      break;
    }
  }
  return links;
}

// The law and the baselines for the largest count of a group, from its other counts. False where
// they do not suffice.
bool compare(Collective kind, const NodeLinks& links, const Counts& counts,
             const std::string& version, Regions& regions) {
  const int gpus = counts.rbegin()->first;
  const Samples& target = counts.rbegin()->second;
  std::vector<CountCurve> fewer;
  Samples as_sent;
  for (const auto& [count, samples] : counts) {
    if (count == gpus) break;
    const auto curve = curve_through(samples, large);
    if (!curve) return false;
    fewer.push_back({count, *curve});
    for (const auto& [size, time] : samples) as_sent.emplace_back(size * sent(kind, count), time);
  }
  const auto reference = curve_through(target, 0);
  if (fewer.empty() || (kind != Collective::all_to_all && fewer.size() < 2) || !reference) {
    return false;
  }
  const profile::SizeCurve law = profile::among_more_gpus(kind, links, fewer, gpus);
  const CountCurve& many = fewer.back();
  const double ratio = sent(kind, gpus) / sent(kind, many.gpus);
  const auto line = alpha_beta(as_sent);
  const auto add = [&](Comparison& region, double size, double time) {
    const std::string where = fmt::format("{} ({})", size_text(size), version);
    region.law.add(time, law.time_us(size), where);
    region.equal_bytes.add(time, many.curve.time_us(size * ratio), where);
    region.alpha_beta.add(time, line(size * sent(kind, gpus)), where);
    region.nearest_row.add(time, many.curve.time_us(size), where);
    regions.held_out.push_back({size, time, law.time_us(size), law.over_chord(size), "law", ""});
  };
  std::map<double, std::vector<double>> repeats;
  for (const auto& [size, time] : target) {
    repeats[size].push_back(time);
    if (size >= large) add(regions.from, size, time);
  }
  for (const auto& [size, time] : least_of_each(target)) {
    if (size < large) add(regions.below, size, time);
  }
  for (const auto& [size, times] : repeats) {
    const double middle = median(times);
    Comparison& region = size < large ? regions.below : regions.from;
    for (const double time : times) region.scatter.push_back(std::abs(time / middle - 1));
  }
  return true;
}

std::vector<int> counts_of(const Counts& counts) {
  std::vector<int> list;
  for (const auto& [count, samples] : counts) list.push_back(count);
  return list;
}

std::string counts_text(std::vector<int> counts) {
  const int gpus = counts.back();
  counts.pop_back();
  return fmt::format("{} GPUs from {}", gpus, fmt::join(counts, " and "));
}

void report(const Regions& regions, const std::string& subject, Validation& validation) {
  if (!regions.from.law.empty()) {
    validation.rows.push_back(report_row(regions.from, subject + ", from 1 MiB"));
  }
  if (!regions.below.law.empty()) {
    validation.rows.push_back(report_row(regions.below, subject + ", below 1 MiB, least"));
  }
}

// A bar whose rows are absent is named too: silence would pass for a pass.
void judge(const Regions& regions, const Bar& bar, Validation& validation) {
  const auto verdict = [&](const Errors& errors, double limit, const char* region) {
    const std::string what =
        fmt::format("{}: all-to-all among {}, {}", bar.system, counts_text(bar_counts), region);
    if (errors.empty()) {
      validation.verdicts.push_back(
          {study_name,
           fmt::format("{}: not judged, its rows are absent; bar {:.1f} %", what, limit * 100),
           std::nullopt});
      return;
    }
    const double error = errors.median_abs();
    validation.verdicts.push_back(
        {study_name,
         fmt::format("{}: {:.2f} % in the median, bar {:.1f} %", what, error * 100, limit * 100),
         error <= limit});
  };
  verdict(regions.from.law, bar.from_large, "from 1 MiB, every row");
  verdict(regions.below.law, bar.below, "below 1 MiB, least over data types and repeats");
}

using Key = std::tuple<Collective, std::string>;    // operation, system
using Pools = std::map<std::vector<int>, Regions>;  // by GPU counts, all versions together

Pools compare_system(const Key& key, const std::map<std::string, Counts>& versions,
                     const NodeLinks& links, Validation& validation) {
  const auto& [kind, system] = key;
  const std::string what = fmt::format("{}: {}", system, name_of(kind));
  Pools pools;
  std::vector<std::pair<std::string, Regions>> single;
  std::string left_out;
  for (const auto& [version, counts] : versions) {
    const std::vector<int> among = counts_of(counts);
    Regions regions;
    if (!compare(kind, links, counts, version, regions)) {
      left_out += fmt::format("{}NCCL {} (among {})", left_out.empty() ? "" : ", ", version,
                              fmt::join(among, ", "));
      continue;
    }
    for (HeldOutRow& row : regions.held_out) row.target = system;
    pools[among].add(regions);
    single.emplace_back(fmt::format("{}, {}, NCCL {}", what, counts_text(among), version), regions);
  }
  for (const auto& [counts, regions] : pools) {
    report(regions, fmt::format("{}, {}", what, counts_text(counts)), validation);
  }
  for (const auto& [name, regions] : single) {
    if (single.size() > 1 && kind == Collective::all_to_all) report(regions, name, validation);
  }
  if (!left_out.empty()) {
    validation.verdicts.push_back(
        {study_name, fmt::format("{}: left out for too few GPU counts: {}", what, left_out),
         std::nullopt});
  }
  return pools;
}

// Bands of the law on one machine from its errors on the others behind NVLink switches.
void judge_law(const std::map<Key, Pools>& pools, const std::map<std::string, NodeLinks>& links,
               Validation& validation) {
  std::map<std::pair<Collective, std::vector<int>>, std::vector<HeldOutRow>> tables;
  for (const auto& [key, by_counts] : pools) {
    const auto& [kind, system] = key;
    if (links.at(system).kind != NodeLinks::Kind::nvlink_switch) continue;
    for (const auto& [counts, regions] : by_counts) {
      std::vector<HeldOutRow>& table = tables[{kind, counts}];
      table.insert(table.end(), regions.held_out.begin(), regions.held_out.end());
    }
  }
  for (const auto& [key, table] : tables) {
    report_bands(study_name,
                 fmt::format("{}: {} by the law, each machine left out", name_of(key.first),
                             counts_text(key.second)),
                 banded(table, table), true, validation);
  }
}

void compare_collectives(const std::string& folder, Validation& validation) {
  std::vector<CollectiveRow> rows = load_collectives(folder);
  const std::vector<CollectiveRow> others = load_vidur(folder);
  rows.insert(rows.end(), others.begin(), others.end());
  const std::map<std::string, NodeLinks> links = links_of_systems(rows);
  std::map<Key, std::map<std::string, Counts>> groups;
  for (const CollectiveRow& row : rows) {
    if (row.reduces_bytes || row.gpus < 2) continue;
    groups[{row.kind, row.system}][row.version][row.gpus].emplace_back(row.bytes, row.time_us);
  }
  std::map<Key, Pools> pools;
  for (const auto& [key, versions] : groups) {
    const std::string& system = std::get<1>(key);
    const auto found = links.find(system);
    if (found != links.end()) {
      pools[key] = compare_system(key, versions, found->second, validation);
    } else {
      validation.verdicts.push_back(
          {study_name,
           fmt::format("{}: {} left out: no profile has its device, and so says how its GPUs are "
                       "joined",
                       system, name_of(std::get<0>(key))),
           std::nullopt});
    }
  }
  judge_law(pools, links, validation);
  compare_exchange_runs(rows, links, validation);
  compare_more_gpus(rows, links, validation);
  compare_domain_curves(rows, links, validation);
  compare_rack_exchanges(folder, validation);
  for (const Bar& bar : bars) {
    judge(pools[{Collective::all_to_all, bar.system}][bar_counts], bar, validation);
  }
}

}  // namespace

Validation validate_exchanges(const std::string& folder) {
  Validation validation{
      "Exchanges among more GPUs than were measured",
      "nccl-tests, DeepEP and TensorRT-LLM tables of ai-dynamo/aiconfigurator (Apache-2.0), "
      "all-reduce of microsoft/vidur (MIT)",
      {},
      {}};
  compare_collectives(folder, validation);
  compare_node_crossings(folder, validation);
  compare_moe_exchanges(folder, validation);
  report_share_of_tables(study_name, validation);
  if (validation.rows.empty()) {
    throw Error(fmt::format("{}: no exchange that was measured among several GPU counts", folder));
  }
  return validation;
}

}  // namespace moesim::study
