#include "sim/study/validation/exchanges/validate_domain_curves.hpp"

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <set>
#include <utility>

#include "sim/base/no_answer.hpp"
#include "sim/base/statistics.hpp"
#include "sim/base/units.hpp"
#include "sim/network/ports/domain_curves.hpp"
#include "sim/profile/profile.hpp"
#include "sim/study/validation/exchanges/exchange_errors.hpp"
#include "sim/study/validation/tables/band_points.hpp"

namespace moesim::study {
namespace {

using network::DomainCurves;
using profile::Collective;
using profile::Estimate;
using profile::Profile;

constexpr const char* study_name = "exchanges";
constexpr double large = bytes_per_mib;

// A machine of the tables, and the profile that its GPUs have.
struct Machine {
  const char* system;
  const char* profile;
  std::set<int> counts;  // that it was measured among
};
const std::vector<Machine> machines = {{"a100_sxm", "a100-sxm-80gb", {2, 4, 8}},
                                       {"h100_sxm", "h100-sxm", {2, 4, 8}},
                                       {"h200_sxm", "h200-sxm", {2, 4}},
                                       {"b200_sxm", "b200-sxm", {2, 4}},
                                       {"gb200", "gb200", {2, 4}}};

using Sizes = std::map<double, std::vector<double>>;  // times by size
struct Run {
  std::string recorded;  // NCCL
  std::map<int, Sizes> counts;
};
using Runs = std::map<std::string, Run>;  // by version, as the source's folder names it

std::map<std::string, Runs> runs_of(const std::vector<CollectiveRow>& rows, Collective kind) {
  std::map<std::string, Runs> systems;
  for (const CollectiveRow& row : rows) {
    if (row.kind != kind || row.reduces_bytes || row.gpus < 2 || row.version == "vidur") continue;
    Run& run = systems[row.system][row.version];
    run.recorded = row.recorded;
    run.counts[row.gpus][row.bytes].push_back(row.time_us);
  }
  return systems;
}

cluster::MeasuredOperation operation_of(Collective kind) {
  for (const auto& each :
       {std::pair(Collective::all_to_all, cluster::MeasuredOperation::all_to_all),
        std::pair(Collective::all_reduce, cluster::MeasuredOperation::all_reduce),
        std::pair(Collective::all_gather, cluster::MeasuredOperation::all_gather)}) {
    if (each.first == kind) return each.second;
  }
  return cluster::MeasuredOperation::reduce_scatter;
}

// A curve of the sizes that are kept, as a cluster document has it after `moesim import`.
cluster::MeasuredExchange curve_of(Collective kind, int gpus, const Sizes& sizes,
                                   const std::function<bool(double bytes)>& is_kept) {
  cluster::MeasuredExchange curve;
  curve.operation = operation_of(kind);
  curve.gpus = gpus;
  for (const auto& [bytes, times] : sizes) {
    if (!is_kept(bytes)) continue;
    curve.bytes.push_back(bytes);
    curve.time_us.push_back(median(times));
    curve.p05_us.push_back(quantile(times, 0.05));
    curve.p95_us.push_back(quantile(times, 0.95));
  }
  return curve;
}

struct Region {
  Comparison errors;
  Errors alone;  // of the profile without the cluster's curve
  std::vector<BandPoint> points;
};

struct Table {
  Region above;  // 1 MiB
  Region below;  // up to and with it
};
using Tables = std::map<std::string, Table>;  // by question

class Asker {
 public:
  Asker(Collective kind, const Profile& known, double line_rate) : kind_(kind), known_(known) {
    cluster_.name = "of the run";
    cluster_.gpus_per_domain = cluster_.gpus_per_node;
    cluster_.domain.port = Bandwidth(line_rate);
    plain_ = cluster_;
  }

  void keep(cluster::MeasuredExchange curve) { cluster_.exchanges = {std::move(curve)}; }
  // What starts take on the machine is known: GPUs with other links have other kernels.
  void take_start_of(int gpus, const Sizes& sizes) {
    const auto& [smallest, times] = *sizes.begin();
    later_us_ = median(times) - known_.collective(kind_, gpus, smallest).time_us;
  }

  void ask(const std::string& run, int gpus, const Sizes& sizes,
           const std::function<bool(double bytes)>& is_asked, Table& table) const {
    const DomainCurves curves(known_, cluster_);
    const DomainCurves plain(known_, plain_);
    for (const auto& [bytes, times] : sizes) {
      if (!is_asked(bytes)) continue;
      Estimate estimate = curves.collective(kind_, gpus, bytes);
      for (double* us : {&estimate.time_us, &estimate.time_us_p05, &estimate.time_us_p95}) {
        *us += later_us_;
      }
      const double alone_us = plain.collective(kind_, gpus, bytes).time_us;
      Region& region = bytes > large ? table.above : table.below;
      const std::string where = fmt::format("{} ({})", size_text(bytes), run);
      for (const double time : times) {
        region.errors.law.add(time, estimate.time_us, where);
        region.errors.scatter.push_back(std::abs(time / median(times) - 1));
        region.alone.add(time, alone_us, where);
        region.points.push_back({run.substr(0, run.find('/')),  // the machine
                                 std::log(time / estimate.time_us),
                                 {std::log(estimate.time_us_p05 / estimate.time_us),
                                  std::log(estimate.time_us_p95 / estimate.time_us)}});
      }
    }
  }

