#include "sim/study/search/training_search.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

#include "sim/base/check_range.hpp"
#include "sim/base/error.hpp"
#include "sim/base/no_answer.hpp"
#include "sim/base/parallel.hpp"
#include "sim/study/search/any_acceptable.hpp"
#include "sim/study/search/balanced_job.hpp"
#include "sim/study/search/best_first.hpp"
#include "sim/study/search/candidate_bounds.hpp"
#include "sim/study/search/counted_step.hpp"
#include "sim/study/search/lossless_first.hpp"
#include "sim/study/search/possible_jobs.hpp"
#include "sim/study/search/search_candidate.hpp"
#include "sim/study/search/search_limits.hpp"
#include "sim/study/search/unanswered.hpp"
#include "sim/study/sweep/counted_loss.hpp"
#include "sim/study/sweep/sweep.hpp"

namespace moesim::study {
namespace {

using training::TrainingJob;
using training::TrainingStep;

double room_of(const TrainingSearch& search) {
  return search.memory_share *
         static_cast<double>(search.space.base.profile->device().hbm_bytes.count);
}

class Search {
 public:
  explicit Search(const TrainingSearch& search)
      : search_(search),
        room_(room_of(search)),
        possible_(possible_jobs(search.space)),
        drawn_(routings_of(search)),
        drawn_before_(drawn_->drawn()),
        lossless_(search_lossless(search, drawn_)),
        limit_us_(lossless_limit_us(search, lossless_)),
        bounding_(possible_.families, *drawn_,
                  {room_, search.software.get(), search.jobs, search.stop, limit_us_}) {}

  TrainingFound run() {
    try {
      show_bounded(0);
      bound_all();
    } catch (const SearchStopped&) {
      if (!has_lossless()) throw;
      return answer_of(std::move(*lossless_), possible_.count);
    }
    BestFirst order;
    for (const Candidate& candidate : candidates_) {
      order.bounds.push_back(candidate.bound_us);
    }
    order.jobs = search_.jobs;
    order.tighter = [&](std::size_t at) { return tighter_us(candidates_[at]); };
    order.value = [&](std::size_t at) { return step_us(candidates_[at]); };
    order.accept = [&](std::size_t at, double step_us) {
      if (search_.stop && search_.stop()) show_ending();
      return accept(candidates_[at], step_us);
    };
    order.progress = [&](std::size_t valued) {
      does_any_fit_ = any_fits_;
      show_progress(valued - skipped_);
    };
    order.stop = search_.stop;
    order.give_up = [&] {
      const std::lock_guard lock(mutex_);
      return search_.give_up && search_.give_up();
    };
    order.is_quick = [&](std::size_t at) {
      return candidates_[at].tightness == Tightness::own && may_be_listed(candidates_[at]) &&
             is_wanted(candidates_[at]);
    };
    const BestFirstCounts counts = run_best_first(order);
    found_.counts.violations += counts.violations;
    if (counts.stopped) {
      if (found_.best.empty() && !has_lossless()) find_any(order.give_up);
      take_lossless();
      note_unproven();
    } else {
      name_as_fast();
      count_twins();
    }
    found_.front = front_of(std::move(found_.front), found_.best);
    unanswered_.add_to(found_.counts);
    found_.counts.simulated += counts.valued - skipped_;
    found_.counts.drawn = drawn_->drawn() - drawn_before_;
    if (any_fits_) found_.smallest.reset();
    for (std::vector<FoundStep>* steps : {&found_.best, &found_.front}) {
      for (FoundStep& each : *steps) add_for_band(search_, *drawn_, each);
    }
    return std::move(found_);
  }

 private:
  // Between two batches. To count those that are left takes a while, where there are millions.
  void show_progress(std::size_t simulated) {
    if (!search_.progress) return;
    const auto now = std::chrono::steady_clock::now();
    if (now - shown_ < std::chrono::milliseconds(100)) return;
    shown_ = now;
    SearchProgress progress{possible_.count, simulated, 1};
    progress.tokens_per_second_per_gpu = fastest_.tokens_per_second_per_gpu;
    progress.may_be_faster = open_below(fastest_.step_us).count;
    progress.found = found_.best.size();
    search_.progress(progress);
  }

