#pragma once

#include "sim/scenario/scenario.hpp"

namespace moesim::step {

// The parameters that one GPU computes with, before any sharding.
struct GpuParameters {
  explicit GpuParameters(const scenario::Scenario& scenario) : scenario_(scenario) {}

  double layer_dense(int layer) const;   // of one layer, without its experts
  double layer_expert(int layer) const;  // of a layer's experts on the GPU
  double dense() const;                  // all except the experts
  double outer() const;                  // of these, the parameters outside the layers
  double expert() const;                 // the experts of all layers
  // The share of dense and expert parameters that a GPU keeps when they are sharded over their
  // data-parallel groups: all GPUs for dense parameters, G / P GPUs for experts.
  double shard() const;

 private:
  const scenario::Scenario& scenario_;
};

}  // namespace moesim::step
