#include "sim/job/job_options.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/base/error.hpp"
#include "sim/base/shipped.hpp"
#include "sim/job/drawn_routing.hpp"
#include "sim/job/layout_options.hpp"
#include "sim/job/machine_options.hpp"
#include "sim/job/precision_options.hpp"
#include "sim/scenario/document_cache.hpp"
#include "sim/training/step/job_rules.hpp"

namespace moesim::job {
namespace {

using training::TrainingJob;

std::vector<JobOption> declare_options() {
  JobOptionTable table;
  declare_layout(table);
  declare_batch(table);
  declare_schedule(table);
  declare_precision(table);
  declare_routing(table);
  declare_documents(table);
  declare_loads(table);
  declare_sharing(table);
  declare_placement(table);
  declare_other_precisions(table);
  declare_kernels(table);
  declare_host(table);
  return table.take();
}

void resolve_one(const JobOption& option, Resolution& at) {
  const auto typed = at.typed.find(option.name);
  if (typed != at.typed.end()) {
    option.set(typed->second, at);
  } else if (!option.default_in_words) {
    option.set(option.default_text, at);
  } else if (option.is_document && option.set_default != nullptr) {
    option.set_default(at);
  }
}

void resolve_all(Resolution& at, const std::vector<const JobOption*>& options) {
  for (const bool document : {true, false}) {
    for (const JobOption* option : options) {
      if (option->is_document == document) resolve_one(*option, at);
    }
  }
  for (const JobOption* option : options) {
    if (option->is_document || option->set_default == nullptr || at.has(option->name)) continue;
    option->set_default(at);
  }
}

std::vector<const JobOption*> options_with(bool (*wanted)(const JobOption&)) {
  std::vector<const JobOption*> options;
  for (const JobOption& option : job_options()) {
    if (option.set != nullptr && wanted(option)) options.push_back(&option);
  }
  return options;
}

void check(const TrainingJob& job, const std::vector<const JobOption*>& options) {
  for (const JobOption* option : options) {
    if (option->check != nullptr) option->check(job);
  }
}

// What routing is refused for may follow from a layout that cannot be: then this is said, with
// layouts that can, of what does not ask for routing.
void check_sizes(const TrainingJob& job) {
  if (!parallel::layout_refusal(*job.model, job.layout)) return;
  training::check_decoder(job);
  TrainingJob plain = job;
  plain.redundant_experts = 0;
  training::check_job(plain);
}

}  // namespace

std::string JobOption::column() const {
  std::string column = name;
  std::replace(column.begin(), column.end(), '-', '_');
  return column;
}

void JobOption::check_text(const std::string& text) const {
  if (is_document) return;
  if (set == nullptr) return check_routing_text(name, text);
  TrainingJob job;
  const scenario::OptionValues no_other;
  Resolution alone{no_other, job};
  set(text, alone);
}

bool JobOption::in_rows_of(const TrainingJob& job) const {
  return value && (!rare || value(job) != value(TrainingJob{}));
}

const std::vector<JobOption>& job_options() {
  static const std::vector<JobOption> options = declare_options();
  return options;
}

const JobOption* find_job_option(const std::string& name) {
  const std::vector<JobOption>& options = job_options();
  const auto found = std::find_if(options.begin(), options.end(),
                                  [&](const JobOption& option) { return option.name == name; });
  return found == options.end() ? nullptr : &*found;
}

const JobOption& job_option_named(const std::string& name) {
  const JobOption* const found = find_job_option(name);
  if (found == nullptr) {
    std::vector<std::string> names;
    for (const JobOption& option : job_options()) names.push_back(option.name);
    const bool is_of_prediction = name == "software" || name == "replicas";
    throw UsageError(fmt::format(
        "a training job has no option {}{}", name,
        is_of_prediction ? ": study::predict_training() takes it" : suggestion(name, names)));
  }
  return *found;
}

std::map<std::string, std::string> built_options(const training::TrainingJob& job) {
  std::map<std::string, std::string> built = {{"cluster", job.cluster->name}};
  for (const JobOption& option : job_options()) {
    if (option.built_in) built[option.name] = std::get<std::string>(option.value(job));
  }
  return built;
}

bool can_be_built(TrainingJob job, const std::map<std::string, std::string>& options) {
  const scenario::OptionValues typed(options.begin(), options.end());
  Resolution at{typed, job};
  try {
    for (const JobOption& option : job_options()) {
      const auto found = options.find(option.name);
      if (option.built_in && found != options.end()) option.set(found->second, at);
    }
    for (const JobOption& option : job_options()) {
      if (option.built_in && option.check != nullptr) option.check(job);
    }
  } catch (const UsageError&) {
    return false;
  }
  return true;
}

std::vector<std::string> idle_notes(const scenario::OptionValues& asked,
                                    std::span<const TrainingJob> jobs) {
  std::vector<std::string> notes;
  for (const JobOption& option : job_options()) {
    const auto typed = asked.find(option.name);
    if (option.idle == nullptr || typed == asked.end()) continue;
    if (jobs.empty() || typed->second == option.default_text) continue;
    const bool in_all = std::all_of(jobs.begin(), jobs.end(), [&](const TrainingJob& job) {
      return !option.idle(job).empty();
    });
    if (in_all) notes.push_back("note: " + option.idle(jobs.front()));
  }
  return notes;
}

ResolvedJob resolve_job(const scenario::OptionValues& typed) {
  scenario::DocumentCache documents;
  return resolve_job(typed, documents);
}

ResolvedJob resolve_job(const scenario::OptionValues& typed, scenario::DocumentCache& documents) {
  ResolvedJob resolved = resolve_job(typed, typed, documents);
  if (resolved.job.profile->calibration().empty()) return resolved;
  throw UsageError(
      fmt::format("--profile {}: a document of one's own software, whose factors no training job "
                  "has: study::predict_training() takes it",
                  resolved.job.typed.profile));
}

ResolvedJob resolve_job(const scenario::OptionValues& typed, const scenario::OptionValues& asked) {
  scenario::DocumentCache documents;
  return resolve_job(typed, asked, documents);
}

ResolvedJob resolve_job(const scenario::OptionValues& typed, const scenario::OptionValues& asked,
                        scenario::DocumentCache& documents) {
  for (const auto& [name, text] : typed) job_option_named(name);
  ResolvedJob resolved;
  TrainingJob& job = resolved.job;
  Resolution at{typed, job, &documents};
  resolve_all(at, options_with([](const JobOption&) { return true; }));
  // The machine first: from it follows what routing is asked about.
  check(job, options_with([](const JobOption& option) { return option.is_document; }));
  try {
    job.routing = drawn_routing(typed, job, documents, resolved.routing_notes);
  } catch (const UsageError&) {
    check_sizes(job);
    throw;
  }
  check(job, options_with([](const JobOption&) { return true; }));
  std::erase_if(resolved.routing_notes.idle,
                [&](const scenario::IdleOption& idle) { return !asked.contains(idle.option); });
  resolved.notes = idle_notes(asked, {&job, 1});
  return resolved;
}

TrainingJob resolve_layout(const scenario::OptionValues& typed, int ranks_per_domain) {
  TrainingJob job;
  job.ranks_per_domain = ranks_per_domain;
  Resolution at{typed, job};
  const auto options = options_with([](const JobOption& option) { return option.in_layout; });
  resolve_all(at, options);
  check(job, options);
  return job;
}

}  // namespace moesim::job
