#include <fmt/format.h>

#include <bit>
#include <memory>
#include <utility>

#include "sim/base/file.hpp"
#include "sim/base/text.hpp"
#include "sim/cluster/cluster.hpp"
#include "sim/job/documents.hpp"
#include "sim/job/job_options.hpp"
#include "sim/profile/profile.hpp"
#include "tools/moesim/base/command.hpp"
#include "tools/moesim/base/kept_result.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/base/timeline.hpp"
#include "tools/moesim/layout/layout_result.hpp"
#include "tools/moesim/megatron/megatron_options.hpp"
#include "tools/moesim/scenario/scenario_notes.hpp"
#include "tools/moesim/train/train_request.hpp"

namespace moesim::tool {
namespace {

// Those of the GPU's usual cluster, where several domains are needed a power of two: 64 of 72.
int usual_ranks_per_domain(const CommandLine& line) {
  constexpr int of_a_node = 8;
  if (!line.has("profile")) return of_a_node;
  const profile::Profile profile = profile::Profile::load(line.get("profile"));
  const std::string cluster = profile.device().usual_cluster;
  if (cluster.empty()) return of_a_node;
  const int ranks = cluster::Cluster::load(cluster).gpus_per_domain;
  if (requested_whole(line, "gpus", 32) <= ranks) return ranks;
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)));
}

// layout has no --cluster: its domains are typed, and may be those of another machine.
void note_domain(const CommandLine& line, const training::TrainingJob& job) {
  if (!job.profile || !line.has("ranks-per-domain")) return;
  const std::string& usual = job.profile->device().usual_cluster;
  if (usual.empty()) return;
  const int domain = cluster::Cluster::load(usual).gpus_per_domain;
  if (job.ranks_per_domain <= domain) return;
  note(fmt::format("note: --ranks-per-domain {}: those of {} usually have {} ({})",
                   job.ranks_per_domain, job.typed.profile, domain, usual));
}

ExitCode run(const CommandLine& given) {
  const CommandLine line = with_megatron(layout_command(), given);
  const report::Format format = chosen_format(line, report::Format::table);
  const Output out(line.get("out"));
  const std::string timeline = line.get("timeline");
  if (!timeline.empty()) check_writable(timeline);
  const int ranks_per_domain =
      static_cast<int>(requested_whole(line, "ranks-per-domain", usual_ranks_per_domain(line)));
  training::TrainingJob job = job::resolve_layout(line.values, ranks_per_domain);
  GpuRoom room;
  if (line.has("profile")) {
    job.typed.profile = line.get("profile");
    job.profile =
        std::make_shared<const profile::Profile>(profile::Profile::load(line.get("profile")));
    job::check_products(job);
    const profile::Device& device = job.profile->device();
    room = {line.get("profile"), device.hbm_bytes};
    job.states.transposed_copies = job::copies_transposed(device);
  }
  const LayoutResult result = make_layout_result(std::move(job), room);
  note_domain(line, result.job);
  note_left_out(*result.job.model, result.job.typed.model);
  note_step_depths(result.job);
  for (const std::string& text : job::idle_notes(line.values, {&result.job, 1})) note(text);
  if (!timeline.empty()) {
    write_timeline(timeline, layout_timeline(result));
    note(fmt::format("timeline of the pipeline of GPU 0: {} (open it in ui.perfetto.dev)",
                     timeline));
  }
  write_keeping_others(out, rendered(result, format, line.has("groups")));
  return ExitCode::ok;
}

std::vector<Flag> flags() {
  std::vector<Flag> flags = layout_flags();
  const std::vector<Flag> more = {
      megatron_input(),
      {"profile", "NAME|FILE", "none", "the GPU whose memory a rank must fit into"},
      {"ranks-per-domain", "N", "8; with --profile those of its usual cluster",
       "ranks placed in each NVLink domain"},
      {"groups", "", "", "list the ranks of every group"},
      {"timeline", "FILE", "none",
       "Chrome trace of the schedule, the pipeline of GPU 0; .gz packs it"},
      format_flag(),
      out_flag()};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

}  // namespace

Command layout_command() {
  return {"layout",
          "process groups, pipeline stages and bubble of a training layout",
          "[options]",
          "moesim layout --model qwen3-30b-a3b --gpus 64 --pipeline-parallel 4",
          flags(),
          false,
          0,
          run,
          "Groups and checks are Megatron-Core's. No time is predicted: stages take as\n"
          "long as the forward FLOPs of their layers say.\n"};
}

}  // namespace moesim::tool
