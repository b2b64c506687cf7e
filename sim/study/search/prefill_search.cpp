#include "sim/study/search/prefill_search.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <limits>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/no_answer.hpp"
#include "sim/study/search/search_limits.hpp"
#include "sim/study/search/search_stopped.hpp"
#include "sim/study/sweep/baseline.hpp"
#include "sim/study/sweep/counted_loss.hpp"

namespace moesim::study {
namespace {

bool fits(const FoundPass& pass, const SweepPoint& point, double share) {
  return pass.figure("memory_gib") <= share * point.scenario->profile->device().hbm_bytes.gib();
}

// An error that is no answer to a scenario. Not an Error itself: sweep() would make a row of it.
struct Defect {
  std::exception_ptr error;
};

bool is_defect(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error&) {
    try {
      why_unanswered();
      return false;
    } catch (const Error&) {
      return true;
    }
  }
}

// Keeps what the passes are compared by.
class KeptOutcomes {
 public:
  explicit KeptOutcomes(const PrefillSearch& search) : search_(search) {}

  Outcome evaluated(const scenario::Scenario& scenario, routing::RoutingCache& cache) {
    Outcome outcome = answered(scenario, cache);
    const std::lock_guard lock(mutex_);
    outcomes_[&scenario] = outcome;
    return outcome;
  }
  SpeedRatio ratio(const SweepPoint& point, const SweepPoint& baseline) const {
    if (&point == &baseline) return {};
    return speed_ratio(*point.scenario, outcomes_.at(&*point.scenario), *baseline.scenario,
                       outcomes_.at(&*baseline.scenario));
  }

 private:
  Outcome answered(const scenario::Scenario& scenario, routing::RoutingCache& cache) const {
    try {
      return search_.evaluate(scenario, cache);
    } catch (const Error&) {
      const std::exception_ptr error = std::current_exception();
      if (is_defect(error)) throw Defect{error};
      throw;
    }
  }

  const PrefillSearch& search_;
  std::mutex mutex_;
  std::map<const scenario::Scenario*, Outcome> outcomes_;
};

// Asks PrefillSearch::stop while scenarios are simulated, some of which take many seconds.
class StopWatch {
 public:
  explicit StopWatch(const std::function<bool()>& stop) {
    if (!stop) return;
    is_due_ = stop();
    thread_ = std::thread([this, stop] {
      constexpr std::chrono::milliseconds pause(20);
      std::unique_lock lock(mutex_);
      while (!ended_.wait_for(lock, pause, [this] { return has_ended_; })) {
        if (stop()) is_due_ = true;
      }
    });
  }
  StopWatch(const StopWatch&) = delete;  // of a thread
  StopWatch& operator=(const StopWatch&) = delete;
  ~StopWatch() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      has_ended_ = true;
    }
    ended_.notify_one();
    thread_.join();
  }

  const std::atomic<bool>& is_due() const { return is_due_; }

 private:
  std::atomic<bool> is_due_{false};
  std::mutex mutex_;
  std::condition_variable ended_;
  bool has_ended_ = false;
  std::thread thread_;
};

bool have_equal_figures(const FoundPass& one, const FoundPass& other) {
  const std::vector<Column>& columns = result_columns();
  for (std::size_t at = 0; at < columns.size(); ++at) {
    const ColumnRole role = columns[at].role;
    const bool counts =
        role == ColumnRole::figure || role == ColumnRole::loss || role == ColumnRole::part;
    if (counts && one.row[at] != other.row[at]) return false;
  }
  return true;
}

