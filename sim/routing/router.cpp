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
    throw UsageError(
        fmt::format("{} choices per token: at most {}", config.choices(), max_choices));
  }
  if (config.choices() > experts) {
    throw UsageError(fmt::format(
        "{} needs {} different experts per token{}, but there are {}: lower --top-k or raise "
        "--experts",
        config.name(), config.choices(), config.fill_in ? " (one more for fill-in)" : "", experts));
  }
  if (ranks < 1 || experts % ranks != 0) {
    throw UsageError(
        fmt::format("{} experts do not divide over {} ranks: choose --experts as a multiple of "
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
    throw UsageError(
        fmt::format("logits of {} ranks for a group of {}", ranks.size(), result_.ranks));
  }
  std::int64_t tokens = 0;
  int places = 0;
  for (const RankLogits& rank : ranks) {
    if (rank.logits.size() !=
        static_cast<std::size_t>(rank.tokens) * static_cast<std::size_t>(experts)) {
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
  const DecisionInput input{config_, table_, orders_, kernels_, 0, result_.capacity};
  decision_.decide(input);
  result_.tokens = static_cast<std::size_t>(tokens);
  result_.stride = table_.stride();
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
  collect_ir(input);
  assign_weights(input);
  table_.swap_choices(result_.expert, result_.probability);
  return result_;
}

// Kept routes get their slots in (choice, token) order, so one sweep per choice does it.
void GroupRouter::assign_slots() {
  const CapacityScope scope = config_.capacity_scope;
  const auto experts = static_cast<std::size_t>(result_.experts);
  const int domains = orders_.domains(scope);
  result_.slot.resize(static_cast<std::size_t>(result_.choices) * result_.stride);
  next_slot_.assign(static_cast<std::size_t>(domains) * experts, 0);
  for (int choice = 0; choice < result_.choices; ++choice) {
    const std::uint16_t* expert = table_.expert(choice);
    const std::uint8_t* keep = decision_.keep(choice);
    std::int32_t* slot = result_.slot.data() + static_cast<std::size_t>(choice) * result_.stride;
    for (int domain = 0; domain < domains; ++domain) {
      std::int32_t* next = next_slot_.data() + static_cast<std::size_t>(domain) * experts;
      const auto end = static_cast<std::size_t>(orders_.domain_end(scope, domain));
      for (auto token = static_cast<std::size_t>(orders_.domain_begin(scope, domain)); token < end;
           ++token) {
        const std::int32_t kept = keep[token];
        const std::int32_t at = next[expert[token]];
        slot[token] = at | (kept - 1);  // -1 where the route failed
        next[expert[token]] = at + kept;
      }
    }
  }
}

void GroupRouter::collect_ir(const DecisionInput& input) {
  if (config_.rectification == Rectification::none) return;
  result_.ir_expert.assign(result_.tokens, -1);
  result_.ir_probability.assign(result_.tokens, 0.0F);
  for (int rank = 0; rank < result_.ranks; ++rank) {
    const auto begin = static_cast<std::size_t>(table_.rank_begin(rank));
    const KeptTokens run = decision_.kept_tokens(input, rank);
    for (std::size_t token = 0; token < run.tokens; ++token) {
      if (decision_.has_ir()[begin + token] == 0) continue;
      result_.ir_expert[begin + token] = run.ir_expert[token];
      result_.ir_probability[begin + token] = run.ir_probability[token];
    }
  }
}

void GroupRouter::assign_weights(const DecisionInput& input) {
  const bool rectified = config_.rectification != Rectification::none;
  result_.weight.resize(static_cast<std::size_t>(result_.choices) * result_.stride);
  if (rectified) result_.ir_weight.resize(result_.tokens);
  for (int rank = 0; rank < result_.ranks; ++rank) {
    const auto begin = static_cast<std::size_t>(table_.rank_begin(rank));
    kernels_.weigh(decision_.kept_tokens(input, rank), config_.weights,
                   {result_.weight.data() + begin, result_.stride,
                    rectified ? result_.ir_weight.data() + begin : nullptr});
  }
}

std::vector<Route> RoutedGroup::routes() const {
  std::vector<Route> list;
  list.reserve(static_cast<std::size_t>(choices) * tokens);
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