  bool has_lossless() const { return lossless_ && !lossless_->best.empty(); }

  // The candidates that are open, acceptable, and may take less time.
  struct Open {
    std::size_t count = 0;
    double least_us = std::numeric_limits<double>::infinity();
  };
  Open open_below(double step_us) const {
    Open open;
    for (const Candidate& candidate : candidates_) {
      const bool may_be = candidate.is_open && !is_settled(candidate) &&
                          candidate.bound_us < step_us && may_be_listed(candidate);
      if (!may_be) continue;
      ++open.count;
      open.least_us = std::min(open.least_us, candidate.bound_us);
    }
    return open;
  }

  bool may_be_listed(const Candidate& candidate) const {
    return bounds_[candidate.family].least_loss <= search_.max_loss;
  }

  // Behind a stop, by one thread.
  void show_ending() {
    if (!search_.progress) return;
    SearchProgress progress{possible_.count, times_.size(), 1, fastest_.tokens_per_second_per_gpu};
    progress.is_ending = true;
    search_.progress(progress);
  }

  // After a stop before there was an acceptable step.
  void find_any(const std::function<bool()>& give_up) {
    std::vector<Candidate*> tried;
    AnyAcceptable any;
    for (Candidate& each : candidates_) {
      if (!each.is_open || loss(each) > search_.max_loss) continue;
      any.candidates.push_back({each.family, each.bound_us});
      tried.push_back(&each);
    }
    any.may_fit = [&](std::size_t at) {
      show_ending();
      while (tighten(*tried[at])) {
      }
      return !std::isinf(tried[at]->bound_us);
    };
    any.is_acceptable = [&](std::size_t at) {
      if (const auto simulated_us = step_us(*tried[at])) accept(*tried[at], *simulated_us);
      return !found_.best.empty();
    };
    any.give_up = give_up;
    found_.counts.simulated += find_acceptable(any);
  }

  // Whether search_lossless() has ended with what this candidate could be, and told the best.
  bool is_settled(const Candidate& candidate) const {
    if (!lossless_ || lossless_->unproven) return false;
    const auto& routing = search_.space.routings[family(candidate).routing()];
    return !routing || !routing->router.drops;
  }

  // The answer of a search that was stopped is no worse than that of search_lossless(): a layout
  // found there may not have come up again. best_ no longer belongs to found_.best.
  void take_lossless() {
    if (!has_lossless()) return;
    any_fits_ = true;
    found_.front.insert(found_.front.end(), lossless_->front.begin(), lossless_->front.end());
    found_.best = best_of_both(search_, std::move(found_.best), lossless_->best);
  }

  void note_unproven() {
    constexpr double any = std::numeric_limits<double>::infinity();
    if (unbounded_ > 0) {
      const double best_us = found_.best.empty() ? any : found_.best.front().step.step_us;
      found_.unproven = {.may_be_faster = open_below(best_us).count + unbounded_, .least_us = 0};
      return;
    }
    const double least_us = open_below(any).least_us;
    Unproven unproven;
    for (const FoundStep& step : found_.best) {
      if (step.step.step_us > least_us) break;
      ++unproven.proven;
    }
    const bool all = unproven.proven == found_.best.size();
    if (!all || found_.best.size() < search_.best) {
      const Open open = open_below(all ? any : found_.best[unproven.proven].step.step_us);
      unproven.may_be_faster = open.count;
      unproven.least_us = open.least_us;
    }
    found_.unproven = unproven;
  }

  // Another share of what comes before the first step is done; by several threads.
  void show_bounded(double share) {
    if (!search_.progress) return;
    const std::lock_guard lock(mutex_);
    bounded_ = std::min(bounded_ + share, 1.0);
    search_.progress({possible_.count, 0, bounded_});
  }

