#include "sim/study/logs/link_figures.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/statistics.hpp"
#include "sim/cluster/measured_between.hpp"
#include "sim/study/logs/link_fit.hpp"

namespace moesim::study {
namespace {

using cluster::Cluster;
using cluster::MeasuredExchange;
using cluster::MeasuredOperation;
using nlohmann::ordered_json;

constexpr double most_above_line_rate = 1.01;
constexpr double small_bytes = 4096;
// Healthy NICs of one kind, and runs of one, differ by less.
constexpr double least_apart = 1.2;
// Public fabrics reach 0.4 to 0.95 with large messages (profiles/CLUSTERS.md).
constexpr double least_of_healthy_fabric = 0.25;
// What the model may be slower than the log, at full line rate, before others come out slow.
constexpr double slower_than_measured = 1.03;

// "nccl-tests on H100, a.log" of "measured: nccl-tests on H100, a.log".
std::string runs_of(const MeasuredExchange& measured) {
  const std::string prefix = "measured: ";
  return measured.origin.substr(measured.origin.starts_with(prefix) ? prefix.size() : 0);
}

double rounded(double value) { return std::round(value * 1e4) / 1e4; }

class LinkWriter {
 public:
  LinkWriter(const LinkEvidence& evidence, const Cluster& base, ordered_json& document,
             std::vector<std::string>& notes)
      : evidence_(evidence), base_(base), fitted_(base), document_(document), notes_(notes) {
    if (!evidence.gpu.empty()) profile_ = profile_of_gpu(evidence.gpu);
    const auto& measured = evidence.exchanges;
    fitted_.exchanges.insert(fitted_.exchanges.end(), measured.begin(), measured.end());
  }

  void write() {
    for (const MeasuredExchange& measured : evidence_.exchanges) check_rate(measured);
    if (document_.contains("domain")) write_domain();
    if (document_.contains("nic")) {
      write_latency();
      note_uneven_nics();
      write_nics();
    }
  }

 private:
  // What an exchange across domains says of nic.efficiency.
  struct Rate {
    const MeasuredExchange* measured;
    double share;                            // of the line rate
    std::optional<FittedEfficiency> fitted;  // of an all-to-all, by the model
    std::optional<EfficiencyBounds> bounds;  // of a ring or tree
  };

  // The nic.start with which the model says what was measured at the smallest size.
  struct Start {
    const MeasuredExchange* measured;
    double value;

    bool of_ring() const { return measured->operation != MeasuredOperation::all_to_all; }
  };

  // What all exchanges across domains together say of nic.efficiency.
  struct NicEfficiency {
    FittedShare share;
    std::vector<Evidence> found;  // what it is measured with; empty: that of the base
    bool bounded = false;         // rings and trees moved it to the end of what they allow
    std::string bounds;           // what they allow, for notes; "": no rings or trees
  };

  // Whatever the figures are fitted to: an exchange faster than its links was not among them.
  void check_rate(const MeasuredExchange& measured) const {
    const std::optional<double> share = line_share(measured, base_);
    if (!share) return;
    // Switches that add up (NVLS, SHARP) halve what a link carries of an all-reduce.
    const double least = measured.operation == MeasuredOperation::all_reduce ? *share / 2 : *share;
    if (least <= most_above_line_rate) return;
    const bool crosses = crosses_domains(base_, measured.nodes);
    throw UsageError(fmt::format(
        "{}: {}: {:.2f} times the line rate of the {} of cluster '{}'{}: choose another --cluster, "
        "or correct its {}",
        runs_of(measured), described(measured), least, crosses ? "NICs" : "domain", base_.name,
        least < *share ? ", even where switches add up" : "",
        crosses ? "nic.per_node and nic.gbit_per_s" : "domain.gb_per_s"));
  }

  std::vector<const MeasuredExchange*> across_domains(bool all_to_alls) const {
    std::vector<const MeasuredExchange*> across;
    for (const MeasuredExchange& measured : evidence_.exchanges) {
      if (!crosses_domains(base_, measured.nodes)) continue;
      const bool is_all_to_all = measured.operation == MeasuredOperation::all_to_all;
      if (is_all_to_all == all_to_alls) across.push_back(&measured);
    }
    return across;
  }

