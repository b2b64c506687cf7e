#include "sim/study/validation/exchanges/validate_exchange_runs.hpp"

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <optional>

#include "sim/base/statistics.hpp"
#include "sim/base/units.hpp"
#include "sim/profile/gpu_count_law.hpp"
#include "sim/study/validation/exchanges/exchange_coverage.hpp"
#include "sim/study/validation/exchanges/exchange_errors.hpp"
#include "sim/study/validation/exchanges/exchange_predictors.hpp"

namespace moesim::study {
namespace {

using profile::Collective;
using profile::NodeLinks;
using profile::SizeCurve;

constexpr double large = bytes_per_mib;
// Sizes above 1 / each of these of the largest are hidden.
constexpr double hidden_shares[] = {4, 16, 64};

struct System {
  std::string name;
  double line = 0;                                              // bytes per us
  std::map<std::string, std::map<int, Samples>> runs;           // by NCCL version, GPU count
  std::map<std::string, std::vector<std::string>> by_recorded;  // versions that record the same
};
using Systems = std::map<std::string, System>;
using Table = std::vector<HeldOutRow>;

// What is predicted and what anyone could have said without it; a baseline that makes no sense is
// absent.
struct Predictors {
  SizeCurve law;
  std::function<double(double)> equal_bytes;
  std::function<double(double)> alpha_beta;
  std::function<double(double)> nearest_row;
};

struct Sizes {
  Comparison from;
  Comparison below;
  Table table;
};

void add(const Predictors& predictors, const Samples& target, const std::string& source,
         const std::string& run, Sizes& sizes) {
  std::map<double, std::vector<double>> repeats;
  for (const auto& [size, time] : target) {
    if (size < predictors.law.smallest()) continue;
    Comparison& region = size < large ? sizes.below : sizes.from;
    const std::string where = fmt::format("{} ({})", size_text(size), run);
    region.law.add(time, predictors.law.time_us(size), where);
    if (predictors.equal_bytes) region.equal_bytes.add(time, predictors.equal_bytes(size), where);
    if (predictors.alpha_beta) region.alpha_beta.add(time, predictors.alpha_beta(size), where);
    if (predictors.nearest_row) region.nearest_row.add(time, predictors.nearest_row(size), where);
    sizes.table.push_back(
        {size, time, predictors.law.time_us(size), predictors.law.over_chord(size), source, run});
    repeats[size].push_back(time);
  }
  for (const auto& [size, times] : repeats) {
    Comparison& region = size < large ? sizes.below : sizes.from;
    for (const double time : times) region.scatter.push_back(std::abs(time / median(times) - 1));
  }
}

Table part(const Table& table, bool is_large) {
  Table found;
  for (const HeldOutRow& row : table) {
    if ((row.bytes >= large) == is_large) found.push_back(row);
  }
  return found;
}

void report_region(const Comparison& region, const std::vector<BandPoint>& points,
                   const std::string& subject, Validation& validation) {
  if (region.law.empty()) return;
  ValidationRow row = report_row(region, subject);
  if (!points.empty()) row.note += "; " + coverage_text(points);
  validation.rows.push_back(row);
}

std::string run_name(const System& system, const std::string& version) {
  return fmt::format("{}/{}", system.name, version);
}

// The runs of a machine, each predicted by each of its other runs of as many GPUs.
Sizes other_runs(const System& system) {
  Sizes sizes;
  for (const auto& [version, counts] : system.runs) {
    for (const auto& [other, other_counts] : system.runs) {
      if (other == version) continue;
      for (const auto& [gpus, samples] : counts) {
        const auto curve = curve_through(samples, 0);
        const auto target = other_counts.find(gpus);
        if (!curve || target == other_counts.end()) continue;
        add({*curve, {}, alpha_beta(samples), {}}, target->second, run_name(system, version),
            run_name(system, other), sizes);
      }
    }
  }
  return sizes;
}

std::vector<Run> runs_of(const System& system, const std::vector<std::string>& versions) {
  std::vector<Run> runs;
  for (const std::string& version : versions) {
    Run run;
    for (const auto& [gpus, samples] : system.runs.at(version)) {
      if (const auto curve = curve_through(samples, 0)) run.emplace(gpus, *curve);
    }
    if (!run.empty()) runs.push_back(run);
  }
  return runs;
}

bool any_has(const std::vector<Run>& runs, int gpus) {
  for (const Run& run : runs) {
    if (run.count(gpus) != 0) return true;
  }
  return false;
}

// A machine among `gpus` from its sibling's runs; for comparison its own largest smaller count.
Predictors sibling_predictors(Collective kind, const System& system,
                              const std::vector<std::string>& versions,
                              const std::map<int, Samples>& counts, const std::vector<Run>& donors,
                              int gpus) {
  const double share = profile::sent_share(kind, gpus, false);
  Samples as_sent;
  std::optional<SizeCurve> fewer;
  double ratio = 1;
  for (const auto& [count, rows] : counts) {
    if (count >= gpus) break;
    const double sent = profile::sent_share(kind, count, false);
    for (const auto& [size, time] : rows) as_sent.emplace_back(size * sent, time);
    if (const auto curve = curve_through(rows, 0)) {
      fewer = curve;
      ratio = share / sent;
    }
  }
  Predictors predictors{from_sibling(runs_of(system, versions), donors, gpus), {}, {}, {}};
  if (!fewer) return predictors;
  predictors.equal_bytes = [curve = *fewer, ratio](double size) {
    return curve.time_us(size * ratio);
  };
  predictors.alpha_beta = [line = alpha_beta(as_sent), share](double size) {
    return line(size * share);
  };
  predictors.nearest_row = [curve = *fewer](double size) { return curve.time_us(size); };
  return predictors;
}

// A machine's runs among more than two GPUs from those of `donor`, under the NCCL that both record
// where the donor has it, else under each of its own.
void add_sibling(Collective kind, const System& system, const System& donor, Sizes& sizes) {
  for (const auto& [recorded, versions] : system.by_recorded) {
    for (const auto& [lent, donor_versions] : donor.by_recorded) {
      if (donor.by_recorded.count(recorded) != 0 && lent != recorded) continue;
      const std::vector<Run> donors = runs_of(donor, donor_versions);
      for (const std::string& version : versions) {
        const std::map<int, Samples>& counts = system.runs.at(version);
        for (const auto& [gpus, samples] : counts) {
          if (gpus <= 2 || !any_has(donors, gpus)) continue;
          add(sibling_predictors(kind, system, versions, counts, donors, gpus), samples,
              run_name(donor, lent), run_name(system, version), sizes);
        }
      }
    }
  }
}

// The sizes above 1 / `hidden` of the largest, from those below.
void add_tail(const System& system, double hidden, Sizes& sizes) {
  for (const auto& [version, counts] : system.runs) {
    for (const auto& [gpus, samples] : counts) {
      const auto whole = curve_through(samples, 0);
      if (!whole) continue;
      Samples seen;
      Samples target;
      for (const auto& row : samples) {
        (row.first <= whole->largest() / hidden ? seen : target).push_back(row);
      }
      const auto curve = curve_through(seen, 0);
      if (!curve || target.empty()) continue;
      add({with_tail(*curve, whole->largest()),
           [straight = *curve](double size) { return straight.time_us(size); },
           alpha_beta(seen),
           {}},
          target, version, system.name, sizes);
    }
  }
}

Systems systems_of(const std::vector<CollectiveRow>& rows, Collective kind,
                   const std::map<std::string, NodeLinks>& links) {
  Systems systems;
  for (const CollectiveRow& row : rows) {
    const auto joined = links.find(row.system);
    if (row.kind != kind || row.reduces_bytes || row.gpus < 2 || row.version == "vidur" ||
        joined == links.end() || joined->second.kind != NodeLinks::Kind::nvlink_switch) {
      continue;
    }
    System& system = systems[row.system];
    system.name = row.system;
    system.line = joined->second.port_bytes_per_us;
    if (system.runs.count(row.version) == 0) {
      system.by_recorded[row.recorded.empty() ? row.version : row.recorded].push_back(row.version);
    }
    system.runs[row.version][row.gpus].emplace_back(row.bytes, row.time_us);
  }
  return systems;
}

// One question, by machine.
using Tables = std::map<std::string, Sizes>;

struct Question {
  std::string subject;
  const Tables* tables = nullptr;
  bool lines_apart = true;  // bands come from machines of the same line rate alone
  bool judged = true;
};

Table others(const Question& question, const Systems& systems, const std::string& name) {
  Table every;
  for (const auto& [other, sizes] : *question.tables) {
    if (question.lines_apart && systems.at(other).line != systems.at(name).line) continue;
    every.insert(every.end(), sizes.table.begin(), sizes.table.end());
  }
  return every;
}

void report(const Question& question, const Systems& systems, Validation& validation) {
  std::vector<BandPoint> from;
  std::vector<BandPoint> below;
  Comparison errors_from;
  Comparison errors_below;
  for (const auto& [name, sizes] : *question.tables) {
    const Table every = others(question, systems, name);
    for (const BandPoint& point : banded(part(sizes.table, true), every)) {
      from.push_back(point);
    }
    for (const BandPoint& point : banded(part(sizes.table, false), every)) {
      below.push_back(point);
    }
    errors_from.add(sizes.from);
    errors_below.add(sizes.below);
  }
  report_region(errors_from, from, question.subject + ", from 1 MiB", validation);
  report_region(errors_below, below, question.subject + ", below 1 MiB", validation);
  from.insert(from.end(), below.begin(), below.end());
  report_bands("exchanges", question.subject, from, question.judged, validation);
}

}  // namespace

void compare_exchange_runs(const std::vector<CollectiveRow>& rows,
                           const std::map<std::string, NodeLinks>& links, Validation& validation) {
  for (const auto& known : profile::collective_names) {
    const Systems systems = systems_of(rows, known.value, links);
    Tables runs;
    Tables siblings;
    std::map<double, Tables> tails;
    for (const auto& [name, system] : systems) {
      runs[name] = other_runs(system);
      for (const auto& [other, donor] : systems) {
        if (other == name || donor.line != system.line) continue;
        add_sibling(known.value, system, donor, siblings[name]);
      }
      for (const double hidden : hidden_shares) add_tail(system, hidden, tails[hidden][name]);
    }
    const auto ask = [&](const char* what, const Tables& tables) {
      return Question{fmt::format("{}: {}", known.name, what), &tables};
    };
    report(ask("runs from other runs of the machine", runs), systems, validation);
    report(ask("4 and 8 GPUs from a sibling", siblings), systems, validation);
    for (const auto& [hidden, tables] : tails) {
      const std::string what = fmt::format("sizes above 1/{:g} of the largest", hidden);
      Question beyond = ask(what.c_str(), tables);
      beyond.lines_apart = false;
      // No band is shipped for what lies behind a switch that the seen sizes do not show.
      beyond.judged = hidden == hidden_shares[0];
      report(beyond, systems, validation);
    }
  }
}

}  // namespace moesim::study
