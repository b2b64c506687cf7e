#include "sim/routing/rules/router_config.hpp"

#include <algorithm>

#include "sim/routing/rules/dialect.hpp"

namespace moesim::routing {

bool RouterConfig::pads_exchange() const {
  if (kind->blocks != ExchangeBlocks::kept) return kind->blocks == ExchangeBlocks::full;
  return pads_to_busiest() || (has_capacity() && padding == Padding::capacity);
}

std::int64_t RouterConfig::capacity(std::int64_t tokens, std::int64_t experts) const {
  if (kind->capacity == CapacityRule::equal_shares) return tokens / experts;
  if (!has_capacity()) return 0;
  if (dialect != Dialect::paper) {
    return aligned(std::max(dialect_capacity(*this, tokens, experts), min_capacity));
  }
  const bool library = capacity_convention == CapacityConvention::library;
  const std::int64_t slots =
      capacity_factor.ceil_of_product(library ? tokens * top_k : tokens, experts);
  return aligned(std::max(slots, min_capacity));
}

RouterConfig RouterConfig::among_own(int own_experts) const {
  RouterConfig own = *this;
  own.top_k = std::min(top_k, own_experts);
  own.fill_in = fill_in && own_experts > own.top_k;
  own.capacity_scope = CapacityScope::source;  // a GPU's experts get no tokens of other GPUs
  return own;
}

std::string RouterConfig::name() const {
  std::string text = kind->name(*this);
  if (fill_in) text += "+fr";
  if (rectification == Rectification::gpu) text += "+ir";
  if (rectification == Rectification::node) text += "+ir@node";
  return text;
}

}  // namespace moesim::routing
