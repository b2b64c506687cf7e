#include "sim/uncertainty/bands/simulated_band.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "sim/base/numbers.hpp"
#include "sim/base/statistics.hpp"
#include "sim/uncertainty/bands/loaded_draws.hpp"

namespace moesim::uncertainty {
namespace {

struct Normal {
  double mean = 0;
  double deviation = 0;
};

double below(const std::vector<Normal>& mixture, double value) {
  double sum = 0;
  for (const Normal& part : mixture) {
    sum += std::erfc((part.mean - value) / (part.deviation * std::numbers::sqrt2)) / 2;
  }
  return sum / static_cast<double>(mixture.size());
}

// Bisection: the distribution function ascends strictly.
double quantile_of(const std::vector<Normal>& mixture, double share) {
  constexpr double far = 10;  // deviations
  constexpr int halvings = 60;
  double low = mixture.front().mean;
  double high = low;
  for (const Normal& part : mixture) {
    low = std::min(low, part.mean - far * part.deviation);
    high = std::max(high, part.mean + far * part.deviation);
  }
  for (int round = 0; round < halvings; ++round) {
    const double middle = (low + high) / 2;
    (below(mixture, middle) < share ? low : high) = middle;
  }
  return (low + high) / 2;
}

// The variance by shares beyond those that the software was fitted to.
double class_variance(const WorkShares& shares, const WorkShares& fitted,
                      bool has_measured_exchanges) {
  double sum = 0;
  for (std::size_t work = 0; work < work_class_count; ++work) {
    sum += square((shares[work] - fitted[work]) *
                  systematic_error(static_cast<WorkClass>(work), has_measured_exchanges));
  }
  return sum;
}

double deviation_of(const std::vector<StepDraw>& draws) {
  double sum = 0;
  for (const StepDraw& draw : draws) sum += std::log(draw.step_ms);
  const double middle = sum / static_cast<double>(draws.size());
  double squares = 0;
  for (const StepDraw& draw : draws) squares += square(std::log(draw.step_ms) - middle);
  return std::sqrt(squares / static_cast<double>(draws.size()));
}

WorkShares mean_shares(const std::vector<StepDraw>& draws) {
  WorkShares shares{};
  for (const StepDraw& draw : draws) {
    for (std::size_t work = 0; work < work_class_count; ++work) {
      shares[work] += draw.shares[work] / static_cast<double>(draws.size());
    }
  }
  return shares;
}

struct Wording {
  const char* name;
  const char* remedy;
};

Wording wording_of(WorkClass work, bool has_measured_exchanges) {
  switch (work) {
    case WorkClass::products:
      return {"products and attention on another specimen, with other libraries",
              "a profile of your own GPUs: moesim profile"};
    case WorkClass::memory:
      return {"memory-bound kernels and launches, whose level is assumed to 10 %",
              "a profile of your own GPUs: moesim profile"};
    case WorkClass::inside:
      return {"exchanges inside a node with another NCCL, on another specimen",
              "nccl-tests of your node: moesim import LOG..."};
    case WorkClass::across:
      break;
  }
  if (has_measured_exchanges) {
    return {"exchanges between nodes on another day than they were measured",
            "nccl-tests of several days: moesim import LOG... --cluster NAME"};
  }
  return {"exchanges between nodes, by one law for all machines",
          "nccl-tests of your nodes: moesim import LOG... --cluster NAME"};
}

std::vector<Term> terms_of_draws(const std::vector<StepDraw>& draws, const SoftwareError& software,
                                 double unseen) {
  std::vector<Term> terms = {
      {software.name, software.factor * software.deviation, software.remedy}};
  const WorkShares shares = mean_shares(draws);
  for (std::size_t place = 0; place < work_class_count; ++place) {
    const auto work = static_cast<WorkClass>(place);
    const Wording words = wording_of(work, software.has_measured_exchanges);
    terms.push_back({fmt::format("{} ({:.0f} % of the step)", words.name, 100 * shares[place]),
                     std::abs(shares[place] - software.fitted_shares[place]) *
                         systematic_error(work, software.has_measured_exchanges),
                     words.remedy});
  }
  terms.push_back({"routing and shapes, as replicas draw them", deviation_of(draws),
                   "routing of your own training: --routing trace:FILE"});
  terms.push_back({fmt::format("{} replica{} draw{} little of the curves' errors", draws.size(),
                               draws.size() == 1 ? "" : "s", draws.size() == 1 ? "s" : ""),
                   std::sqrt(unseen), "--replicas 16"});
  terms.push_back({"noise of a run", run_noise, "longer measurements"});
  std::erase_if(terms, [](const Term& term) { return term.deviation <= 0; });
  sort_terms(terms);
  return terms;
}

}  // namespace

double systematic_error(WorkClass work, bool has_measured_exchanges) {
  constexpr double measured_exchange = 0.055;
  switch (work) {
    case WorkClass::products:
      return 0.05;
    case WorkClass::memory:
      return 0.10;
    case WorkClass::inside:
      return measured_exchange;
    case WorkClass::across:
      break;
  }
  return has_measured_exchanges ? measured_exchange : 0.20;
}

double unseen_variance(std::size_t draws) {
  double seen = 0;
  const auto count = static_cast<double>(draws);
  for (std::size_t stratum = 0; stratum < draws; ++stratum) {
    seen += square(normal_quantile((static_cast<double>(stratum) + 0.5) / count)) / count;
  }
  return std::max(0.0, 1 - seen);
}

SimulatedBand simulated_band(const std::vector<StepDraw>& draws, const SoftwareError& software,
                             const AveragedDraws& averaged) {
  const double unseen =
      knows_spread(draws, averaged) ? 0 : square(curve_error) * unseen_variance(draws.size());
  std::vector<Normal> same;
  std::vector<Normal> whole;
  for (const auto& [draw, own] : weighed_draws(draws, averaged)) {
    const double variance =
        own + class_variance(draw.shares, software.fitted_shares, software.has_measured_exchanges) +
        square(run_noise) + unseen;
    same.push_back({std::log(draw.step_ms), std::sqrt(variance)});
    whole.push_back({same.back().mean + software.mean,
                     std::sqrt(variance + square(software.factor * software.deviation))});
  }
  SimulatedBand band;
  band.p05_ms = std::exp(quantile_of(whole, 0.05));
  band.p50_ms = std::exp(quantile_of(whole, 0.50));
  band.p95_ms = std::exp(quantile_of(whole, 0.95));
  band.same_p05_ms = std::exp(quantile_of(same, 0.05));
  band.same_p95_ms = std::exp(quantile_of(same, 0.95));
  band.terms = terms_of_draws(draws, software, unseen);
  return band;
}

void widen_by_hidden(double gain, int zero, SimulatedBand& band) {
  if (gain <= 0) return;
  band.p05_ms *= std::exp(-gain);
  band.same_p05_ms *= std::exp(-gain);
  band.terms.push_back(
      {fmt::format("computing may hide exchanges of ZeRO {}, up to {:.0f} % of the step: no "
                   "published step has it",
                   zero, 100 * (1 - std::exp(-gain))),
       hidden_deviation(gain), "train with measured steps that have it: moesim calibrate"});
  sort_terms(band.terms);
}

RatioBand ratio_band(const std::vector<StepDraw>& first, const std::vector<StepDraw>& second,
                     const SoftwareError& software, const AveragedDraws& of_first,
                     const AveragedDraws& of_second, const OtherMachine& other_machine) {
  const double own =
      2 * square(run_noise) + 2 * square(software.scatter) +
      square(curve_error) * (unseen_variance(first.size()) + unseen_variance(second.size()));
  const auto part = [&](double mean, const StepDraw& one, const StepDraw& other, double more) {
    WorkShares difference{}, of_one{}, of_other{};
    for (std::size_t work = 0; work < work_class_count; ++work) {
      if (other_machine.apart[work]) {
        of_one[work] = one.shares[work] - software.fitted_shares[work];
        of_other[work] = other.shares[work] - other_machine.fitted_shares[work];
      } else {
        difference[work] = one.shares[work] - other.shares[work];
      }
    }
    return Normal{
        mean,
        std::sqrt(own + more + class_variance(difference, {}, software.has_measured_exchanges) +
                  class_variance(of_one, {}, software.has_measured_exchanges) +
                  class_variance(of_other, {}, other_machine.has_measured_exchanges))};
  };
  const auto log_ratio = [](const StepDraw& one, const StepDraw& other) {
    return std::log(one.step_ms / other.step_ms);
  };
  std::vector<Normal> mixture;
  if (first.size() != second.size()) {  // without partners each meets each
    for (const StepDraw& one : first) {
      for (const StepDraw& other : second) {
        mixture.push_back(part(log_ratio(one, other), one, other, 0));
      }
    }
  } else {  // replicas of one seed share their draws
    std::vector<double> ratios;
    for (std::size_t draw = 0; draw < first.size(); ++draw) {
      ratios.push_back(log_ratio(first[draw], second[draw]));
      mixture.push_back(part(ratios.back(), first[draw], second[draw], 0));
    }
    ValuesAtLoads all = values_at_loads(ratios, of_first);
    const ValuesAtLoads others = values_at_loads(ratios, of_second);
    if (all.values.empty() || (!others.values.empty() && others.variance < all.variance)) {
      all = others;
    }
    if (!all.values.empty()) mixture.clear();
    for (std::size_t at = 0; at < all.values.size(); ++at) {
      const std::size_t like = all.like[at];
      mixture.push_back(part(all.values[at], first[like], second[like], all.variance));
    }
  }
  return {quantile_of(mixture, 0.05), quantile_of(mixture, 0.5), quantile_of(mixture, 0.95)};
}

}  // namespace moesim::uncertainty
