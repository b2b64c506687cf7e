#include "sim/routing/counts/count_pilot.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "sim/routing/counts/count_distribution.hpp"

namespace moesim::routing {

namespace {

constexpr std::size_t pilot_logits = std::size_t{1} << 20;
constexpr std::size_t least_blocks = 32;
constexpr std::size_t most_blocks = 256;
constexpr double band_routes = 128;  // expected per choice: the sample for a quantile
constexpr std::uint32_t bits_of_one = 0x3f800000;

std::uint32_t bits_of(float probability) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &probability, sizeof bits);
  return bits;
}

// Numbers the routes of each band in the given order, then converts positions to quantiles.
class Places {
 public:
  explicit Places(std::size_t bands) : length_(bands, 0) {}
  const std::vector<std::int32_t>& lengths() const { return length_; }
  float next(std::uint16_t band) { return static_cast<float>(length_[band]++) + 0.5F; }
  float share(float place, std::uint16_t band) const {
    return place / static_cast<float>(length_[band]);
  }

 private:
  std::vector<std::int32_t> length_;
};

}  // namespace

std::size_t CountPilot::blocks_for(int experts) {
  const std::size_t tokens = pilot_logits / static_cast<std::size_t>(experts);
  return std::clamp(tokens / block_tokens, least_blocks, most_blocks);
}

void CountPilot::draw(std::span<const RoutingJob> jobs, const LogitSource& logits,
                      const StreamKey& key) {
  blocks_ = blocks_for(jobs.front().experts);
  tokens_ = blocks_ * block_tokens;
  quantiles_.clear();
  bands_.clear();
  draw_tables(jobs, logits);
  const auto choices = static_cast<std::size_t>(table_.choices());
  while (log_factorials_.size() < choices * tokens_) {
    const std::size_t number = log_factorials_.size();
    log_factorials_.push_back(
        number < 2 ? 0.0 : log_factorials_.back() + std::log(static_cast<double>(number)));
  }
  chance_.resize(choices * tokens_);
  const float zero = 0;
  for (std::size_t choice = 0; choice < choices; ++choice) {
    StreamKey of_choice = key;
    of_choice.rank += static_cast<std::uint32_t>(choice);
    const PhiloxWords words = philox_words(of_choice);
    for (std::size_t token = 0; token < tokens_; token += tile_tokens) {
      kernels_.gaussian({words, token}, 1, &zero, chance_.data() + choice * tokens_ + token);
    }
  }
}

// Blocks are distributed to the ranks of one group as evenly as possible: IR depends on the rank.
void CountPilot::draw_tables(std::span<const RoutingJob> jobs, const LogitSource& logits) {
  const RoutingJob& first = jobs.front();
  const int ranks = first.expert_parallel;
  const int shown = static_cast<int>(std::min(static_cast<std::size_t>(ranks), blocks_));
  int choices = 0;
  int sets = 0;
  int places = 0;
  std::fill(std::begin(local_set_), std::end(local_set_), -1);
  std::vector<LocalExperts>& locals = locals_;
  locals.clear();
  const auto place = [shown](int set, int index) {
    return static_cast<std::size_t>(set) * static_cast<std::size_t>(shown) +
           static_cast<std::size_t>(index);
  };
  for (const RoutingJob& job : jobs) {
    choices = std::max(choices, job.router.choices());
    if (job.router.rectification == Rectification::none) continue;
    int& set = local_set_[static_cast<int>(job.router.rectification)];
    if (set < 0) set = sets++;
    locals.resize(static_cast<std::size_t>(sets) * static_cast<std::size_t>(shown));
    for (int index = 0; index < shown; ++index) {
      const LocalExperts wanted = local_experts(job.router, first.experts, ranks,
                                                index * ranks / shown, {0, first.gpus_per_domain});
      LocalExperts& held = locals[place(set, index)];
      if (wanted.wanted > held.wanted) held = wanted;
      places = std::max(places, held.wanted);
    }
  }
  table_.reset(first.experts, choices, sets, places, static_cast<std::int64_t>(tokens_));
  for (int index = 0; index < shown; ++index) {
    const auto rank = static_cast<std::uint32_t>(index * ranks / shown);
    std::vector<LocalExperts> of_rank;
    for (int set = 0; set < sets; ++set) {
      of_rank.push_back(locals[place(set, index)]);
    }
    const auto dealt = [&](int rank_index) {
      return static_cast<std::size_t>(rank_index) * blocks_ / static_cast<std::size_t>(shown);
    };
    const std::size_t tokens = (dealt(index + 1) - dealt(index)) * block_tokens;
    table_.append_tiles(static_cast<std::int64_t>(tokens), index, of_rank, kernels_,
                        [&](std::int64_t token, float* tile) {
                          logits.fill_tile(rank, static_cast<std::uint64_t>(token), kernels_, tile);
                        });
  }
}