 private:
  Collective kind_;
  const Profile& known_;
  double later_us_ = 0;
  cluster::Cluster plain_;
  cluster::Cluster cluster_;
};

bool all_sizes(double) { return true; }

// Every fourth size, and what lies between.
void ask_between(Collective kind, const std::string& name, const Run& run, Asker& asker,
                 Tables& tables) {
  for (const auto& [gpus, sizes] : run.counts) {
    if (gpus > 4 || sizes.size() < 5) continue;
    std::set<double> kept;
    std::size_t number = 0;
    for (const auto& [bytes, times] : sizes) {
      if (number++ % 4 == 0) kept.insert(bytes);
    }
    asker.keep(curve_of(kind, gpus, sizes, [&](double bytes) { return kept.count(bytes) != 0; }));
    asker.ask(
        name, gpus, sizes,
        [&](double bytes) { return kept.count(bytes) == 0 && bytes < *kept.rbegin(); },
        tables["sizes between"]);
  }
}

void ask_outside(Collective kind, const std::string& name, const Run& run, Asker& asker,
                 Tables& tables) {
  for (const auto& [gpus, sizes] : run.counts) {
    if (gpus > 4) continue;
    const auto is_large = [](double bytes) { return bytes >= 8 * bytes_per_mib; };
    const auto is_small = [](double bytes) { return bytes <= 2 * bytes_per_mib; };
    asker.keep(curve_of(kind, gpus, sizes, is_large));
    asker.ask(
        name, gpus, sizes, [&](double bytes) { return !is_large(bytes); }, tables["sizes below"]);
    asker.keep(curve_of(kind, gpus, sizes, is_small));
    asker.ask(
        name, gpus, sizes, [&](double bytes) { return !is_small(bytes); }, tables["sizes above"]);
  }
}

// What else one machine tells of the same links.
void ask_others(Collective kind, const std::string& system, const Runs& runs,
                const std::string& version, Asker& asker, Tables& tables) {
  const Run& run = runs.at(version);
  for (const auto& [gpus, sizes] : run.counts) {
    if (gpus > 4) continue;
    asker.keep(curve_of(kind, gpus, sizes, all_sizes));
    for (const auto& [others, asked] : run.counts) {
      if (others == gpus || others > 4) continue;
      asker.ask(fmt::format("{}/{}", system, version), others, asked, all_sizes,
                tables["other GPU counts"]);
    }
    for (const auto& [other, other_run] : runs) {
      const auto asked = other_run.counts.find(gpus);
      if (other == version || other_run.recorded != run.recorded || run.recorded.empty() ||
          asked == other_run.counts.end()) {
        continue;
      }
      asker.ask(fmt::format("{}/{}", system, other), gpus, asked->second, all_sizes,
                tables["another run"]);
    }
  }
}

void report(Collective kind, const std::string& question, const Table& table,
            Validation& validation) {
  const std::string subject = fmt::format("{} on a cluster: {}", name_of(kind), question);
  std::vector<BandPoint> points;
  for (const auto& [region, name] :
       {std::pair(&table.above, "above 1 MiB"), std::pair(&table.below, "up to 1 MiB")}) {
    if (region->points.empty()) continue;
    ValidationRow row = report_row(region->errors, fmt::format("{}, {}", subject, name));
    row.note += fmt::format("; the profile alone {:.1f} %; {}", region->alone.median_abs() * 100,
                            coverage_text(region->points));
    validation.rows.push_back(row);
    points.insert(points.end(), region->points.begin(), region->points.end());
  }
  report_bands(study_name, subject, points, true, validation);
}

}  // namespace

void compare_domain_curves(const std::vector<CollectiveRow>& rows,
                           const std::map<std::string, profile::NodeLinks>& links,
                           Validation& validation) {
  std::map<std::string, Profile> profiles;
  for (const Machine& machine : machines) {
    profiles.emplace(machine.system, Profile::load(machine.profile));
  }
  const auto line_rate = [&](const char* system) {
    return profiles.at(system).device().nvlink_bandwidth.bytes_per_second;
  };
  for (const auto& known_kind : profile::collective_names) {
    const Collective kind = known_kind.value;
    const auto systems = runs_of(rows, kind);
    Tables tables;
    for (const Machine& machine : machines) {
      const auto own = systems.find(machine.system);
      if (own == systems.end() || links.count(machine.system) == 0) continue;
      for (const Machine& other : machines) {
        if (&other == &machine) continue;
        const bool same_links = line_rate(other.system) == line_rate(machine.system);
        for (const auto& [version, run] : own->second) {
          const std::string name = fmt::format("{}/{}", machine.system, version);
          Asker asker(kind, profiles.at(other.system), line_rate(machine.system));
          if (!same_links) {
            for (const auto& [gpus, sizes] : run.counts) {
              if (other.counts.count(gpus) == 0) continue;
              asker.take_start_of(gpus, sizes);
              asker.ask(name, gpus, sizes, all_sizes, tables["other NVLink"]);
            }
            continue;
          }
          ask_between(kind, name, run, asker, tables);
          ask_outside(kind, name, run, asker, tables);
          ask_others(kind, machine.system, own->second, version, asker, tables);
        }
      }
    }
    for (const auto& [question, table] : tables) report(kind, question, table, validation);
  }
}

}  // namespace moesim::study
