#include "sim/study/validation/exchanges/validate_dispatchers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <tuple>

#include "sim/base/statistics.hpp"
#include "sim/base/text.hpp"
#include "sim/study/validation/exchanges/dispatch_lines.hpp"
#include "sim/study/validation/exchanges/dispatch_samples.hpp"
#include "sim/study/validation/exchanges/dispatcher_fit.hpp"
#include "sim/study/validation/exchanges/exchange_errors.hpp"
#include "sim/study/validation/exchanges/two_from_one.hpp"
#include "sim/study/validation/exchanges/validate_far_dispatches.hpp"
#include "sim/uncertainty/statistics/student_t.hpp"

namespace moesim::study {
namespace {

using profile::Dispatcher;
using profile::DispatcherStage;
using profile::DispatchMachine;
using profile::Estimate;
using profile::StageCost;
using profile::Transport;
using Chosen = ChosenSamples;
using Rule = SampleRule;
using Line = DispatchLine;

constexpr double four_nodes_bar = 0.15;  // on the median error
constexpr DispatcherStage both[] = {DispatcherStage::dispatch, DispatcherStage::combine};
std::size_t at(DispatcherStage stage) { return static_cast<std::size_t>(stage); }
std::size_t at(Transport transport) { return static_cast<std::size_t>(transport); }

using Shape = std::tuple<double, double, double, double, int>;
Shape shape_of(const DispatchSample& sample) {
  return {sample.load.tokens, sample.load.copies, sample.load.expert_rows, sample.row_bytes,
          sample.sms};
}

double link_bytes(const DispatchSample& sample) { return sample.load.link_rows * sample.row_bytes; }

// The baselines of a line inside a domain: a straight line over the bytes through all that was
// measured with as many SMs on other systems, and the same row of another system.
class Baselines {
 public:
  explicit Baselines(const Chosen& others) {
    std::map<int, Samples> sent;
    for (const DispatchSample* sample : others) {
      sent[sample->sms].emplace_back(link_bytes(*sample), sample->time_us);
      same_.emplace(shape_of(*sample), sample->time_us);
    }
    for (const auto& [sms, samples] : sent) lines_.emplace(sms, alpha_beta(samples));
  }

  void add(const DispatchSample& sample, Comparison& comparison) const {
    const auto line = lines_.find(sample.sms);
    if (line != lines_.end()) {
      comparison.alpha_beta.add(sample.time_us, line->second(link_bytes(sample)), sample.where);
    }
    const auto same = same_.find(shape_of(sample));
    if (same != same_.end()) {
      comparison.nearest_row.add(sample.time_us, same->second, sample.where);
    }
  }