void CountPilot::set_popularity(int choices, std::span<const double> popularity) {
  if (bands_.contains(choices)) return;
  Bands& bands = bands_[choices];
  std::vector<std::size_t> order(popularity.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t one, std::size_t other) {
    return popularity[one] > popularity[other];
  });
  bands.of.assign(popularity.size(), 0);
  bands.count = 1;
  double routes = 0;
  for (const std::size_t expert : order) {
    if (routes >= band_routes * choices) {
      ++bands.count;
      routes = 0;
    }
    routes += popularity[expert] * static_cast<double>(tokens_);
    bands.of[expert] = static_cast<std::uint16_t>(bands.count - 1);
  }
}

const CountPilot::Quantiles& CountPilot::quantiles(const RouterConfig& router, int choice) {
  const bool fill = choice == router.top_k;
  // The shares of a single choice are all 1, and equal keys are ordered by index.
  const bool alike = router.priority == Priority::own_weight && router.top_k == 1;
  const bool own = router.has_one_queue();
  const bool by_rank =
      router.capacity_scope == CapacityScope::group && router.priority != Priority::random;
  Order order = by_rank ? Order::group_index : Order::index;
  if (router.priority == Priority::token_max) order = Order::token_max;
  if (own && !alike) {
    order = router.priority == Priority::own_weight ? Order::own_weight : Order::own_score;
  }
  const bool one_queue = own && !fill && !alike;
  if (fill && (own || router.fill_order == FillOrder::nominee_score)) order = Order::nominee;
  const bool by_score = order != Order::index && order != Order::group_index;
  const Key key{order, by_score ? router.choices() : 0, one_queue ? router.top_k : 0,
                by_score ? choice : 0};
  const auto found = quantiles_.find(key);
  if (found != quantiles_.end()) return found->second;
  if (one_queue) {
    make_own(order, router.choices(), router.top_k);
  } else {
    make_quantiles(key, quantiles_[key]);
  }
  return quantiles_[key];
}

void CountPilot::make_quantiles(const Key& key, Quantiles& quantiles) {
  const auto [order, choices, top_k, choice] = key;
  std::vector<float>& quantile = quantiles.of;
  quantile.resize(tokens_);
  if (order == Order::index || order == Order::group_index) {
    // The tokens of a block may be anywhere in the order, or, with tokens ordered by rank, have the
    // position of the block.
    const std::size_t all = order == Order::index ? block_tokens : tokens_;
    for (std::size_t token = 0; token < tokens_; ++token) {
      quantile[token] = (static_cast<float>(token % all) + 0.5F) / static_cast<float>(all);
    }
    return;
  }
  const float* probability =
      order == Order::token_max ? table_.max_probability() : table_.probability(choice);
  std::vector<std::uint32_t> keys(tokens_), sorted(tokens_);
  std::transform(probability, probability + tokens_, keys.begin(), bits_of);
  sort_descending(keys.data(), tokens_, 0, bits_of_one, sorted.data(), scratch_);
  const std::uint16_t* expert = table_.expert(choice);
  const Bands& bands = bands_.at(choices);
  Places places(bands.count);
  for (const std::uint32_t token : sorted) quantile[token] = places.next(bands.of[expert[token]]);
  for (std::size_t token = 0; token < tokens_; ++token) {
    quantile[token] = places.share(quantile[token], bands.of[expert[token]]);
  }
  quantiles.routes = places.lengths();
}

