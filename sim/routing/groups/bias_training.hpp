#pragma once

#include <memory>

#include "sim/routing/groups/group_logits.hpp"
#include "sim/routing/groups/kind_router.hpp"
#include "sim/routing/groups/routed_group.hpp"

namespace moesim::routing {

// The logits that a router's biases are trained on where these are of another popularity than what
// it routes (ExpertBias::trained_on()): those of one layer, over all GPUs of the job.
class BiasTraining {
 public:
  // `job`: with a router whose biases are trained so. `context`: its seed, replica and layer.
  BiasTraining(const RoutingJob& job, const RouterContext& context, const TileKernels& kernels);
  BiasTraining(const BiasTraining&) = delete;  // parts refer to each other
  BiasTraining& operator=(const BiasTraining&) = delete;

  // As the router sees them: rounded where its product is in bf16.
  const GroupLogits& logits() const { return seen_.by(job_.router); }

 private:
  RoutingJob job_;
  LogitSource source_;
  SeenLogits seen_;
};

// Null where the biases of the job's router are given, or trained on what it routes, also where
// that is asked for by its name: jobs with equal scores then have equal routing.
std::unique_ptr<BiasTraining> bias_training(const RoutingJob& job, const RouterContext& context,
                                            const TileKernels& kernels);

// Starts a layer of the job's router, which routes logits like `seen`: biases are trained on others
// where bias_training() says so.
void start_layer(KindRouter& router, const RoutingJob& job, const GroupLogits& seen,
                 const RouterContext& context, const TileKernels& kernels);

// Logits to be routed, by a router that is trained on others. Keeps references to its arguments.
class TrainedOnOthers final : public GroupLogits {
 public:
  TrainedOnOthers(const GroupLogits& routed, const GroupLogits& others)
      : routed_(routed), others_(others) {}

  int experts() const override { return routed_.experts(); }
  int ranks() const override { return routed_.ranks(); }
  std::int64_t tokens(int rank) const override { return routed_.tokens(rank); }
  void fill_tile(int rank, std::int64_t first_token, float* tile) const override {
    routed_.fill_tile(rank, first_token, tile);
  }
  void fill_unchecked(int rank, std::int64_t first_token, float* tile) const override {
    routed_.fill_unchecked(rank, first_token, tile);
  }
  int fill_training_tile(std::int64_t index, float* tile) const override {
    return routed_.fill_training_tile(index, tile);
  }
  const GroupLogits* trained_on() const override { return &others_; }

 private:
  const GroupLogits& routed_;
  const GroupLogits& others_;
};

}  // namespace moesim::routing
