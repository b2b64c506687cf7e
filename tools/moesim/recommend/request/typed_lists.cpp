#include "tools/moesim/recommend/request/typed_lists.hpp"

#include "sim/job/job_options.hpp"
#include "sim/study/search/searched_choices.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/recommend/request/recommend_flags.hpp"
#include "tools/moesim/train/train_request.hpp"

namespace moesim::tool {
namespace {

using study::TrainingSpace;
using training::TrainingJob;

// Jobs of a search with each value of what an option's effect depends on (job::JobOption::idle):
// expert parallelism with one other choice.
std::vector<TrainingJob> varied_jobs(const TrainingSpace& space) {
  TrainingJob first = space.base;
  for (const char* option : {"tensor-parallel", "context-parallel", "recompute"}) {
    study::searched_choice_named(option).put(space, 0, first);
  }
  std::vector<TrainingJob> jobs;
  for (const int expert : space.expert) {
    first.layout.sizes.expert = expert;
    jobs.push_back(first);
    for (const auto& choice : study::searched_choices()) {
      if (choice->option() == "expert-parallel") continue;
      for (std::size_t at = 0; at < choice->count(space); ++at) {
        jobs.push_back(first);
        choice->put(space, at, jobs.back());
      }
    }
  }
  return jobs;
}

// Sets a value of a job. Throws UsageError naming the flag.
void set_value(const CommandLine& line, const study::SearchedChoice& choice,
               const std::string& text, scenario::DocumentCache& documents, TrainingJob& job) {
  if (!choice.traits().checked_with_others) {
    choice.set(text, job, &documents);
    return;
  }
  CommandLine one = first_values(line);
  one.values[choice.option()] = text;
  job = resolved_job(one, true, &documents).job;
}

}  // namespace

CommandLine first_values(const CommandLine& line) {
  CommandLine first;
  for (const Flag& flag : train_flags()) {
    if (!line.has(flag.name)) continue;
    const bool listed = is_searched(flag.name);
    first.values[flag.name] = listed ? list_of(line, flag.name).front() : line.get(flag.name);
  }
  // Which layouts are possible is for the search to say.
  for (const auto& choice : study::searched_choices()) {
    const study::ChoiceTraits& traits = choice->traits();
    const bool is_left = traits.chosen_for == study::ChosenFor::layout || traits.checked_by_search;
    if (is_left) first.values.erase(choice->option());
  }
  for (const char* of_routing : {"capacity-factor", "router", "expert-load"}) {
    first.values.erase(of_routing);
  }
  // And how experts lie on the ranks of each.
  if (line.has("expert-placement")) first.values["expert-placement"] = "contiguous";
  return first;
}

void take_lists(const CommandLine& line, scenario::DocumentCache& documents, TrainingSpace& space) {
  for (const auto& [option, value] : line.values) space.typed.insert(option);
  space.zero_under_pipeline = line.has("zero");
  for (const auto& choice : study::searched_choices()) {
    if (!line.has(choice->option())) continue;
    choice->clear(space);
    TrainingJob job = space.base;
    for (const std::string& text : list_of(line, choice->option())) {
      set_value(line, *choice, text, documents, job);
      choice->add(job, space);
    }
  }
}

void add_layout(const CommandLine& line, const TrainingJob& job, TrainingSpace& space) {
  for (const auto& choice : study::searched_choices()) {
    if (choice->is_left_to_search() && !line.has(choice->option())) choice->add(job, space);
  }
  if (job.states.zero >= 2 && job.layout.sizes.pipeline > 1) space.zero_under_pipeline = true;
}

void note_idle_options(const CommandLine& line, const TrainingSpace& space) {
  scenario::OptionValues asked = first_values(line).values;
  for (const std::string& name : line.of_row) asked.erase(name);
  for (const std::string& text : job::idle_notes(asked, varied_jobs(space))) note(text);
}

}  // namespace moesim::tool
