#include "sim/routing/router_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "sim/base/error.hpp"

namespace moesim::routing {

namespace {

template <typename Value, std::size_t count>
using Names = std::array<std::pair<const char*, Value>, count>;

constexpr Names<Priority, 4> priorities = {{{"token-max", Priority::token_max},
                                            {"own-score", Priority::own_score},
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

[[noreturn]] void refuse(std::string_view name, const std::string& reason) {
  throw UsageError(fmt::format(
      "--router '{}': {}; choose dense, top1, top2, ... or topk (with --top-k), with any of +fr "
      "and +ir or +ir@node behind, as in top2+fr+ir",
      name, reason));
}

// "top2" is 2, "topk" what --top-k says.
int parse_top(std::string_view name, std::string_view head, int top_k) {
  const std::string_view digits = head.substr(3);
  if (digits == "k") {
    if (top_k < 1) refuse(name, "topk needs --top-k, the number of experts per token");
    return top_k;
  }
  const bool numeric = !digits.empty() && digits.size() <= 4 &&
                       std::all_of(digits.begin(), digits.end(),
                                   [](unsigned char letter) { return std::isdigit(letter) != 0; });
  if (!numeric) refuse(name, fmt::format("'{}' is not a router", head));
  const int value = std::stoi(std::string(digits));
  if (value < 1) refuse(name, "a token needs at least one expert");
  if (top_k > 0 && top_k != value) {
    refuse(name, fmt::format("it says {} experts per token, --top-k says {}: give one of the two",
                             value, top_k));
  }
  return value;
}

void apply_suffix(std::string_view name, std::string_view suffix, RouterConfig& config) {
  if (suffix == "fr") {
    if (config.fill_in) refuse(name, "+fr is there twice");
    config.fill_in = true;
    return;
  }
  if (suffix == "ir" || suffix == "ir@node") {
    if (config.rectification != Rectification::none) refuse(name, "+ir is there twice");
    config.rectification = suffix == "ir@node" ? Rectification::node : Rectification::gpu;
    return;
  }
  refuse(name, fmt::format("the suffix '+{}' is not known", suffix));
}

}  // namespace

std::int64_t RouterConfig::capacity(std::int64_t tokens, std::int64_t experts) const {
  const bool library = capacity_convention == CapacityConvention::library;
  const std::int64_t slots =
      capacity_factor.ceil_of_product(library ? tokens * top_k : tokens, experts);
  return std::max(slots, min_capacity);
}

std::string RouterConfig::name() const {
  if (is_dense()) return "dense";
  std::string text = fmt::format("top{}", top_k);
  if (fill_in) text += "+fr";
  if (rectification == Rectification::gpu) text += "+ir";
  if (rectification == Rectification::node) text += "+ir@node";
  return text;
}

RouterConfig parse_router(std::string_view name, int top_k) {
  RouterConfig config;
  std::string_view rest = name;
  const auto next_part = [&rest] {
    const std::size_t plus = rest.find('+');
    const std::string_view part = rest.substr(0, plus);
    rest = plus == std::string_view::npos ? std::string_view{} : rest.substr(plus + 1);
    return std::pair(part, plus != std::string_view::npos);
  };
  auto [head, more] = next_part();
  if (head == "dense") {
    if (more) refuse(name, "a dense model has nothing to rectify");
    config.kind = RouterKind::dense;
    config.capacity_factor = Decimal(1);
    return config;
  }
  if (!head.starts_with("top")) refuse(name, fmt::format("'{}' is not a router", head));
  config.top_k = parse_top(name, head, top_k);
  while (more) {
    const auto [suffix, next_more] = next_part();
    apply_suffix(name, suffix, config);
    more = next_more;
  }
  config.capacity_factor = Decimal(config.top_k);
  return config;
}

std::string name_of(Priority value) { return find_name(priorities, value); }
std::string name_of(Weights value) { return find_name(weights, value); }
std::string name_of(FillOrder value) { return find_name(fill_orders, value); }
std::string name_of(IrCompute value) { return find_name(ir_computes, value); }
std::string name_of(IrDuplicates value) { return find_name(ir_duplicates, value); }
std::string name_of(CapacityConvention value) { return find_name(conventions, value); }
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

}  // namespace moesim::routing