  void bound_all() {
    bounds_ = bounding_.bound_all([&](double share) { show_bounded(share); });
    SearchCounts& counts = found_.counts;
    counts.combinations = possible_.combinations;
    counts.refused = possible_.refused;
    counts.candidates = possible_.count;
    for (std::size_t at = 0; at < bounds_.size(); ++at) {
      FamilyBounds& bounds = bounds_[at];
      if (!bounds.misfit.empty()) {
        counts.undrawn += possible_.families[at].size();
        counts.an_undrawn = bounds.misfit;
        continue;
      }
      if (!bounds.refusal.empty()) {
        counts.unpriced += possible_.families[at].size();
        counts.an_unpriced = bounds.refusal;
        continue;
      }
      if (!bounds.is_known) {
        unbounded_ += possible_.families[at].size();
        continue;
      }
      counts.priced += bounds.priced ? 1 : 0;
      const auto family = static_cast<std::uint32_t>(at);
      std::uint16_t place = 0;
      for (const CandidateBound& bound : bounds.bounds) {
        add({bound.step_us, family, place++, bounds.tightness()}, bound.memory);
      }
      bounds.bounds = {};
    }
    if (unbounded_ > 0 && (candidates_.empty() || has_lossless())) throw SearchStopped();
    // More memory, or another optimizer, would not price those that fit.
    if (counts.unpriced > 0 && counts.unpriced + counts.too_large == counts.candidates) {
      throw NotMeasured(counts.an_unpriced);
    }
    if (counts.undrawn > 0 &&
        counts.undrawn + counts.unpriced + counts.too_large == counts.candidates) {
      throw UsageError(counts.an_undrawn);
    }
    // Among equal times the one that loses less comes first.
    std::stable_sort(
        candidates_.begin(), candidates_.end(),
        [&](const Candidate& one, const Candidate& other) { return loss(one) < loss(other); });
    // What is left may fit; which does not is found by simulation.
    if (!candidates_.empty()) found_.smallest.reset();
  }

  const TrainingFamily& family(const Candidate& candidate) const {
    return possible_.families[candidate.family];
  }
  TrainingJob job(const Candidate& candidate) const {
    return family(candidate).job(candidate.place);
  }
  double loss(const Candidate& candidate) const { return bounds_[candidate.family].loss; }

  // The step with its own draws. Nobody asks a search for its steps under forced balance.
  TrainingStep drawn_step(const Candidate& candidate) {
    const TrainingJob made = job(candidate);
    if (!made.routing) return training::training_step(made);
    return training::training_step(made, drawn_->loads(made), false);
  }

  // Its time and memory: what it loses may be missing. Padded blocks take the same time whatever
  // they hold: only what is found is drawn.
  TrainingStep timed_step(const Candidate& candidate) {
    const TrainingJob made = job(candidate);
    const BalancedJob balanced(made);
    if (balanced.is_exact) return training::training_step(balanced.job);
    return training::training_step(made, drawn_->rows(made), false);
  }

  bool tighten(Candidate& candidate) {
    bool is_tighter = false;
    unanswered_.answers(candidate, [&] {
      is_tighter = bounding_.tighten(candidate.family, candidate.place, candidate.tightness,
                                     candidate.bound_us);
    });
    return is_tighter;
  }

  std::optional<double> tighter_us(Candidate& candidate) {
    if (!is_wanted(candidate) || !tighten(candidate)) return std::nullopt;
    return candidate.bound_us;
  }

  // By several threads, each with a candidate of its own. Null: it is unanswered.
  const Timed* simulate(const Candidate& candidate) {
    Timed timed;
    const auto work = [&] {
      const TrainingStep step = counted_step(search_, job(candidate), timed_step(candidate));
      timed = {step.step_us, step.tokens_per_second_per_gpu, step.peak_memory()};
    };
    if (!unanswered_.answers(candidate, work)) return nullptr;
    const std::lock_guard lock(mutex_);
    const bool is_one = static_cast<double>(timed.memory.count) <= room_ &&
                        timed.tokens_per_second_per_gpu >= search_.min_speed &&
                        loss(candidate) <= search_.max_loss;
    if (is_one && timed.step_us < fastest_.step_us) fastest_ = timed;
    return &times_.emplace(&candidate, timed).first->second;
  }

