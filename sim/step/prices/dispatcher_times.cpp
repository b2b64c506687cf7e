#include "sim/step/prices/dispatcher_times.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/routing/jobs/gpu_rows.hpp"

namespace moesim::step {
namespace {

using profile::DispatcherStage;
using profile::DispatchLoad;
using profile::SentOnce;
using routing::GpuRows;

profile::MoeTraffic traffic_of(const scenario::Scenario& scenario) {
  return {.experts = scenario.experts,
          .top_k = scenario.router.choices(),
          .groups = scenario.router.groups,
          .kept_groups = scenario.router.kept_groups};
}

network::DispatchPlace place_of(const scenario::Scenario& scenario) {
  network::DispatchPlace place = network::dispatch_place(
      scenario.profile->device().name, *scenario.cluster, scenario.expert_parallel);
  place.rates.in_training = scenario.mode == scenario::Mode::train;
  return place;
}

// The rows that the members of one group send.
profile::SentBy<std::int32_t> rows_of(const GpuRows& rows, int group, int members) {
  profile::SentBy<std::int32_t> sent;
  for (int gpu = group * members; gpu < (group + 1) * members; ++gpu) sent.push_back(rows.of(gpu));
  return sent;
}

}  // namespace

DispatcherTimes::DispatcherTimes(const scenario::Scenario& scenario)
    : scenario_(scenario),
      place_(place_of(scenario)),
      measured_(*scenario.dispatcher, place_, *scenario.cluster),
      to_gpus_(traffic_of(scenario), place_.group.gpus),
      to_nodes_(traffic_of(scenario), place_.group.domains()) {}

// The copies of one group, as TokenCopies has them.
routing::TokenCopies DispatcherTimes::copies_of(const routing::LayerRouting& layer,
                                                int group) const {
  const int members = place_.group.gpus;
  const GpuRows kept_rows(layer.kept_rows, scenario_.experts);
  routing::TokenCopies copies;
  for (int source = 0; source < members; ++source) {
    const int gpu = group * members + source;
    const std::int32_t* kept = kept_rows.of(gpu);
    const std::vector<double> rows(kept, kept + scenario_.experts);
    const auto tokens = static_cast<double>(std::max<std::int64_t>(1, scenario_.tokens_of(gpu)));
    const auto add = [&](const profile::CopiesLaw& law, std::vector<std::int32_t>& to) {
      for (int place = 0; place < law.places(); ++place) {
        const double sent =
            law.to_place(tokens, rows.data() + static_cast<std::ptrdiff_t>(place) * law.experts());
        to.push_back(static_cast<std::int32_t>(std::lround(sent)));
      }
    };
    add(to_gpus_, copies.to_gpu);
    add(to_nodes_, copies.to_node);
  }
  return copies;
}

DispatchLoad DispatcherTimes::load(const routing::LayerRouting& layer, int group,
                                   DispatcherStage stage) const {
  const int members = place_.group.gpus;
  DispatchLoad load;
  if (scenario_.dispatcher->sent == SentOnce::per_expert) {
    const GpuRows kept(layer.kept_rows, scenario_.experts);
    load = profile::load_of_rows(place_.group, scenario_.experts, 1, rows_of(kept, group, members));
  } else {
    const bool counted = !layer.copies.to_gpu.empty();
    const routing::TokenCopies own = counted ? routing::TokenCopies() : copies_of(layer, group);
    const routing::TokenCopies& copies = counted ? layer.copies : own;
    const int place = counted ? group : 0;
    const GpuRows to_gpu(copies.to_gpu, members);
    const GpuRows to_node(copies.to_node, place_.group.domains());
    load = profile::load_of_copies(place_.group, stage, rows_of(to_gpu, place, members),
                                   rows_of(to_node, place, members));
  }
  for (int member = 0; member < members; ++member) {
    const auto tokens = static_cast<double>(scenario_.tokens_of(group * members + member));
    load.tokens = std::max(load.tokens, tokens);
  }
  return load;
}

profile::Estimate DispatcherTimes::time(const routing::LayerRouting& layer, int group,
                                        DispatcherStage stage, double slower) const {
  profile::DispatchRates rates = place_.rates;
  rates.link_bytes_per_us /= slower;
  rates.nic_bytes_per_us /= slower;
  const profile::Dispatcher& dispatcher = *scenario_.dispatcher;
  const std::int64_t hidden = scenario_.model->hidden;
  const double row =
      profile::dispatched_row_bytes(dispatcher, stage, static_cast<double>(hidden), false);
  profile::Estimate estimate =
      measured_.time({stage, false, row, hidden, scenario_.router.choices(), sms()},
                     load(layer, group, stage), rates);
  const double notify_us = dispatcher.notify_us[place_.group.crosses() ? 1 : 0];
  estimate.time_us += notify_us;
  estimate.time_us_p05 += notify_us;
  estimate.time_us_p95 += notify_us;
  return estimate;
}

// The SMs as the command train has them.
int DispatcherTimes::sms() const {
  const profile::Dispatcher& dispatcher = *scenario_.dispatcher;
  return scenario_.mode == scenario::Mode::train ? dispatcher.training_sms : dispatcher.usual_sms;
}

std::string DispatcherTimes::provenance() const { return measured_.provenance(sms(), true); }

}  // namespace moesim::step
