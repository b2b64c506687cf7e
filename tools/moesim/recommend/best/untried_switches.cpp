#include "tools/moesim/recommend/best/untried_switches.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "sim/base/no_answer.hpp"
#include "sim/base/parallel.hpp"
#include "sim/job/drawn_routing.hpp"
#include "sim/job/job_options.hpp"
#include "sim/study/search/searched_choices.hpp"
#include "tools/moesim/recommend/request/search_room.hpp"

namespace moesim::tool {
namespace {

using study::FoundStep;
using study::TrainingSpace;
using training::TrainingJob;

constexpr double least_gain = 0.02;  // of speed: what gains less is not worth a line
constexpr const char* schedule = "pipeline-schedule";
constexpr const char* capacity = "capacity-factor";
constexpr const char* dropless = "dropless";

// An option at another value than its default.
struct Switch {
  std::string flag;
  std::string value;
  double gain = 0;  // speed over that of the step, less 1

  std::string typed() const { return fmt::format("--{} {}", flag, value); }
};

// The model's own router without a capacity, drawn as the other routings of the search; nothing
// where that was searched, or another router was asked for.
std::optional<training::DrawnRouting> without_capacity(const RecommendRequest& request,
                                                       const TrainingJob& job) {
  const auto& searched = request.search.space.routings;
  const bool all_have = std::all_of(searched.begin(), searched.end(), [](const auto& routing) {
    return routing && routing->router.has_capacity();
  });
  if (!all_have || !request.line.has(capacity) || request.line.has("router")) return std::nullopt;
  scenario::OptionValues options = request.line.values;
  options.erase(capacity);
  options.try_emplace("routing-draws", "per-layer");
  job::RoutingNotes ignored;
  return job::drawn_routing(options, job, *request.documents, ignored);
}

// Those that nobody gave a value, and that may have an effect on the job.
std::vector<Switch> switches_of(const RecommendRequest& request, const TrainingJob& job) {
  std::vector<Switch> all;
  const auto add = [&](const char* flag, std::initializer_list<const char*> values) {
    if (request.line.has(flag)) return;
    for (const char* value : values) all.push_back({flag, value});
  };
  if (without_capacity(request, job)) all.push_back({capacity, dropless});
  if (job.model->moe && job.layout.sizes.expert > 1) {
    add("ep-overlap", {"on"});
    add("dispatcher", {"deepep", "hybridep"});  // the others are of inference
    if (job.states.precision != model::Precision::bf16) add("dispatch-precision", {"low"});
  }
  add("cuda-graphs", {"router", "parts", "layers"});
  add("optimizer-moments", {"bf16"});
  const auto& chunks = request.search.space.virtual_pipeline;
  const bool may_be_whole = std::find(chunks.begin(), chunks.end(), 1) != chunks.end();
  if (job.layout.sizes.pipeline > 1 && may_be_whole) {
    add(schedule, {"zb-h1", "zb-h2", "dualpipe", "dualpipe-v"});
  }
  return all;
}

// What was searched, of the sizes and states of the job alone.
TrainingSpace space_of(const RecommendRequest& request, const FoundStep& found) {
  const TrainingJob& job = found.job;
  TrainingSpace space = request.search.space;
  space.typed.insert({"expert-parallel", "expert-tensor-parallel"});
  for (const auto& choice : study::searched_choices()) choice->keep(job, space);
  space.routings = {request.search.space.routings[found.routing]};
  return space;
}

void apply(const Switch& chosen, const RecommendRequest& request, const TrainingJob& job,
           TrainingSpace& space) {
  if (chosen.flag == capacity) {
    space.routings = {without_capacity(request, job)};
  } else if (const study::SearchedChoice* choice = study::searched_choice(chosen.flag)) {
    TrainingJob with = job;
    choice->set(chosen.value, with, request.documents.get());
    choice->keep(with, space);
  } else {
    job::Resolution at{request.line.values, space.base};
    job::job_option_named(chosen.flag).set(chosen.value, at);
  }
  if (chosen.flag == schedule) space.virtual_pipeline = {1};
  // Overlap in a pipeline needs chunks: a few, where it has none.
  const bool lacks_chunks = chosen.flag == "ep-overlap" && space.pipeline.front() > 1 &&
                            space.virtual_pipeline.front() == 1;
  if (lacks_chunks && !request.line.has("virtual-pipeline")) space.virtual_pipeline = {2, 4, 8};
}

// As many chunks with the same layers.
bool has_layers_of(const TrainingJob& job, const TrainingJob& other) {
  return parallel::stages_of(*job.model, job.layout).text() ==
         parallel::stages_of(*other.model, other.layout).text();
}

// The shortest step of a space among those to recommend; nothing: there is none. With as many
// chunks as `of` they have the same layers: another split may fit because of a switch, but is
// another layout.
std::optional<double> shortest_us(const study::TrainingSearch& search, const TrainingSpace& space,
                                  const TrainingJob& of, study::DrawnRoutings& draws) {
  const double room = room_gib(search);
  std::optional<double> shortest;
  for (const study::TrainingFamily& family : study::candidates_of(space).families) {
    for (const TrainingJob& job : family.jobs()) {
      const bool same_chunks =
          job.layout.schedule == of.layout.schedule &&
          job.layout.sizes.virtual_pipeline == of.layout.sizes.virtual_pipeline;
      if (same_chunks && !has_layers_of(job, of)) continue;
      try {
        const auto loads = job.routing ? draws.loads(job) : nullptr;
        FoundStep found{job, {}, 0, 0, {}, {}};
        study::set_step(search, training::training_step(job, loads, false), found);
        const bool is_one = found.step.peak_memory().gib() <= room && found.loss <= search.max_loss;
        if (is_one && (!shortest || found.step.step_us < *shortest)) shortest = found.step.step_us;
      } catch (const NotMeasured&) {
        // The machine has no price for it,
      } catch (const UsageError&) {
        // or its groups cannot be drawn.
      }
    }
  }
  return shortest;
}

// The value of each option that gains most, if that is enough; in order.
std::vector<Switch> best_of_each(const std::vector<Switch>& tried) {
  std::vector<Switch> best;
  for (const Switch& each : tried) {
    if (each.gain < least_gain) continue;
    if (best.empty() || best.back().flag != each.flag) {
      best.push_back(each);
    } else if (each.gain > best.back().gain) {
      best.back() = each;
    }
  }
  return best;
}

// A list with the default where the search takes one. A schedule goes with fewer layouts, so that
// it is a search of its own.
std::string search_options(const CommandLine& line, const std::vector<Switch>& best) {
  std::vector<std::string> together;
  std::string alone;
  for (const Switch& each : best) {
    const job::JobOption& option = job::job_option_named(each.flag);
    if (each.flag == capacity) {
      together.push_back(fmt::format("--{} {},{}", each.flag, line.get(capacity), each.value));
    } else if (option.in_search == job::InSearch::searched) {
      together.push_back(fmt::format("--{} {},{}", each.flag, option.default_text, each.value));
    } else if (each.flag == schedule) {
      alone = each.typed();
    } else {
      together.push_back(each.typed());
    }
  }
  if (together.empty()) return alone;
  return fmt::format("{}{}", fmt::join(together, " "),
                     alone.empty() ? "" : "; and by itself " + alone);
}

}  // namespace

std::string switches_text(const RecommendRequest& request, const FoundStep& found,
                          const std::string& name) {
  const study::TrainingSearch& search = request.search;
  std::vector<Switch> tried = switches_of(request, found.job);
  study::DrawnRoutings& draws = *search.drawn;
  parallel_for(tried.size(), search.jobs, [&](std::size_t at) {
    TrainingSpace space = space_of(request, found);
    apply(tried[at], request, found.job, space);
    const std::optional<double> step_us = shortest_us(search, space, found.job, draws);
    if (step_us) tried[at].gain = found.step.step_us / *step_us - 1;
  });
  const std::vector<Switch> best = best_of_each(tried);
  if (best.empty()) return "";
  std::vector<std::string> gains;
  for (const Switch& each : best) {
    gains.push_back(fmt::format("{} {:+.0f} %", each.typed(), 100 * each.gain));
  }
  return fmt::format("not searched, speed of {} with each alone: {}\n  search them: {}\n", name,
                     fmt::join(gains, "; "), search_options(request.line, best));
}

}  // namespace moesim::tool