 private:
  std::map<int, std::function<double(double)>> lines_;
  std::map<Shape, double> same_;
};

// Inside a domain: each system in turn, from the others of its kind of GPU.
void leave_systems_out(const Dispatcher& dispatcher, const std::vector<DispatchSample>& samples,
                       bool fits_link, const std::string& subject, Validation& validation) {
  std::set<std::string> systems;
  for (const DispatchSample& sample : samples) systems.insert(sample.system);
  for (const DispatcherStage stage : both) {
    DispatchLines lines;
    for (const std::string& system : systems) {
      const Chosen held = choose(samples, [&](const DispatchSample& sample) {
        return sample.stage == stage && !sample.group.crosses() && sample.system == system;
      });
      if (held.empty()) continue;
      const DispatchMachine& machine = dispatcher.on(held.front()->device);
      const Chosen others = choose(samples, [&](const DispatchSample& sample) {
        return sample.stage == stage && !sample.group.crosses() && sample.system != system &&
               &dispatcher.on(sample.device) == &machine;
      });
      if (others.size() < 10) continue;
      const StageCost cost = fit_stage(machine.inside[at(stage)], others, 1, fits_link);
      const Dispatcher fitted = with_cost(dispatcher, *held.front(), cost);
      const Baselines baselines(others);
      for (const DispatchSample* sample : held) {
        Line& line = lines.of(*sample);
        line.add(*sample, predicted(fitted, *sample), system);
        baselines.add(*sample, line.comparison);
      }
    }
    const std::string what =
        fmt::format("{} {}, one node, each system from others", subject, name_of(stage));
    lines.report(what, validation);
  }
}

// The errors of both stages on one node together, measured over predicted.
profile::Ranged errors_of_both(const Dispatcher& dispatcher, const DispatchMachine& machine,
                               const std::vector<DispatchSample>& samples, bool fits_link) {
  std::vector<double> ratios;
  for (const DispatcherStage stage : both) {
    const Chosen one = choose(samples, [&](const DispatchSample& sample) {
      return sample.stage == stage && !sample.group.crosses() &&
             &dispatcher.on(sample.device) == &machine;
    });
    const StageCost cost = fit_stage(machine.inside[at(stage)], one, 1, fits_link);
    for (const DispatchSample* sample : one) {
      ratios.push_back(sample->time_us / fitted_us(cost, *sample, 1));
    }
  }
  return {1, std::min(1.0, quantile(ratios, 0.05)), std::max(1.0, quantile(ratios, 0.95))};
}

// Two nodes with the figures of one, as for GPUs never measured across: the law adds the copies and
// the NIC. The band has the errors inside, NVLink's and the NIC's ranges, and what is not known.
void two_from_one(const Dispatcher& dispatcher, const std::vector<DispatchSample>& samples,
                  bool fits_link, const AcrossUnknown& unknown, const std::string& subject,
                  Validation& validation) {
  for (const DispatcherStage stage : both) {
    DispatchLines lines;
    const Chosen two = choose(samples, [&](const DispatchSample& sample) {
      return sample.stage == stage && sample.group.crosses();
    });
    if (two.empty()) continue;
    const DispatchMachine& machine = dispatcher.on(two.front()->device);
    const Chosen one = choose(samples, [&](const DispatchSample& sample) {
      return sample.stage == stage && !sample.group.crosses() &&
             &dispatcher.on(sample.device) == &machine;
    });
    StageCost cost = fit_stage(machine.inside[at(stage)], one, 1, fits_link);
    if (unknown.is_one_kernel)
      cost.factor = errors_of_both(dispatcher, machine, samples, fits_link);
    const TwoFromOne law(dispatcher, cost, unknown);
    const Baselines baselines(one);
    for (const DispatchSample* sample : two) {
      Line& line = lines.of(*sample);
      line.add(*sample, law.predict(*sample), "2 nodes");
      baselines.add(*sample, line.comparison);
    }
    const std::string what =
        fmt::format("{} {}, 2 nodes with the figures of 1", subject, name_of(stage));
    lines.report(what, validation);
  }
}

// The dispatcher as it would be had this number of SMs not been measured across nodes.
Dispatcher without_sms(Dispatcher dispatcher, int sms) {
  std::erase(dispatcher.measured[1].sms, sms);
  for (DispatchMachine& machine : dispatcher.machines) {
    for (auto& cost : machine.across) {
      if (cost) std::erase_if(cost->slow_sms, [&](const auto& slow) { return slow.sms == sms; });
    }
  }
  return dispatcher;
}

// Two nodes, each number of SMs with the figures of the others and a band that knows nothing of it.
void leave_sms_out(const Dispatcher& dispatcher, const std::vector<DispatchSample>& samples,
                   Validation& validation) {
  for (const DispatcherStage stage : both) {
    DispatchLines lines;
    const Chosen two = choose(samples, [&](const DispatchSample& sample) {
      return sample.stage == stage && sample.group.crosses();
    });
    std::set<int> counts;
    for (const DispatchSample* sample : two) counts.insert(sample->sms);
    for (const int sms : counts) {
      Chosen others;
      for (const DispatchSample* sample : two) {
        if (sample->sms != sms) others.push_back(sample);
      }
      if (others.size() < 10) continue;
      const Dispatcher known = without_sms(dispatcher, sms);
      const double nic = known.nic[0]->efficiency.value;
      const StageCost cost =
          fit_stage(cost_of(known.on(two.front()->device), *two.front()), others, nic, false);
      const Dispatcher fitted = with_cost(known, *two.front(), cost);
      for (const DispatchSample* sample : two) {
        if (sample->sms != sms) continue;
        Line& line = lines.of(*sample);
        line.add(*sample, predicted(fitted, *sample), fmt::format("{} SMs", sms));
      }
    }
    const std::string what =
        fmt::format("DeepEP normal {}, 2 nodes, each number of SMs from others", name_of(stage));
    lines.report(what, validation);
  }
}

// The NIC's share of the line rate (and, of rows sent one by one, microseconds for each) that these
// samples show if nothing else held them up: the median.
Dispatcher with_nic_of(Dispatcher dispatcher, const Chosen& samples) {
  std::vector<double> shares;
  std::vector<double> each;
  for (const DispatchSample* sample : samples) {
    const double fixed = dispatcher.on(sample->device).across[at(sample->stage)]->fixed_us;
    const double time_us = sample->time_us - fixed;
    shares.push_back(sample->load.nic_rows * sample->row_bytes / time_us /
                     sample->rates.nic_bytes_per_us);
    each.push_back(time_us / sample->load.nic_rows);
  }
  profile::DispatchNic& nic = *dispatcher.nic[at(samples.front()->rates.transport)];
  const auto moved = [](profile::Ranged ranged, double value) {
    const double scale = value / ranged.value;
    return profile::Ranged{value, ranged.low * scale, ranged.high * scale};
  };
  if (nic.message_us.value > 0) {
    nic.message_us = moved(nic.message_us, median(each));
  } else {
    nic.efficiency = moved(nic.efficiency, median(shares));
  }
  return dispatcher;
}

// Lines of rows between nodes whose machine or number of nodes is left out, and all of them.
struct Across {
  Validation& validation;
  Line all;
  Line four_nodes;  // DeepEP's normal kernels