  // Other graphs with which the best are as fast, those behind the last of them too.
  void name_as_fast() {
    if (search_.space.graphs.size() < 2) return;
    for (std::size_t place = 0; place < found_.best.size(); ++place) {
      const double limit = (1 + same_time) * found_.best[place].step.step_us;
      for (Candidate& candidate : candidates_) {
        const bool may_be = candidate.bound_us <= limit && loss(candidate) <= search_.max_loss &&
                            differ_in_graphs(key(*best_[place]), key(candidate));
        if (!may_be) continue;
        while (candidate.bound_us <= limit && tighten(candidate)) {
        }
        if (candidate.bound_us > limit) continue;
        const bool is_new = !times_.contains(&candidate);
        const Timed* timed = is_new ? simulate(candidate) : &times_.at(&candidate);
        if (timed == nullptr) continue;
        found_.counts.simulated += is_new ? 1 : 0;
        if (static_cast<double>(timed->memory.count) > room_ || timed->step_us > limit) continue;
        found_.best[place].twins.add_as_fast(job(candidate).graphs);
      }
    }
  }

  // Those of the best with their bounds, which are in the order of candidates_.
  void count_twins() {
    if (search_.twin_margin <= 0) return;
    std::set<const Candidate*> counted(best_.begin(), best_.end());
    for (std::size_t place = 0; place < found_.best.size(); ++place) {
      FoundStep& best = found_.best[place];
      const double limit = (1 + search_.twin_margin) * best.step.step_us;
      std::vector<Candidate*> alike;
      std::vector<const Candidate*> near;
      std::vector<const Candidate*> untimed;
      for (Candidate& candidate : candidates_) {
        const bool may_be = candidate.bound_us <= limit && counted.count(&candidate) == 0 &&
                            loss(candidate) <= search_.max_loss;
        if (may_be && key(*best_[place]) == key(candidate)) alike.push_back(&candidate);
      }
      parallel_for(alike.size(), search_.jobs, [&](std::size_t at) {
        while (alike[at]->bound_us <= limit && tighten(*alike[at])) {
        }
      });
      for (const Candidate* candidate : alike) {
        if (candidate->bound_us > limit) continue;
        near.push_back(candidate);
        if (!times_.contains(candidate)) untimed.push_back(candidate);
      }
      const std::size_t timed_before = times_.size();
      parallel_for(untimed.size(), search_.jobs, [&](std::size_t at) { simulate(*untimed[at]); });
      found_.counts.simulated += times_.size() - timed_before;
      std::erase_if(near, [&](const Candidate* candidate) { return !times_.contains(candidate); });
      for (const Candidate* candidate : near) {
        const Timed& timed = times_.at(candidate);
        if (static_cast<double>(timed.memory.count) > room_ || timed.step_us > limit) continue;
        counted.insert(candidate);
        best.twins.add(job(*candidate), best.job, timed.step_us / best.step.step_us - 1);
      }
    }
  }

  // By several threads.
  void note_too_large(const Candidate& candidate, Bytes memory) {
    const std::lock_guard lock(mutex_);
    if (found_.smallest && found_.smallest_memory <= memory) return;
    found_.smallest = job(candidate);
    found_.smallest_memory = memory;
  }

  void add(const Candidate& candidate, Bytes memory) {
    if (static_cast<double>(memory.count) <= room_) {
      if (candidate.bound_us > limit_us_) return;  // of no use
      least_loss_ = std::min(least_loss_, loss(candidate));
      candidates_.push_back(candidate);
      return;
    }
    ++found_.counts.too_large;
    note_too_large(candidate, memory);
  }

  bool loses_less(const Candidate& candidate) const {
    return loses_clearly_less(loss(candidate), front_loss_);
  }

