#include "kernels/measure/sessions/trial.hpp"

#include <algorithm>
#include <cmath>
#include <exception>

#include "sim/base/statistics.hpp"

namespace moesim::kernels::measure {
namespace {

constexpr int most_unheld = 10;  // runs that began before all was queued, of a point

class Trial {
 public:
  Trial(Device& device, Group& group, const PointSpec& spec, std::uint64_t seed,
        const TrialOptions& options, const OnPhase& on_phase)
      : device_(device), group_(group), spec_(spec), options_(options), on_phase_(on_phase) {
    phase("prepare");
    // A rank that could not prepare must not leave the others in a barrier: all hear of it.
    std::string trouble;
    std::exception_ptr own;
    try {
      workload_ = device.prepare(spec, seed);
    } catch (const NotMeasurable& error) {
      trouble = std::string("n") + error.what(), own = std::current_exception();
    } catch (const OutOfDeviceMemory& error) {
      trouble = std::string("m") + error.what(), own = std::current_exception();
    }
    const std::vector<std::string> troubles = group_.all_gather(trouble);
    if (own) std::rethrow_exception(own);
    for (const std::string& other : troubles) {
      if (other.starts_with('n')) throw NotMeasurable(other.substr(1));
      if (other.starts_with('m')) throw OutOfDeviceMemory(other.substr(1));
    }
  }

  Point run(const std::string& suite) {
    if (!spec_.collective) return measure(suite);
    // The other ranks are in the middle of an exchange: there is no going on together. They hear of
    // it before the workload ends, which frees memory and so waits for them.
    try {
      return measure(suite);
    } catch (const NotMeasurable&) {
      throw;  // thrown by all ranks
    } catch (const OutOfDeviceMemory& error) {
      const std::string reason = std::string("in the middle of an exchange: ") + error.what();
      group_.abandon(reason);
      throw DeviceFailed(reason);
    } catch (const std::exception& error) {
      group_.abandon(error.what());
      throw;
    }
  }

 private:
  Point measure(const std::string& suite) {
    Point point;
    point.op = spec_.op;
    point.params = spec_.params;
    point.suite = suite;
    point.timer = workload_->timer();
    point.synthetic = workload_->synthetic();
    point.verify = verify();
    if (!point.valid()) return point;
    const bool settled = warm_up();
    cold(point);
    if (workload_->has_hot() && !spec_.collective) hot(point);
    trace(point);
    point.details = workload_->details();
    point.verify = verify();
    if (!point.valid()) {
      point.activity.reset();
      point.cold.reset();
      point.hot.reset();
      point.skew.reset();
    }
    if (!settled && point.quality == Quality::good) point.quality = Quality::unsettled;
    return point;
  }

  // The same on all ranks.
  bool shares_gpu() const { return spec_.collective && workload_->synthetic(); }

  void phase(const std::string& name) const {
    if (on_phase_) on_phase_(name);
  }

  std::string verify() {
    phase("verify");
    const std::vector<std::string> words = group_.all_gather(workload_->verify());
    for (std::size_t rank = 0; rank < words.size(); ++rank) {
      if (words[rank].empty()) continue;
      return words.size() == 1 ? words[rank] : "rank " + std::to_string(rank) + ": " + words[rank];
    }
    return "passed";
  }

  // All ranks' times of one run each; none if the device of one of them began before all was
  // queued, which all ranks hear of.
  std::vector<double> together(const Run& run) {
    const double own = run.held ? run.time_us : -1;
    std::vector<double> times = spec_.collective ? group_.gather(own) : std::vector<double>{own};
    if (*std::min_element(times.begin(), times.end()) >= 0) return times;
    if (++unheld_ > most_unheld) {
      throw NotMeasurable(
          "the host takes longer to queue a call than the device waits for it: is the machine "
          "busy?");
    }
    return {};
  }

  // The lowest clock of all ranks that know theirs; 0 if none does.
  double lowest_clock(double own) {
    double lowest = 0;
    for (const double each : group_.gather(own)) {
      if (each > 0 && (lowest == 0 || each < lowest)) lowest = each;
    }
    return lowest;
  }

