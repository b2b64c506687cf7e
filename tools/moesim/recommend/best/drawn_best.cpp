#include "tools/moesim/recommend/best/drawn_best.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "sim/base/error.hpp"
#include "sim/base/no_answer.hpp"
#include "sim/base/parallel.hpp"
#include "tools/moesim/recommend/request/search_room.hpp"

namespace moesim::tool {
namespace {

using study::FoundStep;

constexpr std::size_t most_drawn = 20;  // the others of a long list are not worth the time

double speed_of(const FoundStep& found) { return found.step.tokens_per_second_per_gpu; }

}  // namespace

DrawnBest::DrawnBest(const RecommendRequest& request, const std::vector<FoundStep>& best)
    : room_gib_(room_gib(request.search)) {
  const study::TrainingSearch& search = request.search;
  if (best.empty() || !search.space.base.model->moe || best.front().job.routing) return;
  drawn_.resize(std::min(best.size(), most_drawn));
  study::DrawnRoutings& draws = *search.drawn;
  parallel_for(drawn_.size(), search.jobs, [&](std::size_t at) {
    try {
      FoundStep found{request.drawn(best[at].job), {}, 0, 0, {}, {}};
      const auto loads = draws.loads(found.job);
      study::set_step(search, training::training_step(found.job, loads, false), found);
      drawn_[at] = std::move(found);
    } catch (const NotMeasured&) {
      // The machine has no price for what is drawn: it stays empty,
    } catch (const UsageError&) {
      // or its groups cannot be drawn.
    }
  });
}

const FoundStep* DrawnBest::at(std::size_t place) const {
  return place < drawn_.size() && drawn_[place] ? &*drawn_[place] : nullptr;
}

bool DrawnBest::is_too_large(std::size_t place) const {
  const FoundStep* found = at(place);
  return found != nullptr && found->step.peak_memory().gib() > room_gib_;
}

std::optional<std::size_t> DrawnBest::fastest_that_fits() const {
  std::optional<std::size_t> fastest;
  for (std::size_t place = 0; place < drawn_.size(); ++place) {
    if (at(place) == nullptr || is_too_large(place)) continue;
    if (!fastest || speed_of(*at(place)) > speed_of(*at(*fastest))) fastest = place;
  }
  return fastest;
}

std::size_t DrawnBest::usable() const {
  return is_too_large(0) ? fastest_that_fits().value_or(0) : 0;
}

std::string DrawnBest::cell(std::size_t place) const {
  if (at(place) == nullptr) return "";
  return fmt::format("{:.0f}{}", speed_of(*at(place)), is_too_large(place) ? "*" : "");
}

std::string DrawnBest::text() const {
  if (at(0) == nullptr) return "";
  std::vector<std::string> too_large;
  for (std::size_t place = 0; place < drawn_.size(); ++place) {
    if (is_too_large(place)) too_large.push_back(fmt::format("{}", place + 1));
  }
  const FoundStep& first = *at(0);
  const std::optional<std::size_t> fastest = fastest_that_fits();
  std::string text = fmt::format(
      "with routing drawn ({}) 1 has {:.0f} tokens/s/GPU and takes {:.1f} GiB",
      first.job.routing->scores.name(), speed_of(first), first.step.peak_memory().gib());
  if (!too_large.empty()) {
    text += fmt::format("; {} would not fit in {:.1f} GiB", fmt::join(too_large, ", "), room_gib_);
  }
  if (fastest.value_or(0) > 0) {
    text += is_too_large(0)
                ? fmt::format("; the fastest that fits is {}", *fastest + 1)
                : fmt::format("; then {} is faster, {:.0f}", *fastest + 1, speed_of(*at(*fastest)));
  }
  text += "\n";
  // Another layout may be the best then.
  if (fastest.value_or(1) > 0) {
    text += "  search with routing drawn before you decide: --routing-draws per-layer\n";
  }
  return text;
}

void DrawnBest::add_cells(std::size_t place, NamedCells& row) const {
  if (empty()) return;
  const FoundStep* found = at(place);
  row.add("drawn_tokens_per_s_per_gpu", found != nullptr ? figure_cell(speed_of(*found)) : Cell());
  row.add("drawn_memory_gib",
          found != nullptr ? figure_cell(found->step.peak_memory().gib()) : Cell());
  row.add("drawn_fits_memory", found != nullptr ? Cell(!is_too_large(place)) : Cell());
}

std::string drawn_text(const std::vector<DrawnPlace>& places) {
  std::vector<std::string> texts;
  std::string scores;
  bool any_too_large = false;
  for (const DrawnPlace& each : places) {
    const FoundStep* const drawn = each.drawn->at(0);
    if (drawn == nullptr) continue;
    scores = drawn->job.routing->scores.name();
    const bool is_too_large = each.drawn->is_too_large(0);
    texts.push_back(fmt::format("{:.0f} on {} ({:.1f} GiB{})", speed_of(*drawn), each.name,
                                drawn->step.peak_memory().gib(),
                                is_too_large ? ", would not fit" : ""));
    any_too_large |= is_too_large;
  }
  if (texts.empty()) return "";
  return fmt::format("with routing drawn ({}) tokens/s/GPU: {}\n{}", scores, fmt::join(texts, ", "),
                     any_too_large ? "  search with routing drawn before you decide: "
                                     "--routing-draws per-layer\n"
                                   : "");
}

}  // namespace moesim::tool
