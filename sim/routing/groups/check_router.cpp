#include "sim/routing/groups/check_router.hpp"

#include <fmt/format.h>

#include "sim/base/error.hpp"
#include "sim/base/expert_split.hpp"
#include "sim/routing/rules/expert_bias.hpp"
#include "sim/routing/rules/routing_refusal.hpp"
#include "sim/routing/tokens/choice_table.hpp"

namespace moesim::routing {

namespace {

void check_groups(const RouterConfig& config, int experts) {
  if (experts % config.groups != 0) {
    const int less = experts / config.groups * config.groups;
    const std::string fewer = less > 0 ? fmt::format("{} or ", less) : "";
    throw RoutingRefusal([&](const RoutingTerms& terms) {
      return fmt::format(
          "--router {}: {} experts do not divide into {} groups of equal size: choose a number of "
          "groups that divides {}, or {}{}{}",
          config.asked_name(), experts, config.groups, experts, terms.experts, fewer,
          less + config.groups);
    });
  }
  const int offered = experts / config.groups * config.kept_groups;
  if (offered >= config.top_k) return;
  throw UsageError(fmt::format(
      "--router {}: the {} groups kept hold {} experts, fewer than the {} of a token: keep more "
      "groups, or lower --top-k",
      config.asked_name(), config.kept_groups, offered, config.top_k));
}

void check_scope(const RouterConfig& config) {
  if (config.capacity_scope == CapacityScope::source || config.kind->no_group_scope == nullptr) {
    return;
  }
  throw UsageError(fmt::format("--router {}: {}: leave --capacity-scope out", config.asked_name(),
                               config.kind->no_group_scope));
}

void check_variant(const RouterConfig& config, int experts) {
  if (config.expert_bias && config.expert_bias->experts() != experts) {
    throw UsageError(fmt::format("--expert-bias: {} has {} experts, the router {}",
                                 config.expert_bias->name(), config.expert_bias->experts(),
                                 experts));
  }
  if (config.second_expert == SecondExpert::sampled && config.choices() != 2) {
    throw UsageError(fmt::format(
        "--second-expert sampled: {} chooses {} experts for a token: it is of top2, or topk with "
        "--top-k 2",
        config.asked_name(), config.choices()));
  }
}

}  // namespace

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
        config.asked_name(), config.choices(), config.fill_in ? " (one more for fill-in)" : "",
        experts));
  }
  check_experts_divide(experts, ranks, experts);
  check_scope(config);
  check_groups(config, experts);
  check_variant(config, experts);
  if (config.kind->check != nullptr) config.kind->check(config, experts, tokens);
}

void refuse_placement(const std::string& why) {
  throw UsageError(fmt::format("--expert-placement: {}: leave it out, or contiguous", why));
}

void check_placement(const RouterConfig& config, const ExpertPlacement& placement, int experts) {
  if (placement.experts() != static_cast<std::size_t>(experts)) {
    refuse_placement(
        fmt::format("it places {} experts, the job has {}", placement.experts(), experts));
  }
  if (!config.scores_experts()) {
    refuse_placement(fmt::format("router {} scores no experts, so that one place is like another",
                                 config.asked_name()));
  }
  if (config.groups > 1) {
    refuse_placement(
        fmt::format("the groups of router {} are of neighbouring experts, which it would part",
                    config.asked_name()));
  }
}

}  // namespace moesim::routing
