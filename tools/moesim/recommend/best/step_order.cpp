#include "tools/moesim/recommend/best/step_order.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "sim/uncertainty/ratios/hidden_ratio.hpp"
#include "sim/uncertainty/steps/step_distance.hpp"
#include "tools/moesim/bands/capacity_pair.hpp"
#include "tools/moesim/bands/own_ratio.hpp"
#include "tools/moesim/bands/train_band.hpp"
#include "tools/moesim/bands/traits_apart.hpp"
#include "tools/moesim/recommend/tables/search_texts.hpp"

namespace moesim::tool {
namespace {

using study::FoundStep;

double distance(const FoundStep& one, const FoundStep& other) {
  return uncertainty::step_distance(uncertainty::part_times(one.step),
                                    uncertainty::part_times(other.step));
}

// The chance that `other` is slower than `one`, at least; 0: within all bands. Below a band of
// level L, which leaves as much on either side, lie (1 - L) / 2 of the ratios.
double surety(const uncertainty::Band& ratios, const FoundStep& one, const FoundStep& other) {
  const double predicted = std::log(other.step.step_us / one.step.step_us);
  for (const uncertainty::BandLevel& each : ratios.levels) {
    if (predicted + each.log_ratios.low > 0) return (1 + each.level) / 2;
  }
  return 0;
}

// What of the step none has of the steps that its band is based on.
std::vector<uncertainty::UnmeasuredTrait> unmeasured_of(const RecommendRequest& request,
                                                        const FoundStep& found) {
  const std::vector<uncertainty::StepTrait> traits =
      uncertainty::traits_of(found.job, found.predicted.value_or(found.step));
  if (request.search.software) return request.search.software->unmeasured(traits);
  return uncertainty::unmeasured_traits(study::published_errors().residuals().measured,
                                        found.job.profile->device().name, traits);
}

// Whether they differ in router and capacity alone, padded to it.
bool is_capacity_pair(const FoundStep& one, const FoundStep& other) {
  const std::optional<std::string> alike = all_but_capacity(one.job);
  return alike && alike == all_but_capacity(other.job);
}

}  // namespace

StepRatios step_ratios(const RecommendRequest& request, const FoundStep& one,
                       const FoundStep& other) {
  StepRatios ratios;
  const auto of_one = unmeasured_of(request, one);
  const auto of_other = unmeasured_of(request, other);
  // The error by what one of them alone has: what both have cancels, but for what computing hides
  // of it in one and not in the other.
  const double unmeasured = study::published_errors().deviation_of(traits_apart(of_one, of_other));
  const double hidden = uncertainty::hidden_gain(of_one);
  const double other_hidden = uncertainty::hidden_gain(of_other);
  ratios.has_unmeasured = unmeasured > 0 || hidden != other_hidden;
  if (const auto& own = request.search.software) {
    ratios.band = own_ratio_band(*own, one.job.cluster->name, own_step(one.job, one.step),
                                 own_step(other.job, other.step), unmeasured);
    ratios.known_by = study::own_rows_text(*own);
  } else {
    ratios.band = study::published_errors().ratio_band(request.software, true, distance(one, other),
                                                       unmeasured);
    ratios.known_by = fmt::format("{} groups of pairs", ratios.band.held_out);
  }
  uncertainty::widen_by_hidden(hidden, other_hidden, ratios.band);
  if (!is_capacity_pair(one, other)) return ratios;
  uncertainty::Band of_capacity =
      capacity_pair_band(uncertainty::part_times(other.step), uncertainty::part_times(one.step),
                         step_exchanges(other.job));
  uncertainty::widen_by_hidden(hidden, other_hidden, of_capacity);
  if (request.search.software && is_narrower(ratios.band, of_capacity)) return ratios;
  return {of_capacity, capacity_pairs_text()};
}

double surely_slower(const RecommendRequest& request, const FoundStep& one,
                     const FoundStep& other) {
  return surety(step_ratios(request, one, other).band, one, other);
}

namespace {

// The ratio of one of the best to the first.
struct PlacedRatios {
  std::size_t place = 0;  // from 0
  StepRatios ratios;