void CountPilot::make_own(Order order, int choices, int top_k) {
  const auto width = static_cast<std::size_t>(top_k);
  std::vector<std::uint32_t> keys(tokens_ * width), sorted(tokens_ * width);
  std::vector<Quantiles*> quantile;
  for (int choice = 0; choice < top_k; ++choice) {
    quantile.push_back(&quantiles_[{order, choices, top_k, choice}]);
    quantile.back()->of.resize(tokens_);
  }
  for (std::size_t token = 0; token < tokens_; ++token) {
    float whole = 0;
    for (int choice = 0; choice < top_k; ++choice) whole += table_.probability(choice)[token];
    const float unit = order == Order::own_weight ? whole : 1.0F;
    for (std::size_t choice = 0; choice < width; ++choice) {
      keys[choice * tokens_ + token] =
          bits_of(table_.probability(static_cast<int>(choice))[token] / unit);
    }
  }
  sort_descending(keys.data(), keys.size(), 0, bits_of_one, sorted.data(), scratch_);
  const Bands& bands = bands_.at(choices);
  const auto band_of = [&](std::size_t choice, std::size_t token) {
    return bands.of[table_.expert(static_cast<int>(choice))[token]];
  };
  Places places(bands.count);
  for (const std::uint32_t route : sorted) {
    const std::size_t choice = route / tokens_;
    const std::size_t token = route % tokens_;
    quantile[choice]->of[token] = places.next(band_of(choice, token));
  }
  for (std::size_t choice = 0; choice < width; ++choice) {
    quantile[choice]->routes = places.lengths();
    for (std::size_t token = 0; token < tokens_; ++token) {
      float& place = quantile[choice]->of[token];
      place = places.share(place, band_of(choice, token));
    }
  }
}

int CountPilot::local_set(const RouterConfig& router) const {
  return local_set_[static_cast<int>(router.rectification)];
}

KeptTokens CountPilot::kept_tokens(const RouterConfig& router, int rank) const {
  const auto begin = static_cast<std::size_t>(table_.rank_begin(rank));
  KeptTokens run;
  run.tokens = static_cast<std::size_t>(table_.rank_begin(rank + 1)) - begin;
  run.top_k = router.top_k;
  run.choices = router.choices();
  run.keep = keep_.data() + begin;
  run.keep_stride = keep_stride_;
  run.expert = table_.expert(0) + begin;
  run.probability = table_.probability(0) + begin;
  run.stride = table_.stride();
  if (router.rectification == Rectification::none) return run;
  const bool exclude = router.ir_duplicates == IrDuplicates::exclude;
  const int set = local_set(router);
  run.ir_expert = (exclude ? ir_expert_.data() : table_.local_expert(set, 0)) + begin;
  run.ir_probability =
      (exclude ? ir_probability_.data() : table_.local_probability(set, 0)) + begin;
  return run;
}

// How many of `waiting` routes come before a route with this quantile, which is one of `routes` in
// the sample (0: known exactly).
std::int64_t CountPilot::draw_ahead(std::int32_t waiting, double quantile, std::int32_t routes,
                                    double chance) const {
  if (routes == 0) return binomial_quantile(waiting, quantile, chance);
  if (waiting >= routes) return static_cast<std::int64_t>(waiting * quantile);
  const auto place = static_cast<std::int64_t>(quantile * routes);
  return hypergeometric_quantile(routes - 1, place, waiting, chance, log_factorials_);
}

