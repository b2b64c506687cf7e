#include "sim/study/sweep/sweep.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>

#include <boost/functional/hash.hpp>

#include "sim/base/check_range.hpp"
#include "sim/base/digest.hpp"
#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/parallel.hpp"
#include "sim/base/shipped.hpp"
#include "sim/routing/simulation/kept_choices.hpp"
#include "sim/scenario/options.hpp"
#include "sim/study/sweep/baseline.hpp"
#include "sim/study/sweep/journal.hpp"

namespace moesim::study {
namespace {

Row refused(const SweepPoint& point, const std::string& reason) {
  return refused_row(point.scenario ? &*point.scenario : nullptr, point.values, reason);
}

std::size_t hash_of(const Row& row) {
  std::size_t hash = 0;
  for (const Cell& cell : row) {
    boost::hash_combine(hash, cell.index());
    if (const auto* text = std::get_if<std::string>(&cell)) {
      boost::hash_combine(hash, *text);
    } else {
      boost::hash_combine(hash, number_in(cell));
    }
  }
  return hash;
}

bool routes(const SweepPoint& point) {
  return point.refusal.empty() && point.scenario && point.scenario->has_moe();
}

// Grid order, except that scenarios that are routed together, which the cache serves best one after
// another, follow the first of them.
std::vector<std::size_t> evaluation_order(const std::vector<SweepPoint>& points) {
  std::vector<routing::RoutingJob> jobs;
  for (const SweepPoint& point : points) {
    if (routes(point)) jobs.push_back(point.scenario->routing_job());
  }
  const std::vector<std::string> keys = routing::shared_keys(jobs);
  auto key = keys.begin();
  std::map<std::string, std::size_t> first_of_key;
  std::vector<std::size_t> group;
  std::vector<std::size_t> order;
  for (std::size_t index = 0; index < points.size(); ++index) {
    const bool alone = !routes(points[index]);
    group.push_back(alone ? index : first_of_key.emplace(*key++, index).first->second);
    order.push_back(index);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return group[a] < group[b]; });
  return order;
}

// Time left by what took so long so far: the routing that is left, which the cache knows, and the
// rest of each row.
class Forecast {
 public:
  void expect(const std::vector<SweepPoint>& points, const std::vector<std::size_t>& waiting) {
    rows_left_ = waiting.size();
    for (const std::size_t index : waiting) routed_left_ += routes(points[index]) ? 1 : 0;
    start_ = std::chrono::steady_clock::now();
  }

  void add(const SweepPoint& point) {
    --rows_left_;
    ++rows_done_;
    if (!routes(point)) return;
    --routed_left_;
    has_routed_ = true;
  }

  // The seconds that are left; nothing while all rows so far needed no routing, and others do.
  std::optional<double> seconds_left(const routing::RoutingCache& cache,
                                     std::size_t threads) const {
    if (rows_left_ == 0) return 0.0;
    if (rows_done_ == 0 || (routed_left_ > 0 && !has_routed_)) return std::nullopt;
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start_;
    const double of_all = passed.count() * static_cast<double>(threads);
    const double others = std::max(0.0, of_all - cache.seconds_spent());
    const double of_rows =
        others / static_cast<double>(rows_done_) * static_cast<double>(rows_left_);
    return (cache.seconds_left().value_or(0.0) + of_rows) / static_cast<double>(threads);
  }