  bool decide(bool own) {
    return spec_.collective ? group_.from_root(own ? "1" : "0") == "1" : own;
  }

  bool warm_up() {
    phase("warm-up");
    WarmUpRule limits = options_.warm_up;
    if (shares_gpu()) limits.most_s = std::min(limits.most_s, options_.shared_gpu_most_s);
    limits.least_s = std::max(limits.least_s, spec_.heat_s);
    limits.most_s = std::max(limits.most_s, 2 * spec_.heat_s);
    WarmUp rule(limits);
    const double start = device_.now_s();
    bool enough = false;
    while (!enough) {
      const std::vector<double> times = together(workload_->cold());
      if (times.empty()) continue;
      enough =
          decide(rule.add(*std::max_element(times.begin(), times.end()), device_.now_s() - start));
    }
    return rule.settled();
  }

  void cold(Point& point) {
    phase("cold");
    StoppingRule limits = spec_.collective ? options_.collectives : options_.kernels;
    if (shares_gpu()) limits.most_s = std::min(limits.most_s, options_.shared_gpu_most_s);
    Sampling sampling(limits);
    std::vector<double> clocks, least, apart;
    Stop stop = Stop::no;
    std::size_t calls = 1;
    const double start = device_.now_s();
    bool enough = false;
    while (!enough) {
      const Run run = workload_->cold();
      const std::vector<double> times = together(run);
      if (times.empty()) continue;
      calls = run.calls;
      const auto [fastest, slowest] = std::minmax_element(times.begin(), times.end());
      // An exchange is as slow as its slowest GPU.
      clocks.push_back(spec_.collective ? lowest_clock(run.clock_mhz) : run.clock_mhz);
      least.push_back(*fastest);
      apart.push_back((*slowest - *fastest) * static_cast<double>(run.calls));
      stop = sampling.add(*slowest, device_.now_s() - start);
      enough = decide(stop != Stop::no);
    }
    const Filtered filtered = filter_by_clock(sampling.samples(), clocks, options_.clock);
    point.cold =
        Figures{sampling.samples(), summarise(filtered.kept), stop, filtered.dropped, calls};
    point.clock_mhz = filtered.median_clock_mhz;
    if (spec_.collective) point.skew = Skew{median(least), median(apart)};
    if (stop == Stop::most_samples || stop == Stop::time) point.quality = Quality::unstable;
    if (filtered.throttled) point.quality = Quality::throttled;
  }

  void hot(Point& point) {
    phase("hot");
    const double once = std::max(point.cold->summary.median, 0.1);
    const auto calls =
        static_cast<std::size_t>(std::clamp(std::ceil(options_.hot_sample_us / once), 1.0,
                                            static_cast<double>(options_.most_hot_calls)));
    // The first one builds the graph and fills the caches.
    workload_->hot(calls);
    Sampling sampling(options_.hot);
    Stop stop = Stop::no;
    const double start = device_.now_s();
    while (stop == Stop::no) {
      const double each = workload_->hot(calls) / static_cast<double>(calls);
      stop = sampling.add(each, device_.now_s() - start);
    }
    point.hot = Figures{sampling.samples(), summarise(sampling.samples()), stop, 0, calls};
  }

  // A void trace costs its figures, not the times: those come from other runs.
  void trace(Point& point) {
    if (spec_.collective) return;
    phase("trace");
    try {
      point.activity = workload_->trace();
    } catch (const DeviceFailed&) {
      throw;
    } catch (const Error& error) {
      point.activity_trouble = error.what();
    }
  }

  Device& device_;
  Group& group_;
  const PointSpec& spec_;
  const TrialOptions& options_;
  const OnPhase& on_phase_;
  std::unique_ptr<Workload> workload_;
  int unheld_ = 0;
};

}  // namespace

Point measure_point(Device& device, Group& group, const PointSpec& spec, const std::string& suite,
                    std::uint64_t seed, const TrialOptions& options, const OnPhase& on_phase) {
  SoloGroup alone;
  Group& members = spec.collective ? group : static_cast<Group&>(alone);
  return Trial(device, members, spec, seed, options, on_phase).run(suite);
}

}  // namespace moesim::kernels::measure
