#include "tools/moesim/recommend/best/your_layout.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/study/search/searched_choices.hpp"
#include "sim/training/step/layer_time.hpp"
#include "tools/moesim/recommend/best/step_order.hpp"
#include "tools/moesim/recommend/request/search_room.hpp"
#include "tools/moesim/recommend/tables/search_texts.hpp"
#include "tools/moesim/train/train_report.hpp"

namespace moesim::tool {
namespace {

using study::FoundStep;
using training::TrainingJob;

// The same layout, recomputation, states and routing.
bool is_same_job(const TrainingJob& one, const TrainingJob& other) {
  const auto& choices = study::searched_choices();
  return study::same_layout(one, other, true) &&
         std::all_of(
             choices.begin(), choices.end(),
             [&](const auto& choice) { return choice->text(one) == choice->text(other); }) &&
         parallel::stages_of(*one.model, one.layout).text() ==
             parallel::stages_of(*other.model, other.layout).text();
}

// As the software of the search runs the step.
training::PartTimes mean_parts(const study::TrainingSearch& search, const FoundStep& found) {
  training::TrainingStep step = found.predicted ? *found.predicted : found.step;
  const auto loads = found.job.routing ? search.drawn->loads(found.job) : nullptr;
  step.parts = training::mean_parts(found.job, step, loads);
  return search.software ? search.software->applied(step, training::crossing_parts(found.job)).parts
                         : step.parts;
}

// "  where, of the time of 1: combine +8.1 %, attention -1.2 %": the parts that differ by at least
// a hundredth of a step of `first`, per token, of the mean of the pipeline ranks; "": none.
std::string parts_text(const study::TrainingSearch& search, const FoundStep& yours,
                       const FoundStep& first, const std::string& first_name) {
  constexpr double least_share = 0.01;
  constexpr std::size_t most_parts = 6;
  const double tokens_ratio = first.step.tokens / yours.step.tokens;
  const training::PartTimes of_yours = mean_parts(search, yours);
  const training::PartTimes of_first = mean_parts(search, first);
  std::vector<std::pair<double, std::string>> apart;
  for (const auto& part : training::part_names) {
    const auto place = static_cast<std::size_t>(part.value);
    const double more = (tokens_ratio * of_yours[place] - of_first[place]) / first.step.step_us;
    if (std::abs(more) >= least_share) apart.emplace_back(more, part_label(yours.job, part.value));
  }
  if (apart.empty()) return "";
  std::sort(apart.begin(), apart.end(), [](const auto& one, const auto& other) {
    return std::abs(one.first) > std::abs(other.first);
  });
  if (apart.size() > most_parts) apart.resize(most_parts);
  std::vector<std::string> words;
  for (const auto& [more, name] : apart) {
    words.push_back(fmt::format("{} {:+.1f} %", name, 100 * more));
  }
  const bool has_ranks =
      std::max(yours.job.layout.sizes.pipeline, first.job.layout.sizes.pipeline) > 1;
  return fmt::format("  where, of the time of {}: {}{}\n", first_name, fmt::join(words, ", "),
                     has_ranks ? " (mean of pipeline ranks)" : "");
}

}  // namespace

std::string yours_text(const RecommendRequest& request, const std::vector<FoundStep>& best,
                       const std::string& first_name) {
  if (!request.yours) return "";
  const Yours& yours = *request.yours;
  if (!yours.step) {
    return fmt::format("yours ({}) cannot be simulated: {}\n", yours.name, yours.refusal);
  }
  const FoundStep& step = *yours.step;
  std::string text = fmt::format("yours ({}) ", yours.name);
  if (best.empty()) {
    return text + fmt::format(
                      "makes {:.0f} tokens/s/GPU, takes {:.1f} GiB and loses {:.2f} % of "
                      "the tokens' weight\n",
                      step.step.tokens_per_second_per_gpu, step.step.peak_memory().gib(),
                      100 * step.loss);
  }
  const FoundStep& first = best.front();
  const double speed = step.step.tokens_per_second_per_gpu / first.step.tokens_per_second_per_gpu;
  const auto is_yours = [&](const FoundStep& found) { return is_same_job(found.job, step.job); };
  const auto listed = std::find_if(best.begin(), best.end(), is_yours);
  if (listed == best.begin()) {
    text += "is " + first_name;
  } else if (std::abs(speed - 1) < 0.0005) {
    text += "is as fast as " + first_name;
  } else if (speed < 1) {
    if (listed != best.end()) text += fmt::format("is {} and ", listed - best.begin() + 1);
    const double chance = surely_slower(request, first, step);
    text += fmt::format(
        "is {:.1f} % slower than {}; {}", 100 * (1 - speed), first_name,
        chance == 0 ? "that is within the noise" : "slower at all with " + chance_text(chance));
  } else {
    text += fmt::format("is {:.1f} % faster than {}", 100 * (speed - 1), first_name);
  }
  const double room = room_gib(request.search);
  const double need = step.step.peak_memory().gib();
  if (need > room) text += fmt::format("; takes {:.1f} GiB, more than {:.1f}", need, room);
  if (step.loss > request.search.max_loss) {
    text += fmt::format("; loses {:.2f} % of the tokens' weight", 100 * step.loss);
  }
  text += "\n";
  return listed == best.begin() ? text : text + parts_text(request.search, step, first, first_name);
}

}  // namespace moesim::tool