  // A message of NCCL with its software: send-receive of the smallest size. What the NICs alone
  // take is a lower bound.
  void write_latency() {
    std::vector<Evidence> found;
    for (const MeasuredExchange& measured : evidence_.exchanges) {
      if (measured.operation != MeasuredOperation::send_receive) continue;
      if (!crosses_domains(base_, measured.nodes) || measured.bytes.front() > small_bytes) continue;
      found.push_back({measured.time_us.front(), "send-receive across nodes", runs_of(measured)});
    }
    if (found.empty()) {
      for (const Evidence& each : evidence_.nic_latency) {
        if (each.value > base_.nic_latency_us) {
          found.push_back({each.value, each.from + " without NCCL's software", each.file});
          continue;
        }
        notes_.push_back(
            fmt::format("{}: {:.2f} us of the NICs alone: nic.latency_us stays {:g} us, which has "
                        "NCCL's software in it",
                        each.file, each.value, base_.nic_latency_us));
      }
    }
    if (found.empty()) return;
    fitted_.nic_latency_us = rounded(median(values(found)));
    document_["nic"]["latency_us"] = {{"value", fitted_.nic_latency_us}, {"origin", origin(found)}};
    tell("nic.latency_us", fmt::format("{:.2f}", fitted_.nic_latency_us), found);
  }

  // The model needs nic.efficiency to say nic.start and the other way round: in turns, until
  // neither changes. The start of the base is not used, so that the result is the same whether it
  // was fitted before or not.
  void write_nics() {
    std::vector<Start> starts = starts_of_exchanges();
    std::vector<Rate> rates;
    NicEfficiency efficiency;
    if (!starts.empty()) fitted_.nic_start = {1, 1, 1, "measured"};
    constexpr int most_rounds = 10;
    for (int round = 0; round < most_rounds; ++round) {
      const std::pair before{fitted_.nic_start.value, fitted_.nic_efficiency};
      rates = rates_of_exchanges();
      efficiency = efficiency_by(rates);
      fitted_.nic_efficiency = rounded(efficiency.share.value);
      fitted_.nic_efficiency_low = rounded(efficiency.share.low);
      fitted_.nic_efficiency_high = rounded(efficiency.share.high);
      if (!starts.empty()) {
        starts = starts_of_exchanges();
        const FittedShare start = range_of_starts(starts);
        fitted_.nic_start = {start.value, start.low, start.high, "measured"};
      }
      if (before == std::pair{fitted_.nic_start.value, fitted_.nic_efficiency}) break;
    }
    if (!starts.empty()) write_start(starts);
    for (const Rate& rate : rates) note_odd_rate(rate);
    if (!rates.empty() && !rates.front().bounds) {
      for (const Rate& rate : rates_of_rings()) note_odd_rate(rate);
    }
    write_efficiency(efficiency);
  }

  // The figure of the base without what rings and trees said of it.
  ordered_json unfitted() const {
    const ordered_json& old = document_["nic"]["efficiency"];
    return old.contains("unfitted") ? old["unfitted"] : old;
  }

  void write_efficiency(const NicEfficiency& efficiency) {
    ordered_json& figure = document_["nic"]["efficiency"];
    const ordered_json known = evidence_.nic_rates.empty()
                                   ? unfitted()
                                   : json_of(efficiency_of_nics(), evidence_.nic_rates);
    if (efficiency.found.empty()) {
      figure = known;
      if (efficiency.bounds.empty()) return;
      notes_.push_back(fmt::format("nic.efficiency stays {:.3f} ({:.3f} to {:.3f}): {}",
                                   efficiency.share.value, efficiency.share.low,
                                   efficiency.share.high, efficiency.bounds));
      return;
    }
    write("nic", "efficiency", efficiency.share, efficiency.found);
    if (!efficiency.bounds.empty()) notes_.push_back("nic.efficiency: " + efficiency.bounds);
    if (!efficiency.bounded) return;
    figure["unfitted"] = known;
    if (evidence_.nic_rates.empty()) return;
    notes_.push_back(fmt::format(
        "warning: {}: single transfers reach {:.3f} of the NICs' line rate, exchanges of all NICs "
        "do not: a slow NIC, a crowded fabric, or GPUs that do not take the nearest NIC?",
        files(evidence_.nic_rates), known["value"].get<double>()));
  }