// How many routes of a choice are kept.
std::int64_t CountPilot::decide(const RouterConfig& router, int choice,
                                std::span<const Queueing> queues) {
  const auto choices = static_cast<std::size_t>(router.choices());
  const auto experts = static_cast<std::size_t>(table_.experts());
  const auto row = static_cast<std::size_t>(choice);
  const Quantiles& told = quantiles(router, choice);
  const std::vector<std::uint16_t>& band = bands_.at(router.choices()).of;
  const std::uint16_t* expert = table_.expert(choice);
  const float* chance = chance_.data() + row * tokens_;
  std::uint8_t* keep = keep_.data() + row * keep_stride_;
  std::int64_t count = 0;
  for (std::size_t block = 0; block < blocks_; ++block) {
    const Queueing* queue = queues.data() + (block * choices + row) * experts;
    for (std::size_t token = block * block_tokens; token < (block + 1) * block_tokens; ++token) {
      const Queueing found = queue[expert[token]];
      bool kept = found.left > found.waiting;
      if (!kept && found.left > 0) {
        const std::int32_t routes = told.routes.empty() ? 0 : told.routes[band[expert[token]]];
        kept = draw_ahead(found.waiting, static_cast<double>(told.of[token]), routes,
                          static_cast<double>(chance[token])) < found.left;
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
  keep_stride_ = tokens_ + tile_tokens;
  keep_.resize(choices * keep_stride_);
  has_ir_.assign(tokens_ + tile_tokens, 0);
  double kept = 0;
  double kept_primary = 0;
  for (std::size_t choice = 0; choice < choices; ++choice) {
    const auto count = static_cast<double>(decide(router, static_cast<int>(choice), queues));
    kept += count;
    if (choice < top_k) kept_primary += count;
  }
  const bool rectifies = router.rectification != Rectification::none;
  if (rectifies && router.ir_duplicates == IrDuplicates::exclude) {
    find_untaken_locals({table_, local_set(router), router, keep_.data(), keep_stride_}, ir_expert_,
                        ir_probability_);
  }
  LossTotals totals;
  for (int rank = 0; rank < table_.ranks(); ++rank) {
    kernels_.add_losses(kept_tokens(router, rank),
                        rectifies ? has_ir_.data() + table_.rank_begin(rank) : nullptr, totals);
  }
  const auto tokens = static_cast<double>(tokens_);
  const auto share = [&](std::int64_t count) { return static_cast<double>(count) / tokens; };
  PilotLoss loss;
  loss.failed = 1 - kept_primary / (tokens * static_cast<double>(top_k));
  loss.attempted = 1 - kept / (tokens * static_cast<double>(choices));
  loss.partial = share(totals.partial);
  loss.lost_mass = totals.lost_mass / totals.top_mass;
  loss.unrouted = share(totals.unrouted);
  loss.residual = totals.residual / tokens;
  std::int64_t needing = 0;
  for (std::size_t token = 0; rectifies && token < tokens_; ++token) {
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
  const double tokens = static_cast<double>(tokens_) / static_cast<double>(parts);
  for (std::size_t token = 0; token < tokens_; ++token) {
    std::size_t kept = 0;
    for (std::size_t choice = 0; choice < top_k; ++choice) {
      kept += keep_[choice * keep_stride_ + token];
    }
    PilotLoss& loss = losses[token * count / tokens_];
    loss.failed += static_cast<double>(top_k - kept) / (tokens * static_cast<double>(top_k));
    loss.partial += kept < top_k ? 1 / tokens : 0;
  }
  return losses;
}

std::map<std::pair<int, int>, IrTargets> CountPilot::ir_targets(const RouterConfig& router) const {
  const Bands& bands = bands_.at(router.choices());
  struct Tally {
    double failed_routes = 0, to_failed = 0, tokens = 0, other_rows = 0;
  };
  std::map<std::pair<int, int>, std::vector<Tally>> tallies;
  const std::uint16_t* best = table_.local_expert(local_set(router), 0);
  for (int rank = 0; rank < table_.ranks(); ++rank) {
    const KeptTokens run = kept_tokens(router, rank);
    const auto begin = static_cast<std::size_t>(table_.rank_begin(rank));
    const LocalExperts local = locals_[static_cast<std::size_t>(local_set(router)) *
                                           static_cast<std::size_t>(table_.ranks()) +
                                       static_cast<std::size_t>(rank)];
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
