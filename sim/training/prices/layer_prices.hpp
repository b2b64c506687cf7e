#pragma once

#include <map>

#include "sim/model/memory/training_memory.hpp"
#include "sim/training/job/training_job.hpp"
#include "sim/training/prices/exchange_prices.hpp"
#include "sim/training/prices/layer_kernels.hpp"
#include "sim/training/prices/passes.hpp"

namespace moesim::training {

// Prices the layers of a job: kernels by LayerKernels, exchanges by ExchangePrices, the host by
// HostLaunches. README.md of this room lists what a layer runs and what is assumed.
class LayerPrices {
 public:
  explicit LayerPrices(const TrainingJob& job);

  // An MoE layer has the load that the job says without drawn routing. Without a kind of attention
  // the mean over the model's layers, of which some may have linear attention.
  const Passes& layer(bool is_moe) const { return is_moe ? moe_.mean : dense_.mean; }
  const Passes& layer(bool is_moe, model::AttentionKind attention) const {
    const Layers& layers = is_moe ? moe_ : dense_;
    return attention == model::AttentionKind::linear ? layers.linear : layers.softmax;
  }
  // An MoE layer with a load of its own.
  Passes moe_layer(const MoeLoad& load) const { return layers(true, load).mean; }
  Passes moe_layer(const MoeLoad& load, model::AttentionKind attention) const {
    return whole_layer(true, load, attention);
  }
  // The attention of an MoE layer, by its number among them; those of prediction depths follow.
  model::AttentionKind attention_of_moe_layer(int number) const;
  const Passes& embedding() const { return embedding_; }
  // The head for one loss; the first of a micro-batch has the weights gathered, for the others too.
  const Passes& head(bool is_first = true) const { return is_first ? head_ : further_head_; }
  // A prediction depth without its layer and head: the embedding again, two hidden vectors to one.
  const Passes& prediction() const { return prediction_; }
  // What the host takes to launch one layer, forward and backward.
  double host_us(bool is_moe, model::AttentionKind attention = model::AttentionKind::softmax) const;
  // Rows that the busiest rank computes over balance, without drawn routing.
  double imbalance() const { return kernels_.imbalance(); }

  // What a layer's offloaded inputs take to the host's memory, and as long back, hidden or not.
  // `load`: rows over balance.
  double offload_us(bool is_moe, double load) const;
  const ExchangePrices& exchanges() const { return exchanges_; }
  double memory_us(double bytes, profile::MemoryKernel kind) const {
    return kernels_.memory_us(bytes, kind);
  }

 private:
  struct Layers {
    Passes softmax;
    Passes linear;  // where the model has any
    Passes mean;
  };
  Layers layers(bool is_moe, const MoeLoad& load) const;
  Passes whole_layer(bool is_moe, const MoeLoad& load, model::AttentionKind attention) const;
  // What recomputing a module takes, in microseconds, exchanges included, and these by part;
  // modules that a layer lacks are absent.
  struct ModuleTimes {
    double time_us = 0;
    PartTimes exchanges{};
  };
  using Modules = std::map<model::RecomputeModule, ModuleTimes>;
  // What runs beside an exchange in the same direction: core attention, which hides a ring, and the
  // products that exchanges of tensor ranks belong to.
  struct Beside {
    double attention_us = 0;
    double products_us = 0;
  };
  // The kernels of a layer, and what prices its exchanges and its recomputation beside them.
  struct PricedLayer {
    Passes passes;
    Passes core_attention;
    Passes divided;  // products that tensor ranks share
    Modules modules;

    Beside beside(bool backward) const;
  };
  PricedLayer priced_attention(const model::ExchangeQuery& query, model::AttentionKind kind,
                               int layer) const;
  // Recomputing the up-projections of latent attention and the rotation of their results.
  double up_projection_us(const Passes& projections, double length, int layer) const;
  void add_experts(PricedLayer& priced, const model::ExchangeQuery& query,
                   const MoeLoad& load) const;
  void add_dense_ffn(PricedLayer& priced, const model::ExchangeQuery& query) const;
  void add_exchanges(Passes& passes, bool backward, const model::TrainingExchanges& exchanges,
                     const Beside& beside) const;
  void share_weights_of_ends();  // embedding, head, prediction
  model::StageParameters parameters_of(const model::StageContent& content) const;
  void add_shared_weights(Passes& passes, const model::StageParameters& held) const;
  PartTimes exchanged(const model::TrainingExchanges& exchanges, const Beside& beside) const;
  void add_dispatch(Passes& passes, const MoeLoad& load) const;
  void add_offload(Passes& passes, bool is_moe, const MoeLoad& load) const;
  void add_recompute(Passes& passes, const Modules& modules) const;
  void add_host(Passes& passes, bool is_moe, model::AttentionKind attention) const;

  const TrainingJob& job_;
  LayerKernels kernels_;
  ExchangePrices exchanges_;
  Passes embedding_, head_, prediction_, further_head_;
  Layers dense_, moe_;
};

}  // namespace moesim::training
