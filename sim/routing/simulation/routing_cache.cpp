#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <list>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "sim/base/error.hpp"
#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/simulation/layer_router.hpp"
#include "sim/routing/simulation/mean_loss.hpp"
#include "sim/routing/simulation/routing_cache.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"

namespace moesim::routing {

namespace {

using Result = std::shared_ptr<const ReplicaRouting>;

std::string entry_key(const RoutingJob& job, int replica) {
  return fmt::format("{}#{}", job.key(), replica);
}

// Jobs routed in one pass. A thread that needs one of them routes layers until none is left, so
// threads share the work of a pass instead of waiting for it.
struct Batch {
  std::vector<RoutingJob> jobs;
  std::vector<std::string> keys;
  int replica = 0;
  std::atomic<int> next_layer{0};
  std::vector<ReplicaRouting> working;  // [job], layers preallocated

  std::mutex mutex;
  std::condition_variable changed;
  int layers_left = 0;
  std::exception_ptr error;
  std::atomic<bool> failed{false};  // there is an error: the layers left are not routed
  std::vector<Result> finished;     // [job], once layers_left is 0

  // True for the thread that finished the last layer.
  bool help(const std::function<void()>& on_layer) {
    LayerRouter router;
    std::vector<LayerRouting> results(jobs.size());
    const int layers = jobs.front().layers;
    for (int layer = next_layer++; layer < layers; layer = next_layer++) {
      std::exception_ptr failure;
      try {
        if (!failed) {
          router.route(jobs, replica, layer, results);
          for (std::size_t job = 0; job < jobs.size(); ++job) {
            working[job].layers[static_cast<std::size_t>(layer)] = std::move(results[job]);
          }
          if (on_layer) on_layer();
        }
      } catch (...) {
        failure = std::current_exception();
      }
      const std::lock_guard<std::mutex> lock(mutex);
      if (failure != nullptr) {
        error = failure;
        failed = true;
      }
      if (--layers_left == 0) return true;
    }
    return false;
  }
};

}  // namespace

std::size_t result_bytes(const RoutingJob& job) {
  const auto gpus = static_cast<std::size_t>(job.gpus);
  auto rows = gpus * (static_cast<std::size_t>(job.experts) + 1);
  if (job.count_copies)
    rows += gpus * static_cast<std::size_t>(job.expert_parallel + group_nodes(job));
  return static_cast<std::size_t>(job.layers) *
         (rows * sizeof(std::int32_t) +
          (static_cast<std::size_t>(job.experts) +
           gpus / static_cast<std::size_t>(job.expert_parallel)) *
              sizeof(std::int64_t) +
          sizeof(LayerRouting));
}

struct RoutingCache::State {
  struct Entry {
    Result result;
    std::size_t bytes = 0;
    std::list<std::string>::iterator use;
  };
  struct Announced {
    std::vector<RoutingJob> jobs;  // that share their logits, in the order of the requests
    std::unordered_map<std::string, std::size_t> place;  // by key
  };

  std::mutex mutex;
  std::size_t max_bytes = 0;
  std::size_t bytes = 0;
  std::list<std::string> uses;  // most recent first
  std::unordered_map<std::string, Entry> entries;
  std::unordered_map<std::string, std::shared_ptr<Batch>> in_flight;
  std::unordered_map<std::string, Announced> announced;  // by logits_key
  int replicas = 1;
  std::function<void()> on_layer;

  // All need the mutex to be held.
  Result find(const std::string& key) {
    const auto found = entries.find(key);
    if (found == entries.end()) return nullptr;
    uses.splice(uses.begin(), uses, found->second.use);
    return found->second.result;
  }

  std::shared_ptr<Batch> start(const RoutingJob& job, int replica) {
    auto batch = std::make_shared<Batch>();
    batch->replica = replica;
    batch->jobs.push_back(job);
    const auto group = announced.find(job.logits_key());
    if (group != announced.end()) add_followers(group->second, *batch);
    for (const RoutingJob& member : batch->jobs) {
      batch->keys.push_back(entry_key(member, replica));
      in_flight[batch->keys.back()] = batch;
    }
    batch->working.resize(batch->jobs.size());
    for (ReplicaRouting& result : batch->working) {
      result.layers.resize(static_cast<std::size_t>(job.layers));
    }
    batch->layers_left = job.layers;
    return batch;
  }

