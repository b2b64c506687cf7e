#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim/routing/counts/count_pilot.hpp"
#include "sim/routing/counts/draw_cache.hpp"
#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/rules/layer_sample.hpp"

namespace moesim::routing {

// Routes one layer of one replica from counts: the number of tokens of each GPU that choose each
// expert is drawn, and no tokens except those of a pilot sample (count_pilot.hpp). Rows and the
// shares of failed and padded are exact functions of the counts; figures that depend on which
// routes belong to the same token (partial, lost_mass, unrouted, residual_loss, IR) are estimated
// from the pilot. Routers without scores need no pilot: everything follows from the counts, which
// some of them compute exactly (RouterDescriptor::make_counter). Jobs whose counts do not follow
// from the popularity of each expert alone (is_sampled()) are drawn from a sample of tokens that
// the exact rule routed (sampled_counts.hpp), which also has the tokens that each GPU and node
// needs, and what a capacity loses of them (sample_losses.hpp). Keeps its working memory; use one
// per thread.
class CountRouter {
 public:
  // `draws`: keeps what other layouts and routers draw alike, and outlives this; null: nothing is
  // kept.
  explicit CountRouter(SimdLevel level = best_simd_level(), DrawCache* draws = nullptr)
      : level_(level), kernels_(tile_kernels(level)), draws_(draws), pilot_(kernels_) {}

  // As LayerRouter::route. All jobs are of Fidelity::counts.
  void route(std::span<const RoutingJob> jobs, int replica, int layer,
             std::span<LayerRouting> results);

  // For tests, the same with given counts: `primary[gpu, expert]` primary routes of each GPU to
  // each expert; each row sums to S k. All jobs have the same k. The job's scores determine what
  // the counts do not: which experts a token combines, and with which probabilities.
  void route_counts(std::span<const RoutingJob> jobs, int replica, int layer,
                    std::span<const std::int32_t> primary, std::span<LayerRouting> results);

 private:
  // The purpose of a plane of normals; planes per choice are last, max_choices of each.
  enum Plane : std::uint32_t {
    primary_plane,
    nominee_plane,
    deal_plane,
    deal_fill_plane,
    ir_plane,
    unfilled_plane,
    sample_plane,
    tile_plane,
    split_plane = 64,
    rank_split_plane = 128,
    chance_plane = 192
  };
  // The counts of jobs with the same counts (same k and fill-in, or the same drawing router), [gpu,
  // expert], and their split by choice for the GPU, or group, that each block of the pilot is
  // combined with: [block, choice, expert], k' choices.
  struct Counts {
    RouterConfig router;  // of one of the jobs
    int top_k = 0;
    bool fill_in = false;
    const double* shares = nullptr;  // [choice, expert], k' choices
    std::vector<double> drawn;       // storage of `shares` where the router draws
    std::string key;                 // of the job, where it is sampled
    std::string kept_key;            // in DrawCache::routes; "": not there
    TokenLoss loss;                  // the same, of which nothing is dropped
    LayerSample sample;              // the same, with a capacity
    TokenCopies copies;              // the same, if copies are counted
    std::vector<std::int32_t> primary, nominees;
    std::vector<std::int32_t> split[2];  // for each CapacityScope, computed on demand
  };
  struct Kept {
    std::vector<std::int64_t> primary, filled;  // [gpu] routes
  };

  void prepare(std::span<const RoutingJob> jobs, int replica, int layer);
  void normals(std::uint32_t plane, std::uint64_t first, float* tile) const;
  std::string scores_layer_key() const;
  const std::vector<double>& shares_of(int choices);
  std::vector<double> drawn_shares(int choices) const;
  Counts& add_counts(const RouterConfig& router);
  Counts& counts_of(const RoutingJob& job);
  Counts& counts_of(const RouterConfig& router);
  void draw_counts(Counts& counts, bool primary_given) const;
  void take_counts(Counts& counts) const;
  void count_exactly(Counts& counts);
  SampledLayer draw_sample(const RoutingJob& job) const;
  SampledLayer drawn_sample(const RoutingJob& job) const;
  // A job whose tokens choose as those of `job`: how routes are kept is left out.
  static RoutingJob chosen_alike(RoutingJob job);
  static std::string sampled_key(const RoutingJob& job);
  void draw_sampled(const RoutingJob& job, Counts& counts) const;
  static void count_copies(const RoutingJob& job, LayerRouting& result);
  const std::vector<std::int32_t>& split_of(Counts& counts, CapacityScope scope) const;
  void draw_split(const Counts& counts, CapacityScope scope,
                  std::vector<std::int32_t>& split) const;
  void fill_queues(const RouterConfig& router, std::int64_t slots,
                   const std::vector<std::int32_t>& split);
  void settle(const RoutingJob& job, LayerRouting& result);
  void keep_by_source(const Counts& counts, std::int64_t capacity, LayerRouting& result);
  void keep_by_group(const RouterConfig& router, const Counts& counts, std::int64_t capacity,
                     LayerRouting& result);
  void deal_by_chance(const std::vector<std::int32_t>& routes, std::uint32_t plane,
                      std::size_t first_gpu, std::vector<std::int64_t> kept,
                      std::vector<std::int64_t>& of_gpu, LayerRouting& result) const;
  void deal_by_rank(const Counts& counts, std::size_t first_gpu, std::int64_t slots,
                    LayerRouting& result);
  void set_losses(const RoutingJob& job, LayerRouting& result);
  void set_losses_of_sample(const RoutingJob& job, LayerRouting& result);
  void set_ir_rows(const RoutingJob& job, const PilotLoss& pilot, LayerRouting& result);
  std::vector<double> partial_tokens(const RoutingJob& job, const PilotLoss& pilot,
                                     const LayerRouting& result);
  double growth_at_less_capacity(const RoutingJob& job, const PilotLoss& pilot,
                                 const LayerRouting& result);
  using DomainTargets = std::map<std::pair<int, int>, IrTargets>;
  void send_ir_rows(const RoutingJob& job, const DomainTargets& targets, LayerRouting& result);
  std::vector<double> failed_routes(const RoutingJob& job, int first_gpu,
                                    const LayerRouting& result);
  std::vector<double> missing_locals(const RoutingJob& job, const LayerRouting& result) const;
  std::vector<double> target_shares(int first, int last, int per_rank,
                                    const std::vector<double>& rate) const;

  SimdLevel level_;
  const TileKernels& kernels_;
  DrawCache* draws_;
  CountPilot pilot_;
  bool has_pilot_ = false;  // of this layer: a job needs tokens
  RoutingJob job_;          // the first: sizes and seed
  StreamKey key_;
  std::unique_ptr<LogitSource> logits_;  // of the layer
  Noise noise_ = Noise::normal;
  std::vector<float> offsets_;
  std::vector<float> no_offsets_;
  std::map<int, std::vector<double>> shares_;  // by k': [choice, expert]
  std::vector<Counts> counts_;
  std::map<std::string, std::unique_ptr<ExactCounter>> counters_;  // by router and experts
  std::vector<Queueing> queues_;
  Kept kept_;
};

}  // namespace moesim::routing
