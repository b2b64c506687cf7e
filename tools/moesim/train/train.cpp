#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "sim/base/text.hpp"
#include "sim/study/training_hints.hpp"
#include "sim/training/step_timeline.hpp"
#include "tools/moesim/command.hpp"
#include "tools/moesim/config.hpp"
#include "tools/moesim/measured_step.hpp"
#include "tools/moesim/output.hpp"
#include "tools/moesim/shell_word.hpp"
#include "tools/moesim/timeline.hpp"
#include "tools/moesim/train/layout_request.hpp"
#include "tools/moesim/train/megatron_options.hpp"
#include "tools/moesim/train/train_grid.hpp"
#include "tools/moesim/train/train_journal.hpp"
#include "tools/moesim/train/train_measured.hpp"
#include "tools/moesim/train/train_report.hpp"
#include "tools/moesim/train/train_request.hpp"
#include "tools/moesim/train/train_routing.hpp"

namespace moesim::tool {
namespace {

using training::TrainingJob;

constexpr const char* default_profile = "h100-sxm";
constexpr const char* no_dispatcher = "all-to-all";

constexpr EnumNames<int, 4> zero_names{{
    {0, "0", "every data-parallel rank has all states"},
    {1, "1", "they share the optimizer's states"},
    {2, "2", "and the gradients"},
    {3, "3", "and the weights, gathered layer by layer (FSDP)"},
}};

constexpr EnumNames<int, 2> gradient_names{{
    {4, "fp32", "4 bytes each, added up over micro-batches and reduced"},
    {2, "bf16", "2 bytes each"},
}};

constexpr EnumNames<bool, 2> fused_names{{
    {false, "off", "grouped products; activation and casts in kernels of their own"},
    {true, "on", "one kernel for the FFNs of all local experts, with activation and casts"},
}};

constexpr EnumNames<bool, 2> attention_names{{
    {false, "bf16", "core attention in bf16, whatever --precision is"},
    {true, "fp8", "core attention in FP8 too"},
}};

constexpr EnumNames<bool, 2> dispatch_names{{
    {false, "bf16", "rows travel in bf16, whatever --precision is"},
    {true, "low", "to experts in the format of the products, home in bf16 (DeepSeek-V3)"},
}};

constexpr EnumNames<bool, 2> tensor_overlap_names{{
    {false, "off", "before or after the products that they belong to"},
    {true, "on", "in pieces under these products, all but the first piece"},
}};

constexpr EnumNames<bool, 2> head_names{{
    {false, "bf16", "the output head in bf16, whatever --precision is"},
    {true, "low", "in the format of the other products"},
}};

double not_negative(const CommandLine& line, const char* flag, double fallback, double most) {
  if (!line.has(flag)) return fallback;
  const auto value = parse_number<double>(line.get(flag));
  if (value && *value >= 0 && *value <= most) return *value;
  throw UsageError(fmt::format("--{}: '{}' is not a number from 0 to {:g}, without a unit", flag,
                               line.get(flag), most));
}

std::shared_ptr<const cluster::Cluster> cluster_of(const CommandLine& line,
                                                   const profile::Profile& profile) {
  const std::string name = line.get("cluster", profile.device().usual_cluster);
  if (name.empty()) {
    throw UsageError(fmt::format("--cluster: the profile {} names no usual cluster: say which one",
                                 profile.name()));
  }
  return std::make_shared<const cluster::Cluster>(cluster::Cluster::load(name));
}

// Scales per 32 need Blackwell's tensor cores, as those of NVFP4 do.
bool has_products(const profile::Profile& profile, model::Precision precision) {
  const std::vector<std::string> types = profile.data_types("gemm");
  const auto has = [&](const char* type) {
    return std::find(types.begin(), types.end(), type) != types.end();
  };
  return has(training::product_type(precision)) &&
         (precision != model::Precision::mxfp8 || has("nvfp4"));
}

void check_precision(const profile::Profile& profile, model::Precision precision) {
  // A profile without any fails where the first one is priced, with what is missing.
  if (has_products(profile, precision) || profile.data_types("gemm").empty()) return;
  std::vector<std::string> known;
  for (const auto& each : model::precision_names) {
    if (has_products(profile, each.value)) known.emplace_back(each.name);
  }
  throw UsageError(fmt::format(
      "--precision {}: the GPU of profile {} has no such products, or they were not measured; it "
      "has {}",
      model::name_of(precision), profile.name(), fmt::join(known, ", ")));
}

// Ranks placed in a domain; 0: as TrainingJob has it.
int requested_placement(const CommandLine& line, const cluster::Cluster& cluster) {
  if (!line.has("ranks-per-domain")) return 0;
  const std::int64_t ranks = requested_whole(line, "ranks-per-domain", 0);
  if (ranks <= cluster.gpus_per_domain) return static_cast<int>(ranks);
  throw UsageError(fmt::format("--ranks-per-domain {}: a domain of {} has {} GPUs", ranks,
                               cluster.name, cluster.gpus_per_domain));
}

}  // namespace

TrainingJob requested_job(const CommandLine& line, bool of_several) {
  TrainingJob job;
  job.profile = std::make_shared<const profile::Profile>(profile::Profile::load(
      line.get("profile", default_profile), profile::Profile::Calibrated::taken));
  if (const auto& software = job.profile->software()) {
    throw UsageError(fmt::format(
        "--profile {}: its multipliers are of the step of simulate, which train prices otherwise: "
        "give its hardware, --profile {}, and what moesim calibrate fits to steps of train",
        line.get("profile"), software->profile));
  }
  job.cluster = cluster_of(line, *job.profile);
  job.model = std::make_shared<const model::Model>(requested_model(line));
  job.ranks_per_domain = requested_placement(line, *job.cluster);
  job.layout = requested_layout(
      line, *job.model,
      job.ranks_per_domain > 0 ? job.ranks_per_domain : job.cluster->gpus_per_domain);
  if (const int most = job.cluster->max_gpus(); most > 0 && job.layout.layout.gpus > most) {
    throw UsageError(fmt::format("--gpus {}: the cluster {} has {}", job.layout.layout.gpus,
                                 job.cluster->name, most));
  }
  if (const std::string name = line.get("dispatcher", no_dispatcher); name != no_dispatcher) {
    job.dispatcher = std::make_shared<const profile::Dispatcher>(profile::Dispatcher::load(name));
  }
  job.routing = requested_routing(line, job, of_several);
  job.expert_load = requested_expert_load(line, 0);
  if (job.routing && job.expert_load > 0) {
    throw UsageError(
        "--expert-load with --capacity-factor or another option of routing: these decide the rows "
        "of experts: give one of them");
  }
  if (line.has("redundant-experts")) {
    job.redundant_experts = static_cast<int>(
        parse_whole("--redundant-experts", line.get("redundant-experts"), 0, 1 << 16));
  }
  job.recompute = requested_recompute(line);
  job.offload = requested_offload(line);
  job.states.precision = requested_precision(line);
  check_precision(*job.profile, job.states.precision);
  job.states.low_precision_gather = training::gathers_low_precision(job.states.precision);
  job.states.transposed_copies = copies_transposed(job.profile->device());
  job.states.zero = value_in(zero_names, line.get("zero", "1"), "--zero");
  job.states.optimizer_instances =
      static_cast<int>(requested_whole(line, "optimizer-instances", 1));
  job.states.moment_bytes = requested_moment_bytes(line);
  job.states.gradient_bytes =
      value_in(gradient_names, line.get("gradients", "fp32"), "--gradients");
  job.fused_experts = value_in(fused_names, line.get("fused-experts", "off"), "--fused-experts");
  job.fp8_attention =
      value_in(attention_names, line.get("attention-precision", "bf16"), "--attention-precision");
  job.low_precision_head =
      value_in(head_names, line.get("head-precision", "bf16"), "--head-precision");
  if (job.fp8_attention && job.states.precision == model::Precision::bf16) {
    throw UsageError(
        "--attention-precision fp8 with --precision bf16: frameworks compute attention in FP8 only "
        "beside FP8 products: give --precision, such as fp8-current");
  }
  job.low_precision_dispatch =
      value_in(dispatch_names, line.get("dispatch-precision", "bf16"), "--dispatch-precision");
  if (job.low_precision_dispatch && job.states.precision == model::Precision::bf16) {
    throw UsageError(
        "--dispatch-precision low with --precision bf16: rows travel in the format of the "
        "products: give --precision, such as fp8-block");
  }
  job.overlaps_tensor =
      value_in(tensor_overlap_names, line.get("tensor-overlap", "off"), "--tensor-overlap");
  job.graphs = value_in(training::graphs_names, line.get("cuda-graphs", "none"), "--cuda-graphs");
  if (job.graphs == training::Graphs::layers && job.reads_row_counts() && job.model->moe &&
      !job.dispatcher) {
    throw UsageError(
        "--cuda-graphs layers: the host reads how many rows a dropless all-to-all brings: give "
        "--capacity-factor, or a --dispatcher, taken to have buffers for the worst case");
  }
  job.host.launch_us = not_negative(line, "launch-us", job.host.launch_us, 1000);
  job.host.sync_us = not_negative(line, "host-read-us", job.host.sync_us, 1e6);
  job.host.step_us = 1e3 * not_negative(line, "step-overhead-ms", job.host.step_us / 1e3, 1e6);
  return job;
}

void note_cluster(const CommandLine& line, const TrainingJob& job) {
  const std::string& usual = job.profile->device().usual_cluster;
  if (!line.has("cluster") || usual.empty() || usual == job.cluster->name) return;
  const int domain = cluster::Cluster::load(usual).gpus_per_domain;
  if (domain == job.cluster->gpus_per_domain) return;
  note(fmt::format(
      "note: --cluster {} has NVLink domains of {} GPUs; those of {} usually have {} ({}): one is "
      "taken with the other",
      job.cluster->name, job.cluster->gpus_per_domain, job.profile->name(), domain, usual));
}

namespace {

// What `recommend` is asked for the same step in another layout: the options typed, without those
// that it chooses or does not take.
std::string search_command(const CommandLine& line, const TrainingJob& job) {
  // Its choice, or of the output; the rest of the layout is none of its flags.
  static const std::set<std::string> left_out{"tensor-parallel",
                                              "context-parallel",
                                              "pipeline-parallel",
                                              "virtual-pipeline",
                                              "expert-parallel",
                                              "expert-tensor-parallel",
                                              "micro-batch",
                                              "recompute",
                                              "offload",
                                              "dispatch-precision",
                                              "tensor-overlap",
                                              "zero",
                                              "ep-overlap",
                                              "pipeline-schedule",
                                              "gpus",
                                              "global-batch",
                                              "profile",
                                              "format",
                                              "out",
                                              "jobs",
                                              "config",
                                              "from",
                                              "baseline"};
  std::string text = fmt::format("moesim recommend --gpus {} --global-batch {}",
                                 job.layout.layout.gpus, job.layout.global_batch);
  // It searches by published software alone, not by what moesim calibrate fitted.
  const bool is_calibrated = !job.profile->calibration().empty();
  if (line.has("profile")) {
    text += " --profile " + shell_word(is_calibrated ? job.profile->name() : line.get("profile"));
  }
  for (const Flag& flag : recommend_command().flags) {
    if (!line.has(flag.name) || left_out.count(flag.name) != 0) continue;
    const std::string value = line.get(flag.name);
    const bool is_document = value.find('/') != std::string::npos || value.ends_with(".json");
    if (flag.name == "software" && is_document) continue;
    text += fmt::format(" --{} {}", flag.name, shell_word(value));
  }
  return text;
}

// On stderr, where the step does not fit: with what it would.
void note_memory(const CommandLine& line, const TrainingJob& job,
                 const training::TrainingStep& step) {
  const Bytes room = job.profile->device().hbm_bytes;
  if (step.peak_memory().count <= room.count) return;
  std::vector<std::string> enough;
  for (const study::TrainingHint& hint : study::training_hints(job, step, room)) {
    enough.push_back(fmt::format("{} ({:.0f} GiB, {:+.0f} % speed)", hint.options, hint.need.gib(),
                                 100 * (hint.speed - 1)));
  }
  const std::string text =
      enough.empty() ? fmt::format("no option alone is enough; this searches all layouts:\n  {}",
                                   search_command(line, job))
                     : fmt::format("would fit: {}", fmt::join(enough, ", or "));
  note(fmt::format("warning: needs {:.1f} of {:.0f} GiB per GPU; {}", step.peak_memory().gib(),
                   room.gib(), text));
}

std::vector<Flag> flags() {
  std::vector<Flag> flags = train_flags();
  for (const Flag& flag : band_flags()) flags.push_back(flag);
  flags.push_back({"measured", "TIME|TRACE,...", "none",
                   "a measured step beside the expected one, part by part: 812ms, or traces of "
                   "torch.profiler (.json, .json.gz), one per rank"});
  flags.push_back(megatron_input());
  flags.push_back(timeline_flag("the step, one GPU of each pipeline rank"));
  flags.push_back(timeline_gpus_flag());
  flags.push_back({"format", "NAME",
                   "table; of several steps with --out csv, or what its name says",
                   "table, csv or json"});
  flags.push_back(out_flag());
  flags.push_back(jobs_flag());
  flags.push_back(train_resume_flag());
  flags.push_back(config_flag());
  flags.push_back(from_flag());
  return flags;
}

ExitCode run(const CommandLine& given) {
  const CommandLine line = with_megatron(train_command(), given);
  const TrainGrid grid = train_grid(line, flags());
  if (!grid.is_one()) return run_train_grid(line, grid);
  if (line.has("resume")) {
    throw UsageError("--resume: continues a run of several steps: give an option several values");
  }
  const report::Format format = chosen_format(line, report::Format::table);
  const Output out(line.get("out"));
  const std::optional<study::Measured> measured = requested_measured(line);
  if (measured && format != report::Format::table) {
    throw UsageError("--measured: is compared in a table: leave --format out");
  }
  const TrainingJob job = requested_job(line);
  note_cluster(line, job);
  const TimelineFiles files(line, job.layout.layout.gpus);
  training::TrainingStep step = training::training_step(job);
  if (files.wanted()) {
    files.write(training::step_timeline(job, step), timeline_title(job), "one pipeline");
  }
  const TrainBand band = requested_band(line, job, step);
  std::string text = rendered_training(job, step, band, format);
  if (measured) text += measured_text(step, band, *measured);
  out.write(text);
  note_memory(line, job, step);
  return ExitCode::ok;
}

}  // namespace

std::vector<Flag> train_flags() {
  std::vector<Flag> flags = layout_flags();
  const std::vector<Flag> more = {
      {"profile", "NAME|FILE", default_profile,
       "the GPU: a shipped profile, a document, or one of moesim calibrate, which is its "
       "--software "
       "too"},
      {"cluster", "NAME|FILE", "the GPU's usual one", "nodes, NVLink domains and NICs"},
      {"dispatcher", "NAME|FILE", no_dispatcher,
       "what carries rows to their experts: all-to-all (NCCL), deepep, hybridep, low-latency, "
       "trtllm, or a document"},
      {"expert-load", "X", "that of random logits",
       "rows of experts on the fullest rank over balance, instead of drawn routing"},
      {"redundant-experts", "N", "0",
       "copies of hot experts in each MoE layer, placed by measured load (EPLB); with drawn "
       "routing"},
      {"zero", "N", "1", "what data-parallel ranks share:", name_choices(zero_names)},
      {"optimizer-instances", "N", "1",
       "groups of data-parallel ranks that each share all of it (HSDP with --zero 3); gradients "
       "are reduced across them once per step"},
      {"ranks-per-domain", "N", "all, of several domains a power of two",
       "ranks placed in each NVLink domain"},
      {"gradients", "NAME", "fp32", "precision of gradients:", name_choices(gradient_names)},
      {"fused-experts", "off|on", "off", "kernels of experts:", name_choices(fused_names)},
      {"attention-precision", "NAME", "bf16",
       "precision of core attention:", name_choices(attention_names)},
      {"head-precision", "NAME", "bf16", "precision of the output head:", name_choices(head_names)},
      {"dispatch-precision", "NAME", "bf16",
       "precision of rows on their way to experts:", name_choices(dispatch_names)},
      {"tensor-overlap", "off|on", "off",
       "when tensor-parallel ranks exchange activations:", name_choices(tensor_overlap_names)},
      {"cuda-graphs", "WHICH", "none",
       "what is launched as graphs:", name_choices(training::graphs_names)},
      {"launch-us", "US", "15", "host time for each kernel launched outside graphs (assumed)"},
      {"host-read-us", "US", "20", "GPU idle after the host read row counts (assumed)"},
      {"step-overhead-ms", "MS", "2", "fixed host time per step (assumed)"}};
  const std::vector<Flag> routing = training_routing_flags();
  flags.insert(flags.end(), routing.begin(), routing.end());
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

Command train_command() {
  return {"train",
          "time, memory and speed of a training step under any layout",
          "[options]",
          "moesim train --model qwen3-30b-a3b --gpus 64 --pipeline-parallel 2",
          flags(),
          false,
          0,
          run,
          "Tensor, context, pipeline, expert and data parallelism. Experts are balanced\n"
          "unless an option of routing is given: router, capacity, token loss, imbalance.\n"
          "Options take lists a,b,c too, numbers lo:hi:step, --recompute a/b: a row for\n"
          "each step, with --out FILE.csv for moesim plot.\n"
          "How far off it is, by machine: sim/training/README.md.\n"};
}

}  // namespace moesim::tool
