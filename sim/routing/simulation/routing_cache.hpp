#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/routing/jobs/routing_job.hpp"

namespace moesim::routing {

// Shares the work between scenarios that route the same logits, and keeps finished results. Safe
// to use from many threads, which help each other with the layers of one batch; bounded memory
// (least recently used results are dropped).
class RoutingCache {
 public:
  explicit RoutingCache(std::size_t max_bytes = std::size_t{256} << 20);
  ~RoutingCache();
  RoutingCache(const RoutingCache&) = delete;
  RoutingCache& operator=(const RoutingCache&) = delete;

  // Jobs that will be asked for, in that order (a sweep's rows), `replicas` each. The first get()
  // of one of them then routes those behind it that share its logits in the same pass, as many as
  // the memory bound allows. Changes the time taken, never a result. Jobs that cannot be are passed
  // over.
  void announce(std::span<const RoutingJob> jobs, int replicas);

  // Called by any thread whenever a layer of a pass has been routed: for progress. Not to be
  // changed while another thread is in get().
  void on_layer(std::function<void()> watcher);

  // Throws what check() throws.
  std::shared_ptr<const ReplicaRouting> get(const RoutingJob& job, int replica);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moesim::routing
