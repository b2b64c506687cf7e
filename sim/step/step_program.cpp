// The order of operations of a step: what runs on which stream and waits for what.
#include <utility>

#include "sim/step/step_model.hpp"

namespace moesim::step {

using profile::Collective;
using routing::CapacityScope;
using routing::IrCompute;
using routing::Rectification;

namespace {

constexpr double element = 2;  // bytes of bf16

Kernels operator+(Kernels first, const Kernels& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace

// A pre-norm residual block around `inside`.
Kernels StepModel::block(const Kernels& inside, Pass pass) const {
  return pricer_.norm(pass) + inside + pricer_.residual(pass);
}

double StepModel::layer_dense_parameters(int layer) const {
  const model::Model& model = *scenario_.model;
  if (!is_moe(layer)) {
    return static_cast<double>(model.attention_parameters() + model.ffn_parameters(model.ffn));
  }
  return static_cast<double>(model.attention_parameters() +
                             model.ffn_parameters(model.moe->shared_ffn) +
                             model.hidden * scenario_.experts);
}

double StepModel::layer_expert_parameters(int layer) const {
  if (!is_moe(layer)) return 0;
  return static_cast<double>(scenario_.model->expert_parameters()) * scenario_.experts /
         scenario_.expert_parallel;
}

void StepModel::gather_dense(double parameters, int layer) {
  if (scenario_.gpus == 1 || parameters <= 0) return;
  add_exchange("nccl:all_gather", Part::gradient, layer, world_,
               fixed(pricer_.exchange(Collective::all_gather, members(world_), element * parameters,
                                      "all-gather of parameters")));
}

// ZeRO-3: parameters are gathered before each use; nothing is prefetched.
void StepModel::gather_layer(int layer) {
  if (scenario_.zero < 3 || scenario_.mode != Mode::train) return;
  gather_dense(layer_dense_parameters(layer), layer);
  const double expert = layer_expert_parameters(layer);
  if (expert <= 0 || members(replica_group_).size() < 2) return;
  add_exchange("nccl:all_gather", Part::gradient, layer, replica_group_,
               fixed(pricer_.exchange(Collective::all_gather, members(replica_group_), element * expert,
                                      "all-gather of expert parameters")));
}

// IR on the rows of each GPU. Under ir@node the rows first travel to their expert's GPU inside the
// NVLink domain, and back.
void StepModel::rectify(const std::string& name, int layer, const Spec& spec) {
  const bool travel = scenario_.router.rectification == Rectification::node &&
                      members(domain_).size() > 1;
  const Spec exchange{Role::node_exchange, spec.pass, spec.moe_layer, {}};
  if (travel) add_exchange("nccl:all_to_all", Part::exposed_exchange, layer, domain_, exchange);
  add_compute(name, Part::rectify, layer, spec);
  if (travel) add_exchange("nccl:all_to_all", Part::exposed_exchange, layer, domain_, exchange);
}

void StepModel::moe_forward(int layer) {
  const int ordinal = moe_ordinal(layer);
  const auto moe = [&](Role role) { return Spec{role, Pass::forward, ordinal, {}}; };
  const bool exchange = members(expert_group_).size() > 1;
  const bool rectified = scenario_.router.rectification != Rectification::none;
  const IrCompute when = scenario_.router.ir_compute;

  add_compute("router", Part::router, layer, fixed(pricer_.norm(Pass::forward) + pricer_.router(Pass::forward)));
  if (exchange && scenario_.router.capacity_scope == CapacityScope::group) {
    // The largest kept count of the group, one 32-bit integer per expert.
    add_exchange("nccl:all_reduce", Part::exposed_exchange, layer, expert_group_,
                 fixed(pricer_.exchange(Collective::all_reduce, members(expert_group_), 4.0 * scenario_.experts,
                                        "all-reduce of counts")));
  }
  add_compute("dispatch", Part::dispatch_combine, layer, moe(Role::dispatch));
  std::vector<int> arrived;
  if (exchange) {
    add_exchange("nccl:all_to_all", Part::exposed_exchange, layer, expert_group_,
                 moe(Role::exchange));
    arrived = std::exchange(pending_, {});
  }
  // IR and the shared expert need local data only: under `overlap` IR runs while tokens travel.
  if (rectified && when == IrCompute::overlap) {
    rectify("rectify", layer, moe(Role::rectify));
  }
  pending_.insert(pending_.end(), arrived.begin(), arrived.end());
  if (scenario_.model->moe->shared_ffn > 0) {
    add_compute("shared_expert", Part::expert, layer, fixed(pricer_.shared_expert(Pass::forward)));
  }
  add_compute("expert_ffn", Part::expert, layer, moe(Role::experts));
  if (rectified && when == IrCompute::grouped) {
    rectify("rectify", layer, moe(Role::grouped));
  }
  if (exchange) {
    add_exchange("nccl:all_to_all", Part::exposed_exchange, layer, expert_group_,
                 moe(Role::exchange));
  }
  if (rectified && when == IrCompute::separate) {
    rectify("rectify", layer, moe(Role::rectify));
  }
  add_compute("combine", Part::dispatch_combine, layer, moe(Role::combine));
}

void StepModel::moe_backward(int layer) {
  const int ordinal = moe_ordinal(layer);
  const auto moe = [&](Role role) { return Spec{role, Pass::backward, ordinal, {}}; };
  const bool exchange =
      members(expert_group_).size() > 1;
  const bool rectified = scenario_.router.rectification != Rectification::none;
  const IrCompute when = scenario_.router.ir_compute;

  add_compute("combine_backward", Part::dispatch_combine, layer, moe(Role::combine));
  std::vector<int> arrived;
  if (exchange) {
    add_exchange("nccl:all_to_all", Part::exposed_exchange, layer, expert_group_,
                 moe(Role::exchange));
    arrived = std::exchange(pending_, {});
  }
  if (rectified && when == IrCompute::overlap) {
    rectify("rectify_backward", layer, moe(Role::rectify));
  }
  pending_.insert(pending_.end(), arrived.begin(), arrived.end());
  add_compute("expert_ffn_backward", Part::expert, layer, moe(Role::experts));
  if (rectified && when == IrCompute::grouped) {
    rectify("rectify_backward", layer, moe(Role::grouped));
  }
  if (scenario_.model->moe->shared_ffn > 0) {
    add_compute("shared_expert_backward", Part::expert, layer,
                fixed(pricer_.shared_expert(Pass::backward)));
  }
  if (exchange) {
    add_exchange("nccl:all_to_all", Part::exposed_exchange, layer, expert_group_,
                 moe(Role::exchange));
  }
  if (rectified && when == IrCompute::separate) {
    rectify("rectify_backward", layer, moe(Role::rectify));
  }
  add_compute("dispatch_backward", Part::dispatch_combine, layer, moe(Role::dispatch));
  add_compute("router_backward", Part::router, layer, 
              fixed(pricer_.router(Pass::backward) + pricer_.norm(Pass::backward)));
}

void StepModel::layer_forward(int layer) {
  gather_layer(layer);
  add_compute("attention", Part::attention, layer, fixed(block(pricer_.attention(Pass::forward), Pass::forward)));
  if (is_moe(layer)) {
    moe_forward(layer);
  } else {
    add_compute("dense_ffn", Part::dense_ffn, layer, 
                fixed(block(pricer_.dense_ffn(Pass::forward), Pass::forward)));
  }
}

void StepModel::layer_backward(int layer) {
  if (scenario_.checkpointing == Checkpointing::full) {
    layer_forward(layer);
  } else {
    gather_layer(layer);
  }
  if (is_moe(layer)) {
    moe_backward(layer);
  } else {
    add_compute("dense_ffn_backward", Part::dense_ffn, layer,
                fixed(block(pricer_.dense_ffn(Pass::backward), Pass::backward)));
  }
  add_compute("attention_backward", Part::attention, layer,
              fixed(block(pricer_.attention(Pass::backward), Pass::backward)));
}

// Dense gradients go over all GPUs, each expert's over its replicas: reduced whole under ZeRO-0,
// else scattered to the shard that updates them. `name` tells layers from the rest.
void StepModel::reduce_gradients(double dense, double expert, int layer) {
  const Collective kind =
      scenario_.zero == 0 ? Collective::all_reduce : Collective::reduce_scatter;
  const std::string name = scenario_.zero == 0 ? "nccl:all_reduce" : "nccl:reduce_scatter";
  const auto reduce = [&](double parameters, int partition, const std::string& label) {
      if (parameters <= 0 || members(partition).size() < 2) return;
    add_exchange(name, Part::gradient, layer, partition,
                 fixed(pricer_.exchange(kind, members(partition), element * parameters, label)));
  };
  reduce(dense, world_, "reduction of dense gradients");
  reduce(expert, replica_group_, "reduction of expert gradients");
}

void StepModel::update() {
  const double dense = dense_parameters();
  const double expert = expert_parameters();
  if (scenario_.overlap == Overlap::none) reduce_gradients(dense, expert, -1);
  const double replicas = static_cast<double>(scenario_.gpus) / scenario_.expert_parallel;
  const bool sharded = scenario_.zero > 0;
  const double kept = dense / (sharded ? scenario_.gpus : 1) + expert / (sharded ? replicas : 1);
  add_compute("optimizer", Part::optimizer, -1, fixed(pricer_.optimizer(kept)));
  if (scenario_.zero != 1 && scenario_.zero != 2) return;
  gather_dense(dense, -1);
  if (expert > 0 && members(replica_group_).size() > 1) {
    add_exchange("nccl:all_gather", Part::gradient, -1, replica_group_,
                 fixed(pricer_.exchange(Collective::all_gather, members(replica_group_), element * expert,
                                        "all-gather of expert parameters")));
  }
}

double StepModel::dense_parameters() const {
  const model::Model& model = *scenario_.model;
  double parameters = static_cast<double>(model.embedding_parameters());
  for (int layer = 0; layer < model.layers; ++layer) parameters += layer_dense_parameters(layer);
  return parameters;
}

int StepModel::moe_ordinal(int layer) const {
  int ordinal = 0;
  for (int below = 0; below < layer; ++below) ordinal += is_moe(below) ? 1 : 0;
  return ordinal;
}

void StepModel::build() {
  const int layers = scenario_.model->layers;
  const bool train = scenario_.mode == Mode::train;
  for (std::int64_t micro_step = 0; micro_step < (train ? scenario_.micro_steps : 1);
       ++micro_step) {
    add_compute("embedding", Part::other, -1, fixed(pricer_.embedding(Pass::forward)));
    for (int layer = 0; layer < layers; ++layer) layer_forward(layer);
    add_compute("head", Part::other, -1, fixed(pricer_.norm(Pass::forward) + pricer_.head(Pass::forward)));
    if (!train) return;
    add_compute("head_backward", Part::other, -1, 
                fixed(pricer_.head(Pass::backward) + pricer_.norm(Pass::backward)));
    const bool reduce = scenario_.overlap == Overlap::gradient &&
                        micro_step + 1 == scenario_.micro_steps;
    for (int layer = layers - 1; layer >= 0; --layer) {
      layer_backward(layer);
      if (!reduce) continue;
      // Under way while the next layer's backward pass runs: only the update waits for it.
      std::vector<int> before = std::exchange(pending_, {});
      reduce_gradients(layer_dense_parameters(layer), layer_expert_parameters(layer), layer);
      pending_ = std::move(before);
    }
    add_compute("embedding_backward", Part::other, -1, fixed(pricer_.embedding(Pass::backward)));
    if (scenario_.micro_steps > 1 && micro_step > 0) {
      add_compute("gradient_accumulation", Part::other, -1,
                  fixed(pricer_.accumulate_gradients(dense_parameters() + expert_parameters())));
    }
    if (reduce) {
      reduce_gradients(static_cast<double>(scenario_.model->embedding_parameters()), 0, -1);
      pending_ = {last_exchange_};
    }
  }
  update();
}

double StepModel::expert_parameters() const {
  double parameters = 0;
  for (int layer = 0; layer < scenario_.model->layers; ++layer) {
    parameters += layer_expert_parameters(layer);
  }
  return parameters;
}

}  // namespace moesim::step
