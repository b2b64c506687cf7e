#include "sim/routing/rules/router_options.hpp"

namespace moesim::routing {

std::string name_of(Priority value) { return name_in(priority_names, value); }
std::string name_of(Weights value) { return name_in(weights_names, value); }
std::string name_of(FillOrder value) { return name_in(fill_order_names, value); }
std::string name_of(IrCompute value) { return name_in(ir_compute_names, value); }
std::string name_of(IrDuplicates value) { return name_in(ir_duplicates_names, value); }
std::string name_of(CapacityConvention value) { return name_in(capacity_convention_names, value); }
std::string name_of(CapacityScope value) { return name_in(capacity_scope_names, value); }
std::string name_of(Dialect value) { return name_in(dialect_names, value); }
std::string name_of(Padding value) { return name_in(padding_names, value); }
std::string name_of(GroupScore value) { return name_in(group_score_names, value); }
std::string name_of(ScoreFunction value) { return name_in(score_function_names, value); }
std::string name_of(SecondExpert value) { return name_in(second_expert_names, value); }
std::string name_of(RouterDtype value) { return name_in(router_dtype_names, value); }

Priority parse_priority(std::string_view text, const std::string& where) {
  return value_in(priority_names, text, where);
}
Weights parse_weights(std::string_view text, const std::string& where) {
  return value_in(weights_names, text, where);
}
FillOrder parse_fill_order(std::string_view text, const std::string& where) {
  return value_in(fill_order_names, text, where);
}
IrCompute parse_ir_compute(std::string_view text, const std::string& where) {
  return value_in(ir_compute_names, text, where);
}
IrDuplicates parse_ir_duplicates(std::string_view text, const std::string& where) {
  return value_in(ir_duplicates_names, text, where);
}
CapacityConvention parse_capacity_convention(std::string_view text, const std::string& where) {
  return value_in(capacity_convention_names, text, where);
}
CapacityScope parse_capacity_scope(std::string_view text, const std::string& where) {
  return value_in(capacity_scope_names, text, where);
}
Dialect parse_dialect(std::string_view text, const std::string& where) {
  return value_in(dialect_names, text, where);
}
Padding parse_padding(std::string_view text, const std::string& where) {
  return value_in(padding_names, text, where);
}

GroupScore parse_group_score(std::string_view text, const std::string& where) {
  return value_in(group_score_names, text, where);
}

ScoreFunction parse_score_function(std::string_view text, const std::string& where) {
  return value_in(score_function_names, text, where);
}

SecondExpert parse_second_expert(std::string_view text, const std::string& where) {
  return value_in(second_expert_names, text, where);
}

RouterDtype parse_router_dtype(std::string_view text, const std::string& where) {
  return value_in(router_dtype_names, text, where);
}

}  // namespace moesim::routing
