#include "sim/step/prices/dispatcher_times.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/network/exchange/measured_dispatch.hpp"
#include "sim/routing/jobs/gpu_rows.hpp"

namespace moesim::step {
namespace {

using profile::DispatchLoad;
using profile::MoeStage;
using profile::SentOnce;
using routing::GpuRows;

std::size_t at(int index) { return static_cast<std::size_t>(index); }

double largest(const std::vector<std::int64_t>& values) {
  return static_cast<double>(*std::max_element(values.begin(), values.end()));
}

double larger(const std::vector<std::int64_t>& out, const std::vector<std::int64_t>& in) {
  return std::max(largest(out), largest(in));
}

}  // namespace

DispatcherTimes::DispatcherTimes(const scenario::Scenario& scenario)
    : scenario_(scenario),
      place_(network::dispatch_place(scenario.profile->device().name, *scenario.cluster,
                                     scenario.expert_parallel)),
      dispatcher_(network::with_measurements(*scenario.dispatcher, place_, *scenario.cluster)) {}

// What each GPU of a group does, in rows.
struct DispatcherTimes::Rows {
  explicit Rows(int members)
      : staged(at(members)),
        forwarded(at(members)),
        received(at(members)),
        link_out(at(members)),
        link_in(at(members)),
        nic_out(at(members)),
        nic_in(at(members)) {}
  std::vector<std::int64_t> staged, forwarded, received, link_out, link_in, nic_out, nic_in;
};

// Those of one group, as TokenCopies has them.
routing::TokenCopies DispatcherTimes::copies_of(const routing::LayerRouting& layer,
                                                int group) const {
  const int members = place_.group.gpus;
  const int nodes = place_.group.domains();
  const profile::MoeTraffic traffic = {scenario_.experts, scenario_.router.choices(), 0,
                                       scenario_.router.groups, scenario_.router.kept_groups};
  const GpuRows kept_rows(layer.kept_rows, scenario_.experts);
  routing::TokenCopies copies;
  for (int source = 0; source < members; ++source) {
    const int gpu = group * members + source;
    const std::int32_t* kept = kept_rows.of(gpu);
    const auto tokens = static_cast<double>(std::max<std::int64_t>(1, scenario_.tokens_of(gpu)));
    const auto add = [&](int places, std::vector<std::int32_t>& to) {
      const int experts = scenario_.experts / places;
      const double share = static_cast<double>(traffic.top_k) / scenario_.experts;
      const double even = profile::distinct_places(traffic, places) / places;
      const double off = even / (1 - std::pow(1 - share, experts));
      for (int place = 0; place < places; ++place) {
        double missed = 1;
        double sum = 0;
        for (int expert = place * experts; expert < (place + 1) * experts; ++expert) {
          missed *= 1 - std::min(1.0, kept[expert] / tokens);
          sum += kept[expert];
        }
        to.push_back(static_cast<std::int32_t>(
            std::lround(std::min({tokens * (1 - missed) * off, tokens, sum}))));
      }
    };
    add(members, copies.to_gpu);
    add(nodes, copies.to_node);
  }
  return copies;
}

void DispatcherTimes::copies_per_place(const routing::TokenCopies& copies, int group,
                                       MoeStage stage, DispatchLoad& load) const {
  const int members = place_.group.gpus;
  const bool gates = place_.group.crosses();  // then rows go through the GPU in the source's place
  const int node = gates ? place_.group.per_domain : members;
  const int nodes = members / node;
  const GpuRows to_gpus(copies.to_gpu, members);
  const GpuRows to_nodes(copies.to_node, nodes);
  Rows rows(members);
  for (int source = 0; source < members; ++source) {
    const std::int32_t* to_gpu = to_gpus.of(group * members + source);
    const std::int32_t* to_node = to_nodes.of(group * members + source);
    for (int to = 0; to < nodes; ++to) {
      const int gate = gates ? to * node + source % node : source;
      for (int member = to * node; member < (to + 1) * node; ++member) {
        rows.forwarded[at(gate)] += to_gpu[member];
        rows.received[at(member)] += to_gpu[member];
        if (member == gate) continue;
        rows.link_out[at(gate)] += to_gpu[member];
        rows.link_in[at(member)] += to_gpu[member];
      }
      if (!gates) continue;
      rows.staged[at(source)] += to_node[to];
      if (gate == source) continue;
      rows.nic_out[at(source)] += to_node[to];
      rows.nic_in[at(gate)] += to_node[to];
    }
  }
  for (int member = 0; member < members; ++member) {
    const std::int64_t forwarded = rows.forwarded[at(member)];
    const std::int64_t received = rows.received[at(member)];
    std::int64_t copied = std::max(forwarded, received);
    if (gates) {
      copied =
          stage == MoeStage::dispatch ? rows.staged[at(member)] + copied : forwarded + received;
    }
    load.copies = std::max(load.copies, static_cast<double>(copied));
  }
  load.link_rows = larger(rows.link_out, rows.link_in);
  load.nic_rows = larger(rows.nic_out, rows.nic_in);
}

void DispatcherTimes::copies_per_expert(const routing::LayerRouting& layer, int group,
                                        DispatchLoad& load) const {
  const int members = place_.group.gpus;
  const int experts = scenario_.experts;
  const int local = experts / members;
  const GpuRows kept_rows(layer.kept_rows, experts);
  Rows rows(members);
  std::vector<std::int64_t> of_expert(at(experts));
  for (int source = 0; source < members; ++source) {
    const std::int32_t* kept = kept_rows.of(group * members + source);
    for (int expert = 0; expert < experts; ++expert) {
      const int owner = expert / local;
      of_expert[at(expert)] += kept[expert];
      rows.staged[at(source)] += kept[expert];
      rows.received[at(owner)] += kept[expert];
      if (owner == source) continue;
      const bool inside = owner / place_.group.per_domain == source / place_.group.per_domain;
      (inside ? rows.link_out : rows.nic_out)[at(source)] += kept[expert];
      (inside ? rows.link_in : rows.nic_in)[at(owner)] += kept[expert];
    }
  }
  load.copies = larger(rows.staged, rows.received);
  load.link_rows = larger(rows.link_out, rows.link_in);
  load.nic_rows = larger(rows.nic_out, rows.nic_in);
  load.expert_rows = largest(of_expert);
}

DispatchLoad DispatcherTimes::load(const routing::LayerRouting& layer, int group,
                                   MoeStage stage) const {
  DispatchLoad load;
  const int members = place_.group.gpus;
  for (int member = 0; member < members; ++member) {
    const auto tokens = static_cast<double>(scenario_.tokens_of(group * members + member));
    load.tokens = std::max(load.tokens, tokens);
  }
  if (scenario_.dispatcher->sent == SentOnce::per_expert) {
    copies_per_expert(layer, group, load);
  } else {
    const bool counted = !layer.copies.to_gpu.empty();
    copies_per_place(counted ? layer.copies : copies_of(layer, group), counted ? group : 0, stage,
                     load);
  }
  return load;
}

profile::Estimate DispatcherTimes::time(const routing::LayerRouting& layer, int group,
                                        MoeStage stage, double slower) const {
  profile::DispatchRates rates = place_.rates;
  rates.link_bytes_per_us /= slower;
  rates.nic_bytes_per_us /= slower;
  const double row = profile::dispatched_row_bytes(
      dispatcher_, stage, static_cast<double>(scenario_.model->hidden), false);
  profile::Estimate estimate =
      profile::dispatch_time(dispatcher_, place_.device, stage, place_.group,
                             load(layer, group, stage), row, rates, dispatcher_.usual_sms);
  const double notify_us = dispatcher_.notify_us[place_.group.crosses() ? 1 : 0];
  estimate.time_us += notify_us;
  estimate.time_us_p05 += notify_us;
  estimate.time_us_p95 += notify_us;
  return estimate;
}

std::string DispatcherTimes::provenance() const {
  return network::dispatch_provenance(dispatcher_, place_, dispatcher_.usual_sms, true);
}

}  // namespace moesim::step
