#include "sim/study/search/training_search.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/parallel.hpp"
#include "sim/study/search/balanced_job.hpp"
#include "sim/study/search/best_first.hpp"
#include "sim/study/search/counted_loss.hpp"
#include "sim/training/drawn/routing_misfit.hpp"
#include "sim/training/step/layer_time.hpp"
#include "sim/training/step/step_bound.hpp"

namespace moesim::study {
namespace {

constexpr double same_time = 1e-9;
// Standard errors of a loss: whether it is too much is then decided by the step's own draws.
constexpr double certainty = 3;
constexpr double time_of_routings = 0.5;  // share of what comes before the first step, roughly
constexpr double least_gain = 0.99;       // of the loss, from one step of the front to the next

using training::TrainingJob;
using training::TrainingStep;

struct Bound {
  double step_us = 0;
  Bytes memory;
};

// How tight the bound of a candidate with drawn routing is.
enum class Tightness : std::uint8_t {
  balanced,  // of least_load(), without a draw
  least,     // of DrawnRoutings::least(), not its own
  own,       // of its own loads, or there are no others
};

// A search may have millions: what those of a family share, FamilyBounds has.
struct Candidate {
  double bound_us = 0;
  std::uint32_t family = 0;
  std::uint16_t place = 0;  // of its jobs
  Tightness tightness = Tightness::own;
};

// Of a simulated candidate.
struct Timed {
  double step_us = 0;
  double tokens_per_second_per_gpu = 0;
  Bytes memory;
};

// The bounds of all jobs of a family. Layers are priced only where one of them may fit.
struct FamilyBounds {
  std::vector<Bound> bounds;  // until there are candidates of them
  bool fits = false;
  bool priced = false;
  bool is_exact = false;  // as BalancedJob has it
  std::string refusal;    // why layers cannot be priced; "": they can
  std::string misfit;     // why the recorded routing does not fit; "": it does
  double loss = 0;        // expected
  double least_loss = 0;  // that the draws of a job may have
};

FamilyBounds memory_of(const TrainingFamily& family, double room) {
  FamilyBounds found;
  for (std::size_t at = 0; at < family.size(); ++at) {
    found.bounds.push_back({0, training::memory_bound(BalancedJob(family.job(at)).job)});
    found.fits |= static_cast<double>(found.bounds.back().memory.count) <= room;
  }
  return found;
}

void set_times(const TrainingFamily& family, const training::LayerPrices& prices,
               std::span<const training::Passes> least, double room,
               const uncertainty::StepSoftware* software, std::vector<Bound>& bounds) {
  uncertainty::CrossingParts crossing{};
  if (software != nullptr) crossing = training::crossing_parts(family.first());
  for (std::size_t at = 0; at < family.size(); ++at) {
    if (static_cast<double>(bounds[at].memory.count) > room) continue;
    const double bound = training::step_bound_us(family.job(at), prices, least);
    bounds[at].step_us = software != nullptr ? software->least_us(bound, crossing) : bound;
  }
}

void add_times(const TrainingFamily& family, const routing::TokenLoss& loss, double room,
               const uncertainty::StepSoftware* software, FamilyBounds& found) {
  if (!found.fits) return;
  try {
    const BalancedJob first(family.first());
    const training::LayerPrices prices(first.job);
    found.priced = true;
    found.is_exact = first.is_exact;
    std::vector<training::Passes> least;
    if (!first.is_exact) least.push_back(least_moe_layer(prices, first.least_load(loss)));
    set_times(family, prices, least, room, software, found.bounds);
  } catch (const Error& error) {
    found.refusal = error.what();
  }
}

std::shared_ptr<DrawnRoutings> routings_of(const TrainingSearch& search) {
  return search.drawn ? search.drawn : std::make_shared<DrawnRoutings>();
}

double room_of(const TrainingSearch& search) {
  const Bytes memory = search.space.base.profile->device().hbm_bytes;
  return search.memory_share * static_cast<double>(memory.count);
}

TrainingCandidates possible_jobs(const TrainingSpace& space) {
  TrainingCandidates possible = candidates_of(space);
  if (possible.count > 0) return possible;
  if (possible.combinations == 0) {
    throw UsageError(
        fmt::format("none of the layouts asked for is possible: their sizes do not divide {} GPUs; "
                    "change --gpus, or give --tensor-parallel, --context-parallel, "
                    "--pipeline-parallel and --expert-parallel sizes that divide it",
                    space.base.layout.layout.gpus));
  }
  std::string text =
      fmt::format("none of the {} layouts asked for is possible{}{}", possible.combinations,
                  possible.a_refusal.empty() ? "" : ": ", possible.a_refusal);
  const std::vector<std::string> nearest = nearest_possible(space);
  if (!nearest.empty()) {
    text += fmt::format("; nearest that are: {}", fmt::join(nearest, "; "));
  }
  throw UsageError(text);
}

// What tells apart the routings of jobs that are searched together.
std::string routing_key(const TrainingJob& job) {
  if (!job.routing) return "";
  const routing::RouterConfig& router = job.routing->router;
  return router.name() + (router.drops ? " " + router.capacity_factor.text() : "");
}

// What same_sizes() compares of a layout, and of the rest of its job, which has to live on.
auto sizes_of(const parallel::LayoutRequest& layout, const TrainingJob& rest,
              bool chunks_tell_apart) {
  const parallel::ParallelLayout& sizes = layout.layout;
  return std::tuple(sizes.tensor, sizes.context, sizes.pipeline,
                    chunks_tell_apart ? sizes.virtual_pipeline : 0, sizes.expert,
                    sizes.expert_tensor, layout.micro_batch, layout.expert_overlap,
                    rest.states.precision, std::string_view(rest.typed.dispatcher));
}

// As the software of the search runs it.
TrainingStep counted_step(const TrainingSearch& search, const TrainingJob& job,
                          const TrainingStep& predicted) {
  if (!search.software) return predicted;
  return search.software->applied(predicted, training::crossing_parts(job));
}

class Search {
 public:
  explicit Search(const TrainingSearch& search)
      : search_(search),
        room_(room_of(search)),
        possible_(possible_jobs(search.space)),
        drawn_(routings_of(search)),
        drawn_before_(drawn_->drawn()) {}

