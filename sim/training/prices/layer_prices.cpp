#include "sim/training/prices/layer_prices.hpp"

#include <algorithm>
#include <utility>

#include "sim/model/memory/data_parallel.hpp"
#include "sim/model/memory/training_exchanges.hpp"
#include "sim/model/training_work.hpp"
#include "sim/training/prices/host_launches.hpp"

namespace moesim::training {
namespace {

using model::AttentionKind;
using parallel::GroupKind;
using profile::Collective;
using profile::DispatcherStage;
using profile::MemoryKernel;

// The share of the peak rate to and from the host's memory that copies reach: assumed. Published by
// users of nvbandwidth: 0.84 of PCIe 5.0 (H100, to the host), 0.77 of NVLink-C2C (GH200, from the
// host).
constexpr double host_efficiency = 0.8;
// The share of the router's work that runs before the rows' counts are known: assumed.
constexpr double router_before = 0.3;

// Bytes per second of copies to and from the host's memory: measured, or the share of the peak.
double host_copy_rate(const profile::Device& device) {
  const double measured = device.host_copy_bandwidth.bytes_per_second;
  return measured > 0 ? measured : host_efficiency * device.host_bandwidth.bytes_per_second;
}

PartTimes exchanges_of(const PartTimes& forward) {
  PartTimes exchanges{};
  for (const TrainingPart part : {TrainingPart::tensor, TrainingPart::context,
                                  TrainingPart::dispatch, TrainingPart::combine}) {
    exchanges[at(part)] = forward[at(part)];
  }
  return exchanges;
}

double backward_host_us(const Passes& passes) {
  return passes.input_gradient[at(TrainingPart::host)] +
         passes.weight_gradient[at(TrainingPart::host)];
}

int first_layer(const model::Model& model, bool is_moe) {
  for (int layer = 0; layer < model.layers; ++layer) {
    if (model.is_moe_layer(layer) == is_moe) return layer;
  }
  return -1;
}

}  // namespace

LayerPrices::LayerPrices(const TrainingJob& job)
    : job_(job),
      kernels_(job),
      exchanges_(job),
      embedding_(kernels_.embedding()),
      head_(kernels_.head()),
      prediction_(kernels_.prediction()) {
  const model::Model& model = *job.model;
  if (model.moe) moe_ = layers(true, kernels_.given_load());
  if (model.dense_layers() > 0) dense_ = layers(false, {});
  const model::ExchangeQuery query = exchanges_.query();
  for (const bool backward : {false, true}) {
    add_exchanges(embedding_, backward, model::embedding_exchanges(query, backward), {});
    add_exchanges(head_, backward, model::head_exchanges(query, backward), {});
    add_exchanges(prediction_, backward, model::prediction_exchanges(query, backward), {});
  }
  further_head_ = head_;
  share_weights_of_ends();
}

void LayerPrices::share_weights_of_ends() {
  model::StageContent embedding, head, depth;
  embedding.embedding = head.head = true;
  add_shared_weights(embedding_, parameters_of(embedding));
  add_shared_weights(head_, parameters_of(head));
  // The layer of a prediction depth is priced as any other.
  depth.mtp_depths = 1;
  model::StageParameters beside_layer = parameters_of(depth);
  const model::StageParameters layer =
      parameters_of(model::layers_of(*job_.model, job_.model->layers - 1, 1));
  beside_layer.dense -= layer.dense;
  beside_layer.gemm -= layer.gemm;
  beside_layer.expert -= layer.expert;
  add_shared_weights(prediction_, beside_layer);
}

void LayerPrices::add_exchanges(Passes& passes, bool backward,
                                const model::TrainingExchanges& exchanges,
                                const Beside& beside) const {
  PartTimes& times = backward ? passes.input_gradient : passes.forward;
  const ExchangePrices::Times found = exchanges_.times(exchanges);
  times[at(TrainingPart::tensor)] += found.expert_tensor_us;
  // In as many pieces as ranks, each under the product of the piece before; the first one is not.
  const double first_us = job_.overlaps_tensor ? found.tensor_us / job_.layout.sizes.tensor : 0;
  const double hidden_us =
      job_.overlaps_tensor ? std::min(found.tensor_us - first_us, beside.products_us) : 0;
  times[at(TrainingPart::tensor)] += found.tensor_us - hidden_us;
  times[at(TrainingPart::context)] += found.context_us;
  // A ring passes the next piece under the attention of this one; the last piece passes nothing.
  const double context = job_.layout.sizes.context;
  times[at(TrainingPart::context)] +=
      std::max(0.0, found.ring_us - beside.attention_us * (context - 1) / context);
}

void LayerPrices::add_dispatch(Passes& passes, const MoeLoad& load) const {
  for (const auto& [part, stage] : {std::pair(TrainingPart::dispatch, DispatcherStage::dispatch),
                                    std::pair(TrainingPart::combine, DispatcherStage::combine)}) {
    passes.forward[at(part)] += exchanges_.dispatch_us(stage, load);
    passes.input_gradient[at(part)] += exchanges_.dispatch_gradient_us(stage, load);
  }
}

// Forward work done again, each module at the price of its own forward pass.
void LayerPrices::add_recompute(Passes& passes, const Modules& modules) const {
  using Module = model::RecomputeModule;
  const model::Recompute& recompute = job_.recompute;
  double& time_us = passes.input_gradient[at(TrainingPart::recompute)];
  if (recompute.full != model::FullRecompute::none) {
    time_us += sum(passes.forward);
    add(passes.exchanged_again, exchanges_of(passes.forward));
    return;
  }
  // The MoE layer has the activation and the shared experts in it.
  const bool has_moe = recompute.has(Module::moe) && modules.count(Module::moe) != 0;
  for (const auto& [module, work] : modules) {
    if (!recompute.has(module)) continue;
    if (has_moe && (module == Module::moe_act || module == Module::shared_experts)) continue;
    time_us += work.time_us;
    add(passes.exchanged_again, work.exchanges);
  }
}

double LayerPrices::host_us(bool is_moe, AttentionKind attention) const {
  const HostLaunches count = host_launches(job_, is_moe, attention);
  return (count.forward + count.backward()) * job_.host.priced_launch_us();
}

// The GPU waits where the host launches more slowly than it works, and where the host reads how
// many rows came before it launches the experts.
void LayerPrices::add_host(Passes& passes, bool is_moe, AttentionKind attention) const {
  const double before = passes.forward[at(TrainingPart::attention)] +
                        passes.forward[at(TrainingPart::tensor)] +
                        passes.forward[at(TrainingPart::context)] +
                        router_before * passes.forward[at(TrainingPart::router)];
  passes.forward[at(TrainingPart::host)] =
      forward_wait_us(job_, is_moe, before, sum(passes.forward) - before, attention);
  const BackwardTimes backward = backward_wait_us(
      job_, is_moe, {sum(passes.input_gradient), sum(passes.weight_gradient)}, attention);
  passes.input_gradient[at(TrainingPart::host)] = backward.input_gradient_us;
  passes.weight_gradient[at(TrainingPart::host)] = backward.weight_gradient_us;
}

double LayerPrices::offload_us(bool is_moe, double load) const {
  if (job_.offload.modules == 0) return 0;
  const double bytes =
      job_.tokens_per_rank() *
      model::offloaded_bytes(*job_.model, is_moe ? model::LayerKind::moe : model::LayerKind::dense,
                             job_.shards(), job_.activation_rules(load));
  return bytes / host_copy_rate(job_.profile->device()) * 1e6;
}

// A layer's inputs go out under its forward pass and come back under its backward pass, in either
// direction as fast as if the other were idle: what that takes longer is waited for.
void LayerPrices::add_offload(Passes& passes, bool is_moe, const MoeLoad& load) const {
  if (job_.offload.modules == 0) return;
  const double copy_us = offload_us(is_moe, load.computed);
  const double backward_us = sum(passes.input_gradient) + sum(passes.weight_gradient);
  const auto exposed = [&](double beside_us) { return std::max(0.0, copy_us - beside_us); };
  const double forward = exposed(sum(passes.forward));
  const double backward = exposed(backward_us);
  passes.forward_under_host[at(TrainingPart::offload)] =
      exposed(sum(passes.forward) - passes.forward[at(TrainingPart::host)]) - forward;
  passes.backward_under_host[at(TrainingPart::offload)] =
      exposed(backward_us - backward_host_us(passes)) - backward;
  passes.forward[at(TrainingPart::offload)] = forward;
  passes.input_gradient[at(TrainingPart::offload)] = backward;
}

PartTimes LayerPrices::exchanged(const model::TrainingExchanges& exchanges,
                                 const Beside& beside) const {
  Passes passes;
  add_exchanges(passes, false, exchanges, beside);
  return passes.forward;
}

AttentionKind LayerPrices::attention_of_moe_layer(int number) const {
  const model::MoeBlock& moe = *job_.model->moe;
  return model::attention_kind(*job_.model, moe.first_layer + (number + 1) * moe.every - 1);
}

LayerPrices::Layers LayerPrices::layers(bool is_moe, const MoeLoad& load) const {
  Layers found;
  found.softmax = found.mean = whole_layer(is_moe, load, AttentionKind::softmax);
  if (!job_.model->linear) return found;
  found.linear = whole_layer(is_moe, load, AttentionKind::linear);
  const double share = job_.model->linear_share();
  found.mean.multiply(1 - share);
  Passes linear = found.linear;
  linear.multiply(share);
  found.mean.add(linear);
  return found;
}

Passes LayerPrices::whole_layer(bool is_moe, const MoeLoad& load, AttentionKind kind) const {
  model::ExchangeQuery query = exchanges_.query();
  query.expert_load = load.computed;
  query.linear_attention = kind == AttentionKind::linear;
  const int layer = first_layer(*job_.model, is_moe);
  PricedLayer priced = priced_attention(query, kind, layer);
  if (is_moe) {
    add_experts(priced, query, load);
  } else {
    add_dense_ffn(priced, query);
  }
  Passes& passes = priced.passes;
  for (const bool backward : {false, true}) {
    const auto exchanges = model::layer_exchanges(query, layer, backward);
    add_exchanges(passes, backward, exchanges, priced.beside(backward));
  }
  add_recompute(passes, priced.modules);
  add_host(passes, is_moe, kind);
  add_offload(passes, is_moe, load);
  model::StageContent content;
  (is_moe ? content.moe_layers : content.dense_layers) = 1;
  content.linear_layers = kind == AttentionKind::linear ? 1 : 0;
  add_shared_weights(passes, parameters_of(content));
  return passes;
}

LayerPrices::Beside LayerPrices::PricedLayer::beside(bool backward) const {
  if (!backward) return {sum(core_attention.forward), sum(divided.forward)};
  return {sum(core_attention.input_gradient),
          sum(divided.input_gradient) + sum(divided.weight_gradient)};
}

LayerPrices::PricedLayer LayerPrices::priced_attention(const model::ExchangeQuery& query,
                                                       AttentionKind kind, int layer) const {
  using Module = model::RecomputeModule;
  PricedLayer priced;
  priced.core_attention = kernels_.core_attention(kind);
  const Passes block_norms = kernels_.norms();
  const Passes projections = kernels_.projections(kind);
  priced.passes = priced.core_attention;
  priced.passes.add(block_norms);
  priced.passes.add(kernels_.elementwise(kind));
  priced.passes.add(projections);
  priced.divided = projections;
  const double attention_us = sum(priced.core_attention.forward);
  priced.modules[Module::layernorm].time_us = sum(block_norms.forward);
  if (kind == AttentionKind::softmax) {
    const PartTimes pieces = exchanged(model::context_exchanges(query, false), {attention_us, 0});
    priced.modules[Module::core_attn] = {attention_us + sum(pieces), pieces};
  }
  if (job_.model->latent) {
    priced.modules[Module::mla_up_proj].time_us =
        up_projection_us(projections, query.length, layer);
  }
  return priced;
}

double LayerPrices::up_projection_us(const Passes& projections, double length, int layer) const {
  model::Recompute up;
  up.add(model::RecomputeModule::mla_up_proj);
  return sum(projections.forward) *
             model::recompute_work(*job_.model, layer, up, length, 0).gemm_flops /
             model::layer_work(*job_.model, layer, length).projections +
         memory_us(2 * kernels_.rotary_bytes(), MemoryKernel::streaming);
}

void LayerPrices::add_experts(PricedLayer& priced, const model::ExchangeQuery& query,
                              const MoeLoad& load) const {
  using Module = model::RecomputeModule;
  const model::MoeBlock& block = *job_.model->moe;
  Passes moe = kernels_.experts(load);
  const Passes activation = kernels_.activation(TrainingPart::experts, kernels_.expert_rows(load),
                                                block.expert_ffn / query.shards.expert_tensor);
  priced.modules[Module::moe_act].time_us = sum(activation.forward);
  PartTimes exchanges = exchanged(model::expert_exchanges(query, false), {});
  if (block.shared_ffn > 0) {
    const Passes shared = kernels_.ffn(TrainingPart::dense_ffn, job_.tokens(),
                                       block.shared_ffn / query.shards.tensor, 1);
    const double products_us = sum(shared.forward);
    const PartTimes of_shared = exchanged(model::ffn_exchanges(query, false), {0, products_us});
    priced.modules[Module::shared_experts] = {products_us + sum(of_shared), of_shared};
    add(exchanges, of_shared);
    moe.add(shared);
    priced.divided.add(shared);
  }
  moe.add(kernels_.routing(load));
  add_dispatch(moe, load);
  const double all_us = sum(moe.forward) + sum(exchanges);
  add(exchanges, exchanges_of(moe.forward));
  priced.modules[Module::moe] = {all_us, exchanges};
  priced.passes.add(moe);
}

void LayerPrices::add_dense_ffn(PricedLayer& priced, const model::ExchangeQuery& query) const {
  const Passes dense = kernels_.ffn(TrainingPart::dense_ffn, job_.tokens(),
                                    job_.model->ffn / query.shards.tensor, 1);
  const double products_us = sum(dense.forward);
  const PartTimes exchanges = exchanged(model::ffn_exchanges(query, false), {0, products_us});
  priced.modules[model::RecomputeModule::mlp] = {products_us + sum(exchanges), exchanges};
  priced.passes.add(dense);
  priced.divided.add(dense);
}

model::StageParameters LayerPrices::parameters_of(const model::StageContent& content) const {
  return model::stage_parameters(*job_.model, content, job_.shards(), job_.held_experts());
}

// Weights that ranks share (ZeRO 3) are gathered under the pass before, forward and again backward,
// and their gradients (ZeRO 2 too) reduced under the pass behind, in every micro-batch
// (Megatron-LM, docs of Megatron-FSDP); what the computation of one such pass does not hide makes
// it longer.
void LayerPrices::add_shared_weights(Passes& passes, const model::StageParameters& held) const {
  const model::StateRules& states = job_.states;
  if (states.zero < 2) return;
  const auto both = [&](Collective kind, const model::BufferBytes& bytes) {
    const auto replicas = Replicas::instance_of_copy;
    return exchanges_.replicas_us(kind, GroupKind::data_context, replicas, bytes.dense) +
           exchanges_.replicas_us(kind, GroupKind::expert_data, replicas, bytes.expert);
  };
  const double gather_us =
      states.zero < 3 ? 0 : both(Collective::all_gather, model::gathered_bytes(held, states));
  const double reduce_us = both(Collective::reduce_scatter, model::reduced_bytes(held, states));
  const bool gathers_early = job_.overlaps_parameters;
  const bool reduces_early = job_.overlaps_gradients;
  const auto gather_beside = [&](double beside_us) {
    return std::max(0.0, gather_us - (gathers_early ? job_.hidden_share * beside_us : 0));
  };
  // Gathers come first.
  const auto reduce_beside = [&](double beside_us) {
    const double hides_us = job_.hidden_share * beside_us;
    const double left_us = gathers_early ? std::max(0.0, hides_us - gather_us) : hides_us;
    return std::max(0.0, reduce_us - (reduces_early ? left_us : 0));
  };
  const bool cross =
      exchanges_.replicas_cross_domains(GroupKind::data_context, Replicas::instance_of_copy);
  const double forward_us = exchanges_.hiding_us(passes.forward, cross);
  const double backward_us = exchanges_.hiding_input_gradient_us(passes, cross) +
                             exchanges_.hiding_us(passes.weight_gradient, cross);
  const double forward_work_us = forward_us - passes.forward[at(TrainingPart::host)];
  const double backward_work_us = backward_us - backward_host_us(passes);
  passes.forward_under_host[at(TrainingPart::parameters)] =
      gather_beside(forward_work_us) - gather_beside(forward_us);
  passes.backward_under_host[at(TrainingPart::parameters)] =
      gather_beside(backward_work_us) - gather_beside(backward_us);
  passes.weight_gradient_under_host[at(TrainingPart::gradients)] =
      reduce_beside(backward_work_us) - reduce_beside(backward_us);
  passes.forward[at(TrainingPart::parameters)] += gather_beside(forward_us);
  passes.input_gradient[at(TrainingPart::parameters)] += gather_beside(backward_us);
  passes.weight_gradient[at(TrainingPart::gradients)] += reduce_beside(backward_us);
}

}  // namespace moesim::training
