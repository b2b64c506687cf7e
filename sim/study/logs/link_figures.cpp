#include "sim/study/logs/link_figures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/statistics.hpp"
#include "sim/cluster/measured_between.hpp"
#include "sim/study/logs/link_fit.hpp"
#include "sim/study/logs/nic_fit.hpp"

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

  void write_nics() {
    const NicFit fit = fit_nics(evidence_, base_, profile_, known_efficiency(), fitted_);
    if (!fit.starts.empty()) write_start(fit);
    for (const NicRate& rate : fit.rates) note_odd_rate(rate);
    for (const NicRate& rate : fit.ring_rates) note_odd_rate(rate);
    write_efficiency(fit.efficiency);
  }

  // nic.efficiency as single transfers, else the base say it.
  NicEfficiency known_efficiency() const {
    NicEfficiency known;
    if (evidence_.nic_rates.empty()) {
      const ordered_json figure = unfitted();
      known.share = {figure["value"], figure["low"], figure["high"]};
    } else {
      known.share = efficiency_of_slowest(evidence_.nic_rates);
      known.found = evidence_.nic_rates;
    }
    return known;
  }

  // The figure of the base without what rings and trees said of it.
  ordered_json unfitted() const {
    const ordered_json& old = document_["nic"]["efficiency"];
    return old.contains("unfitted") ? old["unfitted"] : old;
  }

  void write_efficiency(const NicEfficiency& efficiency) {
    ordered_json& figure = document_["nic"]["efficiency"];
    const ordered_json known =
        evidence_.nic_rates.empty()
            ? unfitted()
            : json_of(efficiency_of_slowest(evidence_.nic_rates), evidence_.nic_rates);
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

  void write_start(const NicFit& fit) {
    std::vector<Evidence> found;
    for (const ExchangeStart& start : fit.starts) {
      const MeasuredExchange& measured = *start.measured;
      found.push_back(
          {start.figure(), described(measured) + by_model(profile_), runs_of(measured)});
      const auto [least, most] = searched_starts;
      if (start.value > least && start.value < most) continue;
      notes_.push_back(fmt::format(
          "warning: {}: {} takes {:.1f} us at {:.0f} bytes, {} than the model with any start "
          "between {:g} and {:g} times its own: that end is taken; other numbers of nodes may be "
          "far off",
          runs_of(measured), described(measured), measured.time_us.front(), measured.bytes.front(),
          start.value > least ? "longer" : "less", least, most));
    }
    write("nic", "start", fit.start, found);
  }

  // A rate that says more of the fabric, or of the model, than of the NICs.
  void note_odd_rate(const NicRate& rate) {
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
      const double more = more_at_large_size(measured, base_, profile_);
      const std::string what = described(measured) + (more > 1 ? by_model(profile_) : "");
      found.push_back(with_runs({std::min(1.0, *share * more), what, runs_of(measured)}, measured));
    }
    if (found.empty()) found = evidence_.copies;
    if (found.empty()) return;
    const FittedShare share = efficiency_of(found);
    fitted_.domain.efficiency = {rounded(share.value), rounded(share.low), rounded(share.high),
                                 origin(found)};
    write("domain", "efficiency", share, found);
  }

  void note_uneven_nics() {
    std::vector<std::pair<double, std::string>> nics;
    for (const auto& [nic, rates] : rates_by_nic(evidence_.nic_rates)) {
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