  TrainingFound run() {
    show_bounded(0);
    bound_all();
    drawn_bounds_ = std::vector<DrawnBounds>(possible_.families.size());
    BestFirst order;
    for (const Candidate& candidate : candidates_) {
      order.bounds.push_back(candidate.bound_us);
    }
    order.jobs = search_.jobs;
    order.tighter = [&](std::size_t at) { return tighter_us(candidates_[at]); };
    order.value = [&](std::size_t at) { return step_us(candidates_[at]); };
    order.accept = [&](std::size_t at, double step_us) { return accept(candidates_[at], step_us); };
    order.progress = [&](std::size_t valued) {
      does_any_fit_ = any_fits_;
      show_progress(valued - skipped_);
    };
    const BestFirstCounts counts = run_best_first(order);
    found_.counts.violations += counts.violations;
    count_twins();
    found_.counts.simulated += counts.valued - skipped_;
    found_.counts.drawn = drawn_->drawn() - drawn_before_;
    if (any_fits_) found_.smallest.reset();
    return std::move(found_);
  }

 private:
  void show_progress(std::size_t simulated) const {
    if (search_.progress) search_.progress({possible_.count, simulated, 1});
  }

  // Another share of what comes before the first step is done; by several threads.
  void show_bounded(double share) {
    if (!search_.progress) return;
    const std::lock_guard lock(mutex_);
    bounded_ = std::min(bounded_ + share, 1.0);
    search_.progress({possible_.count, 0, bounded_});
  }

