#include "tools/moesim/recommend/recommend_space.hpp"

#include <algorithm>

#include "sim/base/enum_names.hpp"
#include "sim/base/text.hpp"
#include "sim/cluster/cluster.hpp"
#include "sim/job/documents.hpp"
#include "sim/job/job_options.hpp"
#include "sim/parallel/layout_rules.hpp"
#include "tools/moesim/output.hpp"
#include "tools/moesim/recommend/recommend_flags.hpp"
#include "tools/moesim/train/train_request.hpp"

namespace moesim::tool {
namespace {

using study::TrainingSpace;
using training::TrainingJob;

template <class Value, class Parse>
void take_list(const CommandLine& line, const std::string& flag, std::vector<Value>& values,
               const Parse& parse) {
  if (!line.has(flag)) return;
  values.clear();
  for (const std::string& text : list_of(line, flag)) {
    const Value value = parse(text);
    if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
  }
}

void take_sizes(const CommandLine& line, const std::string& flag, std::vector<int>& sizes) {
  take_list(line, flag, sizes, [&](const std::string& text) {
    return static_cast<int>(parse_whole("--" + flag, text, 1, cluster::most_gpus));
  });
}

// Unless it is there, in whatever order its modules were typed.
void add_recompute(const model::Recompute& recompute, TrainingSpace& space) {
  const bool is_there = std::any_of(space.recompute.begin(), space.recompute.end(),
                                    [&](const model::Recompute& other) {
                                      return model::name_of(other) == model::name_of(recompute);
                                    });
  if (!is_there) space.recompute.push_back(recompute);
}

template <class Value>
void add_value(const Value& value, std::vector<Value>& values) {
  if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
}

// Jobs of a search with each value of what an option's effect depends on (job::JobOption::idle).
std::vector<TrainingJob> varied_jobs(const TrainingSpace& space) {
  TrainingJob first = space.base;
  parallel::ParallelLayout& sizes = first.layout.sizes;
  sizes.tensor = space.tensor.front();
  sizes.context = space.context.front();
  sizes.expert = space.expert.front();
  first.recompute = space.recompute.front();
  std::vector<TrainingJob> jobs = {first};
  for (const int tensor : space.tensor) {
    jobs.push_back(first);
    jobs.back().layout.sizes.tensor = tensor;
  }
  for (const int context : space.context) {
    jobs.push_back(first);
    jobs.back().layout.sizes.context = context;
  }
  for (const int expert : space.expert) {
    for (const model::Precision precision : space.precision) {
      jobs.push_back(first);
      jobs.back().layout.sizes.expert = expert;
      jobs.back().states.precision = precision;
    }
  }
  for (const model::Recompute& recompute : space.recompute) {
    jobs.push_back(first);
    jobs.back().recompute = recompute;
  }
  return jobs;
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
  for (const char* size :
       {"tensor-parallel", "context-parallel", "pipeline-parallel", "virtual-pipeline",
        "expert-parallel", "expert-tensor-parallel", "micro-batch", "ep-overlap", "capacity-factor",
        "router", "cuda-graphs", "expert-load"}) {
    first.values.erase(size);
  }
  // And how experts lie on the ranks of each.
  if (line.has("expert-placement")) first.values["expert-placement"] = "contiguous";
  return first;
}

study::TypedDispatcher dispatcher_named(const std::string& name) {
  study::TypedDispatcher named{name, nullptr, name == job::gathering_dispatcher};
  if (!named.gathers_tokens && name != job::no_dispatcher) {
    named.document = std::make_shared<const profile::Dispatcher>(profile::Dispatcher::load(name));
  }
  return named;
}

void take_lists(const CommandLine& line, TrainingSpace& space) {
  for (const auto& [option, value] : line.values) space.typed.insert(option);
  take_sizes(line, "tensor-parallel", space.tensor);
  take_sizes(line, "context-parallel", space.context);
  take_sizes(line, "pipeline-parallel", space.pipeline);
  take_sizes(line, "virtual-pipeline", space.virtual_pipeline);
  take_sizes(line, "expert-parallel", space.expert);
  take_sizes(line, "expert-tensor-parallel", space.expert_tensor);
  take_list(line, "ranks-per-domain", space.ranks_per_domain, [&](const std::string& text) {
    return static_cast<int>(
        parse_whole("--ranks-per-domain", text, 1, space.base.cluster->gpus_per_domain));
  });
  take_list(line, "micro-batch", space.micro_batch, [](const std::string& text) {
    return parse_whole("--micro-batch", text, 1, parallel::most_micro_batch);
  });
  if (line.has("recompute")) {
    space.recompute.clear();
    for (const std::string& text : list_of(line, "recompute")) {
      add_recompute(model::parse_recompute(text, "--recompute"), space);
    }
  }
  // Each is checked against the GPU and the other options.
  take_list(line, "precision", space.precision, [&](const std::string& text) {
    CommandLine one = first_values(line);
    one.values["precision"] = text;
    return resolved_job(one, true).job.states.precision;
  });
  take_list(line, "cuda-graphs", space.graphs, [](const std::string& text) {
    return value_in(training::graphs_names, text, "--cuda-graphs");
  });
  take_list(line, "zero", space.zero, [](const std::string& text) {
    return static_cast<int>(parse_whole("--zero", text, 0, 3));
  });
  if (line.has("ep-overlap")) {
    static constexpr EnumNames<bool, 2> names{{{false, "off"}, {true, "on"}}};
    space.expert_overlap.clear();
    for (const std::string& text : list_of(line, "ep-overlap")) {
      space.expert_overlap.push_back(value_in(names, text, "--ep-overlap"));
    }
  }
  if (line.has("dispatcher")) {
    space.dispatchers.clear();
    for (const std::string& name : list_of(line, "dispatcher")) {
      space.dispatchers.push_back(dispatcher_named(name));
    }
  }
}

void add_layout(const CommandLine& line, const TrainingJob& job, TrainingSpace& space) {
  const parallel::ParallelLayout& sizes = job.layout.sizes;
  const auto add = [&](const char* flag, const auto& value, auto& values) {
    if (!line.has(flag)) add_value(value, values);
  };
  add("tensor-parallel", sizes.tensor, space.tensor);
  add("context-parallel", sizes.context, space.context);
  add("pipeline-parallel", sizes.pipeline, space.pipeline);
  add("virtual-pipeline", sizes.virtual_pipeline, space.virtual_pipeline);
  add("expert-parallel", sizes.expert, space.expert);
  add("expert-tensor-parallel", sizes.expert_tensor, space.expert_tensor);
  add("micro-batch", job.layout.micro_batch, space.micro_batch);
  add("zero", job.states.zero, space.zero);
  if (!line.has("recompute")) add_recompute(job.recompute, space);
  const bool is_placed =
      std::any_of(space.ranks_per_domain.begin(), space.ranks_per_domain.end(), [&](int ranks) {
        TrainingJob other = space.base;
        other.ranks_per_domain = ranks;
        return other.placed_ranks() == job.placed_ranks();
      });
  if (!is_placed) add("ranks-per-domain", job.ranks_per_domain, space.ranks_per_domain);
}

void note_idle_options(const CommandLine& line, const TrainingSpace& space) {
  scenario::OptionValues asked = first_values(line).values;
  for (const std::string& name : line.of_row) asked.erase(name);
  for (const std::string& text : job::idle_notes(asked, varied_jobs(space))) note(text);
}

}  // namespace moesim::tool
