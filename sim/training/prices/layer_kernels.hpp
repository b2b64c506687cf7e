#pragma once

#include <cstdint>

#include "sim/training/job/training_job.hpp"
#include "sim/training/prices/exchange_prices.hpp"
#include "sim/training/prices/kernel_prices.hpp"
#include "sim/training/prices/passes.hpp"

namespace moesim::training {

// The kernels of the layers of a job on one rank, for one micro-batch: their shapes and bytes, at
// the prices of KernelPrices. Exchanges and the host are not in them.
class LayerKernels {
 public:
  explicit LayerKernels(const TrainingJob& job);

  Passes core_attention(model::AttentionKind attention) const;  // or what stands in its place
  Passes projections(model::AttentionKind attention) const;
  Passes norms() const;  // of the two blocks
  // Residuals; with softmax attention also rotary embedding, norms and gate inside it.
  Passes elementwise(model::AttentionKind attention) const;
  // The bytes of the queries and keys that the rotary embedding turns.
  double rotary_bytes() const;
  Passes activation(TrainingPart part, double rows, std::int64_t inner) const;
  // The products and activations of `copies` FFNs that share `rows`.
  Passes ffn(TrainingPart part, double rows, std::int64_t inner, double copies) const;
  Passes experts(const MoeLoad& load) const;
  // The router, rows to and from the order of the experts.
  Passes routing(const MoeLoad& load) const;
  // The ends of a pipeline: the embedding; the output head with its loss; what a prediction depth
  // has beside its layer: the embedding again, the projection of two hidden vectors to one, norms
  // of both and of the layer's output.
  Passes embedding() const;
  Passes head() const;
  Passes prediction() const;

  MoeLoad given_load() const;  // of the job, without drawn routing
  // Rows that the busiest rank computes over balance, without drawn routing.
  double imbalance() const { return forced_.computed; }
  double expert_rows(const MoeLoad& load) const;  // that the experts of a rank compute
  double memory_us(double bytes, profile::MemoryKernel kind) const {
    return kernels_.memory_us(bytes, kind);
  }

 private:
  // `copies` products [m, k] x [k, n] of weights of that shape each; `m`: rows over all of them.
  // Operands are in bf16 whatever the recipe (is_wide: the router, and the output head unless it is
  // asked for), or cast by kernels of their own, by row and by column or by column alone.
  struct Product {
    double m = 0;
    std::int64_t n = 0, k = 0;
    double copies = 1;
    bool is_wide = false;
    int input_casts = 2;
    int gradient_casts = 2;  // of the output's gradient
  };
  void add_softmax_elementwise(Passes& passes) const;
  void add_projection(Passes& passes, const model::Projection& projection) const;
  void add_product(Passes& passes, TrainingPart part, const Product& product) const;
  void add_memory(Passes& passes, TrainingPart part, double forward, double backward,
                  profile::MemoryKernel kind) const;
  // The rows of a rank in the order of experts, and those that they are copied from and added up
  // to.
  double permuted_rows(const MoeLoad& load) const;
  double permuted_tokens(const MoeLoad& load) const;

  const TrainingJob& job_;
  KernelPrices kernels_;
  ForcedLoad forced_;
};

}  // namespace moesim::training
