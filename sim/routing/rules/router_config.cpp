#include "sim/routing/rules/router_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/routing/rules/dialect.hpp"

namespace moesim::routing {

namespace {

template <typename Value, std::size_t count>
using Names = std::array<std::pair<const char*, Value>, count>;

constexpr Names<Priority, 5> priorities = {{{"token-max", Priority::token_max},
                                            {"own-score", Priority::own_score},
                                            {"own-weight", Priority::own_weight},
                                            {"position", Priority::position},
                                            {"random", Priority::random}}};
constexpr Names<Weights, 3> weights = {
    {{"kept", Weights::kept}, {"before-drop", Weights::before_drop}, {"raw", Weights::raw}}};
constexpr Names<FillOrder, 2> fill_orders = {
    {{"nominee-score", FillOrder::nominee_score}, {"priority", FillOrder::priority}}};
constexpr Names<IrCompute, 3> ir_computes = {{{"separate", IrCompute::separate},
                                              {"grouped", IrCompute::grouped},
                                              {"overlap", IrCompute::overlap}}};
constexpr Names<IrDuplicates, 2> ir_duplicates = {
    {{"allow", IrDuplicates::allow}, {"exclude", IrDuplicates::exclude}}};
constexpr Names<CapacityConvention, 2> conventions = {
    {{"paper", CapacityConvention::paper}, {"library", CapacityConvention::library}}};
constexpr Names<Dialect, 5> dialects = {{{"paper", Dialect::paper},
                                         {"deepspeed", Dialect::deepspeed},
                                         {"megatron", Dialect::megatron},
                                         {"tutel", Dialect::tutel},
                                         {"switch", Dialect::switch_transformer}}};
constexpr Names<bool, 2> paddings = {{{"capacity", true}, {"none", false}}};
constexpr Names<CapacityScope, 2> scopes = {
    {{"source", CapacityScope::source}, {"group", CapacityScope::group}}};

template <typename Value, std::size_t count>
std::string find_name(const Names<Value, count>& names, Value value) {
  for (const auto& [name, known] : names) {
    if (known == value) return name;
  }
  return {};
}

template <typename Value, std::size_t count>
Value find_value(const Names<Value, count>& names, std::string_view text, const std::string& what) {
  std::string choices;
  for (const auto& [name, value] : names) {
    if (text == name) return value;
    choices += (choices.empty() ? "" : ", ") + std::string(name);
  }
  throw UsageError(fmt::format("{} '{}' is not known: choose one of {}", what, text, choices));
}

}  // namespace

bool RouterConfig::pads_exchange() const {
  switch (kind) {
    case RouterKind::expert_choice:
    case RouterKind::soft:
      return true;
    case RouterKind::base:
      return !greedy;
    case RouterKind::dense:
    case RouterKind::scomoe:
      return false;
    default:
      return has_capacity() && pad_to_capacity;
  }
}

bool RouterConfig::has_gate() const {
  return !is_dense() && kind != RouterKind::random && kind != RouterKind::hash;
}

std::int64_t RouterConfig::capacity(std::int64_t tokens, std::int64_t experts) const {
  if (kind == RouterKind::base && !greedy) return tokens / experts;
  if (!has_capacity()) return 0;
  if (dialect != Dialect::paper) {
    return std::max(dialect_capacity(*this, tokens, experts), min_capacity);
  }
  const bool library = capacity_convention == CapacityConvention::library;
  const std::int64_t slots =
      capacity_factor.ceil_of_product(library ? tokens * top_k : tokens, experts);
  return std::max(slots, min_capacity);
}

RouterConfig RouterConfig::among_own(int own_experts) const {
  RouterConfig own = *this;
  own.top_k = std::min(top_k, own_experts);
  own.fill_in = fill_in && own_experts > own.top_k;
  own.capacity_scope = CapacityScope::source;  // nobody shares a GPU's experts with it
  return own;
}

std::string name_of(Priority value) { return find_name(priorities, value); }
std::string name_of(Weights value) { return find_name(weights, value); }
std::string name_of(FillOrder value) { return find_name(fill_orders, value); }
std::string name_of(IrCompute value) { return find_name(ir_computes, value); }
std::string name_of(IrDuplicates value) { return find_name(ir_duplicates, value); }
std::string name_of(CapacityConvention value) { return find_name(conventions, value); }
std::string name_of(Dialect value) { return find_name(dialects, value); }
std::string name_of(CapacityScope value) { return find_name(scopes, value); }

Priority parse_priority(std::string_view text, const std::string& what) {
  return find_value(priorities, text, what);
}
Weights parse_weights(std::string_view text, const std::string& what) {
  return find_value(weights, text, what);
}
FillOrder parse_fill_order(std::string_view text, const std::string& what) {
  return find_value(fill_orders, text, what);
}
IrCompute parse_ir_compute(std::string_view text, const std::string& what) {
  return find_value(ir_computes, text, what);
}
IrDuplicates parse_ir_duplicates(std::string_view text, const std::string& what) {
  return find_value(ir_duplicates, text, what);
}
CapacityConvention parse_capacity_convention(std::string_view text, const std::string& what) {
  return find_value(conventions, text, what);
}
CapacityScope parse_capacity_scope(std::string_view text, const std::string& what) {
  return find_value(scopes, text, what);
}

Dialect parse_dialect(std::string_view text, const std::string& what) {
  return find_value(dialects, text, what);
}
std::string name_of_padding(bool to_capacity) { return find_name(paddings, to_capacity); }
bool parse_padding(std::string_view text, const std::string& what) {
  return find_value(paddings, text, what);
}

}  // namespace moesim::routing