  // The results of a batch stay in the cache until they are requested, for all replicas; half of
  // the cache is reserved for them.
  void add_followers(const Announced& group, Batch& batch) {
    const RoutingJob& first = batch.jobs.front();
    const std::size_t each = result_bytes(first) * static_cast<std::size_t>(replicas);
    const std::size_t room =
        std::max<std::size_t>(1, max_bytes / 2 / std::max<std::size_t>(each, 1));
    const auto place = group.place.find(first.key());
    if (place == group.place.end()) return;
    for (std::size_t next = place->second + 1; next < group.jobs.size() && batch.jobs.size() < room;
         ++next) {
      const std::string key = entry_key(group.jobs[next], batch.replica);
      if (entries.contains(key) || in_flight.contains(key)) continue;
      batch.jobs.push_back(group.jobs[next]);
    }
  }

  void publish(const Batch& batch) {
    for (std::size_t job = 0; job < batch.jobs.size(); ++job) {
      in_flight.erase(batch.keys[job]);
      if (batch.finished.empty()) continue;  // the batch failed
      const std::size_t size = result_bytes(batch.jobs[job]);
      if (entries.contains(batch.keys[job])) continue;
      uses.push_front(batch.keys[job]);
      entries[batch.keys[job]] = {batch.finished[job], size, uses.begin()};
      bytes += size;
    }
    // The newest entry is kept, whatever its size.
    while (bytes > max_bytes && entries.size() > 1) {
      const auto oldest = entries.find(uses.back());
      bytes -= oldest->second.bytes;
      entries.erase(oldest);
      uses.pop_back();
    }
  }
};

RoutingCache::RoutingCache(std::size_t max_bytes) : state_(std::make_unique<State>()) {
  state_->max_bytes = max_bytes;
}

RoutingCache::~RoutingCache() = default;

void RoutingCache::announce(std::span<const RoutingJob> jobs, int replicas) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->replicas = std::max(1, replicas);
  for (const RoutingJob& job : jobs) {
    try {
      check(job);
    } catch (const UsageError&) {
      continue;  // get() throws the reason, if the job is requested
    }
    State::Announced& group = state_->announced[job.logits_key()];
    if (group.place.emplace(job.key(), group.jobs.size()).second) group.jobs.push_back(job);
  }
}

void RoutingCache::on_layer(std::function<void()> watcher) {
  state_->on_layer = std::move(watcher);
}

std::shared_ptr<const ReplicaRouting> RoutingCache::get(const RoutingJob& job, int replica) {
  check(job);
  const std::string key = entry_key(job, replica);
  std::shared_ptr<Batch> batch;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    if (Result hit = state_->find(key)) return hit;
    const auto running = state_->in_flight.find(key);
    batch = running != state_->in_flight.end() ? running->second : state_->start(job, replica);
  }
  if (batch->help(state_->on_layer)) {
    {
      const std::lock_guard<std::mutex> lock(batch->mutex);
      if (batch->error == nullptr) {
        for (ReplicaRouting& result : batch->working) {
          result.loss = mean_loss(result.layers);
          batch->finished.push_back(std::make_shared<const ReplicaRouting>(std::move(result)));
        }
      }
    }
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->publish(*batch);
    const std::lock_guard<std::mutex> batch_lock(batch->mutex);
    batch->layers_left = -1;  // published
    batch->changed.notify_all();
  }
  std::unique_lock<std::mutex> lock(batch->mutex);
  batch->changed.wait(lock, [&] { return batch->layers_left < 0; });
  if (batch->error != nullptr) std::rethrow_exception(batch->error);
  const auto place = std::find(batch->keys.begin(), batch->keys.end(), key);
  return batch->finished[static_cast<std::size_t>(place - batch->keys.begin())];
}

}  // namespace moesim::routing
