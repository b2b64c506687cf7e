#include "sim/routing/counts/count_pilot.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/routing/counts/count_distribution.hpp"

namespace moesim::routing {

void CountPilot::draw(std::span<const RoutingJob> jobs, const LogitSource& logits,
                      const StreamKey& key, PilotCache* shared) {
  PilotPlan plan(jobs);
  const std::string name = shared != nullptr ? plan.key(jobs, key) : "";
  const auto make = [&] {
    return std::make_shared<const PilotTokens>(std::move(plan), logits, key, kernels_);
  };
  drawn_ = shared != nullptr ? shared->get(name, make) : make();
  const std::size_t routes = static_cast<std::size_t>(table().choices()) * drawn_->tokens();
  while (log_factorials_.size() < routes) {
    const std::size_t number = log_factorials_.size();
    log_factorials_.push_back(
        number < 2 ? 0.0 : log_factorials_.back() + std::log(static_cast<double>(number)));
  }
}

KeptTokens CountPilot::kept_tokens(const RouterConfig& router, int rank) const {
  const auto begin = static_cast<std::size_t>(table().rank_begin(rank));
  KeptTokens run;
  run.tokens = static_cast<std::size_t>(table().rank_begin(rank + 1)) - begin;
  run.top_k = router.top_k;
  run.choices = router.choices();
  run.keep = keep_.data() + begin;
  run.keep_stride = keep_stride_;
  run.expert = table().expert(0) + begin;
  run.probability = table().probability(0) + begin;
  run.stride = table().stride();
  if (router.rectification == Rectification::none) return run;
  const bool exclude = router.ir_duplicates == IrDuplicates::exclude;
  const int set = drawn_->local_set(router);
  run.ir_expert = (exclude ? ir_expert_.data() : table().local_expert(set, 0)) + begin;
  run.ir_probability =
      (exclude ? ir_probability_.data() : table().local_probability(set, 0)) + begin;
  return run;
}

// Whether the waiting routes that come before one with this quantile leave it a slot; it is one of
// `routes` in the sample (0: known exactly).
bool CountPilot::finds_slot(const Queueing& queue, double quantile, std::int32_t routes,
                            double chance) const {
  const std::int32_t waiting = queue.waiting;
  if (routes == 0) return binomial_quantile(waiting, quantile, chance) < queue.left;
  if (waiting >= routes) return static_cast<std::int64_t>(waiting * quantile) < queue.left;
  const auto place = static_cast<std::int64_t>(quantile * routes);
  return hypergeometric_is_below(queue.left, routes - 1, place, waiting, chance, log_factorials_);
}

// How many routes of a choice are kept.
std::int64_t CountPilot::decide(const RouterConfig& router, int choice,
                                std::span<const Queueing> queues) {
  const auto choices = static_cast<std::size_t>(router.choices());
  const auto experts = static_cast<std::size_t>(table().experts());
  const auto row = static_cast<std::size_t>(choice);
  const PilotTokens::Quantiles& told = drawn_->quantiles(router, choice);
  const std::vector<std::uint16_t>& band = drawn_->bands(router.choices()).of;
  const std::uint16_t* expert = table().expert(choice);
  const float* chance = drawn_->chance(choice);
  std::uint8_t* keep = keep_.data() + row * keep_stride_;
  std::int64_t count = 0;
  for (std::size_t block = 0; block < blocks(); ++block) {
    const Queueing* queue = queues.data() + (block * choices + row) * experts;
    for (std::size_t token = block * PilotTokens::block_tokens;
         token < (block + 1) * PilotTokens::block_tokens; ++token) {
      const Queueing found = queue[expert[token]];
      bool kept = found.left > found.waiting;
      if (!kept && found.left > 0) {
        const std::int32_t routes = told.routes.empty() ? 0 : told.routes[band[expert[token]]];
        kept = finds_slot(found, static_cast<double>(told.of[token]), routes,
                          static_cast<double>(chance[token]));
      }
      keep[token] = kept ? 1 : 0;
      count += keep[token];
    }
  }
  return count;
}

PilotLoss CountPilot::judge(const RouterConfig& router, std::span<const Queueing> queues) {
  const auto choices = static_cast<std::size_t>(router.choices());
  const auto top_k = static_cast<std::size_t>(router.top_k);
  keep_stride_ = drawn_->tokens() + tile_tokens;
  keep_.resize(choices * keep_stride_);
  has_ir_.assign(drawn_->tokens() + tile_tokens, 0);
  double kept = 0;
  double kept_primary = 0;
  for (std::size_t choice = 0; choice < choices; ++choice) {
    const auto count = static_cast<double>(decide(router, static_cast<int>(choice), queues));
    kept += count;
    if (choice < top_k) kept_primary += count;
  }
  const bool rectifies = router.rectification != Rectification::none;
  if (rectifies && router.ir_duplicates == IrDuplicates::exclude) {
    find_untaken_locals({table(), drawn_->local_set(router), router, keep_.data(), keep_stride_},
                        ir_expert_, ir_probability_);
  }
  LossTotals totals;
  for (int rank = 0; rank < table().ranks(); ++rank) {
    kernels_.add_losses(kept_tokens(router, rank),
                        rectifies ? has_ir_.data() + table().rank_begin(rank) : nullptr, totals);
  }
  const auto tokens = static_cast<double>(drawn_->tokens());
  const auto share = [&](std::int64_t count) { return static_cast<double>(count) / tokens; };
  PilotLoss loss;
  loss.failed = 1 - kept_primary / (tokens * static_cast<double>(top_k));
  loss.attempted = 1 - kept / (tokens * static_cast<double>(choices));
  loss.partial = share(totals.partial);
  loss.lost_mass = totals.lost_mass / totals.top_mass;
  loss.unrouted = share(totals.unrouted);
  loss.residual = totals.residual / tokens;
  std::int64_t needing = 0;
  for (std::size_t token = 0; rectifies && token < drawn_->tokens(); ++token) {
    std::size_t kept_here = 0;
    for (std::size_t choice = 0; choice < choices; ++choice) {
      kept_here += keep_[choice * keep_stride_ + token];
    }
    needing += kept_here < top_k ? 1 : 0;
  }
  loss.needing = share(needing);
  loss.ir = share(totals.ir_rows);
  loss.duplicate_ir = share(totals.duplicate_ir);
  return loss;
}

std::vector<PilotLoss> CountPilot::judge_parts(const RouterConfig& router, int parts) const {
  const auto top_k = static_cast<std::size_t>(router.top_k);
  const auto count = static_cast<std::size_t>(parts);
  std::vector<PilotLoss> losses(count);
  const double tokens = static_cast<double>(drawn_->tokens()) / static_cast<double>(parts);
  for (std::size_t token = 0; token < drawn_->tokens(); ++token) {
    std::size_t kept = 0;
    for (std::size_t choice = 0; choice < top_k; ++choice) {
      kept += keep_[choice * keep_stride_ + token];
    }
    PilotLoss& loss = losses[token * count / drawn_->tokens()];
    loss.failed += static_cast<double>(top_k - kept) / (tokens * static_cast<double>(top_k));
    loss.partial += kept < top_k ? 1 / tokens : 0;
  }
  return losses;
}

std::map<std::pair<int, int>, IrTargets> CountPilot::ir_targets(const RouterConfig& router) const {
  const PilotTokens::Bands& bands = drawn_->bands(router.choices());
  struct Tally {
    double failed_routes = 0, to_failed = 0, tokens = 0, other_rows = 0;
  };
  std::map<std::pair<int, int>, std::vector<Tally>> tallies;
  const std::uint16_t* best = table().local_expert(drawn_->local_set(router), 0);
  for (int rank = 0; rank < table().ranks(); ++rank) {
    const KeptTokens run = kept_tokens(router, rank);
    const auto begin = static_cast<std::size_t>(table().rank_begin(rank));
    const LocalExperts local = drawn_->local(drawn_->local_set(router), rank);
    std::vector<Tally>& tally = tallies[{local.first, local.last}];
    tally.resize(bands.count);
    for (std::size_t token = 0; token < run.tokens; ++token) {
      const bool rectified = run.ir_expert != nullptr && has_ir_[begin + token] != 0;
      bool to_failed = false;
      for (int choice = 0; choice < router.top_k; ++choice) {
        const auto row = static_cast<std::size_t>(choice);
        const std::uint16_t expert = run.expert[row * run.stride + token];
        if (run.keep[row * run.keep_stride + token] != 0) continue;
        if (expert < local.first || expert >= local.last) continue;
        tally[bands.of[expert]].failed_routes += 1;
        to_failed = to_failed || (rectified && expert == run.ir_expert[token]);
      }
      tally[bands.of[best[begin + token]]].tokens += 1;
      if (!rectified) continue;
      Tally& target = tally[bands.of[run.ir_expert[token]]];
      (to_failed ? target.to_failed : target.other_rows) += 1;
    }
  }
  std::map<std::pair<int, int>, IrTargets> targets;
  for (const auto& [experts, tally] : tallies) {
    IrTargets& of_domain = targets[experts];
    for (const std::uint16_t at : bands.of) {
      const Tally& band = tally[at];
      of_domain.failed_rates.push_back(band.failed_routes > 0 ? band.to_failed / band.failed_routes
                                                              : 0.0);
      of_domain.other_rates.push_back(band.tokens > 0 ? band.other_rows / band.tokens : 0.0);
    }
  }
  return targets;
}

}  // namespace moesim::routing
