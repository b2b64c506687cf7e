#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/engine/program.hpp"
#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/scenario/scenario.hpp"
#include "sim/step/kernels.hpp"
#include "sim/step/part.hpp"

namespace moesim::step {

// A kernel whose label has been replaced by a number, ready to be priced many times.
struct PricedKernel {
  int label = 0;
  KernelClass kernel_class = KernelClass::memory;
  profile::Estimate estimate;
  double count = 1;
  double latency_us = 0;  // as Kernel has it
};
using Recipe = std::vector<PricedKernel>;

// One training or inference step of a scenario as a program of the engine, and the durations of
// its operations: fixed ones priced once, those of a MoE layer by that layer's capacity, those of
// Intra-GPU Rectification by the rows of each GPU.
class StepModel {
 public:
  explicit StepModel(const scenario::Scenario& scenario, const Calibration& calibration = {});
  StepModel(const StepModel&) = delete;  // the pricer refers to the scenario inside
  StepModel& operator=(const StepModel&) = delete;

  const scenario::Scenario& scenario() const { return scenario_; }
  const engine::Program& program() const { return program_; }

  // Durations of one replica: with equal blocks where the router pads them, else by rows. In a
  // layer that skips the exchange the all-to-alls and what announces them are skipped, and so are
  // those of rectified rows in a layer without any. `routing` may be null for a model
  // without MoE layers. `replica` >= 0 draws the curves' errors of that replica: Latin hypercube
  // sampling of a standard normal per label over the scenario's replicas, so that the median over
  // replicas is close to the curves' own prediction, with common random numbers across the
  // scenarios of a seed; one replica alone has no error. no_errors takes every curve at its median.
  static constexpr int no_errors = -1;
  engine::Durations durations(const routing::ReplicaRouting* routing, int replica);

  // [operation] the share of an exchange's time that is latency: what slow links leave as it is. 0
  // for compute, and where the scenario has no slow links.
  std::vector<double> latency_shares(const routing::ReplicaRouting* routing);

  // What durations() gives where nothing is padded: each GPU dispatches the rows it keeps, each
  // expert computes the rows that come, and the all-to-alls take the time of their matrices
  // (RaggedTraffic); their durations are left 0. `routing` needs kept_rows, of all GPUs or of one
  // expert-parallel group that stands for all, copies where the scenario deduplicates, and ir_rows
  // under rectification. Permutation is of a row per expert even then. Throws UsageError
  // for what needs equal blocks (--dispatch einsum, --ir-compute grouped), Error for counts of
  // another shape.
  engine::Durations ragged_durations(const routing::ReplicaRouting& routing, int replica);

  // The all-to-all of an MoE layer that an operation is, if it is one.
  enum class Direction { none, to_experts, to_tokens };
  Direction direction(int operation) const;
  int moe_layer(int operation) const;  // ordinal among MoE layers, -1: of none
  double row_bytes() const { return pricer_.row_bytes(1); }
  // Of a row in that all-to-all: a token, or its probability alone.
  double row_bytes(int operation) const;
  // How many times longer the curves' errors of a replica make the all-to-alls.
  double exchange_error(int replica);
  // How much longer exchanges take in the software of the profile than its curves say.
  double exchange_multiplier() const { return calibration_.of(KernelClass::exchange); }

  // What the prices rest on: the weakest origin and support per class of kernel, then the costs
  // that are assumed of the router's kind. Complete once durations() has been called for each
  // replica.
  std::string provenance() const;

 private:
  enum class Role {
    fixed,
    dispatch,
    combine,
    experts,
    exchange,
    node_exchange,
    probability_exchange,
    rectify,
    grouped,
    // By rows of one GPU, or of one expert.
    dispatch_rows,
    combine_rows,
    expert_rows
  };
  struct Spec {
    Role role = Role::fixed;
    Pass pass = Pass::forward;
    int moe_layer = -1;             // ordinal among MoE layers
    Recipe recipe;                  // fixed
    bool to_tokens = false;         // exchange: rows go home to their tokens
    bool announces = false;         // fixed: what an exchange needs first, none where there is none
    std::vector<Recipe> smaller{};  // fixed, of GPUs with fewer tokens: [load - 1], empty: as S
    bool probabilities = false;     // exchange: of a row's probability in place of the row
  };
  // GPUs that hold the same number of tokens, 0: those of S.
  using Load = std::size_t;
  using Key = std::tuple<std::int64_t, std::int64_t, Load>;  // capacity, rows
  using Table = std::map<Key, Recipe>;

  int add_compute(const std::string& name, Part part, int layer, const Spec& spec);
  int add_exchange(const std::string& name, Part part, int layer, int partition, const Spec& spec);
  Spec fixed(const Kernels& kernels);
  // Of kernels that go by a GPU's tokens: price(pricer) for each number of them.
  template <class Price>
  Spec by_tokens(const Price& price) {
    Spec spec = fixed(price(pricer_));
    for (const KernelPricer& pricer : smaller_) spec.smaller.push_back(intern(price(pricer)));
    return spec;
  }
  Spec announcing(Kernels kernels, int layer);
  Spec fixed(Kernel kernel) { return fixed(Kernels{std::move(kernel)}); }

