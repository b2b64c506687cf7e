#include "sim/study/logs/nic_fit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/base/statistics.hpp"
#include "sim/cluster/measured_between.hpp"

namespace moesim::study {
namespace {

using cluster::Cluster;
using cluster::MeasuredExchange;
using cluster::MeasuredOperation;

// How much longer rings and trees take is what is taken of all-to-alls too, not its square; and the
// range of rings and trees is as wide as without a measurement.
FittedShare range_of_starts(const std::vector<ExchangeStart>& starts) {
  std::vector<double> values;
  for (const ExchangeStart& start : starts) {
    values.push_back(start.figure());
  }
  FittedShare range = range_of(values, start_spread);
  if (!starts.front().of_ring()) return range;
  const cluster::NicStart any;
  return {range.value, std::min(range.low, any.low), std::max(range.high, any.high)};
}

class NicFitter {
 public:
  NicFitter(const LinkEvidence& evidence, const Cluster& base,
            const std::shared_ptr<const profile::Profile>& profile, const NicEfficiency& known,
            Cluster& fitted)
      : evidence_(evidence), base_(base), profile_(profile), known_(known), fitted_(fitted) {}

  // The model needs nic.efficiency to say nic.start and the other way round: in turns, until
  // neither changes. The start of the base is not used, so that the result is the same whether it
  // was fitted before or not.
  NicFit fit() {
    NicFit found;
    found.starts = starts_of_exchanges();
    if (!found.starts.empty()) fitted_.nic_start = {1, 1, 1, "measured"};
    constexpr int most_rounds = 10;
    for (int round = 0; round < most_rounds; ++round) {
      const std::pair before{fitted_.nic_start.value, fitted_.nic_efficiency};
      found.rates = rates_of_exchanges();
      found.efficiency = efficiency_by(found.rates);
      fitted_.nic_efficiency = rounded(found.efficiency.share.value);
      fitted_.nic_efficiency_low = rounded(found.efficiency.share.low);
      fitted_.nic_efficiency_high = rounded(found.efficiency.share.high);
      if (!found.starts.empty()) {
        found.starts = starts_of_exchanges();
        found.start = range_of_starts(found.starts);
        fitted_.nic_start = {found.start.value, found.start.low, found.start.high, "measured"};
      }
      if (before == std::pair{fitted_.nic_start.value, fitted_.nic_efficiency}) break;
    }
    const bool of_all_to_alls = !found.rates.empty() && !found.rates.front().bounds;
    if (of_all_to_alls) found.ring_rates = rates_of_rings();
    return found;
  }

 private:
  std::vector<const MeasuredExchange*> across_domains(bool all_to_alls) const {
    std::vector<const MeasuredExchange*> across;
    for (const MeasuredExchange& measured : evidence_.exchanges) {
      if (!crosses_domains(base_, measured.nodes)) continue;
      const bool is_all_to_all = measured.operation == MeasuredOperation::all_to_all;
      if (is_all_to_all == all_to_alls) across.push_back(&measured);
    }
    return across;
  }

  // The starts of all-to-alls if they have such small sizes: their constants are those that MoE
  // layers need. Else those of rings and trees.
  std::vector<ExchangeStart> starts_of_exchanges() const {
    std::vector<ExchangeStart> found;
    for (const bool all_to_alls : {true, false}) {
      for (const MeasuredExchange* measured : across_domains(all_to_alls)) {
        if (const auto start = nic_start_of(*measured, fitted_, profile_)) {
          found.push_back({measured, *start});
        }
      }
      if (!found.empty()) break;
    }
    return found;
  }

  // The rates of all-to-alls at large sizes, else those of rings and trees.
  std::vector<NicRate> rates_of_exchanges() const {
    std::vector<NicRate> found;
    for (const MeasuredExchange* measured : across_domains(true)) {
      const std::optional<double> share = line_share(*measured, base_);
      if (!share) continue;
      found.push_back({measured, *share, nic_efficiency_of(*measured, fitted_, profile_), {}});
    }
    return found.empty() ? rates_of_rings() : found;
  }

