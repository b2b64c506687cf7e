#include "sim/routing/routers/kind_router.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/base/error.hpp"
#include "sim/routing/routers/chooser.hpp"

namespace moesim::routing {

namespace {

// Soft MoE: every slot holds a mix of all tokens, so there is nothing to choose or to lose.
class SoftRouter final : public KindRouter {
 public:
  explicit SoftRouter(const KindShape& shape) : shape_(shape) {}

  void decide(const GroupLogits& logits, const RouterContext& /*context*/) override {
    const auto experts = static_cast<std::size_t>(shape_.experts);
    outcome_ = empty_outcome(shape_);
    for (int rank = 0; rank < shape_.ranks; ++rank) {
      const std::int64_t slots = shape_.config.capacity(logits.tokens(rank), shape_.experts);
      std::fill_n(outcome_.kept_rows.data() + static_cast<std::size_t>(rank) * experts, experts,
                  static_cast<std::int32_t>(slots));
      outcome_.capacity = std::max(outcome_.capacity, slots);
      outcome_.sums.tokens += logits.tokens(rank);
      outcome_.sums.slots += slots * shape_.experts;
      for (std::int64_t& asked : outcome_.demand) asked += slots;
    }
    outcome_.sums.others = outcome_.sums.slots;
    outcome_.exchanged_capacity = outcome_.capacity;
  }

  void collect(RoutedGroup& /*group*/) override {
    throw Error("a soft router has no routes to collect");
  }

 private:
  KindShape shape_;
};

void check_groups(const RouterConfig& config, int experts) {
  if (experts % config.groups != 0) {
    throw UsageError(fmt::format(
        "--router {}: {} experts do not divide into {} groups: choose a divisor of --experts",
        config.name(), experts, config.groups));
  }
  const int offered = experts / config.groups * config.kept_groups;
  if (offered >= config.top_k) return;
  throw UsageError(fmt::format(
      "--router {}: the {} groups kept hold {} experts, fewer than the {} of a token: keep more "
      "groups, or lower --top-k",
      config.name(), config.kept_groups, offered, config.top_k));
}

void check_scope(const RouterConfig& config) {
  if (config.capacity_scope == CapacityScope::source) return;
  const char* reason = nullptr;
  if (config.kind == RouterKind::scomoe) reason = "each of its pools has a capacity per source GPU";
  if (config.kind == RouterKind::soft) reason = "its slots are of the tokens of one GPU";
  if (reason == nullptr) return;
  throw UsageError(
      fmt::format("--router {}: {}: leave --capacity-scope out", config.name(), reason));
}

void check_kind(const RouterConfig& config, int experts, std::int64_t tokens) {
  check_scope(config);
  check_groups(config, experts);
  if (config.kind == RouterKind::base && !config.greedy && tokens % experts != 0) {
    throw UsageError(
        fmt::format("--router base gives every expert as many tokens of a GPU, but {} tokens do "
                    "not divide over "
                    "{} experts: choose --tokens-per-gpu (or --sequence-length and --micro-batch) "
                    "as a multiple "
                    "of {}, or --router base:greedy",
                    tokens, experts, experts));
  }
}

}  // namespace

void KindRouter::start_layer(const GroupLogits& /*logits*/, const RouterContext& /*context*/) {}

GroupOutcome empty_outcome(const KindShape& shape) {
  const auto experts = static_cast<std::size_t>(shape.experts);
  const auto ranks = static_cast<std::size_t>(shape.ranks);
  GroupOutcome outcome;
  outcome.kept_rows.assign(ranks * experts, 0);
  outcome.ir_rows.assign(ranks, 0);
  outcome.demand.assign(experts, 0);
  return outcome;
}

void clear_routes(RoutedGroup& group) {
  group.stride = group.tokens;
  const std::size_t size = static_cast<std::size_t>(group.choices) * group.stride;
  group.expert.assign(size, no_expert);
  group.probability.assign(size, 0.0F);
  group.slot.assign(size, slot_failed);
  group.weight.assign(size, 0.0F);
}

std::unique_ptr<KindRouter> make_kind_router(const KindShape& shape) {
  switch (shape.config.kind) {
    case RouterKind::dense:
    case RouterKind::top_k:
    case RouterKind::dropless:
      return nullptr;
    case RouterKind::expert_choice:
      return make_expert_choice_router(shape);
    case RouterKind::base:
      return make_chosen_router(shape, make_base_chooser(shape));
    case RouterKind::random:
      return make_chosen_router(shape, make_random_chooser(shape));
    case RouterKind::hash:
      return make_chosen_router(shape, make_hash_chooser(shape));
    case RouterKind::soft:
      return std::make_unique<SoftRouter>(shape);
    case RouterKind::scomoe:
      return make_pooled_router(shape);
    case RouterKind::gating_dropout:
      return make_chosen_router(shape, make_dropout_chooser(shape));
    case RouterKind::group_limited:
      return make_chosen_router(shape, make_group_limited_chooser(shape));
    case RouterKind::bias_balanced:
      return make_chosen_router(shape, make_bias_chooser(shape));
  }
  return nullptr;
}

void check_router(const RouterConfig& config, int experts, int ranks, std::int64_t tokens) {
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
  check_kind(config, experts, tokens);
}

}  // namespace moesim::routing
