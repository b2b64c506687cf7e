#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <limits>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "sim/base/check_range.hpp"
#include "sim/base/error.hpp"
#include "sim/routing/jobs/fidelity.hpp"
#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/simulation/kept_choices.hpp"
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

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The seconds of this thread alone: a machine that is busy otherwise makes no job costly.
double processor_seconds_of(const std::function<void()>& work) {
  const auto now = [] {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double start = now();
  work();
  return now() - start;
}

// What the routing of a job's layer grows with.
double weight_of(const RoutingJob& job) {
  const bool by_tokens = job.fidelity == Fidelity::tokens;
  return static_cast<double>(job.gpus) * job.experts *
         (by_tokens ? static_cast<double>(job.tokens_per_gpu) : 1.0);
}

// Jobs that are routed together, in the order in which they will be requested, the passes they are
// routed in, and what these took. A unit is a layer of a replica under one job.
struct Announced {
  struct Units {
    int announced = 0;  // how often the job was; 0: it was forgotten
    double all = 0, done = 0;
  };
  std::vector<RoutingJob> jobs;
  std::vector<Units> units_of;                         // [job]
  std::unordered_map<std::string, std::size_t> place;  // by key, without forgotten jobs
  std::vector<std::size_t> pass_ends;                  // the first job behind each pass, of jobs
  std::set<std::pair<std::size_t, int>> begun;         // passes and their replicas
  bool measures = false;                               // a thread finds out the cost
  std::optional<PassCost> cost;
  double units = 0, units_done = 0, seconds = 0;
  double expected = 0;  // seconds by the cost

  std::size_t routed_in_passes() const { return pass_ends.empty() ? 0 : pass_ends.back(); }
  std::size_t jobs_of_last_pass() const {
    const std::size_t passes = pass_ends.size();
    return routed_in_passes() - (passes < 2 ? 0 : pass_ends[passes - 2]);
  }

  void add(const RoutingJob& job, double layers) {
    const auto [found, is_new] = place.emplace(job.key(), jobs.size());
    if (is_new) {
      jobs.push_back(job);
      units_of.push_back({0, layers, 0});
      units += layers;
    }
    ++units_of[found->second].announced;
  }
  void forget(const RoutingJob& job) {
    const auto found = place.find(job.key());
    if (found == place.end()) return;
    Units& of_job = units_of[found->second];
    if (--of_job.announced > 0) return;
    units -= of_job.all - of_job.done;
    place.erase(found);
  }
  bool is_forgotten(std::size_t job) const { return units_of[job].announced == 0; }
  // Those that are left, up to `most`.
  std::vector<RoutingJob> first_jobs(std::size_t most) const {
    std::vector<RoutingJob> first;
    for (std::size_t job = 0; job < jobs.size() && first.size() < most; ++job) {
      if (!is_forgotten(job)) first.push_back(jobs[job]);
    }
    return first;
  }

  // `members`: places in jobs, of those routed that are there.
  void add_layer(std::span<const std::size_t> members, std::size_t routed, double taken) {
    for (const std::size_t job : members) ++units_of[job].done;
    units_done += static_cast<double>(routed);
    seconds += taken;
    if (cost) expected += cost->of_layer(routed);
  }
  // The seconds that one unit of those left takes.
  std::optional<double> pace() const {
    if (units_done == 0) return std::nullopt;
    if (!cost || expected == 0) return seconds / units_done;
    const std::size_t routed = jobs_of_last_pass();
    return seconds / expected * cost->of_layer(routed) / static_cast<double>(routed);
  }
  double units_left() const { return std::max(0.0, units - units_done); }
};

// Jobs routed in one pass. A thread that needs one of them routes layers until none is left, so
// threads share the work of a pass instead of waiting for it.
struct Batch {
  std::vector<RoutingJob> jobs;
  std::vector<std::string> keys;
  int replica = 0;
  std::shared_ptr<Announced> group;  // of the jobs, if they were announced
  std::vector<std::size_t> members;  // of the group: places of the jobs that it has
  std::atomic<int> next_layer{0};
  std::vector<ReplicaRouting> working;  // [job], layers preallocated

  std::mutex mutex;
  std::condition_variable changed;
  int layers_left = 0;
  std::exception_ptr error;
  std::atomic<bool> failed{false};  // there is an error: the layers left are not routed
  std::vector<Result> finished;     // [job], once layers_left is 0

  // True for the thread that finished the last layer. `on_seconds`: of each layer.
  bool help(const std::function<void()>& on_layer, const std::function<void(double)>& on_seconds) {
    LayerRouter router;
    std::vector<LayerRouting> results(jobs.size());
    const int layers = jobs.front().layers;
    for (int layer = next_layer++; layer < layers; layer = next_layer++) {
      std::exception_ptr failure;
      try {
        if (!failed) {
          on_seconds(seconds_of([&] { router.route(jobs, replica, layer, results); }));
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

  std::mutex mutex;
  std::condition_variable measured;  // the cost of a group
  std::size_t max_bytes = 0;
  std::size_t bytes = 0;
  std::list<std::string> uses;  // most recent first
  std::unordered_map<std::string, Entry> entries;
  std::unordered_map<std::string, std::shared_ptr<Batch>> in_flight;
  std::unordered_map<std::string, std::shared_ptr<Announced>> announced;  // by shared_keys()
  std::unordered_map<std::string, std::string> group_of_job;              // by key
  int replicas = 1;
  PassLimit limit;
  double seconds_spent = 0;
  std::function<void()> on_layer;

  // All need the mutex to be held.
  std::shared_ptr<Announced> group_of(const RoutingJob& job) const {
    const auto found = group_of_job.find(job.key());
    return found == group_of_job.end() ? nullptr : announced.at(found->second);
  }

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
    if (const auto group = group_of(job)) {
      batch->group = group;
      add_followers(*group, *batch);
    }
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

  // The jobs of the pass of the first one: of a replica that was not begun all, otherwise those
  // behind it.
  void add_followers(Announced& group, Batch& batch) {
    const auto place = group.place.find(batch.jobs.front().key());
    if (place == group.place.end()) {
      group.units += static_cast<double>(batch.jobs.front().layers);
      return;
    }
    const std::size_t first = place->second;
    batch.members.push_back(first);
    while (first >= group.routed_in_passes()) plan_pass(group);
    const auto end = std::upper_bound(group.pass_ends.begin(), group.pass_ends.end(), first);
    const auto pass = static_cast<std::size_t>(end - group.pass_ends.begin());
    const bool is_new = group.begun.emplace(pass, batch.replica).second;
    const std::size_t begin = is_new && pass > 0 ? group.pass_ends[pass - 1] : is_new ? 0 : first;
    for (std::size_t next = begin; next < *end; ++next) {
      const std::string key = entry_key(group.jobs[next], batch.replica);
      if (next == first || group.is_forgotten(next)) continue;
      if (entries.contains(key) || in_flight.contains(key)) continue;
      batch.jobs.push_back(group.jobs[next]);
      batch.members.push_back(next);
    }
  }

  void plan_pass(Announced& group) {
    const std::size_t begin = group.routed_in_passes();
    const RoutingJob& job = group.jobs.front();
    const std::size_t left = group.jobs.size() - begin;
    std::size_t jobs = left;
    if (group.cost) {
      const auto passes = static_cast<int>(group.pass_ends.size());
      jobs = jobs_of_pass(*group.cost, layers_of(job), left, passes, limit);
    }
    group.pass_ends.push_back(begin + std::min(jobs, room_for(job)));
  }

  double layers_of(const RoutingJob& job) const {
    return static_cast<double>(job.layers) * replicas;
  }

  // The results of a batch stay in the cache until they are requested, for all replicas; half of
  // the cache is reserved for them.
  std::size_t room_for(const RoutingJob& job) const {
    const std::size_t each = result_bytes(job) * static_cast<std::size_t>(replicas);
    return std::max<std::size_t>(1, max_bytes / 2 / std::max<std::size_t>(each, 1));
  }

  // The group of a job whose cost is to be found out before its first pass, so that this is not too
  // long. Not where a layer more than needed counts.
  std::shared_ptr<Announced> to_measure(const RoutingJob& job) {
    constexpr double least_layers = 64;
    if (limit.seconds <= 0 || layers_of(job) < least_layers) return nullptr;
    const auto group = group_of(job);
    if (group == nullptr || group->cost) return nullptr;
    const bool can_split = group->place.size() > 1 && room_for(group->jobs.front()) > 1;
    return can_split ? group : nullptr;
  }

  // Routes a layer under the job, then under all that there is room for. The lock is not held
  // meanwhile.
  void measure(Announced& group, std::unique_lock<std::mutex>& lock) {
    if (group.measures) {
      measured.wait(lock, [&] { return !group.measures; });
      return;
    }
    group.measures = true;
    const std::vector<RoutingJob> jobs = group.first_jobs(room_for(group.jobs.front()));
    lock.unlock();
    const auto done = [&](std::optional<PassCost> cost) {
      lock.lock();
      group.cost = cost;
      group.measures = false;
      measured.notify_all();
    };
    try {
      LayerRouter router;
      std::vector<LayerRouting> results(jobs.size());
      const std::span all(jobs);
      const double one = processor_seconds_of([&] { router.route(all.first(1), 0, 0, results); });
      if (on_layer) on_layer();
      const double several = processor_seconds_of([&] { router.route(all, 0, 0, results); });
      if (on_layer) on_layer();
      done(measured_cost(one, several, jobs.size()));
      seconds_spent += one + several;
    } catch (...) {
      done(std::nullopt);
      throw;
    }
  }

  void count_layer(const Batch& batch, double seconds) {
    const std::lock_guard<std::mutex> lock(mutex);
    seconds_spent += seconds;
    if (batch.group != nullptr) {
      batch.group->add_layer(batch.members, batch.jobs.size(), seconds);
    }
  }

  // The seconds per weight that routed groups took: those of a fidelity, or of any.
  std::optional<double> pace_of_weight(std::optional<Fidelity> fidelity) const {
    double seconds = 0;
    double weight = 0;
    for (const auto& [key, group] : announced) {
      const RoutingJob& job = group->jobs.front();
      const std::optional<double> pace = group->pace();
      if (!pace || (fidelity && job.fidelity != *fidelity)) continue;
      seconds += *pace * group->units;
      weight += weight_of(job) * group->units;
    }
    if (weight > 0) return seconds / weight;
    return fidelity ? pace_of_weight(std::nullopt) : std::nullopt;
  }

  std::optional<double> seconds_left() const {
    double seconds = 0;
    std::map<Fidelity, double> weight;  // of the groups of which nothing was routed
    for (const auto& [key, group] : announced) {
      if (const std::optional<double> pace = group->pace()) {
        seconds += *pace * group->units_left();
      } else {
        const RoutingJob& job = group->jobs.front();
        weight[job.fidelity] += weight_of(job) * group->units_left();
      }
    }
    for (const auto& [fidelity, left] : weight) {
      const std::optional<double> pace = pace_of_weight(fidelity);
      if (!pace) return std::nullopt;
      seconds += *pace * left;
    }
    return seconds;
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

void RoutingCache::announce(std::span<const RoutingJob> jobs, int replicas,
                            const PassLimit& limit) {
  check_range("replicas", replicas, 1, std::numeric_limits<int>::max());
  check_range("PassLimit::seconds", limit.seconds, 0, std::numeric_limits<double>::max());
  check_range("PassLimit::threads", limit.threads, 1, std::numeric_limits<int>::max());
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->replicas = replicas;
  state_->limit = limit;
  std::vector<RoutingJob> possible;
  for (const RoutingJob& job : jobs) {
    try {
      check(job);
      possible.push_back(job);
    } catch (const UsageError&) {
      // get() throws the reason, if the job is requested.
    }
  }
  const std::vector<std::string> keys = shared_keys(possible);
  for (std::size_t at = 0; at < possible.size(); ++at) {
    const RoutingJob& job = possible[at];
    const auto group_key = state_->group_of_job.emplace(job.key(), keys[at]).first;
    std::shared_ptr<Announced>& group = state_->announced[group_key->second];
    if (!group) group = std::make_shared<Announced>();
    group->add(job, state_->layers_of(job));
  }
}

void RoutingCache::forget(std::span<const RoutingJob> jobs) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  for (const RoutingJob& job : jobs) {
    const auto group = state_->group_of(job);
    if (group == nullptr) continue;
    group->forget(job);
    // What was routed of a group says how long others take.
    if (group->place.empty() && group->units_done == 0) {
      state_->announced.erase(state_->group_of_job.at(job.key()));
      for (const RoutingJob& member : group->jobs) state_->group_of_job.erase(member.key());
    }
  }
}

double RoutingCache::seconds_spent() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->seconds_spent;
}

std::optional<double> RoutingCache::seconds_left() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->seconds_left();
}

void RoutingCache::on_layer(std::function<void()> watcher) {
  state_->on_layer = std::move(watcher);
}

std::shared_ptr<const ReplicaRouting> RoutingCache::get(const RoutingJob& job, int replica) {
  check(job);
  check_range("replica", replica, 0, std::numeric_limits<int>::max());
  const std::string key = entry_key(job, replica);
  std::shared_ptr<Batch> batch;
  {
    std::unique_lock<std::mutex> lock(state_->mutex);
    if (Result hit = state_->find(key)) return hit;
    while (const auto group = state_->to_measure(job)) state_->measure(*group, lock);
    if (Result hit = state_->find(key)) return hit;
    const auto running = state_->in_flight.find(key);
    batch = running != state_->in_flight.end() ? running->second : state_->start(job, replica);
  }
  const auto on_seconds = [&](double seconds) { state_->count_layer(*batch, seconds); };
  if (batch->help(state_->on_layer, on_seconds)) {
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