  // Whether a step of this loss, slower than all accepted so far, would be of any use.
  bool is_wanted(const Candidate& candidate) const {
    if (loses_less(candidate)) return true;
    const double least_loss = bounds_[candidate.family].least_loss;
    if (least_loss > search_.max_loss || found_.best.size() >= search_.best) return false;
    return !is_outdone(candidate);
  }

  bool is_outdone(const Candidate& candidate) const {
    return chosen_.outdo(key(candidate), loss(candidate));
  }

  LayoutKey key(const Candidate& candidate) const {
    const TrainingFamily& of = family(candidate);
    return layout_key(of.layout(candidate.place), of.common(), search_.chunks_tell_apart);
  }

  std::optional<double> step_us(Candidate& candidate) {
    candidate.is_open = false;
    // What is known not to fit matters where nothing fits, which is then told the smallest of.
    const bool is_idle = does_any_fit_ && std::isinf(candidate.bound_us);
    const Timed* step = is_idle || !is_wanted(candidate) ? nullptr : simulate(candidate);
    if (step == nullptr) {
      ++skipped_;
      return std::nullopt;
    }
    if (static_cast<double>(step->memory.count) > room_) {
      note_too_large(candidate, step->memory);
      return std::nullopt;
    }
    any_fits_ = true;
    if (step->tokens_per_second_per_gpu < search_.min_speed) return std::nullopt;
    return step->step_us;
  }

  bool accept(const Candidate& candidate, double simulated_us) {
    FoundStep found{job(candidate), {}, family(candidate).routing(), 0, {}, {}};
    const auto draw = [&] { set_step(search_, drawn_step(candidate), found); };
    if (is_wanted(candidate) && unanswered_.answers(candidate, draw)) {
      if (std::abs(found.step.step_us / simulated_us - 1) > same_time) ++found_.counts.violations;
      if (loses_less(candidate)) {
        front_loss_ = loss(candidate);
        found_.front.push_back(found);
      }
      const bool is_new = !is_outdone(candidate);
      if (is_new && found.loss <= search_.max_loss && found_.best.size() < search_.best) {
        const auto place = chosen_.add(key(candidate), loss(candidate), found.step.step_us);
        if (place) {
          found_.best[*place].twins.add_as_fast(found.job.graphs);
        } else {
          found_.best.push_back(found);
          best_.push_back(&candidate);
        }
      }
    }
    return found_.best.size() < search_.best || loses_clearly_less(least_loss_, front_loss_);
  }

  const TrainingSearch& search_;
  double room_;
  TrainingCandidates possible_;
  std::shared_ptr<DrawnRoutings> drawn_;
  std::size_t drawn_before_ = 0;
  std::optional<TrainingFound> lossless_;
  double limit_us_;
  CandidateBounds bounding_;
  std::vector<FamilyBounds> bounds_;  // of each family
  std::size_t unbounded_ = 0;         // candidates whose losses were not drawn: stopped before
  std::vector<Candidate> candidates_;
  std::unordered_map<const Candidate*, Timed> times_;  // of those simulated
  Unanswered unanswered_;
  Timed fastest_{std::numeric_limits<double>::infinity(), 0, {}};  // that is acceptable
  TrainingFound found_;
  std::vector<const Candidate*> best_;  // of found_.best
  ChosenLayouts chosen_;
  double front_loss_ = std::numeric_limits<double>::infinity();  // least of the front
  double least_loss_ = std::numeric_limits<double>::infinity();  // of all candidates
  std::atomic<std::size_t> skipped_{0};
  std::atomic<bool> any_fits_{false};
  bool does_any_fit_ = false;  // the same, before the candidates that are valued now
  double bounded_ = 0;         // as SearchProgress has it
  std::chrono::steady_clock::time_point shown_;
  std::mutex mutex_;
};

}  // namespace

TrainingFound search_training(const TrainingSearch& search) {
  check_limits(search.best, search.memory_share, search.max_loss, search.min_speed);
  check_range("TrainingSearch::twin_margin", search.twin_margin, 0, 1);
  check_jobs(search.jobs);
  return Search(search).run();
}

}  // namespace moesim::study