  std::vector<NicRate> rates_of_rings() const {
    std::vector<NicRate> found;
    for (const MeasuredExchange* measured : across_domains(false)) {
      const std::optional<double> share = line_share(*measured, base_);
      if (!share) continue;
      found.push_back({measured, *share, {}, nic_efficiency_bounds(*measured, fitted_, profile_)});
    }
    return found;
  }

  NicEfficiency efficiency_by(const std::vector<NicRate>& rates) const {
    if (rates.empty()) return known_;
    if (rates.front().bounds) return within_bounds(known_, rates);
    NicEfficiency by_all_to_alls;
    for (const NicRate& rate : rates) {
      const std::string plain =
          fmt::format("{} at {:.2f} of the line rate", described(*rate.measured), rate.share);
      by_all_to_alls.found.push_back(
          with_runs({rate.fitted ? rate.fitted->value : rate.share,
                     plain + (rate.fitted ? by_model(profile_) : ""), runs_of(*rate.measured)},
                    *rate.measured));
    }
    by_all_to_alls.share = efficiency_of(by_all_to_alls.found);
    return by_all_to_alls;
  }

  // What is known without rings and trees where they allow it, else the nearest that they do.
  NicEfficiency within_bounds(NicEfficiency known, const std::vector<NicRate>& rates) const {
    double low = 0, high = 1, least = 1, most = 0;
    std::vector<Evidence> found;
    for (const NicRate& rate : rates) {
      const EfficiencyBounds& bounds = *rate.bounds;
      low = std::max(low, bounds.low);
      high = std::min(high, bounds.high);
      least = std::min(least, bounds.low);
      most = std::max(most, bounds.high);
      found.push_back({bounds.low,
                       fmt::format("{}, which allows {:.3f} to {:.3f}{}", described(*rate.measured),
                                   bounds.low, bounds.high, by_model(profile_)),
                       runs_of(*rate.measured)});
    }
    const double value = known.share.value;
    if (low <= value && value <= high) {
      known.bounds = fmt::format("rings and trees only say that it lies in {:.3f} to {:.3f} ({})",
                                 low, high, origin(found));
      return known;
    }
    NicEfficiency moved{known.share, std::move(found), true, ""};
    if (low > high) {
      moved.share = {std::sqrt(low * high), least, most};
      moved.bounds = "no value agrees with all of these; the middle is taken";
    } else {
      moved.share = share_of({low, std::clamp(value, low, high), high});
      moved.bounds = fmt::format("the nearest to {:.3f} ({}) that rings and trees allow", value,
                                 known.found.empty() ? "of the base" : files(known.found));
    }
    return moved;
  }

  const LinkEvidence& evidence_;
  const Cluster& base_;
  const std::shared_ptr<const profile::Profile>& profile_;
  const NicEfficiency& known_;
  Cluster& fitted_;  // with what is known so far
};

}  // namespace

double ExchangeStart::figure() const { return of_ring() ? std::sqrt(value) : value; }

NicFit fit_nics(const LinkEvidence& evidence, const Cluster& base,
                const std::shared_ptr<const profile::Profile>& profile, const NicEfficiency& known,
                Cluster& fitted) {
  return NicFitter(evidence, base, profile, known, fitted).fit();
}

std::map<std::string, std::vector<double>> rates_by_nic(const std::vector<Evidence>& nic_rates) {
  std::map<std::string, std::vector<double>> rates;
  for (const Evidence& each : nic_rates) rates[each.nic].push_back(each.value);
  return rates;
}

FittedShare efficiency_of_slowest(const std::vector<Evidence>& nic_rates) {
  std::vector<double> medians;
  for (const auto& [nic, rates] : rates_by_nic(nic_rates)) medians.push_back(median(rates));
  const FittedShare all = efficiency_of(nic_rates);
  const FittedShare slowest = share_of({*std::min_element(medians.begin(), medians.end())});
  return {slowest.value, std::min(slowest.low, all.low), std::max(slowest.high, all.high)};
}

}  // namespace moesim::study
