#include "tools/moesim/recommend/several/best_searches.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "sim/base/no_answer.hpp"
#include "sim/study/search/search_stopped.hpp"
#include "tools/moesim/recommend/report/search_report.hpp"
#include "tools/moesim/recommend/request/search_room.hpp"
#include "tools/moesim/recommend/search/search_progress.hpp"
#include "tools/moesim/recommend/search/search_proof.hpp"
#include "tools/moesim/recommend/tables/search_texts.hpp"
#include "tools/moesim/train/train_request.hpp"

namespace moesim::tool {
namespace {

constexpr const char* stopped_where = "before the first step was simulated";

// Why a search has no best.
std::string reason_of(const study::TrainingSearch& search, const study::TrainingFound& found) {
  if (!found.front.empty()) return too_lossy_text(search, found);
  if (!found.smallest) return nothing_fits(search, found);
  return fmt::format("none of the {} candidates fits in {:.1f} GiB: {}",
                     count_text(found.counts.candidates), room_gib(search),
                     least_memory_text(found));
}

void add(const study::SearchCounts& counts, study::SearchCounts& all) {
  all.candidates += counts.candidates;
  all.too_large += counts.too_large;
  all.simulated += counts.simulated;
  all.violations += counts.violations;
  all.unpriced += counts.unpriced;
  if (all.an_unpriced.empty()) all.an_unpriced = counts.an_unpriced;
  all.undrawn += counts.undrawn;
  if (all.an_undrawn.empty()) all.an_undrawn = counts.an_undrawn;
}

}  // namespace

BestSearches::BestSearches(SearchStop& stop, std::size_t searches)
    : stop_(stop), left_(static_cast<int>(searches)) {}

std::optional<BestFound> BestSearches::search(const SearchSource& source, const std::string& name) {
  RecommendRequest request = requested_search(source);
  note_cluster(source.line, request.search.space.base);
  note_software(source.line, request.search.space.base, Asked::search);
  request.search.best = 1;
  request.search.twin_margin = 0;
  request.search.progress = [&](const study::SearchProgress& done) {
    progress_.show(fmt::format("{}: {}", name, search_text(done)));
  };
  request.search.stop = [&stop = stop_] { return stop.is_due(); };
  request.search.give_up = [&stop = stop_] { return stop.is_over(); };
  study::TrainingFound found = study::search_training(request.search);
  request.search.progress = nullptr;
  add(found.counts, counts_);
  if (!is_unproven(found)) found.unproven.reset();  // its front and twins are not shown
  is_stopped_ |= found.unproven.has_value();
  if (found.best.empty()) {
    reason_ = reason_of(request.search, found);
    return std::nullopt;
  }
  study::FoundStep best = found.best.front();
  training::TrainingStep step = best.predicted.value_or(best.step);
  TrainBand band = requested_band(source.line, best.job, step);
  DrawnBest drawn(request, {best});
  return BestFound{std::move(request), std::move(found), std::move(best), std::move(band),
                   std::move(drawn)};
}

std::optional<BestFound> BestSearches::next(const SearchSource& source, const std::string& name) {
  error_ = nullptr;
  reason_.clear();
  stop_.begin_one_of(left_--);
  try {
    return search(source, name);
  } catch (const study::SearchStopped&) {
    is_stopped_ = true;
    reason_ = fmt::format("{} {}", stop_.text(), stopped_where);
  } catch (const Error&) {
    reason_ = why_unanswered();
    error_ = std::current_exception();
  }
  return std::nullopt;
}

std::string unproven_text(const BestFound& best, const std::string& name) {
  if (!best.found.unproven) return "";
  return fmt::format("{}: {}", name, unproven_lines(best.found));
}

std::string batch_text(const study::TrainingSearch& search, bool grows,
                       const std::string& precisions) {
  const parallel::LayoutRequest& base = search.space.base.layout;
  return fmt::format(
      "{} sequences of {} tokens per {}step, {}\n{}",
      grows ? base.global_batch / base.sizes.gpus : base.global_batch, base.sequence_length,
      grows ? "GPU and " : "", precisions,
      grows ? "the global batch grows with the GPUs (--global-batch N keeps it)\n" : "");
}

std::string band_text(const BestFound& best) {
  const uncertainty::Interval widest = best.band.band.widest().log_ratios;
  const double step_us = best.best.step.step_us;
  return fmt::format("{} to {}", step_text(std::exp(widest.low) * step_us),
                     step_text(std::exp(widest.high) * step_us));
}

void add_best_cells(const BestFound& best, NamedCells& row) {
  row.add("proven", unproven_gain(best.found, 0) == 0);
  row.add("unproven_gain", figure_cell(unproven_gain(best.found, 0)));
  best.drawn.add_cells(0, row);
  for (const auto& [name, cell] : band_cells(best.band, best.best.step)) row.add(name, cell);
}

std::vector<std::string> cost_names(const BestFound& best) {
  std::vector<std::string> names;
  for (const CostFigure& each : cost_figures(best.band.cost, best.best.step)) {
    names.push_back(each.name);
  }
  if (!best.band.cost.tokens) names.front() = "GPU h/1e12 tokens";
  return names;
}

std::vector<std::string> cost_texts(const BestFound& best) {
  std::vector<std::string> texts;
  for (const CostFigure& each : cost_figures(best.band.cost, best.best.step)) {
    texts.push_back(each.text(each.value));
  }
  return texts;
}

}  // namespace moesim::tool
