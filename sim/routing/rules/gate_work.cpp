#include "sim/routing/rules/gate_work.hpp"

#include "sim/base/units.hpp"
#include "sim/routing/rules/router_config.hpp"

namespace moesim::routing {
namespace {

constexpr double route_bytes = 8;  // an expert and a weight or a position, of 4 bytes each

// A token's choices follow one another, and so do what is done with them.
std::int64_t picks_of(const RouterConfig& config, const GateShape& shape) {
  return shape.tokens * (config.choices() + 1);
}

void add_selection(const char* label, double kernels, double bytes, std::int64_t picks,
                   GateWorkList& list) {
  list.push_back({.kind = GateWork::Kind::selection,
                  .label = label,
                  .bytes = bytes,
                  .rows = picks,
                  .count = kernels});
}

}  // namespace

void add_bf16_product(const GateShape& shape, GateWorkList& list) {
  list.push_back({.kind = GateWork::Kind::bf16_product,
                  .label = fused::product,
                  .rows = shape.tokens,
                  .columns = shape.experts,
                  .depth = shape.hidden});
}

void add_fused_positions(const RouterConfig& config, const GateShape& shape, GateWorkList& list) {
  const std::int64_t picks = picks_of(config, shape);
  const double routes = route_bytes * static_cast<double>(shape.tokens) * config.choices();
  add_selection(fused::positions, 1, routes, picks, list);
  add_selection(fused::weights, 1, routes, 0, list);
  if (config.rectification != Rectification::none) {
    add_selection(fused::rectification, 2, routes, picks, list);
  }
}

GateWorkList fused_gate(const RouterConfig& config, const GateShape& shape, double pools) {
  GateWorkList list;
  add_bf16_product(shape, list);
  const std::int64_t picks = picks_of(config, shape);
  const double logits = fp32_bytes * static_cast<double>(shape.tokens) * shape.experts;
  if (shape.backward) {
    add_selection(fused::choices_backward, pools, 2 * logits / pools, picks, list);
    return list;
  }
  add_selection(fused::choices, pools, logits / pools, picks, list);
  add_fused_positions(config, shape, list);
  return list;
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

GateWorkList library_gate(const RouterConfig& config, const GateShape& shape, double kernels,
                          double pools) {
  if (shape.fused) return fused_gate(config, shape, pools);
  GateWorkList list;
  add_gate_product(shape, list);
  add_gate_kernels(shape, pools * kernels, list);
  add_queue_positions(shape, config.choices(), list);
  return list;
}

GateWorkList top_k_gate(const RouterConfig& config, const GateShape& shape) {
  return library_gate(config, shape, gate_kernels + gate_kernels_per_choice * config.choices());
}

GateWorkList scoreless_gate(const RouterConfig& config, const GateShape& shape) {
  GateWorkList list;
  if (shape.backward) return list;
  if (shape.fused) {
    add_fused_positions(config, shape, list);
    return list;
  }
  add_gate_kernels(shape, gate_kernels_per_choice * config.choices(), list);
  add_queue_positions(shape, config.choices(), list);
  return list;
}

}  // namespace moesim::routing
