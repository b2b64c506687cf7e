#include "sim/routing/router.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "sim/base/error.hpp"

namespace moesim::routing {

namespace {

void check_router(const RouterConfig& config, int experts, int ranks) {
  if (config.is_dense()) throw UsageError("a dense model has no router: choose --router top2, say");
  if (config.top_k < 1) throw UsageError(fmt::format("top-k is {}: at least 1", config.top_k));
  if (experts < 1 || experts > max_experts) {
    throw UsageError(fmt::format("{} experts: from 1 to {} are possible", experts, max_experts));
  }
  if (config.choices() > max_choices) {
    throw UsageError(fmt::format("{} choices per token: at most {}", config.choices(),
                                 max_choices));
  }
  if (config.choices() > experts) {
    throw UsageError(fmt::format(
        "{} needs {} different experts per token{}, but there are {}: lower --top-k or raise "
        "--experts",
        config.name(), config.choices(), config.fill_in ? " (one more for fill-in)" : "", experts));
  }
  if (ranks < 1 || experts % ranks != 0) {
    throw UsageError(fmt::format(
        "{} experts do not divide over {} ranks: choose --experts as a multiple of "
        "--expert-parallel",
        experts, ranks));
  }
}

}  // namespace

GroupRouter::GroupRouter(const RouterConfig& config, int experts, int ranks, SimdLevel level)
    : config_(config), kernels_(tile_kernels(level)) {
  check_router(config, experts, ranks);
  result_.ranks = ranks;
  result_.experts = experts;
  result_.top_k = config.top_k;
  result_.choices = config.choices();
}

const RoutedGroup& GroupRouter::route(std::span<const RankLogits> ranks,
                                      const RouterContext& context) {
  const int experts = result_.experts;
  if (static_cast<int>(ranks.size()) != result_.ranks) {
    throw UsageError(fmt::format("logits of {} ranks for a group of {}", ranks.size(),
                                 result_.ranks));
  }
  std::int64_t tokens = 0;
  int places = 0;
  for (const RankLogits& rank : ranks) {
    if (rank.logits.size() != static_cast<std::size_t>(rank.tokens) *
                                  static_cast<std::size_t>(experts)) {
      throw UsageError(fmt::format("{} logits for {} tokens and {} experts", rank.logits.size(),
                                   rank.tokens, experts));
    }
    tokens += rank.tokens;
  }
  if (tokens > std::numeric_limits<std::int32_t>::max() / max_choices) {
    throw UsageError(fmt::format("{} tokens in one group are too many", tokens));
  }
  std::vector<StreamKey> keys;
  std::vector<LocalExperts> locals;
  for (int rank = 0; rank < result_.ranks; ++rank) {
    keys.push_back({context.seed, Purpose::drop_priority, context.replica, context.layer,
                    static_cast<std::uint32_t>(context.place.first_gpu + rank)});
    locals.push_back(local_experts(config_, experts, result_.ranks, rank, context.place));
    places = std::max(places, locals.back().wanted);
  }
  table_.reset(experts, result_.choices, 1, places, tokens);
  result_.capacity.clear();
  for (int rank = 0; rank < result_.ranks; ++rank) {
    const RankLogits& source = ranks[static_cast<std::size_t>(rank)];
    const auto at = static_cast<std::size_t>(rank);
    table_.append_logits(source.logits, source.tokens, rank, {&locals[at], 1}, kernels_);
    result_.capacity.push_back(config_.capacity(source.tokens, experts));
  }
  orders_.reset(table_, std::move(keys));
  decision_.decide(config_, table_, 0, orders_, result_.capacity, true);
  result_.stride = static_cast<std::size_t>(tokens);
  result_.rank_begin.resize(static_cast<std::size_t>(result_.ranks) + 1);
  for (int rank = 0; rank <= result_.ranks; ++rank) {
    result_.rank_begin[static_cast<std::size_t>(rank)] = table_.rank_begin(rank);
  }
  result_.kept_rows = decision_.kept_rows();
  result_.ir_rows = decision_.ir_rows();
  result_.exchanged_capacity = decision_.exchanged_capacity();
  result_.sums = decision_.sums();
  result_.loss = decision_.sums().loss(config_);
  assign_slots();
  collect_ir();
  assign_weights();
  return result_;
}

// Kept routes get their slots in (choice, token) order, so one sweep per choice does it.
void GroupRouter::assign_slots() {
  const auto choices = static_cast<std::size_t>(result_.choices);
  const auto experts = static_cast<std::size_t>(result_.experts);
  const std::size_t tokens = result_.stride;
  result_.expert.resize(choices * tokens);
  result_.probability.resize(choices * tokens);
  result_.slot.resize(choices * tokens);
  const int domains = orders_.domains(config_.capacity_scope);
  next_slot_.assign(static_cast<std::size_t>(domains) * experts, 0);
  const std::uint64_t* kept = decision_.kept().data();
  for (std::size_t choice = 0; choice < choices; ++choice) {
    const std::uint16_t* from = table_.expert(static_cast<int>(choice));
    const float* probability = table_.probability(static_cast<int>(choice));
    std::copy(from, from + tokens, result_.expert.data() + choice * tokens);
    std::copy(probability, probability + tokens, result_.probability.data() + choice * tokens);
    std::int32_t* slot = result_.slot.data() + choice * tokens;
    for (int domain = 0; domain < domains; ++domain) {
      std::int32_t* next = next_slot_.data() + static_cast<std::size_t>(domain) * experts;
      const auto end = static_cast<std::size_t>(orders_.domain_end(config_.capacity_scope, domain));
      for (auto token =
               static_cast<std::size_t>(orders_.domain_begin(config_.capacity_scope, domain));
           token < end; ++token) {
        const auto keep = static_cast<std::int32_t>(kept[token] >> choice & 1);
        const std::int32_t at = next[from[token]];
        slot[token] = keep != 0 ? at : slot_failed;
        next[from[token]] = at + keep;
      }
    }
  }
}

void GroupRouter::collect_ir() {
  if (config_.rectification == Rectification::none) return;
  const std::size_t tokens = result_.stride;
  result_.ir_expert.assign(tokens, -1);
  result_.ir_probability.assign(tokens, 0.0F);
  for (std::size_t token = 0; token < tokens; ++token) {
    const int place = decision_.ir_place()[token];
    if (place < 0) continue;
    result_.ir_expert[token] = table_.local_expert(0, place)[token];
    result_.ir_probability[token] = table_.local_probability(0, place)[token];
  }
}

// The normaliser is, by mode: kept, the mass of all rows that process the token, s g_h of its IR
// row included; before_drop, the mass of its k choices; raw, 1. A token that IR alone processes
// is taken to its expert with weight 1 by `kept`, whatever g_h is.
void GroupRouter::assign_weights() {
  const auto choices = static_cast<std::size_t>(result_.choices);
  const auto top_k = static_cast<std::size_t>(result_.top_k);
  const std::size_t tokens = result_.stride;
  const bool rectified = config_.rectification != Rectification::none;
  result_.weight.resize(choices * tokens);
  if (rectified) result_.ir_weight.assign(tokens, 0.0F);
  for (std::size_t token = 0; token < tokens; ++token) {
    float kept_mass = 0;
    float top_mass = 0;
    std::size_t rows = 0;
    for (std::size_t choice = 0; choice < choices; ++choice) {
      const std::size_t at = choice * tokens + token;
      const bool keep = result_.slot[at] >= 0;
      kept_mass += keep ? result_.probability[at] : 0.0F;
      rows += keep ? 1 : 0;
      if (choice < top_k) top_mass += result_.probability[at];
    }
    float ir_mass = 0;
    const bool has_ir = rectified && result_.ir_expert[token] >= 0;
    if (has_ir) ir_mass = static_cast<float>(top_k - rows) * result_.ir_probability[token];
    float normaliser = 1.0F;
    if (config_.weights == Weights::kept) normaliser = kept_mass + ir_mass;
    if (config_.weights == Weights::before_drop) normaliser = top_mass;
    for (std::size_t choice = 0; choice < choices; ++choice) {
      const std::size_t at = choice * tokens + token;
      const bool keep = result_.slot[at] >= 0 && normaliser > 0.0F;
      result_.weight[at] = keep ? result_.probability[at] / normaliser : 0.0F;
    }
    if (!has_ir) continue;
    const bool alone = rows == 0 && config_.weights == Weights::kept;
    const float weight = normaliser > 0.0F ? ir_mass / normaliser : 0.0F;
    result_.ir_weight[token] = alone ? 1.0F : weight;
  }
}

std::vector<Route> RoutedGroup::routes() const {
  std::vector<Route> list;
  list.reserve(static_cast<std::size_t>(choices) * stride);
  for (int rank = 0; rank < ranks; ++rank) {
    const auto begin = static_cast<std::size_t>(rank_begin[static_cast<std::size_t>(rank)]);
    const auto end = static_cast<std::size_t>(rank_begin[static_cast<std::size_t>(rank) + 1]);
    for (std::size_t token = begin; token < end; ++token) {
      Route route;
      route.rank = rank;
      route.token = static_cast<std::int32_t>(token - begin);
      for (int choice = 0; choice < choices; ++choice) {
        const std::size_t at = static_cast<std::size_t>(choice) * stride + token;
        route.choice = choice;
        route.expert = expert[at];
        route.slot = slot[at];
        route.weight = weight[at];
        route.probability = probability[at];
        route.kind = choice < top_k ? RouteKind::primary : RouteKind::fill;
        list.push_back(route);
      }
      if (ir_expert.empty() || ir_expert[token] < 0) continue;
      route.choice = choices;
      route.expert = ir_expert[token];
      route.slot = slot_ir;
      route.weight = ir_weight[token];
      route.probability = ir_probability[token];
      route.kind = RouteKind::ir;
      list.push_back(route);
    }
  }
  return list;
}

RoutedGroup route_group(const RouterConfig& config, int experts, std::span<const RankLogits> ranks,
                        const RouterContext& context) {
  GroupRouter router(config, experts, static_cast<int>(ranks.size()));
  return router.route(ranks, context);
}

std::int64_t padded_exchange_rows(const RoutedGroup& group) {
  for (int rank = 1; rank < group.ranks; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    const std::int64_t tokens = group.rank_begin[at + 1] - group.rank_begin[at];
    if (tokens == group.rank_begin[1]) continue;
    throw UsageError(fmt::format(
        "rank 0 has {} tokens and rank {} has {}: the blocks of a padded exchange would differ in "
        "size, and each rank would wait for rows that the other never sends; pad the batch to one "
        "length",
        group.rank_begin[1], rank, tokens));
  }
  return group.exchanged_capacity;
}

}  // namespace moesim::routing
