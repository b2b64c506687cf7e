#include "sim/training/prices/layer_prices.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/base/error.hpp"
#include "sim/model/memory/data_parallel.hpp"
#include "sim/model/memory/training_exchanges.hpp"
#include "sim/model/training_work.hpp"
#include "sim/training/prices/host_launches.hpp"

namespace moesim::training {
namespace {

using parallel::GroupKind;
using profile::Collective;
using profile::MemoryKernel;
using profile::MoeStage;

constexpr double bf16 = 2;
constexpr double fp32 = 4;
// Longer sums of a weight gradient are priced in pieces: the curves end before.
constexpr std::int64_t longest_sum = 262'144;
// Of logits, per element: a fused cross entropy reads them twice and writes their gradient, which
// its backward pass scales (Transformer Engine), 6 and 4 bytes, at half the speed of other kernels
// (0.3 of the peak bandwidth on B200, published by SimuMax).
constexpr double loss_bytes = 12;
constexpr double loss_backward_bytes = 8;
// Biases of the experts' second product, per element of its output: Megatron-Core adds them expert
// by expert in elementwise operations in fp32, weighted by the probabilities, and concatenates
// (megatron/core/transformer/moe/experts.py, _apply_bias); counted in that code.
constexpr double bias_bytes = 28;
constexpr double bias_backward_bytes = 40;
// Both halves that enter a gated activation, clamped: per element of a half, forward two clamps and
// a concatenation, each reading and writing bf16; backward the gradient of the clamps (gradient and
// input read, one written) and of the split, which concatenates (megatron/core/fusions/
// fused_bias_geglu.py, weighted_bias_quick_geglu_impl; counted in that code).
constexpr double clamp_bytes = 8;
constexpr double clamp_backward_bytes = 10;
// An activation without a gate (GELU) is an operation of PyTorch, apart from the routes' weights,
// fp32: per cell, Megatron-Core
// multiplies by them in fp32 and casts the product back, and backward casts the gradient, makes
// both gradients of the multiplication in fp32, casts one and adds the other up over the row (the
// same file, TEGroupedMLP.forward; counted in that code).
constexpr double weighing_bytes = 12;
constexpr double weighing_backward_bytes = 34;
// Of the peak to and from the host's memory: assumed. Published by users of nvbandwidth: 0.84 of
// PCIe 5.0 (H100, to the host), 0.77 of NVLink-C2C (GH200, from the host).
constexpr double host_efficiency = 0.8;
// Of the router's work, what runs before the rows' counts are known: assumed.
constexpr double router_before = 0.3;

// Bytes per second of copies to and from the host's memory: measured, or the share of the peak.
double host_copy_rate(const profile::Device& device) {
  const double measured = device.host_copy_bandwidth.bytes_per_second;
  return measured > 0 ? measured : host_efficiency * device.host_bandwidth.bytes_per_second;
}

std::size_t at(Part part) { return static_cast<std::size_t>(part); }
std::int64_t whole(double value) { return std::max<std::int64_t>(1, std::llround(value)); }

int first_layer(const model::Model& model, bool is_moe) {
  for (int layer = 0; layer < model.layers; ++layer) {
    if (model.is_moe_layer(layer) == is_moe) return layer;
  }
  return -1;
}

void add(PartTimes& times, const PartTimes& more) {
  for (std::size_t part = 0; part < times.size(); ++part) times[part] += more[part];
}

// Whether rows come to experts in the format of the products, which they then are cast to before.
bool brings_low_rows(const TrainingJob& job) { return job.dispatched_element_bytes() < bf16; }

}  // namespace

double sum(const PartTimes& times) { return std::accumulate(times.begin(), times.end(), 0.0); }

void Passes::add(const Passes& other) {
  training::add(forward, other.forward);
  training::add(input_gradient, other.input_gradient);
  training::add(weight_gradient, other.weight_gradient);
  training::add(forward_under_host, other.forward_under_host);
  training::add(backward_under_host, other.backward_under_host);
}

LayerPrices::LayerPrices(const TrainingJob& job)
    : job_(job), kernels_(job), exchanges_(job), forced_(forced_load(job)) {
  const model::Model& model = *job.model;
  const parallel::ParallelLayout& sizes = job.layout.layout;
  if (model.moe) moe_ = whole_layer(true, given_load());
  if (model.dense_layers() > 0) dense_ = whole_layer(false, {});
  const double hidden_bytes = bf16 * job.tokens_per_rank() * static_cast<double>(model.hidden);
  add_memory(embedding_, Part::head, 2 * hidden_bytes, 3 * hidden_bytes, MemoryKernel::streaming);
  const double logits = job.tokens() * static_cast<double>(model.vocabulary) / sizes.tensor;
  add_product(head_, Part::head, job.tokens(), model.vocabulary / sizes.tensor, model.hidden, 1,
              {.is_wide = !job.low_precision_head});
  add_memory(head_, Part::head, loss_bytes * logits, loss_backward_bytes * logits,
             MemoryKernel::streaming);
  add_product(prediction_, Part::head, job.tokens_per_rank(), model.hidden, 2 * model.hidden, 1,
              {});
  const model::ExchangeQuery query = exchanges_.query();
  for (const bool backward : {false, true}) {
    add_exchanges(embedding_, backward, model::embedding_exchanges(query, backward), {});
    add_exchanges(head_, backward, model::head_exchanges(query, backward), {});
  }
  further_head_ = head_;
  share_weights_of_ends();
}

void LayerPrices::share_weights_of_ends() {
  model::StageContent embedding, head, depth;
  embedding.embedding = head.head = true;
  add_shared_weights(embedding_, parameters_of(embedding));
  add_shared_weights(head_, parameters_of(head));
  // Of a prediction depth, its layer is priced as any other.
  depth.mtp_depths = 1;
  model::StageParameters beside_layer = parameters_of(depth);
  const model::StageParameters layer =
      parameters_of(model::layers_of(*job_.model, job_.model->layers - 1, 1));
  beside_layer.dense -= layer.dense;
  beside_layer.gemm -= layer.gemm;
  beside_layer.expert -= layer.expert;
  add_shared_weights(prediction_, beside_layer);
}

// `copies` products of the same weights' shape, `m` rows over all of them.
void LayerPrices::add_product(Passes& passes, Part part, double m, std::int64_t n, std::int64_t k,
                              double copies, Operands operands) const {
  const bool is_wide = operands.is_wide;
  const std::int64_t rows = whole(m);
  // Casts of the input, and of the gradient that comes back, by row and by column.
  if (!is_wide) {
    const auto bytes = [&](int directions, std::int64_t columns) {
      if (directions == 0) return 0.0;
      return model::quantize_bytes(job_.states.precision, directions) * m *
             static_cast<double>(columns);
    };
    add_memory(passes, part, bytes(operands.input_casts, k), bytes(operands.gradient_casts, n),
               MemoryKernel::streaming);
  }
  passes.forward[at(part)] += kernels_.product_us({rows, n, k, copies, is_wide});
  passes.input_gradient[at(part)] += kernels_.product_us({rows, k, n, copies, is_wide});
  const std::int64_t pieces = (rows + longest_sum - 1) / longest_sum;
  const KernelPrices::Product by_weight = {
      std::min(n, k), std::max(n, k), (rows + pieces - 1) / pieces, copies, is_wide, true};
  // Added to the gradients so far: read and written. The curve's product writes one in bf16.
  const double weights = static_cast<double>(n * k);
  const double added = 2 * job_.states.gradient_bytes * copies * weights - bf16 * weights;
  passes.weight_gradient[at(part)] += static_cast<double>(pieces) * kernels_.product_us(by_weight) +
                                      memory_us(added, MemoryKernel::streaming);
}

void LayerPrices::add_memory(Passes& passes, Part part, double forward, double backward,
                             MemoryKernel kind) const {
  passes.forward[at(part)] += memory_us(forward, kind);
  passes.input_gradient[at(part)] += memory_us(backward, kind);
}

void LayerPrices::add_exchanges(Passes& passes, bool backward,
                                const model::TrainingExchanges& exchanges,
                                const Beside& beside) const {
  PartTimes& times = backward ? passes.input_gradient : passes.forward;
  const ExchangePrices::Times found = exchanges_.times(exchanges);
  times[at(Part::tensor)] += found.expert_tensor_us;
  // In as many pieces as ranks, each under the product of the piece before; the first one is not.
  const double first_us = job_.overlaps_tensor ? found.tensor_us / job_.layout.layout.tensor : 0;
  const double hidden_us =
      job_.overlaps_tensor ? std::min(found.tensor_us - first_us, beside.products_us) : 0;
  times[at(Part::tensor)] += found.tensor_us - hidden_us;
  times[at(Part::context)] += found.context_us;
  // A ring passes the next piece under the attention of this one; the last piece passes nothing.
  const double context = job_.layout.layout.context;
  times[at(Part::context)] +=
      std::max(0.0, found.ring_us - beside.attention_us * (context - 1) / context);
}

Passes LayerPrices::core_attention() const {
  Passes passes;
  passes.forward[at(Part::attention)] = kernels_.core_attention_us(false);
  passes.input_gradient[at(Part::attention)] = kernels_.core_attention_us(true);
  return passes;
}

Passes LayerPrices::projections() const {
  const model::Model& model = *job_.model;
  const int tensor = job_.layout.layout.tensor;
  Passes passes;
  for (const model::Projection& projection : model.attention_projections()) {
    // Down-projections of latent attention are not divided: each rank computes its own tokens.
    const bool whole_matrix = projection.name == "q_down" || projection.name == "kv_down";
    const bool by_row = projection.name == "out";
    const std::int64_t n = whole_matrix || by_row ? projection.n : projection.n / tensor;
    const std::int64_t k = by_row ? projection.k / tensor : projection.k;
    add_product(passes, Part::attention, whole_matrix ? job_.tokens_per_rank() : job_.tokens(), n,
                k, 1, {});
  }
  return passes;
}

Passes LayerPrices::norms() const {
  const double token_bytes =
      bf16 * job_.tokens_per_rank() * static_cast<double>(job_.model->hidden);
  Passes passes;
  for (int block = 0; block < 2; ++block) {
    add_memory(passes, Part::attention, 2 * token_bytes, 4 * token_bytes,
               MemoryKernel::normalization);
  }
  return passes;
}

// Of the queries and keys that the rotary embedding turns.
double LayerPrices::rotary_bytes() const {
  const model::Model& model = *job_.model;
  const std::int64_t turned = model.latent ? (model.heads + 1) * model.latent->rope_dim
                                           : (model.heads + model.kv_heads) * model.head_dim;
  return bf16 * job_.tokens() * static_cast<double>(turned) / job_.layout.layout.tensor;
}

Passes LayerPrices::elementwise() const {
  const model::Model& model = *job_.model;
  const double token_bytes = bf16 * job_.tokens_per_rank() * static_cast<double>(model.hidden);
  const double rotated = rotary_bytes();
  Passes passes;
  for (int block = 0; block < 2; ++block) {
    add_memory(passes, Part::attention, 3 * token_bytes, 3 * token_bytes, MemoryKernel::streaming);
  }
  add_memory(passes, Part::attention, 2 * rotated, 2 * rotated, MemoryKernel::streaming);
  // Norms inside attention: of queries and keys, or of the low-rank ones.
  const double normed =
      model.latent ? job_.tokens_per_rank() *
                         static_cast<double>(model.latent->query_rank + model.latent->kv_rank)
      : model.query_key_norm ? rotated / bf16
                             : 0;
  add_memory(passes, Part::attention, 2 * bf16 * normed, 4 * bf16 * normed,
             MemoryKernel::normalization);
  return passes;
}

Passes LayerPrices::activation(Part part, double rows, std::int64_t inner) const {
  const double matrices_up = job_.model->gated ? 2 : 1;
  const double cells = bf16 * rows * static_cast<double>(inner);
  const double forward = (matrices_up + 1) * cells;
  const double backward = (2 * matrices_up + 1) * cells;
  Passes passes;
  if (part == Part::experts && !job_.model->gated) {
    passes.forward[at(part)] += kernels_.elementwise_us(forward + weighing_bytes / bf16 * cells);
    passes.input_gradient[at(part)] +=
        kernels_.elementwise_us(backward + weighing_backward_bytes / bf16 * cells);
  } else {
    add_memory(passes, part, forward, backward, MemoryKernel::activation);
  }
  if (part == Part::experts && job_.model->moe->clamped) {
    const double entering = matrices_up * rows * static_cast<double>(inner);
    add_memory(passes, part, clamp_bytes * entering, clamp_backward_bytes * entering,
               MemoryKernel::streaming);
  }
  return passes;
}

Passes LayerPrices::ffn(Part part, double rows, std::int64_t inner, double copies) const {
  const model::Model& model = *job_.model;
  // The activation and the casts on both sides of it are in the epilogues of fused products.
  const bool is_fused = part == Part::experts && job_.fused_experts;
  // Rows that come in the format of the products are cast by column alone.
  const int outer = part == Part::experts && brings_low_rows(job_) ? 1 : 2;
  const int inner_casts = is_fused ? 0 : 2;
  Passes passes = is_fused ? Passes() : activation(part, rows, inner);
  add_product(passes, part, rows, (model.gated ? 2 : 1) * inner, model.hidden, copies,
              {.input_casts = outer, .gradient_casts = inner_casts});
  add_product(passes, part, rows, model.hidden, inner, copies,
              {.input_casts = inner_casts, .gradient_casts = outer});
  return passes;
}

MoeLoad LayerPrices::given_load() const {
  if (job_.capacity_factor <= 0) return {forced_.computed, forced_.exchanged};
  // Dispatchers send the rows that capacity keeps, without padding.
  const double sent = job_.dispatcher ? std::min(1.0, job_.capacity_factor) : job_.capacity_factor;
  return {job_.capacity_factor, sent};
}

double LayerPrices::expert_rows(const MoeLoad& load) const {
  const double even = job_.experts_per_token() * job_.tokens_per_rank();
  return load.computed * even * job_.layout.layout.expert_tensor;
}

// NCCL's all-to-all sends what a rank's own tokens choose: with padded blocks all their slots, else
// no more rows than routes, however many come from other ranks. A dispatcher brings tokens, whose
// rows are made where their experts are.
double LayerPrices::permuted_rows(const MoeLoad& load) const {
  if (job_.dispatcher) return expert_rows(load);
  const bool pads = job_.routing ? job_.routing->router.pads_exchange() : job_.capacity_factor > 0;
  const double even = job_.experts_per_token() * job_.tokens_per_rank();
  return even * (pads ? load.computed : std::min(load.computed, 1.0));
}

Passes LayerPrices::experts(const MoeLoad& load) const {
  const model::MoeBlock& moe = *job_.model->moe;
  const parallel::ParallelLayout& sizes = job_.layout.layout;
  const double rows = expert_rows(load);
  Passes passes = ffn(Part::experts, rows, moe.expert_ffn / sizes.expert_tensor,
                      static_cast<double>(moe.experts + job_.redundant_experts) / sizes.expert);
  if (moe.biased && !job_.fused_experts) {
    const double cells = rows * static_cast<double>(job_.model->hidden);
    add_memory(passes, Part::experts, bias_bytes * cells, bias_backward_bytes * cells,
               MemoryKernel::streaming);
  }
  return passes;
}

Passes LayerPrices::routing(const MoeLoad& load) const {
  const model::Model& model = *job_.model;
  const double tokens = job_.tokens_per_rank();
  const double rows = expert_rows(load);
  Passes passes;
  add_product(passes, Part::router, tokens, model.moe->experts, model.hidden, 1, {.is_wide = true});
  const double scores = fp32 * tokens * model.moe->experts;
  add_memory(passes, Part::router, 4 * scores, 4 * scores, MemoryKernel::streaming);
  if (brings_low_rows(job_)) {
    const double cast = model::quantize_bytes(job_.states.precision, 1) * tokens *
                        static_cast<double>(model.hidden);
    add_memory(passes, Part::router, cast, cast, MemoryKernel::streaming);
  }
  const double moves = kernels_.rows_moved_us(tokens, permuted_rows(load));
  // Rows that came by source rank are sorted by expert, and back, if they are of several.
  const parallel::ParallelLayout& sizes = job_.layout.layout;
  const bool sorts = job_.dispatcher == nullptr && sizes.expert * sizes.expert_tensor > 1 &&
                     job_.held_experts() > sizes.expert;
  const double sorting = sorts ? 2 * memory_us(2 * bf16 * rows * static_cast<double>(model.hidden),
                                               MemoryKernel::streaming)
                               : 0;
  passes.forward[at(Part::router)] += moves + sorting;
  passes.input_gradient[at(Part::router)] += moves + sorting;
  return passes;
}

void LayerPrices::add_dispatch(Passes& passes, const MoeLoad& load) const {
  const double there = exchanges_.dispatch_us(MoeStage::dispatch, load);
  const double back = exchanges_.dispatch_us(MoeStage::combine, load);
  passes.forward[at(Part::dispatch)] += there;
  passes.forward[at(Part::combine)] += back;
  // The gradient of the combined rows travels as the rows did, that of the rows as the outputs.
  passes.input_gradient[at(Part::combine)] += there;
  passes.input_gradient[at(Part::dispatch)] += back;
}

// Forward work done again, each module at the price of its own forward pass.
void LayerPrices::add_recompute(Passes& passes, const Modules& modules) const {
  using Module = model::RecomputeModule;
  const model::Recompute& recompute = job_.recompute;
  double time_us = 0;
  if (recompute.full != model::FullRecompute::none) {
    time_us = sum(passes.forward);
  } else {
    for (const auto& [module, module_us] : modules) {
      if (recompute.has(module)) time_us += module_us;
    }
    // The MoE layer has the activation and the shared experts in it.
    if (recompute.has(Module::moe) && modules.count(Module::moe) != 0) {
      for (const Module inside : {Module::moe_act, Module::shared_experts}) {
        const auto found = modules.find(inside);
        if (recompute.has(inside) && found != modules.end()) time_us -= found->second;
      }
    }
  }
  passes.input_gradient[at(Part::recompute)] += time_us;
}

double LayerPrices::host_us(bool is_moe) const {
  const HostLaunches count = host_launches(job_, is_moe);
  return ((1 + backward_launches) * count.forward + count.again) * job_.host.launch_us;
}

// The GPU waits where the host launches more slowly than it works, and where the host reads how
// many rows came before it launches the experts.
void LayerPrices::add_host(Passes& passes, bool is_moe) const {
  const double before = passes.forward[at(Part::attention)] + passes.forward[at(Part::tensor)] +
                        passes.forward[at(Part::context)] +
                        router_before * passes.forward[at(Part::router)];
  passes.forward[at(Part::host)] =
      forward_wait_us(job_, is_moe, before, sum(passes.forward) - before);
  passes.input_gradient[at(Part::host)] =
      backward_wait_us(job_, is_moe, sum(passes.input_gradient) + sum(passes.weight_gradient));
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
  passes.forward_under_host[at(Part::offload)] =
      exposed(sum(passes.forward) - passes.forward[at(Part::host)]) - forward;
  passes.backward_under_host[at(Part::offload)] =
      exposed(backward_us - passes.input_gradient[at(Part::host)]) - backward;
  passes.forward[at(Part::offload)] = forward;
  passes.input_gradient[at(Part::offload)] = backward;
}

double LayerPrices::exchanged_us(const model::TrainingExchanges& exchanges,
                                 const Beside& beside) const {
  Passes passes;
  add_exchanges(passes, false, exchanges, beside);
  return sum(passes.forward);
}

Passes LayerPrices::whole_layer(bool is_moe, const MoeLoad& load) const {
  using Module = model::RecomputeModule;
  const model::Model& model = *job_.model;
  model::ExchangeQuery query = exchanges_.query();
  query.expert_load = load.computed;
  const int layer = first_layer(model, is_moe);
  const Passes attention = core_attention();
  const double attention_us = sum(attention.forward);
  const Passes block_norms = norms();
  const Passes products = projections();
  Passes passes = attention;
  passes.add(block_norms);
  passes.add(elementwise());
  passes.add(products);
  Passes divided = products;  // over tensor ranks
  const double context_us = exchanged_us(model::context_exchanges(query, false), {attention_us, 0});
  Modules modules = {{Module::core_attn, attention_us + context_us},
                     {Module::layernorm, sum(block_norms.forward)}};
  if (model.latent) {
    model::Recompute up;
    up.add(Module::mla_up_proj);
    const double length = query.length;
    modules[Module::mla_up_proj] =
        sum(products.forward) * model::recompute_work(model, layer, up, length, 0).gemm_flops /
            model::layer_work(model, layer, length).projections +
        memory_us(2 * rotary_bytes(), MemoryKernel::streaming);
  }
  if (is_moe) {
    const int slices = query.shards.expert_tensor;
    Passes moe = experts(load);
    modules[Module::moe_act] =
        sum(activation(Part::experts, expert_rows(load), model.moe->expert_ffn / slices).forward);
    double shared_exchanges_us = 0;
    if (model.moe->shared_ffn > 0) {
      const Passes shared =
          ffn(Part::dense_ffn, job_.tokens(), model.moe->shared_ffn / query.shards.tensor, 1);
      const double products_us = sum(shared.forward);
      shared_exchanges_us = exchanged_us(model::ffn_exchanges(query, false), {0, products_us});
      modules[Module::shared_experts] = products_us + shared_exchanges_us;
      moe.add(shared);
      divided.add(shared);
    }
    moe.add(routing(load));
    add_dispatch(moe, load);
    modules[Module::moe] = sum(moe.forward) + shared_exchanges_us +
                           exchanged_us(model::expert_exchanges(query, false), {});
    passes.add(moe);
  } else {
    const Passes dense = ffn(Part::dense_ffn, job_.tokens(), model.ffn / query.shards.tensor, 1);
    const double products_us = sum(dense.forward);
    modules[Module::mlp] =
        products_us + exchanged_us(model::ffn_exchanges(query, false), {0, products_us});
    passes.add(dense);
    divided.add(dense);
  }
  for (const bool backward : {false, true}) {
    const Beside beside = {backward ? sum(attention.input_gradient) : attention_us,
                           backward ? sum(divided.input_gradient) + sum(divided.weight_gradient)
                                    : sum(divided.forward)};
    add_exchanges(passes, backward, model::layer_exchanges(query, layer, backward), beside);
  }
  add_recompute(passes, modules);
  add_host(passes, is_moe);
  add_offload(passes, is_moe, load);
  model::StageContent content;
  (is_moe ? content.moe_layers : content.dense_layers) = 1;
  add_shared_weights(passes, parameters_of(content));
  return passes;
}

model::StageParameters LayerPrices::parameters_of(const model::StageContent& content) const {
  return model::stage_parameters(*job_.model, content, job_.shards(), job_.held_experts());
}

// Weights that ranks share are gathered under the pass before, forward and again backward, and
// their gradients reduced under the pass behind, in every micro-batch (Megatron-LM, docs of
// Megatron-FSDP); what the computation of one such pass does not hide makes it longer.
void LayerPrices::add_shared_weights(Passes& passes, const model::StageParameters& held) const {
  const model::StateRules& states = job_.states;
  if (states.zero < 3) return;
  const auto both = [&](Collective kind, const model::BufferBytes& bytes) {
    return exchanges_.inside_instance_us(kind, GroupKind::data_context, bytes.dense) +
           exchanges_.inside_instance_us(kind, GroupKind::expert_data, bytes.expert);
  };
  const double gather_us = both(Collective::all_gather, model::gathered_bytes(held, states));
  const double reduce_us = both(Collective::reduce_scatter, model::reduced_bytes(held, states));
  const bool gathers_early = job_.overlaps_parameters;
  const bool reduces_early = job_.overlaps_gradients;
  const auto gather_beside = [&](double beside_us) {
    return std::max(0.0, gather_us - (gathers_early ? hidden_share * beside_us : 0));
  };
  // Gathers come first.
  const auto reduce_beside = [&](double beside_us) {
    const double hides_us = hidden_share * beside_us;
    const double left_us = gathers_early ? std::max(0.0, hides_us - gather_us) : hides_us;
    return std::max(0.0, reduce_us - (reduces_early ? left_us : 0));
  };
  const double forward_us = sum(passes.forward);
  const double backward_us = sum(passes.input_gradient) + sum(passes.weight_gradient);
  const double forward_work_us = forward_us - passes.forward[at(Part::host)];
  const double backward_work_us = backward_us - passes.input_gradient[at(Part::host)];
  passes.forward_under_host[at(Part::parameters)] =
      gather_beside(forward_work_us) - gather_beside(forward_us);
  passes.backward_under_host[at(Part::parameters)] =
      gather_beside(backward_work_us) - gather_beside(backward_us);
  passes.backward_under_host[at(Part::gradients)] =
      reduce_beside(backward_work_us) - reduce_beside(backward_us);
  passes.forward[at(Part::parameters)] += gather_beside(forward_us);
  passes.input_gradient[at(Part::parameters)] += gather_beside(backward_us);
  passes.input_gradient[at(Part::gradients)] += reduce_beside(backward_us);
}

parallel::LayerPieces LayerPrices::pieces(const Passes& passes) {
  const auto time = [](double us) { return Picoseconds::from_us(std::max(0.0, us)); };
  const auto experts = [](const PartTimes& times) { return times[at(Part::experts)]; };
  const auto exchanges = [](const PartTimes& times) {
    return times[at(Part::dispatch)] + times[at(Part::combine)];
  };
  const auto rest = [&](const PartTimes& times) {
    return time(sum(times) - experts(times) - exchanges(times) - times[at(Part::host)]);
  };
  parallel::LayerPieces pieces;
  pieces.attention_forward = rest(passes.forward) + time(sum(passes.forward_under_host));
  pieces.attention_backward = rest(passes.input_gradient) + time(sum(passes.backward_under_host));
  pieces.attention_weight_gradient = rest(passes.weight_gradient);
  pieces.experts_forward = time(experts(passes.forward));
  pieces.experts_backward = time(experts(passes.input_gradient));
  pieces.experts_weight_gradient = time(experts(passes.weight_gradient));
  pieces.dispatch_forward = time(passes.forward[at(Part::dispatch)]);
  pieces.combine_forward = time(passes.forward[at(Part::combine)]);
  pieces.combine_backward = time(passes.input_gradient[at(Part::combine)]);
  pieces.dispatch_backward = time(passes.input_gradient[at(Part::dispatch)]);
  return pieces;
}

PartTimes LayerPrices::parts_of(const Passes& layer, parallel::LayerPiece piece) {
  using enum parallel::LayerPiece;
  const auto only = [](Part part, const PartTimes& times) {
    PartTimes parts{};
    parts[at(part)] = times[at(part)];
    return parts;
  };
  const auto rest = [](PartTimes parts) {
    for (const Part other : {Part::experts, Part::dispatch, Part::combine, Part::host}) {
      parts[at(other)] = 0;
    }
    return parts;
  };
  PartTimes parts{};
  switch (piece) {
    case attention_forward:
      parts = rest(layer.forward);
      training::add(parts, layer.forward_under_host);
      return parts;
    case attention_backward:
      parts = rest(layer.input_gradient);
      training::add(parts, layer.backward_under_host);
      return parts;
    case attention_weight_gradient:
      return rest(layer.weight_gradient);
    case experts_forward:
      return only(Part::experts, layer.forward);
    case experts_backward:
      return only(Part::experts, layer.input_gradient);
    case experts_weight_gradient:
      return only(Part::experts, layer.weight_gradient);
    case dispatch_forward:
      return only(Part::dispatch, layer.forward);
    case combine_forward:
      return only(Part::combine, layer.forward);
    case dispatch_backward:
      return only(Part::dispatch, layer.input_gradient);
    case combine_backward:
      return only(Part::combine, layer.input_gradient);
  }
  return parts;
}

}  // namespace moesim::training