  void bound_all() {
    const std::vector<TrainingFamily>& families = possible_.families;
    std::vector<FamilyBounds>& bounds = bounds_;
    bounds.resize(families.size());
    parallel_for(bounds.size(), search_.jobs,
                 [&](std::size_t at) { bounds[at] = memory_of(families[at], room_); });
    std::deque<TrainingJob> jobs;  // one of those with the same loss
    std::set<std::tuple<std::size_t, std::int64_t, int>> seen;
    std::vector<DrawnRoutings::Asked> wanted;
    for (std::size_t at = 0; at < bounds.size(); ++at) {
      if (!bounds[at].fits) continue;
      const TrainingJob first = families[at].first();
      bounds[at].misfit = training::routing_misfit(first);
      const bool is_new =
          seen.emplace(families[at].routing(), std::llround(first.tokens_per_rank()),
                       first.layout.layout.expert)
              .second;
      if (!bounds[at].misfit.empty() || !is_new) continue;
      jobs.push_back(first);
      wanted.push_back({families[at].routing(), &jobs.back()});
    }
    drawn_->draw_losses(wanted, search_.jobs, [&](std::size_t draws) {
      show_bounded(time_of_routings / static_cast<double>(draws));
    });
    const double share = (1 - bounded_) / static_cast<double>(bounds.size());
    parallel_for(bounds.size(), search_.jobs, [&](std::size_t at) {
      if (bounds[at].misfit.empty()) {
        const TrainingJob first = families[at].first();
        const training::ExpectedLoss& loss = drawn_->loss({families[at].routing(), &first});
        bounds[at].loss = loss.loss.residual_loss;
        bounds[at].least_loss = loss.loss.residual_loss - certainty * loss.error;
        add_times(families[at], loss.loss, room_, search_.software.get(), bounds[at]);
      }
      show_bounded(share);
    });
    SearchCounts& counts = found_.counts;
    counts.combinations = possible_.combinations;
    counts.refused = possible_.refused;
    counts.candidates = possible_.count;
    for (std::size_t at = 0; at < bounds.size(); ++at) {
      if (!bounds[at].misfit.empty()) {
        counts.undrawn += families[at].size();
        counts.an_undrawn = bounds[at].misfit;
        continue;
      }
      if (!bounds[at].refusal.empty()) {
        counts.unpriced += families[at].size();
        counts.an_unpriced = bounds[at].refusal;
        continue;
      }
      counts.priced += bounds[at].priced ? 1 : 0;
      const Tightness tightness = bounds[at].is_exact ? Tightness::own : Tightness::balanced;
      const auto family = static_cast<std::uint32_t>(at);
      std::uint16_t place = 0;
      for (const Bound& bound : bounds[at].bounds) {
        add({bound.step_us, family, place++, tightness}, bound.memory);
      }
      bounds[at].bounds = {};
    }
    if (counts.unpriced == counts.candidates) throw Error(counts.an_unpriced);
    if (counts.undrawn > 0 &&
        counts.undrawn + counts.unpriced + counts.too_large == counts.candidates) {
      throw UsageError(counts.an_undrawn);
    }
    // Of equal times the one that loses less comes first.
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

  // The step with its own draws.
  TrainingStep drawn_step(const Candidate& candidate) {
    const TrainingJob made = job(candidate);
    if (!made.routing) return training::training_step(made);
    return training::training_step(made, drawn_->loads({family(candidate).routing(), &made}));
  }

  // Its time and memory: what it loses may be missing. Padded blocks take the same time whatever
  // they hold: only what is found is drawn.
  TrainingStep timed_step(const Candidate& candidate) {
    const TrainingJob made = job(candidate);
    const BalancedJob balanced(made);
    if (balanced.is_exact) return training::training_step(balanced.job);
    const DrawnRoutings::Loads loads = drawn_->rows({family(candidate).routing(), &made});
    return training::training_step(made, loads, false);
  }

  // The bounds of a family from drawn loads, as tight as they have become. What does not fit has an
  // infinite one.
  struct DrawnBounds {
    std::mutex mutex;
    Tightness tightness = Tightness::balanced;
    std::vector<double> step_us;
  };

  void tighten(const TrainingFamily& family, DrawnBounds& bounds) {
    const TrainingJob first = family.first();
    const DrawnRoutings::Asked asked{family.routing(), &first};
    const DrawnRoutings::Least least = bounds.tightness == Tightness::balanced
                                           ? drawn_->least(asked)
                                           : DrawnRoutings::Least{drawn_->rows(asked), true};
    std::vector<Bound> found(family.size());
    for (std::size_t at = 0; least.are_own && at < found.size(); ++at) {
      found[at].memory = training::memory_bound(family.job(at), least.loads.get());
    }
    const training::LayerPrices prices(first);
    set_times(family, prices, drawn_moe_layers(prices, *least.loads, least.are_own), room_,
              search_.software.get(), found);
    bounds.step_us.clear();
    for (const Bound& bound : found) {
      const bool fits = static_cast<double>(bound.memory.count) <= room_;
      bounds.step_us.push_back(fits ? bound.step_us : std::numeric_limits<double>::infinity());
    }
    bounds.tightness = least.are_own ? Tightness::own : Tightness::least;
  }

  // False: it is as tight as it can be. By several threads, each with a candidate of its own.
  bool tighten(Candidate& candidate) {
    if (candidate.tightness == Tightness::own) return false;
    DrawnBounds& bounds = drawn_bounds_[candidate.family];
    const std::lock_guard lock(bounds.mutex);
    if (bounds.tightness == candidate.tightness) {
      tighten(possible_.families[candidate.family], bounds);
    }
    candidate.tightness = bounds.tightness;
    double& known = candidate.bound_us;
    known = std::max(known, bounds.step_us[candidate.place]);
    return true;
  }

  std::optional<double> tighter_us(Candidate& candidate) {
    if (!is_wanted(candidate) || !tighten(candidate)) return std::nullopt;
    return candidate.bound_us;
  }

  // By several threads, each with a candidate of its own.
  const Timed& simulate(const Candidate& candidate) {
    const TrainingStep step = counted_step(search_, job(candidate), timed_step(candidate));
    const Timed timed{step.step_us, step.tokens_per_second_per_gpu, step.peak_memory()};
    const std::lock_guard lock(mutex_);
    return times_.emplace(&candidate, timed).first->second;
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
        if (may_be && is_same(*best_[place], candidate)) alike.push_back(&candidate);
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
      parallel_for(untimed.size(), search_.jobs, [&](std::size_t at) { simulate(*untimed[at]); });
      found_.counts.simulated += untimed.size();
      for (const Candidate* candidate : near) {
        const Timed& timed = times_.at(candidate);
        if (static_cast<double>(timed.memory.count) > room_ || timed.step_us > limit) continue;
        counted.insert(candidate);
        add_twin(job(*candidate), timed.step_us, best);
      }
    }
  }

