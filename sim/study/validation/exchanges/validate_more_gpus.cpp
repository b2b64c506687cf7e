#include "sim/study/validation/exchanges/validate_more_gpus.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <functional>
#include <iterator>
#include <optional>
#include <tuple>
#include <utility>

#include "sim/base/statistics.hpp"
#include "sim/base/units.hpp"
#include "sim/profile/gpu_count_law.hpp"
#include "sim/study/validation/exchanges/cut_curve.hpp"
#include "sim/study/validation/exchanges/exchange_coverage.hpp"
#include "sim/study/validation/exchanges/exchange_errors.hpp"
#include "sim/study/validation/tables/band_points.hpp"

namespace moesim::study {
namespace {

using profile::Collective;
using profile::CollectiveCurve;
using profile::Estimate;
using profile::NodeLinks;
using profile::SizeCurve;

constexpr const char* study_name = "exchanges";
constexpr double large = bytes_per_mib;

using Versions = std::map<std::string, Counts>;    // the runs of a machine, by NCCL version
using Machines = std::map<std::string, Versions>;  // by system
using Operations = std::map<Collective, Machines>;
using Links = std::map<std::string, NodeLinks>;

// Which counts are kept, and which one is asked for.
struct Step {
  std::vector<int> kept;
  int gpus = 0;

  bool is_doubling() const { return gpus == 2 * kept.back(); }
  bool operator<(const Step& other) const {
    return std::tie(gpus, kept) < std::tie(other.gpus, other.kept);
  }
  std::string text() const {
    return fmt::format("{} GPUs from {}", gpus, fmt::join(kept, " and "));
  }
};

// All ways to keep the smaller counts of a run and ask for a larger one, for which rings take two;
// and each count between its neighbours.
std::vector<Step> steps_of(Collective kind, const Counts& counts) {
  const std::size_t least = kind == Collective::all_to_all ? 1 : 2;
  std::vector<Step> steps;
  std::vector<int> kept;
  for (const auto& [last, samples] : counts) {
    kept.push_back(last);
    if (kept.size() < least) continue;
    for (auto more = counts.upper_bound(last); more != counts.end(); ++more) {
      steps.push_back({kept, more->first});
    }
  }
  for (auto middle = counts.begin(); middle != counts.end(); ++middle) {
    const auto next = std::next(middle);
    if (middle == counts.begin() || next == counts.end()) continue;
    steps.push_back({{std::prev(middle)->first, next->first}, middle->first});
  }
  return steps;
}

// Nothing where `predict` refuses: over PCIe, by how fast groups of GPUs reach each other.
std::optional<CollectiveCurve> curve_of(Collective kind, const NodeLinks& links,
                                        const Counts& counts, const Step& step,
                                        const CutErrors& errors) {
  const auto plain = curve_cut_to(kind, links, counts, step.kept, step.gpus, {});
  if (!plain || plain->gpu_counts().back() < step.gpus) return std::nullopt;
  return curve_cut_to(kind, links, counts, step.kept, step.gpus, errors);
}

// Operations that err alike: the law of all-to-all is one; a ring that gathers or scatters is the
// same both ways; an all-reduce may be carried out as rings, as trees or by the switch.
enum class Family { grouped, gathering, reducing };

Family family_of(Collective kind) {
  if (kind == Collective::all_to_all) return Family::grouped;
  return kind == Collective::all_reduce ? Family::reducing : Family::gathering;
}

// The law's errors, and how far the runs of a machine lie apart; each machine is one run.
struct Found {
  std::map<Family, std::vector<HeldOutRow>> law;
  std::map<Family, std::vector<HeldOutRow>> runs;
};

bool over_pcie(const NodeLinks& links) { return links.kind == NodeLinks::Kind::pcie; }

// Without `system`: of the machines behind NVLink switches. Over PCIe all-to-all has a law of its
// own, and rings have that of all machines.
std::vector<SizeReach> reach_without(const std::map<Family, std::vector<HeldOutRow>>& every,
                                     Family family, const Links& links, bool pcie,
                                     const std::string& system) {
  std::vector<HeldOutRow> alike;
  const auto rows = every.find(family);
  if (rows == every.end()) return {};
  for (const HeldOutRow& row : rows->second) {
    const bool like = over_pcie(links.at(row.target)) == pcie;
    if (like || (pcie && family != Family::grouped)) alike.push_back(row);
  }
  return reach_by_size(alike, system);
}

void add_law_errors(Collective kind, const std::string& system, const NodeLinks& links,
                    const Counts& counts, Found& found) {
  for (const Step& step : steps_of(kind, counts)) {
    if (!step.is_doubling()) continue;
    const auto curve = curve_of(kind, links, counts, step, {});
    if (!curve) continue;
    for (const auto& [size, time] : counts.at(step.gpus)) {
      const double predicted = curve->estimate(step.gpus, size, true).time_us;
      found.law[family_of(kind)].push_back({size, time, predicted, 1, system, system});
    }
  }
}

// One run by another of the machine, among as many GPUs.
void add_run_errors(Collective kind, const std::string& system, const Counts& counts,
                    const Counts& others, Found& found) {
  for (const auto& [gpus, samples] : counts) {
    const auto curve = curve_through(samples, 0);
    const auto target = others.find(gpus);
    if (!curve || target == others.end()) continue;
    for (const auto& [size, time] : target->second) {
      found.runs[family_of(kind)].push_back(
          {size, time, curve->time_us(size), curve->over_chord(size), system, system});
    }
  }
}

Found errors_of(const Operations& operations, const Links& links) {
  Found found;
  for (const auto& [kind, machines] : operations) {
    for (const auto& [system, versions] : machines) {
      for (const auto& [version, counts] : versions) {
        add_law_errors(kind, system, links.at(system), counts, found);
        for (const auto& [other, other_counts] : versions) {
          if (other != version) add_run_errors(kind, system, counts, other_counts, found);
        }
      }
    }
  }
  return found;
}

struct Region {
  Comparison errors;
  std::vector<BandPoint> points;
};

struct Sizes {
  Region above;  // 1 MiB
  Region below;  // up to and with it
};

// What anyone could have said.
struct Baselines {
  SizeCurve most;  // the largest count that was kept
  double equal_bytes = 1;
  double sent = 1;
  std::function<double(double)> line;

