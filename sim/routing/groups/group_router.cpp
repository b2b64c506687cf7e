#include "sim/routing/groups/group_router.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "sim/base/error.hpp"
#include "sim/routing/groups/check_router.hpp"
#include "sim/routing/groups/kind_router.hpp"

namespace moesim::routing {

GroupRouter::GroupRouter(const RouterConfig& config, int experts, int ranks, SimdLevel level)
    : config_(config), kernels_(tile_kernels(level)) {
  check_router(config, experts, ranks, 0);
  result_.ranks = ranks;
  result_.experts = experts;
  result_.top_k = config.top_k;
  result_.choices = config.choices();
  if (config.mixes_tokens()) {
    throw UsageError(fmt::format(
        "--router {} has no routes: every slot is a mix of all tokens; choose another router, or "
        "leave --logits out",
        config.name()));
  }
  other_ = make_kind_router({config_, experts, ranks, kernels_, true});
}

GroupRouter::~GroupRouter() = default;

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
  result_.tokens = static_cast<std::size_t>(tokens);
  result_.rank_begin.assign(1, 0);
  for (const RankLogits& rank : ranks) {
    result_.rank_begin.push_back(result_.rank_begin.back() + rank.tokens);
  }
  if (other_ != nullptr) return route_otherwise(ranks, context);
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
  result_.stride = table_.stride();
  collect_routes(input, decision_, result_);
  table_.swap_choices(result_.expert, result_.probability);
  return result_;
}

const RoutedGroup& GroupRouter::route_otherwise(std::span<const RankLogits> ranks,
                                                const RouterContext& context) {
  for (const RankLogits& rank : ranks) {
    check_router(config_, result_.experts, result_.ranks, rank.tokens);
  }
  const GivenLogits given(ranks, result_.experts, kernels_);
  const RoundedLogits rounded(given);
  const GroupLogits& logits =
      config_.router_dtype == RouterDtype::bf16 ? static_cast<const GroupLogits&>(rounded) : given;
  other_->start_layer(logits, context);
  other_->decide(logits, context);
  other_->collect(result_);
  const GroupOutcome& outcome = other_->outcome();
  result_.kept_rows = outcome.kept_rows;
  result_.ir_rows = outcome.ir_rows;
  result_.exchanged_capacity = outcome.exchanged_capacity;
  result_.exchanged = outcome.exchanged;
  result_.sums = outcome.sums;
  result_.loss = outcome.sums.loss(config_);
  return result_;
}

RoutedGroup route_group(const RouterConfig& config, int experts, std::span<const RankLogits> ranks,
                        const RouterContext& context) {
  GroupRouter router(config, experts, static_cast<int>(ranks.size()));
  return router.route(ranks, context);
}

}  // namespace moesim::routing