  double width() const { return ratios.band.widest().log_ratios.width(); }
};

std::vector<PlacedRatios> ratios_to_first(const RecommendRequest& request,
                                          const std::vector<FoundStep>& best) {
  std::vector<PlacedRatios> found;
  for (std::size_t place = 1; place < best.size(); ++place) {
    found.push_back({place, step_ratios(request, best.front(), best[place])});
  }
  return found;
}

// Those that are known least; at least one is given.
const PlacedRatios& least_known(const std::vector<PlacedRatios>& ratios) {
  return *std::max_element(ratios.begin(), ratios.end(),
                           [](const PlacedRatios& one, const PlacedRatios& other) {
                             return one.width() < other.width();
                           });
}

// "(50 % of the ratios of two measured steps that differ as 1 and 3 do are within 5 % ...)".
std::string known_text(const PlacedRatios& placed, bool of_own) {
  const auto& [band, known_by, has_unmeasured] = placed.ratios;
  const auto percent = [](const uncertainty::BandLevel& each) {
    return 100 * (std::exp(std::max(each.log_ratios.high, -each.log_ratios.low)) - 1);
  };
  return fmt::format(
      "       ({:.0f} % of the ratios of two measured steps that differ as 1 and {} do are within "
      "{:.0f} %\n"
      "       of the predicted ratio, {:.0f} % within {:.0f} %; {}{})\n",
      100 * band.levels.back().level, placed.place + 1, percent(band.levels.back()),
      100 * band.widest().level, percent(band.widest()), known_by,
      has_unmeasured ? fmt::format(";\n       wider by what 1 or {} has and {}", placed.place + 1,
                                   of_own ? "none of your calibrated steps" : "no measured step")
                     : "");
}

}  // namespace

std::string order_text(const RecommendRequest& request, const std::vector<FoundStep>& best) {
  if (best.size() < 2) return "";
  std::map<double, std::vector<std::size_t>> by_chance;
  std::map<std::string, std::vector<PlacedRatios>> by_knowledge;
  for (PlacedRatios& placed : ratios_to_first(request, best)) {
    by_chance[surety(placed.ratios.band, best.front(), best[placed.place])].push_back(placed.place +
                                                                                      1);
    by_knowledge[placed.ratios.known_by].push_back(std::move(placed));
  }
  std::vector<std::string> parts;
  for (const auto& [chance, numbers] : by_chance) {
    const char* const are = numbers.size() == 1 ? "is" : "are";
    parts.push_back(fmt::format(
        "{} {} {}", places_text(numbers), are,
        chance == 0 ? "within the noise of 1" : "slower than 1 with " + chance_text(chance)));
  }
  std::string text = fmt::format("order: {}\n", fmt::join(parts, "; "));
  for (const auto& [known_by, ratios] : by_knowledge) {
    text += known_text(least_known(ratios), request.search.software != nullptr);
  }
  return text;
}

namespace {

// The widest of the bands of `steps` over `first`, of those that are a capacity pair with it or are
// not.
std::optional<uncertainty::Band> widest_band(const RecommendRequest& request,
                                             const FoundStep& first,
                                             const std::vector<FoundStep>& steps,
                                             bool of_capacity) {
  std::optional<uncertainty::Band> widest;
  for (const FoundStep& step : steps) {
    if (study::same_layout(first.job, step.job, request.search.chunks_tell_apart) ||
        is_capacity_pair(first, step) != of_capacity) {
      continue;
    }
    uncertainty::Band band = step_ratios(request, first, step).band;
    if (!widest || is_narrower(*widest, band)) widest = std::move(band);
  }
  return widest;
}

double noise_of(const uncertainty::Band& ratios) {
  return std::exp(-ratios.levels.back().log_ratios.low) - 1;
}

}  // namespace

OrderNoise order_noise(const RecommendRequest& request, const study::TrainingFound& found) {
  OrderNoise noise;
  if (!found.best.empty()) {
    const FoundStep& first = found.best.front();
    std::vector<FoundStep> all = found.best;
    all.insert(all.end(), found.front.begin(), found.front.end());
    if (const auto band = widest_band(request, first, all, true)) {
      noise.of_capacity = noise_of(*band);
    }
    for (const std::vector<FoundStep>* steps : {&found.best, &found.front}) {
      if (const auto band = widest_band(request, first, *steps, false); band && !noise.of_others) {
        noise.of_others = noise_of(*band);
      }
    }
    if (noise.of_capacity || noise.of_others) return noise;
  }
  noise.of_others = noise_of(request.search.software && !found.best.empty()
                                 ? step_ratios(request, found.best.front(), found.best.front()).band
                                 : study::published_errors().ratio_band(
                                       request.software, true, uncertainty::usual_distance));
  return noise;
}

}  // namespace moesim::tool