  Baselines(Collective kind, const Counts& counts, const Step& step)
      : most(*curve_through(counts.at(step.kept.back()), 0)),
        sent(profile::sent_share(kind, step.gpus, false)) {
    equal_bytes = sent / profile::sent_share(kind, step.kept.back(), false);
    Samples as_sent;
    for (const int count : step.kept) {
      for (const auto& [size, time] : counts.at(count)) {
        as_sent.emplace_back(size * profile::sent_share(kind, count, false), time);
      }
    }
    line = alpha_beta(as_sent);
  }
};

struct Asked {
  std::string system;
  std::string run;
  bool same_version = true;
};

void add(const Asked& asked, const CollectiveCurve& curve, const Baselines& baselines,
         const Step& step, const Samples& target, Sizes& sizes) {
  std::map<double, std::vector<double>> repeats;
  for (const auto& [size, time] : target) {
    Region& region = size > large ? sizes.above : sizes.below;
    const Estimate estimate = curve.estimate(step.gpus, size, asked.same_version);
    const std::string where = fmt::format("{} ({})", size_text(size), asked.run);
    region.errors.law.add(time, estimate.time_us, where);
    region.errors.equal_bytes.add(time, baselines.most.time_us(size * baselines.equal_bytes),
                                  where);
    region.errors.nearest_row.add(time, baselines.most.time_us(size), where);
    region.errors.alpha_beta.add(time, baselines.line(size * baselines.sent), where);
    region.points.push_back({asked.system,
                             std::log(time / estimate.time_us),
                             {std::log(estimate.time_us_p05 / estimate.time_us),
                              std::log(estimate.time_us_p95 / estimate.time_us)}});
    repeats[size].push_back(time);
  }
  for (const auto& [size, times] : repeats) {
    Region& region = size > large ? sizes.above : sizes.below;
    for (const double time : times) {
      region.errors.scatter.push_back(std::abs(time / median(times) - 1));
    }
  }
}

struct Question {
  bool pcie = false;
  bool other_version = false;
  int times = 0;  // so many times the GPUs that were measured; 0: between two counts

