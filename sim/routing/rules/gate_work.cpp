#include "sim/routing/rules/gate_work.hpp"

#include "sim/routing/rules/router_config.hpp"

namespace moesim::routing {

GateWorkList fused_gate(const GateShape& shape) {
  const double input = bf16_bytes * static_cast<double>(shape.tokens * shape.hidden);
  const double logits = fp32_bytes * static_cast<double>(shape.tokens * shape.experts);
  GateWork gate;
  gate.label = shape.backward ? "fused gate backward" : "fused gate";
  gate.bytes = shape.backward ? 3 * input + 2 * logits : input + logits;
  return {gate};
}

void add_gate_product(const GateShape& shape, GateWorkList& list) {
  GateWork copy;
  copy.label = shape.backward ? "gate input in fp32 backward" : "gate input in fp32";
  copy.bytes = (bf16_bytes + fp32_bytes) * static_cast<double>(shape.tokens) *
               static_cast<double>(shape.hidden);
  copy.gating = false;
  list.push_back(copy);
  GateWork product;
  product.kind = GateWork::Kind::fp32_product;
  product.label = "gate GEMM";
  product.rows = shape.tokens;
  product.columns = shape.experts;
  product.depth = shape.hidden;
  product.count = shape.backward ? 2 : 1;
  list.push_back(product);
}

void add_gate_kernels(const GateShape& shape, double count, GateWorkList& list) {
  GateWork kernels;
  kernels.label = "gate kernels";
  kernels.bytes = 2 * fp32_bytes * static_cast<double>(shape.tokens) * shape.experts;
  kernels.count = shape.backward ? count / 2 : count;
  list.push_back(kernels);
}

void add_queue_positions(const GateShape& shape, int choices, GateWorkList& list) {
  if (!shape.one_hot || shape.backward) return;
  GateWork scan;
  scan.kind = GateWork::Kind::serial_scan;
  scan.label = "gate cumsum";
  scan.rows = shape.tokens;
  scan.count = choices;
  list.push_back(scan);
}

GateWorkList library_gate(const GateShape& shape, double kernels, int choices) {
  if (shape.fused) return fused_gate(shape);
  GateWorkList list;
  add_gate_product(shape, list);
  add_gate_kernels(shape, kernels, list);
  add_queue_positions(shape, choices, list);
  return list;
}

GateWorkList top_k_gate(const RouterConfig& config, const GateShape& shape) {
  const int choices = config.choices();
  return library_gate(shape, gate_kernels + gate_kernels_per_choice * choices, choices);
}

GateWorkList scoreless_gate(const RouterConfig& config, const GateShape& shape) {
  GateWorkList list;
  if (shape.backward) return list;
  add_gate_kernels(shape, gate_kernels_per_choice * config.choices(), list);
  add_queue_positions(shape, config.choices(), list);
  return list;
}

}  // namespace moesim::routing