  static void add_twin(const TrainingJob& twin, double step_us, FoundStep& best) {
    Twins& twins = best.twins;
    ++twins.count;
    twins.slowest = std::max(twins.slowest, step_us / best.step.step_us - 1);
    const bool chunks =
        twin.layout.layout.virtual_pipeline != best.job.layout.layout.virtual_pipeline;
    twins.virtual_stages |= chunks;
    twins.split |= !chunks && parallel::stages_of(*twin.model, twin.layout).text() !=
                                  parallel::stages_of(*best.job.model, best.job.layout).text();
    twins.recompute |= model::name_of(twin.recompute) != model::name_of(best.job.recompute);
    twins.placement |= twin.ranks_per_domain != best.job.ranks_per_domain;
    twins.routing |= routing_key(twin) != routing_key(best.job);
    twins.zero |= twin.states.zero != best.job.states.zero;
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
      least_loss_ = std::min(least_loss_, loss(candidate));
      candidates_.push_back(candidate);
      return;
    }
    ++found_.counts.too_large;
    note_too_large(candidate, memory);
  }

  bool loses_less(const Candidate& candidate) const {
    return loss(candidate) < least_gain * front_loss_;
  }

  // Whether a step of this loss, slower than all accepted so far, would be of any use.
  bool is_wanted(const Candidate& candidate) const {
    if (loses_less(candidate)) return true;
    const double least_loss = bounds_[candidate.family].least_loss;
    if (least_loss > search_.max_loss || found_.best.size() >= search_.best) return false;
    return !is_outdone(candidate);
  }

  // By one of the best, of the same sizes: that is no slower, as candidates come in order, and
  // loses as little.
  bool is_outdone(const Candidate& candidate) const {
    return std::any_of(best_.begin(), best_.end(), [&](const Candidate* other) {
      return least_gain * loss(*other) <= loss(candidate) && is_same(*other, candidate);
    });
  }

  bool is_same(const Candidate& one, const Candidate& other) const {
    const auto sizes = [&](const Candidate& candidate) {
      const TrainingFamily& of = family(candidate);
      return sizes_of(of.layout(candidate.place), of.common(), search_.chunks_tell_apart);
    };
    return sizes(one) == sizes(other);
  }

