#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sim/model/memory/training_memory.hpp"
#include "sim/parallel/overlapped_layers.hpp"
#include "sim/training/job/training_job.hpp"
#include "sim/training/prices/exchange_prices.hpp"
#include "sim/training/prices/kernel_prices.hpp"

namespace moesim::training {

// What the time of a rank is spent on.
enum class Part {
  attention,
  dense_ffn,
  experts,
  router,      // gate, permute and combine of rows, padding
  head,        // embedding, output head, loss
  recompute,   // forward work done again in the backward pass
  tensor,      // exchanges of tensor ranks
  context,     // exchanges of context ranks
  dispatch,    // rows to their experts
  combine,     // and back
  host,        // GPU idle for the host: launches and reads
  p2p,         // between stages, and waiting for them: bubble
  gradients,   // reduce-scatter, beyond what backward hides
  parameters,  // all-gather, beyond what forward hides
  optimizer,
  reruns,   // expected, of steps whose rows overflow a capacity per rank
  offload,  // copies to and from the host's memory, beyond what computing hides
};
inline constexpr EnumNames<Part, 17> part_names{{
    {Part::attention, "attention"},
    {Part::dense_ffn, "dense FFN"},
    {Part::experts, "experts"},
    {Part::router, "router and rows"},
    {Part::head, "embedding, head"},
    {Part::recompute, "recompute"},
    {Part::tensor, "tensor exchange"},
    {Part::context, "context exchange"},
    {Part::dispatch, "dispatch"},
    {Part::combine, "combine"},
    {Part::host, "host"},
    {Part::p2p, "bubble and p2p"},
    {Part::gradients, "gradients"},
    {Part::parameters, "parameters"},
    {Part::optimizer, "optimizer"},
    {Part::reruns, "reruns"},
    {Part::offload, "offload"},
}};
using PartTimes = std::array<double, part_names.size()>;  // microseconds

// Of one layer, or of the ends of a stage, for one micro-batch on one rank, in microseconds.
struct Passes {
  PartTimes forward{};
  PartTimes input_gradient{};
  PartTimes weight_gradient{};
  // Of copies and gathers, what the waits for the host hide: exposed where there are none.
  PartTimes forward_under_host{};
  PartTimes backward_under_host{};

  void add(const Passes& other);
};
double sum(const PartTimes& times);

// Of the compute beside an exchange of gradients or parameters, what hides it: they share SMs and
// memory with kernels. Fitted: public steps that send 29 GB of gradients between nodes of B200 take
// a second longer than if all of it were hidden, with two micro-batches as with five.
inline constexpr double hidden_share = 0.25;

// Prices the layers of a job: kernels by KernelPrices, exchanges by ExchangePrices, the host by
// HostLaunches. README.md of this room lists what a layer
// runs and what is assumed.
class LayerPrices {
 public:
  explicit LayerPrices(const TrainingJob& job);

  // An MoE layer has the load that the job says without drawn routing.
  const Passes& layer(bool is_moe) const { return is_moe ? moe_ : dense_; }
  // An MoE layer with a load of its own.
  Passes moe_layer(const MoeLoad& load) const { return whole_layer(true, load); }
  const Passes& embedding() const { return embedding_; }
  // For one loss; a micro-batch's first has the weights gathered, for the others too.
  const Passes& head(bool is_first = true) const { return is_first ? head_ : further_head_; }
  // Two hidden vectors to one, before a prediction depth's layer; with the embedding that it reads.
  const Passes& prediction() const { return prediction_; }
  // What the host takes to launch one layer, forward and backward.
  double host_us(bool is_moe) const;
  // The pieces of a layer as overlapped_time() takes them, without waiting for the host.
  parallel::LayerPieces pieces(bool is_moe) const { return pieces(layer(is_moe)); }
  static parallel::LayerPieces pieces(const Passes& layer);
  // What one of them is spent on.
  static PartTimes parts_of(const Passes& layer, parallel::LayerPiece piece);
  // Rows that the busiest rank computes over balance, without drawn routing.
  double imbalance() const { return forced_.computed; }

  // What a layer's offloaded inputs take to the host's memory, and as long back, hidden or not.
  // `load`: rows over balance.
  double offload_us(bool is_moe, double load) const;
  const ExchangePrices& exchanges() const { return exchanges_; }
  double memory_us(double bytes, profile::MemoryKernel kind) const {
    return kernels_.memory_us(bytes, kind);
  }

 private:
  Passes core_attention() const;
  Passes projections() const;
  Passes norms() const;  // of the two blocks
  // Residuals, rotary embedding, norms inside attention.
  Passes elementwise() const;
  double rotary_bytes() const;
  Passes activation(Part part, double rows, std::int64_t inner) const;
  // Of `copies` FFNs that share `rows`.
  Passes ffn(Part part, double rows, std::int64_t inner, double copies) const;
  MoeLoad given_load() const;  // of the job, without drawn routing
  Passes experts(const MoeLoad& load) const;
  Passes routing(const MoeLoad& load) const;
  Passes whole_layer(bool is_moe, const MoeLoad& load) const;
  double expert_rows(const MoeLoad& load) const;    // that the experts of a rank compute
  double permuted_rows(const MoeLoad& load) const;  // from and to the order of tokens, on a rank
  // Of a product: in bf16 whatever the recipe (the router, and the output head unless it is asked
  // for), or with operands that kernels of their own cast, by row and by column or by column alone.
  struct Operands {
    bool is_wide = false;
    int input_casts = 2;
    int gradient_casts = 2;  // of the output's gradient
  };
  void add_product(Passes& passes, Part part, double m, std::int64_t n, std::int64_t k,
                   double copies, Operands operands) const;
  void add_memory(Passes& passes, Part part, double forward, double backward,
                  profile::MemoryKernel kind) const;
  // Of the same direction: core attention, which hides a ring, and the products that exchanges of
  // tensor ranks belong to.
  struct Beside {
    double attention_us = 0;
    double products_us = 0;
  };
  void add_exchanges(Passes& passes, bool backward, const model::TrainingExchanges& exchanges,
                     const Beside& beside) const;
  void share_weights_of_ends();  // embedding, head, prediction
  model::StageParameters parameters_of(const model::StageContent& content) const;
  void add_shared_weights(Passes& passes, const model::StageParameters& held) const;
  double exchanged_us(const model::TrainingExchanges& exchanges, const Beside& beside) const;
  void add_dispatch(Passes& passes, const MoeLoad& load) const;
  void add_offload(Passes& passes, bool is_moe, const MoeLoad& load) const;
  // What recomputing a module takes, in microseconds; modules that a layer lacks are absent.
  using Modules = std::map<model::RecomputeModule, double>;
  void add_recompute(Passes& passes, const Modules& modules) const;
  void add_host(Passes& passes, bool is_moe) const;

  const TrainingJob& job_;
  KernelPrices kernels_;
  ExchangePrices exchanges_;
  ForcedLoad forced_;
  Passes dense_, moe_, embedding_, head_, further_head_, prediction_;
};

}  // namespace moesim::training