  // Of all-to-alls if they have such small sizes; their constants are those that MoE layers need.
  std::vector<Start> starts_of_exchanges() const {
    std::vector<Start> found;
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

  // The law takes the root of the figure for rings and trees. How much longer these take is what is
  // taken of all-to-alls too, not its square; and their range is as wide as without a measurement.
  static FittedShare range_of_starts(const std::vector<Start>& starts) {
    std::vector<double> values;
    for (const Start& start : starts) {
      values.push_back(start.of_ring() ? std::sqrt(start.value) : start.value);
    }
    FittedShare range = range_of(values, start_spread);
    if (!starts.front().of_ring()) return range;
    const cluster::NicStart any;
    return {range.value, std::min(range.low, any.low), std::max(range.high, any.high)};
  }

  void write_start(const std::vector<Start>& starts) {
    std::vector<Evidence> found;
    for (const auto& [measured, value] : starts) {
      const bool of_ring = starts.front().of_ring();
      found.push_back({of_ring ? std::sqrt(value) : value, described(*measured) + by_model(),
                       runs_of(*measured)});
      const auto [least, most] = searched_starts;
      if (value > least && value < most) continue;
      notes_.push_back(fmt::format(
          "warning: {}: {} takes {:.1f} us at {:.0f} bytes, {} than the model with any start "
          "between {:g} and {:g} times its own: that end is taken; other numbers of nodes may be "
          "far off",
          runs_of(*measured), described(*measured), measured->time_us.front(),
          measured->bytes.front(), value > least ? "longer" : "less", least, most));
    }
    write("nic", "start", range_of_starts(starts), found);
  }

  // The same of large sizes.
  std::vector<Rate> rates_of_exchanges() const {
    std::vector<Rate> found;
    for (const MeasuredExchange* measured : across_domains(true)) {
      const std::optional<double> share = line_share(*measured, base_);
      if (!share) continue;
      found.push_back({measured, *share, nic_efficiency_of(*measured, fitted_, profile_), {}});
    }
    return found.empty() ? rates_of_rings() : found;
  }

  std::vector<Rate> rates_of_rings() const {
    std::vector<Rate> found;
    for (const MeasuredExchange* measured : across_domains(false)) {
      const std::optional<double> share = line_share(*measured, base_);
      if (!share) continue;
      found.push_back({measured, *share, {}, nic_efficiency_bounds(*measured, fitted_, profile_)});
    }
    return found;
  }

  // All-to-alls go before single links, and these before rings and trees, which only bound it.
  NicEfficiency efficiency_by(const std::vector<Rate>& rates) const {
    NicEfficiency known;
    if (evidence_.nic_rates.empty()) {
      const ordered_json figure = unfitted();
      known.share = {figure["value"], figure["low"], figure["high"]};
    } else {
      known.share = efficiency_of_nics();
      known.found = evidence_.nic_rates;
    }
    if (rates.empty()) return known;
    if (rates.front().bounds) return within_bounds(known, rates);
    NicEfficiency by_all_to_alls;
    for (const Rate& rate : rates) {
      const std::string plain =
          fmt::format("{} at {:.2f} of the line rate", described(*rate.measured), rate.share);
      by_all_to_alls.found.push_back(
          with_runs({rate.fitted ? rate.fitted->value : rate.share,
                     plain + (rate.fitted ? by_model() : ""), runs_of(*rate.measured)},
                    *rate.measured));
    }
    by_all_to_alls.share = efficiency_of(by_all_to_alls.found);
    return by_all_to_alls;
  }

  // What is known without rings and trees where they allow it, else the nearest that they do.
  NicEfficiency within_bounds(NicEfficiency known, const std::vector<Rate>& rates) const {
    double low = 0, high = 1, least = 1, most = 0;
    std::vector<Evidence> found;
    for (const Rate& rate : rates) {
      const EfficiencyBounds& bounds = *rate.bounds;
      low = std::max(low, bounds.low);
      high = std::min(high, bounds.high);
      least = std::min(least, bounds.low);
      most = std::max(most, bounds.high);
      found.push_back({bounds.low,
                       fmt::format("{}, which allows {:.3f} to {:.3f}{}", described(*rate.measured),
                                   bounds.low, bounds.high, by_model()),
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

  static std::string files(const std::vector<Evidence>& found) {
    std::set<std::string> names;
    for (const Evidence& each : found) names.insert(each.file);
    return fmt::format("{}", fmt::join(names, ", "));
  }

  // A rate that says more of the fabric, or of the model, than of the NICs.
  void note_odd_rate(const Rate& rate) {
    const MeasuredExchange& measured = *rate.measured;
    const double most = rate.bounds ? rate.bounds->high : rate.share;
    if (most < least_of_healthy_fabric) {
      notes_.push_back(fmt::format(
          "warning: {}: {} reaches {:.3f} of the line rate of cluster '{}': does NCCL take all "
          "NICs, over RDMA and not TCP (its log, NCCL_DEBUG=INFO, says so)? Another fabric needs "
          "another --cluster",
          runs_of(measured), described(measured), rate.share, base_.name));
    } else if (rate.fitted && rate.fitted->slower > slower_than_measured) {
      notes_.push_back(fmt::format(
          "warning: {}: {} reaches {:.2f} of the line rate; the model takes at least {:.2f} times "
          "as long at any efficiency, so 1 is taken: sizes and nodes that were measured are "
          "answered from the log, others may come out slow",
          runs_of(measured), described(measured), rate.share, rate.fitted->slower));
    } else if (rate.bounds && rate.bounds->slower > 1) {
      notes_.push_back(fmt::format(
          "warning: {}: {}: the model takes at least {:.2f} times as long at any nic.efficiency: "
          "sizes and nodes that were measured are answered from the log, others may come out slow",
          runs_of(measured), described(measured), rate.bounds->slower));
    }
  }

  void write_domain() {
    std::vector<Evidence> found;
    for (const MeasuredExchange& measured : evidence_.exchanges) {
      if (measured.operation != MeasuredOperation::all_to_all) continue;
      if (crosses_domains(base_, measured.nodes)) continue;
      const std::optional<double> share = line_share(measured, base_);
      if (!share) continue;
      found.push_back(with_runs({*share, described(measured), runs_of(measured)}, measured));
    }
    if (found.empty()) found = evidence_.copies;
    if (found.empty()) return;
    const FittedShare share = efficiency_of(found);
    fitted_.domain.efficiency = {rounded(share.value), rounded(share.low), rounded(share.high),
                                 origin(found)};
    write("domain", "efficiency", share, found);
  }

  // A share with the scatter of the largest size's runs, to which it is in inverse proportion.
  static Evidence with_runs(Evidence share, const MeasuredExchange& measured) {
    if (measured.p05_us.empty()) return share;
    const double time_us = measured.time_us.back();
    share.low = share.value * time_us / measured.p95_us.back();
    share.high = share.value * time_us / measured.p05_us.back();
    return share;
  }

  // As share_of(), and wide enough for the runs of each.
  static FittedShare efficiency_of(const std::vector<Evidence>& found) {
    FittedShare share = share_of(values(found));
    for (const Evidence& each : found) {
      if (each.high == 0) continue;
      share.low = std::min(share.low, each.low);
      share.high = std::min(1.0, std::max(share.high, each.high));
    }
    return share;
  }

  // Shares of single transfers by NIC, "" for those that do not name one.
  std::map<std::string, std::vector<double>> rates_by_nic() const {
    std::map<std::string, std::vector<double>> rates;
    for (const Evidence& each : evidence_.nic_rates) rates[each.nic].push_back(each.value);
    return rates;
  }

  // Every GPU sends over its own NIC and all wait for the slowest. The range holds all transfers.
  FittedShare efficiency_of_nics() const {
    std::vector<double> medians;
    for (const auto& [nic, rates] : rates_by_nic()) medians.push_back(median(rates));
    const FittedShare all = efficiency_of(evidence_.nic_rates);
    const FittedShare slowest = share_of({*std::min_element(medians.begin(), medians.end())});
    return {slowest.value, std::min(slowest.low, all.low), std::max(slowest.high, all.high)};
  }

  void note_uneven_nics() {
    std::vector<std::pair<double, std::string>> nics;
    for (const auto& [nic, rates] : rates_by_nic()) {
      nics.emplace_back(median(rates), nic);
      const auto [least, most] = std::minmax_element(rates.begin(), rates.end());
      if (*most < least_apart * *least) continue;
      notes_.push_back(fmt::format(
          "warning: {}: transfers of {} reach {:.3f} to {:.3f} of the line rate; their "
          "median is taken: where these are NICs of several nodes, import the slowest alone",
          files_of(nic), nic.empty() ? "one NIC" : nic, *least, *most));
    }
    if (nics.size() < 2) return;
    std::sort(nics.begin(), nics.end());
    const auto& [slowest, name] = nics.front();
    const double usual = nics[nics.size() / 2].first;
    if (usual < least_apart * slowest) return;
    notes_.push_back(
        fmt::format("warning: {}: {} reaches {:.3f} of the line rate, others {:.3f}: exchanges of "
                    "all NICs wait for the slowest, so it counts: a link in need of repair?",
                    files_of(name), name.empty() ? "a NIC" : name, slowest, usual));
  }

  std::string files_of(const std::string& nic) const {
    std::vector<Evidence> found;
    for (const Evidence& each : evidence_.nic_rates) {
      if (each.nic == nic) found.push_back(each);
    }
    return files(found);
  }

  std::string by_model() const {
    return profile_ ? fmt::format(" (by the model with profile {})", profile_->name()) : "";
  }

  static std::vector<double> values(const std::vector<Evidence>& found) {
    std::vector<double> values;
    for (const Evidence& each : found) values.push_back(each.value);
    return values;
  }

  static std::string origin(const std::vector<Evidence>& found) {
    std::set<std::string> from;
    for (const Evidence& each : found) from.insert(each.from + ", " + each.file);
    return fmt::format("measured: {}", fmt::join(from, "; "));
  }

  static ordered_json json_of(const FittedShare& figure, const std::vector<Evidence>& found) {
    return {{"value", rounded(figure.value)},
            {"low", rounded(figure.low)},
            {"high", rounded(figure.high)},
            {"origin", origin(found)}};
  }

  void write(const char* part, const char* key, const FittedShare& figure,
             const std::vector<Evidence>& found) {
    document_[part][key] = json_of(figure, found);
    tell(fmt::format("{}.{}", part, key),
         fmt::format("{:.3f} ({:.3f} to {:.3f})", figure.value, figure.low, figure.high), found);
  }

  void tell(const std::string& key, const std::string& value, const std::vector<Evidence>& found) {
    notes_.push_back(fmt::format("{} {}, {}", key, value, origin(found)));
  }

  const LinkEvidence& evidence_;
  const Cluster& base_;
  Cluster fitted_;  // with what is known so far
  ordered_json& document_;
  std::vector<std::string>& notes_;
  std::shared_ptr<const profile::Profile> profile_;
};

}  // namespace

std::string described(const MeasuredExchange& measured) {
  return fmt::format("{} of {} GPUs on {} {}", name_of(measured.operation), measured.gpus,
                     measured.nodes, measured.nodes == 1 ? "node" : "nodes");
}

void check_line_rate(const std::string& file, double share, const std::string& measured,
                     const std::string& line) {
  if (share <= most_above_line_rate) return;
  throw UsageError(fmt::format(
      "{}: {}, but the line rate of the base is {}: choose another --cluster, or correct it", file,
      measured, line));
}

void write_links(const LinkEvidence& evidence, const Cluster& base, ordered_json& document,
                 std::vector<std::string>& notes) {
  LinkWriter(evidence, base, document, notes).write();
}

}  // namespace moesim::study