  bool operator<(const Question& other) const {
    return std::tie(pcie, other_version, times) <
           std::tie(other.pcie, other.other_version, other.times);
  }
  // "all-to-all by predict, over PCIe".
  std::string text(Collective kind) const {
    return fmt::format("{} by predict{}{}", name_of(kind), pcie ? ", over PCIe" : "",
                       other_version ? ", another NCCL" : "");
  }
};

using Tables = std::map<Question, std::map<Step, Sizes>>;

void report(Collective kind, const Question& question, const std::map<Step, Sizes>& steps,
            Validation& validation) {
  std::vector<BandPoint> points;
  for (const auto& [step, sizes] : steps) {
    for (const auto& [region, name] :
         {std::pair(&sizes.above, "above 1 MiB"), std::pair(&sizes.below, "up to 1 MiB")}) {
      if (region->points.empty()) continue;
      ValidationRow row = report_row(
          region->errors, fmt::format("{}: {}, {}", question.text(kind), step.text(), name));
      row.note += "; " + coverage_text(region->points);
      validation.rows.push_back(row);
      points.insert(points.end(), region->points.begin(), region->points.end());
    }
  }
  if (question.times == 0) return;
  report_bands(study_name,
               fmt::format("{}: {} times the GPUs", question.text(kind), question.times), points,
               true, validation);
}

// A run cut to each of its smaller counts: of its own larger ones, and with the scatter between
// runs of those of the machine's other runs.
void ask(Collective kind, const std::string& system, const Versions& versions,
         const std::string& version, const Links& links, const Found& found, Tables& tables) {
  const Counts& counts = versions.at(version);
  const bool pcie = over_pcie(links.at(system));
  const Family family = family_of(kind);
  const CutErrors own{reach_without(found.law, family, links, pcie, system), {}};
  const CutErrors any{own.law, reach_without(found.runs, family, links, pcie, system)};
  for (const Step& step : steps_of(kind, counts)) {
    const auto curve = curve_of(kind, links.at(system), counts, step, own);
    if (!curve) continue;
    const int times = step.gpus / step.kept.back();
    const Baselines baselines(kind, counts, step);
    add({system, fmt::format("{}/{}", system, version)}, *curve, baselines, step,
        counts.at(step.gpus), tables[{pcie, false, times}][step]);
    if (!step.is_doubling() || any.scatter.empty()) continue;
    const auto published = curve_of(kind, links.at(system), counts, step, any);
    for (const auto& [other, other_counts] : versions) {
      const auto target = other_counts.find(step.gpus);
      if (other == version || target == other_counts.end()) continue;
      add({system, fmt::format("{}/{}", system, other), false}, *published, baselines, step,
          target->second, tables[{pcie, true, times}][step]);
    }
  }
}

std::string text(const std::vector<SizeReach>& reaches) {
  std::vector<std::string> each;
  for (const SizeReach& part : reaches) each.push_back(fmt::format("{:.2f}", part.reach));
  return fmt::format("{}", fmt::join(each, ", "));
}

// What the bands reach with all machines in sight, beside what the law has.
void compare_with_shipped(const Found& found, const Links& links, Validation& validation) {
  constexpr std::array kinds = {Collective::all_to_all, Collective::all_gather,
                                Collective::all_reduce};
  for (const Collective kind : kinds) {
    for (const bool pcie : {false, true}) {
      const auto every = reach_without(found.law, family_of(kind), links, pcie, "");
      if (every.empty()) continue;
      std::vector<SizeReach> shipped;
      const profile::Residual law = profile::errors_of_law(
          kind, pcie ? NodeLinks::Kind::pcie : NodeLinks::Kind::nvlink_switch);
      for (const auto& region : law.regions()) {
        shipped.push_back({region.below, std::log1p(region.q95)});
      }
      validation.verdicts.push_back(
          {study_name,
           fmt::format("{} among twice the GPUs {}: 90 % bands from all machines reach {} in logs, "
                       "by size; as shipped {}",
                       name_of(kind), pcie ? "over PCIe" : "behind NVLink switches", text(every),
                       text(shipped)),
           std::nullopt});
    }
  }
}

}  // namespace

void compare_more_gpus(const std::vector<CollectiveRow>& rows, const Links& links,
                       Validation& validation) {
  Operations operations;
  for (const CollectiveRow& row : rows) {
    if (row.reduces_bytes || row.gpus < 2 || links.count(row.system) == 0) continue;
    operations[row.kind][row.system][row.version][row.gpus].emplace_back(row.bytes, row.time_us);
  }
  const Found found = errors_of(operations, links);
  for (const auto& [kind, machines] : operations) {
    Tables tables;
    for (const auto& [system, versions] : machines) {
      for (const auto& [version, counts] : versions) {
        ask(kind, system, versions, version, links, found, tables);
      }
    }
    for (const auto& [question, steps] : tables) report(kind, question, steps, validation);
  }
  compare_with_shipped(found, links, validation);
}

}  // namespace moesim::study
