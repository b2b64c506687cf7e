#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/simulation/pass_plan.hpp"

namespace moesim::routing {

// The memory of a replica's result: counts of all GPUs, experts and layers.
std::size_t result_bytes(const RoutingJob& job);

// Shares the work between scenarios that route the same logits, and keeps finished results.
// Thread-safe: threads share the layers of a batch. Bounded memory: the least recently used results
// are dropped.
class RoutingCache {
 public:
  explicit RoutingCache(std::size_t max_bytes = std::size_t{256} << 20);
  ~RoutingCache();
  RoutingCache(const RoutingCache&) = delete;
  RoutingCache& operator=(const RoutingCache&) = delete;

  // Announces jobs that will be requested, in this order (the rows of a sweep), `replicas` each.
  // The first get() of one of them then also routes later jobs that share its logits in the same
  // pass, as many as the memory bound and `limit` allow. Affects run time only, never a result.
  // Invalid jobs are skipped. Throws UsageError for fewer than one replica, and for a limit below 0
  // seconds or one thread.
  void announce(std::span<const RoutingJob> jobs, int replicas, const PassLimit& limit = {});

  // Announced jobs that nobody will request any more, such as that of a scenario that failed: no
  // pass routes them along, and they no longer count as left. A job that was announced n times is
  // forgotten with the n-th call. Requested all the same, it is routed by itself. Other jobs are
  // passed over.
  void forget(std::span<const RoutingJob> jobs);

  // The seconds that all threads have spent on routing so far.
  double seconds_spent() const;
  // The seconds that one thread needs to route what is announced and not routed yet, by what the
  // layers so far took. Nothing while none was routed.
  std::optional<double> seconds_left() const;

  // Called by any thread whenever a layer of a pass has been routed: for progress. What it throws
  // ends the pass: get() throws it, and nothing of the pass is kept. Not to be changed while
  // another thread is in get().
  void on_layer(std::function<void()> watcher);

  // Throws the errors of check(), and UsageError for a replica below 0.
  std::shared_ptr<const ReplicaRouting> get(const RoutingJob& job, int replica);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moesim::routing