  void build();
  static Kernels block(const KernelPricer& pricer, const Kernels& inside, Pass pass);
  Spec attention(Pass pass, int layer);
  Spec dense_ffn(Pass pass);
  Spec shared_expert(Pass pass);
  Spec router(Pass pass);
  Spec head(Pass pass);
  Spec embedding(Pass pass);
  void layer_forward(int layer);
  void layer_backward(int layer);
  void moe_forward(int layer);
  void moe_backward(int layer);
  void rectify(const std::string& name, int layer, const Spec& spec);
  void shuffle(const std::string& name, int layer);
  void announce_exchange(int layer);
  void exchange_counts(int layer);
  void exchange_probabilities(int layer, Spec spec);
  void gather_layer(int layer);
  void gather_embedding();
  void gather_dense(double parameters, int layer);
  void gather_experts(double parameters, int layer);
  void backward(std::int64_t micro_step);
  void settle_gradients(double dense, double expert, int layer, std::int64_t micro_step);
  void reduce_gradients(double dense, double expert, int layer);
  void update();

  double layer_dense_parameters(int layer) const;
  double layer_expert_parameters(int layer) const;  // of one GPU
  double dense_parameters() const;                  // of one GPU: all but the experts
  double outer_parameters() const;                  // of those, the ones of no layer
  double expert_parameters() const;                 // of one GPU
  int moe_ordinal(int layer) const;
  // The group of a partition that its exchanges are priced for: the one spread over the most nodes.
  const std::vector<int>& members(int partition) const {
    return priced_groups_[static_cast<std::size_t>(partition)];
  }
  bool is_moe(int layer) const {
    return scenario_.has_moe() && scenario_.model->is_moe_layer(layer);
  }

  Recipe intern(const Kernels& kernels);
  std::vector<double> draw_errors(const std::string& label) const;
  Picoseconds price(const Recipe& recipe, int replica) const;
  void find_loads();
  Load load_of(int gpu) const {
    return load_of_.empty() ? 0 : load_of_[static_cast<std::size_t>(gpu)];
  }
  const KernelPricer& pricer_of(Load load) const {
    return load == 0 ? pricer_ : smaller_[load - 1];
  }
  const Recipe& recipe(Role role, Pass pass, std::int64_t capacity, std::int64_t rows,
                       Load load = 0);
  const Recipe& recipe_of(const Spec& spec, const routing::ReplicaRouting* routing, Load load = 0);
  bool goes_by_tokens(const Spec& spec) const;
  void price_tokens(std::size_t operation, const routing::ReplicaRouting* routing, int replica,
                    engine::Durations& durations);
  std::vector<bool> skipped(const routing::ReplicaRouting& routing) const;
  Kernels ending(Kernels combination, Pass pass, std::int64_t rows, Load load) const;
  std::string assumptions() const;
  Kernels kernels(Role role, Pass pass, std::int64_t capacity, std::int64_t rows, Load load) const;
  Picoseconds price_of_rows(Role role, Pass pass, std::int64_t rows, Load load, int replica);
  std::int64_t block_rows(const routing::LayerRouting& layer, Load load) const;
  struct RowLoads {
    std::vector<std::int32_t> sent;      // [gpu]
    std::vector<std::int32_t> received;  // [group, expert]
  };
  RowLoads loads_of(const routing::LayerRouting& layer) const;
  void price_loads(const Spec& spec, const RowLoads& loads, int replica,
                   std::vector<Picoseconds>& per_rank);
  void check_ragged(const routing::ReplicaRouting& routing) const;
  void check_copies(const routing::ReplicaRouting& routing) const;
  void price_rows(const Spec& spec, const routing::LayerRouting& layer, int replica,
                  std::vector<Picoseconds>& per_rank);

  scenario::Scenario scenario_;
  Calibration calibration_;
  KernelPricer pricer_;
  std::vector<KernelPricer> smaller_;      // [load - 1]
  std::vector<std::int64_t> load_tokens_;  // [load]
  std::vector<Load> load_of_;              // [gpu], empty: all hold S tokens
  engine::Program program_;
  std::vector<Spec> specs_;  // [operation]
  int last_compute_ = -1;
  std::vector<int> pending_;                 // what the next compute operation waits for
  std::vector<std::vector<double>> errors_;  // [label][replica], standard deviations
  std::map<std::string, int> label_of_;
  std::map<std::pair<Role, Pass>, Table> tables_;
  // Prices of one replica by rows, -1 where not asked for yet.
  std::map<std::tuple<Role, Pass, Load>, std::vector<Picoseconds>> row_prices_;
  int priced_replica_ = no_errors;
  std::vector<std::vector<int>> priced_groups_;  // [partition]
  int expert_group_ = -1;                        // partitions
  int replica_group_ = -1;
  int world_ = -1;
  int domain_ = -1;
};

}  // namespace moesim::step
