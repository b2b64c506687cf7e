#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "sim/base/bounded_cache.hpp"
#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/scores/logit_source.hpp"
#include "sim/routing/tokens/choice_table.hpp"
#include "sim/routing/tokens/decision.hpp"
#include "sim/routing/tokens/route_orders.hpp"

namespace moesim::routing {

// Which tokens a pilot has of the jobs that it is drawn for.
struct PilotPlan {
  explicit PilotPlan(std::span<const RoutingJob> jobs);

  // The key of the tokens that the jobs of a plan have in the layer of `stream`: equal keys are of
  // equal tokens.
  std::string key(std::span<const RoutingJob> jobs, const StreamKey& stream) const;
  std::size_t place(int set, int index) const {
    return static_cast<std::size_t>(set) * static_cast<std::size_t>(shown) +
           static_cast<std::size_t>(index);
  }

  int experts = 0, choices = 0;
  std::size_t blocks = 0;
  int shown = 0;                       // ranks that the tokens are of
  std::vector<std::uint32_t> of_rank;  // [shown]: which of the group
  int sets = 0, places = 0;            // of local experts, and the most of one
  int local_set[3] = {};               // of each Rectification
  std::vector<LocalExperts> locals;    // [set, shown]
};

// The tokens of a pilot (CountPilot), which do not depend on the counts that they are combined
// with, nor on the number of GPUs and of their tokens: layouts with the same groups share them. May
// be used by several threads.
class PilotTokens {
 public:
  static constexpr std::size_t block_tokens = 64;
  static std::size_t blocks_for(int experts);

  // `key`: of the random stream for random decisions.
  PilotTokens(PilotPlan plan, const LogitSource& logits, const StreamKey& key,
              const TileKernels& kernels);

  // The distribution of a route's key depends on its expert only by the expert's popularity, and
  // smoothly: experts, sorted by popularity, are grouped into bands with enough routes to estimate
  // quantiles.
  struct Bands {
    std::vector<std::uint16_t> of;  // [expert]
    std::size_t count = 0;
  };
  struct Quantiles {
    std::vector<float> of;             // [token]
    std::vector<std::int32_t> routes;  // [band], L; empty: the quantiles are known exactly
  };
  // As CountPilot::set_popularity(), before bands() and quantiles() of these choices.
  void set_popularity(int choices, std::span<const double> popularity) const;
  const Bands& bands(int choices) const;
  const Quantiles& quantiles(const RouterConfig& router, int choice) const;

  const ChoiceTable& table() const { return table_; }
  std::size_t blocks() const { return plan_.blocks; }
  std::size_t tokens() const { return tokens_; }
  // [token], standard normals.
  const float* chance(int choice) const {
    return chance_.data() + static_cast<std::size_t>(choice) * tokens_;
  }
  int local_set(const RouterConfig& router) const {
    return plan_.local_set[static_cast<int>(router.rectification)];
  }
  // `rank`: of the table.
  const LocalExperts& local(int set, int rank) const {
    return plan_.locals[plan_.place(set, rank)];
  }
  std::size_t bytes() const;  // of memory, with the quantiles of one priority

 private:
  // index: of a GPU's tokens, or of a group's by a random key; group_index: of a group's, the first
  // rank's before the next one's.
  enum class Order { token_max, index, group_index, own_score, own_weight, nominee };
  using Key = std::tuple<Order, int, int, int>;  // k', top_k (own only), choice

  void draw_table(const LogitSource& logits);
  void make_quantiles(const Key& key, Quantiles& quantiles) const;
  void make_own(Order order, int choices, int top_k) const;

  const TileKernels& kernels_;
  PilotPlan plan_;
  std::size_t tokens_ = 0;
  ChoiceTable table_;
  std::vector<float> chance_;  // [choice, token]
  // Made when they are first asked for, and then kept.
  mutable std::mutex mutex_;
  mutable std::map<int, Bands> bands_;  // by k'
  mutable std::map<Key, Quantiles> quantiles_;
  mutable SortScratch scratch_;
};

using PilotCache = BoundedCache<std::string, PilotTokens>;

}  // namespace moesim::routing