 private:
  std::size_t rows_left_ = 0, rows_done_ = 0, routed_left_ = 0;
  bool has_routed_ = false;
  std::chrono::steady_clock::time_point start_;
};

// Ends a pass of routing when the sweep is stopped.
struct Stopped {};

// The threads of one sweep: each takes the next scenario and puts its row in place.
class Workers {
 public:
  Workers(const std::vector<SweepPoint>& points, const SweepSettings& settings)
      : points_(points), settings_(settings) {
    result_.rows.resize(points.size());
    result_.total = static_cast<std::size_t>(std::count_if(
        points.begin(), points.end(), [](const SweepPoint& point) { return !point.repeats; }));
    progress_.total = result_.total;
    for (const auto& baseline : settings.baseline_of) {
      if (baseline) baselines_.try_emplace(*baseline);
    }
    if (!settings.journal.empty()) take_over();
    for (const auto& [index, row] : settings.known) {
      if (result_.rows[index]) continue;
      result_.rows[index] = row;
      ++progress_.resumed;
    }
    progress_.done = progress_.resumed;
    for (const std::size_t index : evaluation_order(points)) {
      if (!result_.rows[index] && !points[index].repeats) waiting_.push_back(index);
    }
    threads_ = std::min(static_cast<std::size_t>(settings.jobs), waiting_.size());
    forecast_.expect(points, waiting_);
    announce();
    cache_.on_layer([this] {
      if (stopped()) throw Stopped();
    });
  }

  SweepResult run() {
    if (settings_.progress) settings_.progress(progress_);
    parallel_for(threads_, static_cast<int>(threads_), [this](std::size_t) { work(); });
    if (failure_) std::rethrow_exception(failure_);
    return std::move(result_);
  }

 private:
  void take_over() {
    journal_ =
        std::make_unique<Journal>(settings_.journal, settings_.fingerprint, settings_.resume);
    for (const auto& [index, row] : journal_->rows()) {
      if (index >= points_.size()) continue;
      result_.rows[index] = row;
      ++progress_.resumed;
    }
  }

  void announce() {
    std::vector<routing::RoutingJob> routed;
    int replicas = 1;
    for (const std::size_t index : waiting_) {
      if (!routes(points_[index])) continue;
      routed.push_back(points_[index].scenario->routing_job());
      replicas = std::max(replicas, points_[index].scenario->replicas);
    }
    if (routed.empty()) return;
    cache_.announce(routed, replicas, {settings_.seconds_of_pass, static_cast<int>(threads_)});
  }

  bool stopped() const { return failed_ || (settings_.stop != nullptr && settings_.stop->load()); }

  void work() {
    while (!stopped()) {
      const std::size_t turn = next_.fetch_add(1);
      if (turn >= waiting_.size()) return;
      try {
        finish(waiting_[turn], make_row(points_[waiting_[turn]]));
      } catch (const Stopped&) {
        return;
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!failure_) failure_ = std::current_exception();
        failed_ = true;
      }
    }
  }

  Row make_row(const SweepPoint& point) {
    if (!point.refusal.empty()) return refused(point, point.refusal);
    try {
      const std::size_t index = static_cast<std::size_t>(&point - points_.data());
      Outcome outcome = *outcome_of(index);
      if (const auto baseline = baseline_at(points_, settings_.baseline_of, index)) {
        try {
          outcome.over_baseline = *baseline == index ? SpeedRatio{}
                                                     : speed_ratio(*point.scenario, outcome,
                                                                   *points_[*baseline].scenario,
                                                                   *outcome_of(*baseline));
        } catch (const Error&) {
          // A baseline that cannot be says so in its own row.
        }
      }
      return result_row(*point.scenario, outcome);
    } catch (const Error& error) {
      if (routes(point)) {
        const routing::RoutingJob job = point.scenario->routing_job();
        cache_.forget({&job, 1});  // nobody asks for what is left of it
      }
      return refused(point, error.what());
    }
  }

  // The outcome of a baseline, which several rows ask for, is evaluated once.
  std::shared_ptr<const Outcome> outcome_of(std::size_t index) {
    const auto evaluated = [&] {
      return std::make_shared<const Outcome>(settings_.evaluate(*points_[index].scenario, cache_));
    };
    const auto kept = baselines_.find(index);
    if (kept == baselines_.end()) return evaluated();
    std::call_once(kept->second.once, [&] { kept->second.outcome = evaluated(); });
    return kept->second.outcome;
  }

  void finish(std::size_t index, Row row) {
    const std::lock_guard lock(mutex_);
    if (journal_) journal_->add(index, row);
    result_.rows[index] = std::move(row);
    ++progress_.done;
    forecast_.add(points_[index]);
    progress_.seconds_left = forecast_.seconds_left(cache_, threads_);
    if (settings_.progress) settings_.progress(progress_);
  }

