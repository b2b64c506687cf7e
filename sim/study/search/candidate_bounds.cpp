#include "sim/study/search/candidate_bounds.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <set>
#include <tuple>

#include "sim/base/error.hpp"
#include "sim/base/no_answer.hpp"
#include "sim/base/parallel.hpp"
#include "sim/study/search/balanced_job.hpp"
#include "sim/study/search/memory_bounds.hpp"
#include "sim/study/sweep/counted_loss.hpp"
#include "sim/training/drawn/routing_misfit.hpp"
#include "sim/training/step/layer_time.hpp"
#include "sim/training/step/step_bound.hpp"

namespace moesim::study {
namespace {

// Standard errors of a loss: whether it is too much is then decided by the step's own draws.
constexpr double certainty = 3;
// Shares of what comes before the first step, roughly.
constexpr double time_of_losses = 0.5;
constexpr double time_before_losses = 0.25;

}  // namespace

using training::LayerPrices;
using training::Passes;
using training::TrainingJob;

std::vector<FamilyBounds> CandidateBounds::bound_all(
    const std::function<void(double share)>& progress) const {
  std::vector<FamilyBounds> found(families_.size());
  const std::vector<std::vector<Bytes>> memory =
      memory_bounds(families_, rules_.room, rules_.jobs, [&] { end_if_stopped(); });
  for (std::size_t at = 0; at < found.size(); ++at) {
    for (const Bytes each : memory[at]) {
      found[at].bounds.push_back({0, each});
      found[at].fits |= fits(each);
    }
  }
  const auto count = static_cast<double>(found.size());
  parallel_for(found.size(), rules_.jobs, [&](std::size_t at) {
    end_if_stopped();
    begin_times(families_[at], found[at]);
    if (progress) progress(time_before_losses / count);
  });
  const double share = (1 - time_before_losses - draw_losses(found, progress)) / count;
  parallel_for(found.size(), rules_.jobs, [&](std::size_t at) {
    if (found[at].misfit.empty() && !found[at].is_too_slow) set_loss(families_[at], found[at]);
    if (progress) progress(share);
  });
  return found;
}

// And its times, where they depend on it.
void CandidateBounds::set_loss(const TrainingFamily& family, FamilyBounds& found) const {
  const TrainingJob first = family.first();
  if (found.fits && !drawn_.knows_loss(first)) {
    found.is_known = false;
    return;
  }
  const training::ExpectedLoss& loss = drawn_.loss(first);
  if (first.routing) found.loss = counted_loss(loss.loss, first.routing->router, *first.model);
  found.least_loss = found.loss - certainty * loss.error;
  if (!found.priced) add_times(family, loss.loss, found);
}

void CandidateBounds::end_if_stopped() const {
  if (is_stopped()) throw SearchStopped();
}

// Notes whose recorded routing does not fit, and bounds the times that do not depend on losses.
void CandidateBounds::begin_times(const TrainingFamily& family, FamilyBounds& found) const {
  if (!found.fits) return;
  const TrainingJob first = family.first();
  found.misfit = training::routing_misfit(first);
  const bool needs_losses = !first.routing || first.dispatcher || BalancedJob(first).padded == 0 ||
                            std::isinf(rules_.limit_us);
  if (!found.misfit.empty() || needs_losses) return;
  add_times(family, {}, found);
  found.is_too_slow = found.refusal.empty() &&
                      std::all_of(found.bounds.begin(), found.bounds.end(), [&](const auto& each) {
                        return !fits(each.memory) || each.step_us > rules_.limit_us;
                      });
}

// Those of families that may fit, but for those that are too slow: the share of the work that was
// done.
double CandidateBounds::draw_losses(std::vector<FamilyBounds>& found,
                                    const std::function<void(double share)>& progress) const {
  std::deque<TrainingJob> jobs;  // one of those with the same loss
  std::set<std::tuple<std::size_t, std::int64_t, int>> seen;
  std::vector<const TrainingJob*> wanted;
  for (std::size_t at = 0; at < found.size(); ++at) {
    if (!found[at].fits || !found[at].misfit.empty() || found[at].is_too_slow) continue;
    const TrainingJob first = families_[at].first();
    const bool is_new = seen.emplace(families_[at].routing(), std::llround(first.tokens_per_rank()),
                                     first.layout.sizes.expert)
                            .second;
    if (!is_new) continue;
    jobs.push_back(first);
    wanted.push_back(&jobs.back());
  }
  double done = 0;
  std::mutex mutex;
  end_if_stopped();
  try {
    drawn_.draw_losses(wanted, rules_.jobs, [&](std::size_t draws) {
      end_if_stopped();
      const double share = time_of_losses / static_cast<double>(draws);
      const std::lock_guard lock(mutex);
      done += share;
      if (progress) progress(share);
    });
  } catch (const SearchStopped&) {
    // Those that are drawn are known.
  }
  return std::min(done, time_of_losses);
}

void CandidateBounds::add_times(const TrainingFamily& family, const routing::TokenLoss& loss,
                                FamilyBounds& found) const {
  if (!found.fits) return;
  try {
    const BalancedJob first(family.first());
    const LayerPrices prices(first.job);
    found.priced = true;
    found.is_exact = first.is_exact;
    std::vector<Passes> least;
    if (!first.is_exact) {
      least = training::least_moe_layers(prices, first.least_load(loss), *first.job.model);
    }
    set_times(family, prices, least, found.bounds);
  } catch (const Error&) {
    found.refusal = why_unanswered();
  }
}

void CandidateBounds::set_times(const TrainingFamily& family, const LayerPrices& prices,
                                const std::vector<Passes>& least,
                                std::vector<CandidateBound>& bounds) const {
  uncertainty::CrossingParts crossing{};
  if (rules_.software != nullptr) crossing = training::crossing_parts(family.first());
  for (std::size_t at = 0; at < family.size(); ++at) {
    if (!fits(bounds[at].memory)) continue;
    const double bound = training::step_bound_us(family.job(at), prices, least);
    bounds[at].step_us =
        rules_.software != nullptr ? rules_.software->least_us(bound, crossing) : bound;
  }
}

bool CandidateBounds::tighten(std::size_t family, std::size_t place, Tightness& tightness,
                              double& step_us) {
  if (tightness == Tightness::own) return false;
  TightBounds& bounds = tight_[family];
  const std::lock_guard lock(bounds.mutex);
  if (bounds.tightness == tightness) tighten(families_[family], bounds);
  tightness = bounds.tightness;
  step_us = std::max(step_us, bounds.step_us[place]);
  return true;
}

void CandidateBounds::tighten(const TrainingFamily& family, TightBounds& bounds) const {
  const TrainingJob first = family.first();
  const DrawnRoutings::Least least = bounds.tightness == Tightness::balanced
                                         ? drawn_.least(first)
                                         : DrawnRoutings::Least{drawn_.rows(first), true};
  std::vector<CandidateBound> found(family.size());
  for (std::size_t at = 0; least.are_own && at < found.size(); ++at) {
    found[at].memory = training::memory_bound(family.job(at), least.loads.get());
  }
  const LayerPrices prices(first);
  set_times(family, prices, drawn_moe_layers(prices, *least.loads, least.are_own), found);
  bounds.step_us.clear();
  for (const CandidateBound& bound : found) {
    bounds.step_us.push_back(fits(bound.memory) ? bound.step_us
                                                : std::numeric_limits<double>::infinity());
  }
  bounds.tightness = least.are_own ? Tightness::own : Tightness::least;
}

}  // namespace moesim::study