// Those that could be and fit, in the order of the scenarios; counts the others.
std::vector<FoundPass> passes_of(const PrefillSearch& search, const std::vector<SweepPoint>& points,
                                 SweepResult result, PrefillFound& found) {
  std::vector<FoundPass> passes;
  for (std::size_t at = 0; at < points.size(); ++at) {
    if (!result.rows[at]) {
      found.unfinished += points[at].repeats ? 0 : 1;
      continue;
    }
    FoundPass pass{points[at].values, std::move(*result.rows[at]), 0, at, {}};
    if (pass.text("status") != "ok") {
      ++found.refused;
      found.a_refusal = pass.text("reason");
      continue;
    }
    ++found.simulated;
    if (!fits(pass, points[at], search.memory_share)) {
      const double gib = pass.figure("memory_gib");
      found.least_gib = found.too_large++ == 0 ? gib : std::min(found.least_gib, gib);
      continue;
    }
    pass.loss = pass.figure(counted_loss_column);
    if (pass.figure("tokens_per_s_per_gpu") >= search.min_speed) passes.push_back(std::move(pass));
  }
  return passes;
}

// Sorts them, fastest first, and keeps of those with equal figures the first.
std::vector<FoundPass> ranked(std::vector<FoundPass> passes) {
  std::stable_sort(passes.begin(), passes.end(), [](const FoundPass& one, const FoundPass& other) {
    return one.figure("tokens_per_s_per_gpu") > other.figure("tokens_per_s_per_gpu");
  });
  std::vector<FoundPass> different;
  for (FoundPass& pass : passes) {
    const double speed = pass.figure("tokens_per_s_per_gpu");
    auto same = different.rbegin();
    while (same != different.rend() && same->figure("tokens_per_s_per_gpu") == speed &&
           !have_equal_figures(*same, pass)) {
      ++same;
    }
    if (same != different.rend() && same->figure("tokens_per_s_per_gpu") == speed) {
      same->equals.push_back(std::move(pass.options));
    } else {
      different.push_back(std::move(pass));
    }
  }
  return different;
}

}  // namespace

double FoundPass::figure(const std::string& column) const {
  return number_in(row[column_index(column)]);
}

std::string FoundPass::text(const std::string& column) const {
  const auto* found = std::get_if<std::string>(&row[column_index(column)]);
  return found != nullptr ? *found : "";
}

PrefillFound search_prefill(const PrefillSearch& search) {
  check_limits(search.best, search.memory_share, search.max_loss, search.min_speed);
  check_jobs(search.jobs);
  scenario::DocumentCache documents;
  std::vector<SweepPoint> points = plan(search.scenarios, documents);
  for (const SweepPoint& point : points) {
    if (point.refused_by && is_defect(point.refused_by)) std::rethrow_exception(point.refused_by);
  }
  mark_repeats(points);
  KeptOutcomes kept(search);
  const StopWatch watch(search.stop);
  SweepSettings settings;
  settings.jobs = search.jobs;
  settings.stop = &watch.is_due();
  settings.progress = search.progress;
  settings.evaluate = [&](const scenario::Scenario& scenario, routing::RoutingCache& cache) {
    return kept.evaluated(scenario, cache);
  };
  const auto swept = [&] {
    try {
      return sweep(points, settings);
    } catch (const Defect& defect) {
      std::rethrow_exception(defect.error);
    }
  };
  PrefillFound found;
  const std::vector<FoundPass> passes = ranked(passes_of(search, points, swept(), found));
  if (found.simulated == 0 && found.unfinished > 0) throw SearchStopped(found.unfinished);
  if (found.simulated == 0) throw Error(found.a_refusal);
  double least = std::numeric_limits<double>::infinity();
  for (const FoundPass& pass : passes) {
    if (pass.loss <= search.max_loss && found.best.size() < search.best) found.best.push_back(pass);
    if (!loses_clearly_less(pass.loss, least)) continue;
    found.front.push_back(pass);
    least = pass.loss;
  }
  if (found.best.empty()) return found;
  const SweepPoint& first = points[found.best.front().scenario];
  for (std::vector<FoundPass>* list : {&found.best, &found.front}) {
    for (FoundPass& pass : *list) {
      const SpeedRatio ratio = kept.ratio(points[pass.scenario], first);
      pass.row = with_baseline(std::move(pass.row), ratio);
    }
  }
  return found;
}

}  // namespace moesim::study
