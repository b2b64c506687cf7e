#include "tools/moesim/train/train_request.hpp"

#include <fmt/format.h>

#include <limits>

#include "sim/base/text.hpp"
#include "sim/parallel/layout_rules.hpp"
#include "sim/scenario/document_cache.hpp"
#include "sim/study/search/searched_choices.hpp"
#include "tools/moesim/bands/train_band.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/scenario/scenario_notes.hpp"
#include "tools/moesim/train/replicas.hpp"

namespace moesim::tool {
namespace {

Flag flag_of(const job::JobOption& option) {
  Flag flag{option.name, option.placeholder, option.default_text,
            option.help, option.values,      name_in(job::section_names, option.section)};
  flag.is_number = option.is_number;
  return flag;
}

}  // namespace

study::TrainingPrediction predicted_training(const CommandLine& line, training::TrainingJob job,
                                             const training::DrawProgress& progress,
                                             training::SharedDraws* shared) {
  const std::string software = requested_software(line, job);
  return study::predict_training(std::move(job),
                                 {software, requested_replicas(line), progress, shared});
}

std::vector<Flag> train_flags() {
  std::vector<Flag> flags;
  for (const job::JobOption& option : job::job_options()) flags.push_back(flag_of(option));
  return flags;
}

std::vector<Flag> hardware_flags() {
  std::vector<Flag> flags = train_flags();
  for (Flag& flag : flags) {
    if (flag.name == "profile") flag.help = "the GPU: a shipped profile or a document";
  }
  return flags;
}

std::vector<Flag> layout_flags() {
  std::vector<Flag> flags;
  for (const job::JobOption& option : job::job_options()) {
    if (!option.in_layout) continue;
    flags.push_back(flag_of(option));
    if (!option.layout_default.empty()) flags.back().default_text = option.layout_default;
  }
  return flags;
}

job::ResolvedJob resolved_job(const CommandLine& line, bool of_several,
                              scenario::DocumentCache* documents) {
  scenario::DocumentCache own;
  scenario::DocumentCache& known = documents != nullptr ? *documents : own;
  scenario::OptionValues typed;
  for (const job::JobOption& option : job::job_options()) {
    if (line.has(option.name)) typed[option.name] = line.get(option.name);
  }
  if (of_several) return job::resolve_job(typed, {}, known);
  scenario::OptionValues asked = typed;
  for (const std::string& name : line.of_row) asked.erase(name);
  return job::resolve_job(typed, asked, known);
}

training::TrainingJob requested_job(const CommandLine& line, bool of_several,
                                    scenario::DocumentCache* documents) {
  job::ResolvedJob resolved = resolved_job(line, of_several, documents);
  const job::RoutingNotes& of_routing = resolved.routing_notes;
  for (const std::string& text : of_routing.replaced) note(text);
  for (const std::string& text : of_routing.scores) note(text);
  for (const std::string& text : of_routing.slots) note(text);
  for (const std::string& text : of_routing.priority) note(text);
  for (const scenario::IdleOption& idle : of_routing.idle) note_idle_option(idle);
  for (const std::string& text : resolved.notes) note(text);
  return std::move(resolved.job);
}

bool is_layout_choice(const job::JobOption& option) {
  const study::SearchedChoice* choice = study::searched_choice(option.name);
  return choice != nullptr && choice->is_left_to_search();
}

std::int64_t requested_whole(const CommandLine& line, const char* flag, std::int64_t fallback) {
  if (!line.has(flag)) return fallback;
  const job::JobOption& option = job::job_option_named(flag);
  option.check_text(line.get(flag));  // the least and the most that it may be
  return parse_whole(option.flag(), line.get(flag), 1, std::numeric_limits<std::int64_t>::max());
}

void note_cluster(const CommandLine& line, const training::TrainingJob& job) {
  const std::string& usual = job.profile->device().usual_cluster;
  if (!line.has("cluster") || usual.empty() || usual == job.cluster->name) return;
  const int domain = cluster::Cluster::load(usual).gpus_per_domain;
  if (domain == job.cluster->gpus_per_domain) return;
  note(fmt::format(
      "note: --cluster {} has NVLink domains of {} GPUs; those of {} usually have {} ({}): one is "
      "taken with the other",
      job.typed.cluster, job.cluster->gpus_per_domain, job.typed.profile, domain, usual));
}

void note_graph_buffers(const training::TrainingJob& job) {
  if (job.graphs != training::Graphs::layers || !job.model->moe || !job.reads_row_counts()) return;
  const int ranks = job.layout.sizes.expert;
  if (ranks == 1) return;
  note(fmt::format(
      "note: --cuda-graphs layers without a capacity: buffers of a graph hold any routing, up to "
      "{} times balance; memory counts the rows that come: give --rank-capacity for a budget",
      ranks));
}

void note_zero_under_pipeline(const training::TrainingJob& job, const char* help) {
  const int zero = job.states.zero;
  if (zero < 2 || job.layout.sizes.pipeline == 1) return;
  note(fmt::format(
      "note: --zero {} with --pipeline-parallel above 1: few frameworks run it, and DeepSpeed "
      "refuses it: gradients are reduced{} in every micro-batch of every stage{}",
      zero, zero == 3 ? " and weights gathered" : "", help));
}

void note_depths(const training::TrainingJob& job, const std::string& option) {
  const int depths = job.model->mtp_depths;
  if (depths == 0) return;
  const bool is_one = depths == 1;
  note(fmt::format("note: {} has {} depth{} of multi-token prediction, left out here: {} counts {}",
                   job.typed.model, depths, is_one ? "" : "s", option, is_one ? "it" : "them"));
}

void note_step_depths(const training::TrainingJob& job, bool of_several) {
  if (job.model->mtp_depths == 0) return;
  if (job.layout.stages) return;                                 // says itself whether it has them
  if (parallel::layout_refusal(*job.model, job.layout)) return;  // an error follows
  parallel::LayoutRequest with_depths = job.layout;
  with_depths.stages = parallel::stages_of(*job.model, job.layout);
  with_depths.stages->chunks.back().mtp = job.model->mtp_depths;
  const bool is_known = !of_several && !parallel::layout_refusal(*job.model, with_depths);
  note_depths(job, is_known ? fmt::format("--pipeline-layout '{}'", with_depths.stages->text())
                            : "m in --pipeline-layout");
}

}  // namespace moesim::tool
