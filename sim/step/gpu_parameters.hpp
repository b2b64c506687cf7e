#pragma once

#include "sim/scenario/scenario.hpp"

namespace moesim::step {

// The parameters of one GPU, whole: as many as it computes with, however they are sharded.
struct GpuParameters {
  explicit GpuParameters(const scenario::Scenario& scenario) : scenario_(scenario) {}

  double layer_dense(int layer) const;   // of a layer, without its experts
  double layer_expert(int layer) const;  // of a layer's experts on the GPU
  double dense() const;                  // all but the experts
  double outer() const;                  // of those, the ones of no layer
  double expert() const;                 // the experts of all layers
  // What a GPU keeps of dense and expert parameters where they are divided over their
  // data-parallel groups: all GPUs for dense ones, G / P for experts.
  double shard() const;

 private:
  const scenario::Scenario& scenario_;
};

}  // namespace moesim::step