  void add(const Line& line, const std::string& subject) {
    line.add_to(validation, subject);
    all.add(line);
  }
  void add(const Dispatcher& dispatcher, const Chosen& held, const std::string& subject) {
    Line line;
    for (const DispatchSample* sample : held) {
      line.add(*sample, predicted(dispatcher, *sample), subject);
      const bool four = sample->group.crosses() && sample->group.domains() == 4;
      if (four && dispatcher.name == "deepep") {
        four_nodes.add(*sample, predicted(dispatcher, *sample), subject);
      }
    }
    add(line, subject);
  }
  void judge() const {
    report_bands("exchanges", "dispatchers between nodes and in racks, left out", all.points, true,
                 validation);
    if (four_nodes.points.empty()) return;
    const double error = four_nodes.comparison.law.median_abs();
    validation.verdicts.push_back(
        {"exchanges",
         fmt::format("DeepEP normal on 4 nodes, machine left out: {:.1f} % in the median, bar 15 %",
                     error * 100),
         error <= four_nodes_bar});
  }
};

// EFA: each system with the NIC's figures of the other; 8 nodes with those of 4.
void compare_proxied(const Dispatcher& dispatcher, const std::vector<DispatchSample>& samples,
                     const std::string& library, Across& across) {
  const auto rows = [&](const Rule& rule) {
    return choose(samples, [&](const DispatchSample& sample) {
      return has_part(sample.library, library) && sample.rates.transport == Transport::proxy &&
             sample.group.domains() > 2 && rule(sample);
    });
  };
  for (const char* system : {"H100", "B300"}) {
    const auto is_held = [&](const DispatchSample& sample) {
      return has_part(sample.device, system);
    };
    const Chosen others = rows([&](const DispatchSample& sample) { return !is_held(sample); });
    const Chosen held = rows(is_held);
    if (others.empty() || held.empty()) continue;
    across.add(
        with_nic_of(dispatcher, others), held,
        fmt::format("{} on EFA, {}, 4 and 8 nodes, NIC from the other system", library, system));
  }
  Line line;
  for (const char* system : {"H100", "B300"}) {
    const auto with = [&](int nodes) {
      return rows([&](const DispatchSample& sample) {
        return has_part(sample.device, system) && sample.group.domains() == nodes;
      });
    };
    const Chosen four = with(4);
    const Chosen eight = with(8);
    if (four.empty() || eight.empty()) continue;
    const Dispatcher fitted = with_nic_of(dispatcher, four);
    for (const DispatchSample* sample : eight) {
      line.add(*sample, predicted(fitted, *sample),
               fmt::format("{}, 8 nodes, {}", library, system));
      for (const DispatchSample* known : four) {
        if (known->stage != sample->stage) continue;
        const double bytes = sample->load.nic_rows / known->load.nic_rows;
        line.comparison.equal_bytes.add(sample->time_us, known->time_us * bytes, sample->where);
        line.comparison.nearest_row.add(sample->time_us, known->time_us, sample->where);
      }
    }
  }
  across.add(line, library + " on EFA, 8 nodes, NIC from 4 nodes");
}

// HybridEP: the larger group of each machine from the smaller one, kernels alone.
void compare_hybrid(const Dispatcher& dispatcher, const std::vector<DispatchSample>& samples,
                    Across& across) {
  for (const auto& [device, fewer, more] :
       {std::tuple{"H100", 16, 32}, std::tuple{"GB200", 8, 16}}) {
    Line line;
    for (const DispatcherStage stage : both) {
      const auto of = [&, name = std::string(device)](int gpus) {
        return choose(samples, [&](const DispatchSample& sample) {
          return has_part(sample.library, "HybridEP") && has_part(sample.library, "kernel") &&
                 has_part(sample.device, name) && sample.stage == stage &&
                 sample.group.gpus == gpus;
        });
      };
      const Chosen known = of(fewer);
      const Chosen held = of(more);
      if (known.empty() || held.empty()) continue;
      const DispatchMachine& machine = dispatcher.on(known.front()->device);
      const StageCost& like = cost_of(machine, *known.front());
      const double nic = dispatcher.nic[0]->efficiency.value;
      const StageCost cost = fit_stage(like, known, nic, true);
      const Dispatcher fitted = with_cost(dispatcher, *known.front(), cost);
      for (const DispatchSample* sample : held) {
        line.add(*sample, predicted(fitted, *sample),
                 fmt::format("HybridEP, {} GPUs, {}", more, device));
        for (const DispatchSample* each : known) {
          if (each->sms != sample->sms || each->row_bytes != sample->row_bytes) continue;
          line.comparison.nearest_row.add(sample->time_us, each->time_us, sample->where);
        }
      }
    }
    across.add(line, fmt::format("HybridEP, {}, {} GPUs from {}", device, more, fewer));
  }
}

// HybridEP's Torch API: what it takes beyond the predicted kernels, on average of the other rows
// inside or across. The scatter of that has the errors of the kernels in it: the band is Student's
// t for one more of so few.
class ApiTimes {
 public:
  ApiTimes(const Dispatcher& hybrid, const Chosen& rows) : hybrid_(hybrid), rows_(rows) {}