  struct Baseline {
    std::once_flag once;
    std::shared_ptr<const Outcome> outcome;
  };

  const std::vector<SweepPoint>& points_;
  const SweepSettings& settings_;
  std::map<std::size_t, Baseline> baselines_;
  routing::RoutingCache cache_;
  std::unique_ptr<Journal> journal_;
  std::vector<std::size_t> waiting_;
  std::size_t threads_ = 1;
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;  // guards what follows and the journal
  SweepResult result_;
  SweepProgress progress_;
  Forecast forecast_;
  std::exception_ptr failure_;
};

void fill(SweepPoint& point, scenario::DocumentCache& documents) {
  try {
    point.scenario = scenario::fill_in(point.values, documents, scenario::Use::step);
    scenario::check(*point.scenario);
  } catch (const Error& error) {
    point.refusal = error.what();
    point.refused_by = std::current_exception();
  }
}

}  // namespace

void check_jobs(int jobs) { check_range("--jobs", jobs, 1, most_jobs); }

bool SweepResult::complete() const {
  const auto present =
      std::count_if(rows.begin(), rows.end(), [](const auto& row) { return row.has_value(); });
  return static_cast<std::size_t>(present) == total;
}

void mark_repeats(std::vector<SweepPoint>& points) {
  // All rows would take some 400 MB of 100,000 scenarios: those of equal hash are made again.
  std::unordered_multimap<std::size_t, std::size_t> first;
  for (std::size_t index = 0; index < points.size(); ++index) {
    const Row row = refused(points[index], points[index].refusal);
    const std::size_t hash = hash_of(row);
    const auto [begin, end] = first.equal_range(hash);
    const auto known = std::find_if(begin, end, [&](const auto& one) {
      return refused(points[one.second], points[one.second].refusal) == row;
    });
    if (known != end) {
      points[index].repeats = known->second;
    } else {
      first.emplace(hash, index);
    }
  }
}

std::vector<SweepPoint> plan(const std::vector<scenario::OptionValues>& grid,
                             scenario::DocumentCache& documents) {
  std::set<std::pair<std::string, std::string>> checked;
  std::vector<SweepPoint> points;
  points.reserve(grid.size());
  for (const scenario::OptionValues& values : grid) {
    for (const auto& value : values) {
      if (checked.insert(value).second) scenario::check_value(value.first, value.second, documents);
    }
    points.push_back({values, std::nullopt, "", std::nullopt});
    fill(points.back(), documents);
  }
  return points;
}

SweepResult sweep(const std::vector<SweepPoint>& points, const SweepSettings& settings) {
  check_jobs(settings.jobs);
  check_range("SweepSettings::seconds_of_pass", settings.seconds_of_pass, 0, 1e9);
  const std::size_t baselines = settings.baseline_of.size();
  check_range("SweepSettings::baseline_of, points,", baselines, baselines == 0 ? 0 : points.size(),
              points.size());
  return Workers(points, settings).run();
}

std::string fingerprint(const std::vector<SweepPoint>& points, const std::string& build) {
  Digest digest;
  digest.add(build);
  for (const Column& column : result_columns()) digest.add(column.name);
  for (const std::string& name : shipped_names("residuals")) {  // which bands are made of
    digest.add(name).add(read_file(find_document("residuals", name)));
  }
  std::set<std::pair<std::string, Cell>> added;  // every file once
  for (const SweepPoint& point : points) {
    for (const scenario::Option& option : scenario::scenario_options()) {
      if (const auto typed = point.values.find(option.name); typed != point.values.end()) {
        digest.add(option.name);
        digest.add(typed->second);
      }
      if (option.contents == nullptr || !point.scenario) continue;
      if (!added.emplace(option.name, option.value(*point.scenario)).second) continue;
      digest.add(fmt::format("{:x}", option.contents(*point.scenario)));
    }
    digest.add("");
  }
  return fmt::format("{:016x}", digest.value());
}

}  // namespace moesim::study
