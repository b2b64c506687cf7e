#include "sim/routing/rules/dialect.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/base/error.hpp"

namespace moesim::routing {
namespace {

void apply_deepspeed(RouterConfig& config) {
  config.min_capacity = 4;
  config.priority = config.top_k == 1   ? Priority::random
                    : config.top_k == 2 ? Priority::position
                                        : Priority::own_score;
  config.weights = config.top_k == 1 ? Weights::raw : Weights::kept;
  if (config.kind->takes_best && config.choices() == 2)
    config.second_expert = SecondExpert::sampled;
}

void apply_megatron(RouterConfig& config) {
  // For a single chosen expert the softmax over the chosen logits is 1 for every token: Megatron
  // then applies the softmax before the choice, so that the weight is g.
  config.priority = config.top_k == 1 ? Priority::own_score : Priority::own_weight;
  config.weights = config.top_k == 1 ? Weights::raw : Weights::before_drop;
  config.padding = Padding::none;
  config.group_score = config.kind->scores_by_sigmoid ? GroupScore::topk : GroupScore::topk_logits;
}

void apply_tutel(RouterConfig& config) {
  config.priority = Priority::position;
  config.weights = config.top_k == 1 ? Weights::raw : Weights::before_drop;
}

void apply_switch(RouterConfig& config) {
  config.capacity_convention = CapacityConvention::paper;
  config.min_capacity = 4;
  config.priority = Priority::position;
  config.weights = config.top_k == 1 ? Weights::raw : Weights::before_drop;
}

void apply_megablocks(RouterConfig& config) {
  config.priority = Priority::token_order;
  config.weights = Weights::raw;
  config.padding = Padding::none;
}

}  // namespace

void apply_dialect(Dialect dialect, RouterConfig& config) {
  config.dialect = dialect;
  if (dialect == Dialect::paper) return;
  config.capacity_convention = CapacityConvention::library;
  switch (dialect) {
    case Dialect::deepspeed:
      return apply_deepspeed(config);
    case Dialect::megatron:
      return apply_megatron(config);
    case Dialect::tutel:
      return apply_tutel(config);
    case Dialect::megablocks:
      return apply_megablocks(config);
    default:
      return apply_switch(config);
  }
}

std::int64_t dialect_capacity(const RouterConfig& config, std::int64_t tokens,
                              std::int64_t experts) {
  const bool by_switch = config.dialect == Dialect::switch_transformer;
  if ((config.capacity_convention == CapacityConvention::paper) != by_switch) {
    throw UsageError(fmt::format(
        "--capacity-convention: {} has its own convention of capacity factors, {}: leave the "
        "option out",
        name_of(config.dialect), by_switch ? "paper (not multiplied by k)" : "library (times k)"));
  }
  const double factor = config.capacity_factor.to_double();
  const auto share = static_cast<double>(tokens) / static_cast<double>(experts);
  double slots = 0;
  switch (config.dialect) {
    case Dialect::deepspeed:  // the factor is a float32 tensor, and so is the product
      slots = std::ceil(static_cast<float>(share) * static_cast<float>(factor * config.top_k));
      break;
    case Dialect::megatron:
      slots = std::ceil(static_cast<double>(tokens * config.top_k) / static_cast<double>(experts) *
                        factor);
      break;
    case Dialect::megablocks:
      slots = std::floor(
          factor * (static_cast<double>(config.top_k * tokens) / static_cast<double>(experts)));
      break;
    case Dialect::tutel: {
      const std::int64_t balanced = (tokens + experts - 1) / experts;
      slots = std::floor(factor * static_cast<double>(balanced)) * config.top_k;
      break;
    }
    default:
      slots =
          std::min(static_cast<double>(tokens),
                   std::floor(static_cast<double>(tokens) * factor / static_cast<double>(experts)));
  }
  constexpr double most = 4e15;  // larger than any number of tokens, and exact in a double
  return static_cast<std::int64_t>(std::min(slots, most));
}

}  // namespace moesim::routing