  // Whether there are others enough.
  bool knows(const DispatchSample& sample) const { return beside_without(sample).size() >= 3; }

  Estimate predict(const DispatchSample& sample) const {
    const std::vector<double> beside = beside_without(sample);
    const auto count = static_cast<double>(beside.size());
    const double usual_us = mean(beside);
    double squares = 0;
    for (const double each_us : beside) squares += std::pow(each_us - usual_us, 2);
    const double half_us = uncertainty::few_kinds_reach(beside.size() - 1, 0.9) *
                           std::sqrt(squares / (count - 1) * (1 + 1 / count));
    Estimate estimate = predicted(hybrid_, sample);
    estimate.time_us += usual_us;
    estimate.time_us_p05 = estimate.time_us - half_us;
    estimate.time_us_p95 = estimate.time_us + half_us;
    return estimate;
  }

 private:
  std::vector<double> beside_without(const DispatchSample& sample) const {
    std::vector<double> beside;
    for (const DispatchSample* other : rows_) {
      if (other == &sample || other->group.crosses() != sample.group.crosses()) continue;
      beside.push_back(other->time_us - predicted(hybrid_, *other).time_us);
    }
    return beside;
  }

  const Dispatcher& hybrid_;
  const Chosen& rows_;
};

// Rows whose time has more in it than the law of their kernels, or whose library is another one.
void compare_apart(const Dispatcher& deepep, const Dispatcher& hybrid,
                   const std::vector<DispatchSample>& samples, Validation& validation) {
  Line api;
  Line unstated;
  Line others;
  const Chosen api_rows = choose(samples, [](const DispatchSample& sample) {
    return has_part(sample.library, "HybridEP") && has_part(sample.library, "API");
  });
  const ApiTimes api_times(hybrid, api_rows);
  for (const DispatchSample* sample : api_rows) {
    if (!api_times.knows(*sample)) continue;
    api.add(*sample, api_times.predict(*sample), sample->library);
  }
  for (const DispatchSample& sample : samples) {
    if (has_part(sample.library, "UCCL-EP normal")) {
      others.add(sample, predicted(deepep, sample), sample.library);
    } else if (has_part(sample.library, "DeepEP-NVSHMEM normal") && sample.group.domains() == 2) {
      unstated.add(sample, predicted(deepep, sample), sample.library);
    }
  }
  api.add_to(validation, "apart: HybridEP's Torch API, each row's notify from the others");
  unstated.add_to(validation, "apart: DeepEP normal on EFA, B300, 2 nodes, SMs not stated");
  others.add_to(validation, "apart: UCCL-EP normal on EFA, by DeepEP's figures");
}

void compare_across(const std::string& folder, const Dispatcher& deepep, const Dispatcher& latency,
                    Validation& validation) {
  const std::vector<DispatchSample> samples = load_across(folder);
  const Dispatcher hybrid = Dispatcher::load("hybridep");
  Across across{validation, {}, {}};
  const auto none_fitted = [&](const Dispatcher& dispatcher, const std::string& subject,
                               const Rule& rule) {
    across.add(dispatcher, choose(samples, rule), subject + ", none of it fitted");
  };
  const auto of = [](const char* library, const char* system) {
    return [=](const DispatchSample& sample) {
      return has_part(sample.library, library) && has_part(sample.system, system);
    };
  };
  none_fitted(deepep, "DeepEP normal, H800, 1 to 4 nodes", of("V1 normal", "H800"));
  none_fitted(latency, "DeepEP low-latency, H800, 1 to 4 nodes", of("V1 LL", "H800"));
  none_fitted(latency, "DeepEP low-latency over NICs alone, H100, 1 to 4 nodes",
              [](const DispatchSample& sample) { return sample.group.per_domain == 1; });
  none_fitted(deepep, "DeepEP normal in a rack, GB200, Torch API", of("DeepEP ", "GB200"));
  compare_proxied(deepep, samples, "DeepEP-NVSHMEM normal", across);
  compare_proxied(latency, samples, "DeepEP-NVSHMEM LL", across);
  compare_hybrid(hybrid, samples, across);
  compare_apart(deepep, hybrid, samples, validation);
  across.judge();
}

// The largest group from the smaller ones.
void compare_one_sided(const std::string& folder, Validation& validation) {
  const Dispatcher dispatcher = Dispatcher::load("trtllm");
  const std::vector<DispatchSample> samples = load_one_sided(folder);
  int most = 0;
  for (const DispatchSample& sample : samples) most = std::max(most, sample.group.gpus);
  for (const DispatcherStage stage : both) {
    const Chosen fewer = choose(samples, [&](const DispatchSample& sample) {
      return sample.stage == stage && sample.group.gpus < most;
    });
    const Chosen held = choose(samples, [&](const DispatchSample& sample) {
      return sample.stage == stage && sample.group.gpus == most;
    });
    if (fewer.size() < 10 || held.empty()) continue;
    const StageCost like = dispatcher.on(held.front()->device).inside[at(stage)];
    const Dispatcher fitted = with_cost(dispatcher, *held.front(), fit_stage(like, fewer, 1, true));
    const Baselines baselines(fewer);
    DispatchLines lines;
    for (const DispatchSample* sample : held) {
      Line& line = lines.of(*sample);
      line.add(*sample, predicted(fitted, *sample), fmt::format("EP {}", most));
      baselines.add(*sample, line.comparison);
    }
    const std::string what =
        fmt::format("TensorRT-LLM one-sided {}, GB200, EP {} from fewer", name_of(stage), most);
    lines.report(what, validation);
  }
}

}  // namespace

void compare_dispatchers(const std::string& folder, Validation& validation) {
  const auto is_there = [&](const char* name) {
    const std::string path = folder + "/" + name;
    return std::filesystem::exists(path) || std::filesystem::exists(path + ".gz");
  };
  const Dispatcher deepep = Dispatcher::load("deepep");
  const Dispatcher latency = Dispatcher::load("low-latency");
  if (is_there("deepep_normal.csv")) {
    const std::vector<DispatchSample> samples = load_deepep(folder);
    leave_systems_out(deepep, samples, false, "DeepEP normal", validation);
    two_from_one(deepep, samples, false, normal_across, "DeepEP normal", validation);
    leave_far_out(deepep, samples, validation);
    leave_sms_out(deepep, samples, validation);
  }
  if (is_there("deepep_lowlatency.csv")) {
    const std::vector<DispatchSample> samples = load_deepep_low_latency(folder);
    leave_systems_out(latency, samples, true, "DeepEP low-latency", validation);
    two_from_one(latency, samples, true, latency_across, "DeepEP low-latency", validation);
  }
  if (is_there("trtllm_moe_alltoall_gb200.csv")) compare_one_sided(folder, validation);
  if (is_there("internode_alltoall.csv")) compare_across(folder, deepep, latency, validation);
}

}  // namespace moesim::study