  std::optional<double> step_us(const Candidate& candidate) {
    // What is known not to fit matters where nothing fits, which is then told the smallest of.
    const bool is_idle = does_any_fit_ && std::isinf(candidate.bound_us);
    if (is_idle || !is_wanted(candidate)) {
      ++skipped_;
      return std::nullopt;
    }
    const Timed& step = simulate(candidate);
    if (static_cast<double>(step.memory.count) > room_) {
      note_too_large(candidate, step.memory);
      return std::nullopt;
    }
    any_fits_ = true;
    if (step.tokens_per_second_per_gpu < search_.min_speed) return std::nullopt;
    return step.step_us;
  }

  bool accept(const Candidate& candidate, double simulated_us) {
    if (is_wanted(candidate)) {
      FoundStep found{job(candidate), {}, family(candidate).routing(), 0, {}, {}};
      set_step(search_, drawn_step(candidate), found);
      const double difference = found.step.step_us / simulated_us - 1;
      if (std::abs(difference) > same_time) ++found_.counts.violations;
      if (loses_less(candidate)) {
        front_loss_ = loss(candidate);
        found_.front.push_back(found);
      }
      const bool is_new = !is_outdone(candidate);
      if (is_new && found.loss <= search_.max_loss && found_.best.size() < search_.best) {
        found_.best.push_back(found);
        best_.push_back(&candidate);
      }
    }
    return found_.best.size() < search_.best || least_loss_ < least_gain * front_loss_;
  }

  const TrainingSearch& search_;
  double room_;
  TrainingCandidates possible_;
  std::vector<FamilyBounds> bounds_;  // of each family
  std::vector<Candidate> candidates_;
  std::unordered_map<const Candidate*, Timed> times_;  // of those simulated
  std::shared_ptr<DrawnRoutings> drawn_;
  std::size_t drawn_before_ = 0;
  std::vector<DrawnBounds> drawn_bounds_;  // of each family
  TrainingFound found_;
  std::vector<const Candidate*> best_;                           // of found_.best
  double front_loss_ = std::numeric_limits<double>::infinity();  // least of the front
  double least_loss_ = std::numeric_limits<double>::infinity();  // of all candidates
  std::atomic<std::size_t> skipped_{0};
  std::atomic<bool> any_fits_{false};
  bool does_any_fit_ = false;  // the same, before the candidates that are valued now
  double bounded_ = 0;         // as SearchProgress has it
  std::mutex mutex_;
};

}  // namespace

bool same_sizes(const TrainingJob& one, const TrainingJob& other, bool chunks_tell_apart) {
  return sizes_of(one.layout, one, chunks_tell_apart) ==
         sizes_of(other.layout, other, chunks_tell_apart);
}

bool same_layout(const TrainingJob& one, const TrainingJob& other, bool chunks_tell_apart) {
  return routing_key(one) == routing_key(other) && same_sizes(one, other, chunks_tell_apart);
}

void set_step(const TrainingSearch& search, const TrainingStep& predicted, FoundStep& found) {
  found.step = counted_step(search, found.job, predicted);
  found.loss = counted_loss(found.job, found.step);
  if (search.software) found.predicted = predicted;
}

TrainingFound search_training(const TrainingSearch& search) { return Search(search).run(); }

std::vector<FoundStep> simulate_all(const TrainingSearch& search) {
  const TrainingCandidates possible = possible_jobs(search.space);
  std::vector<FoundStep> all;
  for (const TrainingFamily& family : possible.families) {
    for (const TrainingJob& job : family.jobs()) {
      all.push_back({job, {}, family.routing(), 0, {}, {}});
    }
  }
  const std::shared_ptr<DrawnRoutings> drawn = routings_of(search);
  std::vector<char> priced(all.size(), 0);
  std::mutex mutex;
  SearchProgress progress{all.size()};
  parallel_for(all.size(), search.jobs, [&](std::size_t at) {
    try {
      const bool draws = all[at].job.routing.has_value();
      set_step(search,
               training::training_step(
                   all[at].job, draws ? drawn->loads({all[at].routing, &all[at].job}) : nullptr),
               all[at]);
      priced[at] = 1;
    } catch (const Error&) {
      // Neither a candidate of search_training(): curves or routing are missing.
    }
    const std::lock_guard lock(mutex);
    ++progress.simulated;
    if (search.progress) search.progress(progress);
  });
  std::vector<FoundStep> possible_steps;
  for (std::size_t at = 0; at < all.size(); ++at) {
    if (priced[at] != 0) possible_steps.push_back(std::move(all[at]));
  }
  return possible_steps;
}

}  // namespace moesim::study
