// The order of operations of a step: what runs on which stream and waits for what.
#include <utility>

#include "sim/step/step_model.hpp"

namespace moesim::step {

using profile::Collective;
using routing::CapacityScope;
using routing::IrCompute;
using routing::Rectification;
using routing::RouterKind;

namespace {

constexpr double element = 2;  // bytes of bf16

Kernels operator+(Kernels first, const Kernels& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace

// A pre-norm residual block around `inside`.
Kernels StepModel::block(const KernelPricer& pricer, const Kernels& inside, Pass pass) {
  return pricer.norm(pass) + inside + pricer.residual(pass);
}

// The attention blocks of a layer, each with its norm: self-attention, and in a decoder above an
// encoder also attention to all of the encoder's output, which is as long as the decoder's input.
StepModel::Spec StepModel::attention(Pass pass, int layer) {
  const model::Model& model = *scenario_.model;
  return by_tokens([&](const KernelPricer& pricer) {
    Kernels kernels = block(pricer, pricer.attention(pass, model.is_causal(layer)), pass);
    if (!model.cross_attends(layer)) return kernels;
    return std::move(kernels) + block(pricer, pricer.attention(pass, false), pass);
  });
}

StepModel::Spec StepModel::dense_ffn(Pass pass) {
  return by_tokens(
      [&](const KernelPricer& pricer) { return block(pricer, pricer.dense_ffn(pass), pass); });
}

StepModel::Spec StepModel::shared_expert(Pass pass) {
  return by_tokens([&](const KernelPricer& pricer) { return pricer.shared_expert(pass); });
}

// With the norm before it.
StepModel::Spec StepModel::router(Pass pass) {
  return by_tokens([&](const KernelPricer& pricer) {
    return pass == Pass::forward ? pricer.norm(pass) + pricer.router(pass)
                                 : pricer.router(pass) + pricer.norm(pass);
  });
}

// With the norm before it.
StepModel::Spec StepModel::head(Pass pass) {
  return by_tokens([&](const KernelPricer& pricer) {
    return pass == Pass::forward ? pricer.norm(pass) + pricer.head(pass)
                                 : pricer.head(pass) + pricer.norm(pass);
  });
}

StepModel::Spec StepModel::embedding(Pass pass) {
  return by_tokens([&](const KernelPricer& pricer) { return pricer.embedding(pass); });
}

double StepModel::layer_dense_parameters(int layer) const {
  const model::Model& model = *scenario_.model;
  const std::int64_t attention = model.attention_blocks(layer) * model.attention_parameters();
  if (!is_moe(layer)) return static_cast<double>(attention + model.ffn_parameters(model.ffn));
  return static_cast<double>(attention + model.ffn_parameters(model.moe->shared_ffn) +
                             model.hidden * scenario_.gate_outputs());
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

void StepModel::gather_experts(double parameters, int layer) {
  if (parameters <= 0 || members(replica_group_).size() < 2) return;
  add_exchange("nccl:all_gather", Part::gradient, layer, replica_group_,
               fixed(pricer_.exchange(Collective::all_gather, members(replica_group_),
                                      element * parameters, "all-gather of expert parameters")));
}

// ZeRO-3: parameters are gathered before each pass that uses them; nothing is prefetched. A
// checkpointed layer keeps them from its second forward pass to its backward pass.
void StepModel::gather_layer(int layer) {
  if (scenario_.zero < 3 || scenario_.mode != scenario::Mode::train) return;
  gather_dense(layer_dense_parameters(layer), layer);
  gather_experts(layer_expert_parameters(layer), layer);
}

// The table of the embedding, or the matrix of the head.
void StepModel::gather_embedding() {
  if (scenario_.zero < 3 || scenario_.mode != scenario::Mode::train) return;
  gather_dense(static_cast<double>(scenario_.model->vocabulary * scenario_.model->hidden), -1);
}

// IR on the rows of each GPU. Under ir@node the rows first travel to their expert's GPU inside the
// NVLink domain, and back.
void StepModel::rectify(const std::string& name, int layer, const Spec& spec) {
  const bool travel =
      scenario_.router.rectification == Rectification::node && members(domain_).size() > 1;
  const Spec exchange{Role::node_exchange, spec.pass, spec.moe_layer, {}, false};
  if (travel) add_exchange("nccl:all_to_all", Part::exposed_exchange, layer, domain_, exchange);
  add_compute(name, Part::rectify, layer, spec);
  if (travel) add_exchange("nccl:all_to_all", Part::exposed_exchange, layer, domain_, exchange);
}

// BASE in training sends every token to a random GPU before it assigns tokens to experts, and home
// again at the end (Lewis et al. 2021, arXiv:2103.16716, section 3.2): S rows over the group.
void StepModel::shuffle(const std::string& name, int layer) {
  add_compute(name, Part::dispatch_combine, layer,
              fixed(pricer_.dispatch_rows(scenario_.tokens_per_gpu)));
  add_exchange("nccl:all_to_all", Part::exposed_exchange, layer, expert_group_,
               fixed(pricer_.exchange(Collective::all_to_all, members(expert_group_),
                                      pricer_.row_bytes(scenario_.tokens_per_gpu),
                                      "all-to-all of shuffled tokens")));
}

StepModel::Spec StepModel::announcing(Kernels kernels, int layer) {
  Spec spec = fixed(std::move(kernels));
  spec.moe_layer = moe_ordinal(layer);
  spec.announces = true;
  return spec;
}

// Who sends how much to whom, which the host has to know before it can start the all-to-all.
void StepModel::exchange_counts(int layer) {
  add_exchange("nccl:all_gather", Part::exposed_exchange, layer, expert_group_,
               announcing({pricer_.exchange(Collective::all_gather, members(expert_group_),
                                            pricer_.counts_bytes(), "all-gather of counts")},
                          layer));
  add_compute("counts_to_host", Part::router, layer, announcing(pricer_.host_read(), layer));
}

// What ranks have to agree on first: the rows of every pair where these differ, or the size of
// padded blocks. 32-bit integers: the largest kept count of the group for each expert, or the
// largest C of ragged sources.
void StepModel::announce_exchange(int layer) {
  const routing::RouterConfig& router = scenario_.router;
  const bool ragged = scenario_.is_ragged();
  const auto agree = [&](double bytes, const std::string& label) {
    add_exchange(
        "nccl:all_reduce", Part::exposed_exchange, layer, expert_group_,
        announcing({pricer_.exchange(Collective::all_reduce, members(expert_group_), bytes, label)},
                   layer));
  };
  if (!router.pads_exchange()) {
    const bool travels = router.kind != RouterKind::scomoe || router.local_share < Decimal(1);
    if (!router.counts_known() || (ragged && travels)) exchange_counts(layer);
  } else if (router.has_capacity() && router.capacity_scope == CapacityScope::group) {
    agree(4.0 * scenario_.experts, "all-reduce of counts");
  } else if (ragged) {
    agree(4.0, "all-reduce of capacities");
  }
}

// Megatron-Core sends the probability of every row in an all-to-all of its own, with the same
// counts, as its experts weigh what they return (MoEAlltoAllTokenDispatcher.token_dispatch in
// megatron/core/transformer/moe/token_dispatcher.py, v0.12 and later; in fp32 with
// --moe-router-dtype fp32). Backward their gradients go home. Kernels that send tokens without
// duplicates take the probabilities along.
void StepModel::exchange_probabilities(int layer, Spec spec) {
  if (scenario_.router.dialect != routing::Dialect::megatron) return;
  if (scenario_.dedup != scenario::Deduplication::none) return;
  spec.probabilities = true;
  add_exchange("nccl:all_to_all", Part::exposed_exchange, layer, expert_group_, spec);
}

void StepModel::moe_forward(int layer) {
  const int ordinal = moe_ordinal(layer);
  const auto moe = [&](Role role, bool to_tokens = false) {
    return Spec{role, Pass::forward, ordinal, {}, to_tokens};
  };
  const bool exchange = members(expert_group_).size() > 1;
  const bool rectified = scenario_.router.rectification != Rectification::none;
  const IrCompute when = scenario_.router.ir_compute;

  const bool shuffled =
      exchange && scenario_.router.kind == RouterKind::base && !scenario_.router.greedy;
  if (shuffled) shuffle("shuffle", layer);
  add_compute("router", Part::router, layer, router(Pass::forward));
  if (exchange) announce_exchange(layer);
  add_compute("dispatch", Part::dispatch_combine, layer, moe(Role::dispatch));
  std::vector<int> arrived;
  if (exchange) {
    add_exchange("nccl:all_to_all", Part::exposed_exchange, layer, expert_group_,
                 moe(Role::exchange));
    exchange_probabilities(layer, moe(Role::exchange));
    arrived = std::exchange(pending_, {});
  }
  // IR needs local data only: under `overlap` it runs while tokens travel.
  if (rectified && when == IrCompute::overlap) {
    rectify("rectify", layer, moe(Role::rectify));
  }
  pending_.insert(pending_.end(), arrived.begin(), arrived.end());
  if (scenario_.model->moe->shared_ffn > 0) {
    add_compute("shared_expert", Part::expert, layer, shared_expert(Pass::forward));
  }
  add_compute("expert_ffn", Part::expert, layer, moe(Role::experts));
  if (rectified && when == IrCompute::grouped) {
    rectify("rectify", layer, moe(Role::grouped));
  }
  if (exchange) {
    add_exchange("nccl:all_to_all", Part::exposed_exchange, layer, expert_group_,
                 moe(Role::exchange, true));
  }
  if (rectified && when == IrCompute::separate) {
    rectify("rectify", layer, moe(Role::rectify));
  }
  add_compute("combine", Part::dispatch_combine, layer, moe(Role::combine));
  if (shuffled) shuffle("unshuffle", layer);
}

void StepModel::moe_backward(int layer) {
  const int ordinal = moe_ordinal(layer);
  const auto moe = [&](Role role, bool to_tokens = false) {
    return Spec{role, Pass::backward, ordinal, {}, to_tokens};
  };
  const bool exchange = members(expert_group_).size() > 1;
  const bool rectified = scenario_.router.rectification != Rectification::none;
  const IrCompute when = scenario_.router.ir_compute;

  const bool shuffled =
      exchange && scenario_.router.kind == RouterKind::base && !scenario_.router.greedy;
  if (shuffled) shuffle("unshuffle_backward", layer);
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
    add_compute("shared_expert_backward", Part::expert, layer, shared_expert(Pass::backward));
  }
  if (exchange) {
    add_exchange("nccl:all_to_all", Part::exposed_exchange, layer, expert_group_,
                 moe(Role::exchange, true));
    exchange_probabilities(layer, moe(Role::exchange, true));
  }
  if (rectified && when == IrCompute::separate) {
    rectify("rectify_backward", layer, moe(Role::rectify));
  }
  add_compute("dispatch_backward", Part::dispatch_combine, layer, moe(Role::dispatch));
  add_compute("router_backward", Part::router, layer, router(Pass::backward));
  if (shuffled) shuffle("shuffle_backward", layer);
}

void StepModel::layer_forward(int layer) {
  gather_layer(layer);
  add_compute("attention", Part::attention, layer, attention(Pass::forward, layer));
  if (is_moe(layer)) {
    moe_forward(layer);
  } else {
    add_compute("dense_ffn", Part::dense_ffn, layer, dense_ffn(Pass::forward));
  }
}

void StepModel::layer_backward(int layer) {
  if (scenario_.checkpointing == scenario::Checkpointing::full) {
    layer_forward(layer);
  } else {
    gather_layer(layer);
  }
  if (is_moe(layer)) {
    moe_backward(layer);
  } else {
    add_compute("dense_ffn_backward", Part::dense_ffn, layer, dense_ffn(Pass::backward));
  }
  add_compute("attention_backward", Part::attention, layer, attention(Pass::backward, layer));
}

// Dense gradients go over all GPUs, each expert's over its replicas: reduced whole under ZeRO-0,
// else scattered to the shard that updates them. `name` tells layers from the rest.
void StepModel::reduce_gradients(double dense, double expert, int layer) {
  const Collective kind = scenario_.zero == 0 ? Collective::all_reduce : Collective::reduce_scatter;
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
  const double replicas = static_cast<double>(scenario_.gpus) / scenario_.expert_parallel;
  const bool sharded = scenario_.zero > 0;
  const double kept = dense / (sharded ? scenario_.gpus : 1) + expert / (sharded ? replicas : 1);
  add_compute("optimizer", Part::optimizer, -1, fixed(pricer_.optimizer(kept)));
  if (scenario_.zero != 1 && scenario_.zero != 2) return;
  gather_dense(dense, -1);
  gather_experts(expert, -1);
}

double StepModel::dense_parameters() const {
  if (!scenario_.has_moe()) return static_cast<double>(scenario_.model->dense_parameters(0));
  // The model counts a gate of E columns.
  const model::Model& model = *scenario_.model;
  const std::int64_t more_columns = scenario_.gate_outputs() - scenario_.experts;
  return static_cast<double>(model.dense_parameters(scenario_.experts) +
                             model.moe_layers() * model.hidden * more_columns);
}

double StepModel::outer_parameters() const {
  double parameters = dense_parameters();
  for (int layer = 0; layer < scenario_.model->layers; ++layer) {
    parameters -= layer_dense_parameters(layer);
  }
  return parameters;
}

int StepModel::moe_ordinal(int layer) const {
  int ordinal = 0;
  for (int below = 0; below < layer; ++below) ordinal += is_moe(below) ? 1 : 0;
  return ordinal;
}

void StepModel::build() {
  const int layers = scenario_.model->layers;
  const bool train = scenario_.mode == scenario::Mode::train;
  for (std::int64_t micro_step = 0; micro_step < (train ? scenario_.micro_steps : 1);
       ++micro_step) {
    gather_embedding();
    add_compute("embedding", Part::other, -1, embedding(Pass::forward));
    for (int layer = 0; layer < layers; ++layer) layer_forward(layer);
    gather_embedding();
    add_compute("head", Part::other, -1, head(Pass::forward));
    if (!train) return;
    add_compute("head_backward", Part::other, -1, head(Pass::backward));
    backward(micro_step);
  }
  update();
}

// Backward pass through the layers and what becomes of the gradients: all at its end, or layer by
// layer under `overlap`, where a reduction is under way while the next layer's backward pass runs.
// Only later exchanges, which share its stream, and what comes after the pass wait for it.
void StepModel::backward(std::int64_t micro_step) {
  const bool overlapped = scenario_.overlap == scenario::Overlap::gradient;
  std::vector<int> last_reduction;
  for (int layer = scenario_.model->layers - 1; layer >= 0; --layer) {
    layer_backward(layer);
    if (!overlapped) continue;
    settle_gradients(layer_dense_parameters(layer), layer_expert_parameters(layer), layer,
                     micro_step);
    if (!pending_.empty()) last_reduction = {pending_.back()};
    pending_.clear();
  }
  add_compute("embedding_backward", Part::other, -1, embedding(Pass::backward));
  if (overlapped) {
    settle_gradients(outer_parameters(), 0, -1, micro_step);
    if (pending_.empty()) pending_ = last_reduction;
  } else {
    settle_gradients(dense_parameters(), expert_parameters(), -1, micro_step);
  }
  if (scenario_.zero < 2 || micro_step == 0) return;
  const double replicas = static_cast<double>(scenario_.gpus) / scenario_.expert_parallel;
  const double kept = dense_parameters() / scenario_.gpus + expert_parameters() / replicas;
  add_compute("gradient_accumulation", Part::other, -1, fixed(pricer_.accumulate_gradients(kept)));
}

// Up to ZeRO-1 every GPU adds up whole gradients and reduces them once, after the last micro-step;
// from ZeRO-2 on it keeps its shard only, so each micro-step's gradients are reduced before they
// are added up (Rajbhandari et al. 2020, arXiv:1910.02054, section 5.2).
void StepModel::settle_gradients(double dense, double expert, int layer, std::int64_t micro_step) {
  const bool whole = scenario_.zero < 2;
  if (whole && micro_step > 0) {
    add_compute("gradient_accumulation", Part::other, layer,
                fixed(pricer_.accumulate_gradients(dense + expert)));
  }
  if (whole && micro_step + 1 < scenario_.micro_steps) return;
  reduce_gradients(dense, expert, layer);
}

double StepModel::expert_parameters() const {
  double parameters = 0;
  for (int layer = 0; layer < scenario_.model->layers; ++layer) {
    parameters += layer_expert_parameters(layer);
  }
  return parameters;
}

}  // namespace moesim::step
