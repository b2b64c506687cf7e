#include "sim/job/machine_options.hpp"

#include <string>

#include "sim/cluster/cluster.hpp"
#include "sim/job/documents.hpp"
#include "sim/scenario/exchange.hpp"
#include "sim/training/step/job_rules.hpp"

namespace moesim::job {
namespace {

using training::HostCosts;
using training::TrainingJob;

constexpr EnumNames<bool, 2> fused_names{{
    {false, "off", "grouped products; activation and casts in kernels of their own"},
    {true, "on", "one kernel for the FFNs of all local experts, with activation and casts"},
}};

constexpr EnumNames<bool, 2> tensor_overlap_names{{
    {false, "off", "before or after the products that they belong to"},
    {true, "on", "in pieces under these products, all but the first piece"},
}};

template <class Member>
auto in_host(Member HostCosts::*member) {
  return field(&TrainingJob::host, member);
}

// Why an option of experts has no effect, "" where the model has some.
std::string idle_without_experts(const TrainingJob& job, const char* option) {
  if (job.model->moe) return "";
  return fmt::format("{} has no effect: {} has no experts", option, job.typed.model);
}

std::string idle_host_read(const TrainingJob& job) {
  if (!job.model->moe) return idle_without_experts(job, "--host-read-us");
  if (job.layout.sizes.expert == 1) {
    return "--host-read-us has no effect: with --expert-parallel 1 the host reads no row counts";
  }
  // Where a buffer overflows the step runs again, with its reads.
  const bool runs_again = job.routing && job.routing->rank_capacity > 0;
  if (job.reads_row_counts() || runs_again) return "";
  return "--host-read-us has no effect: blocks padded to their capacity need no row counts";
}

std::string idle_dispatcher(const TrainingJob& job) {
  // Graphs of layers need its buffers.
  const bool needed = job.exchanging_ranks() > 1 || job.graphs == training::Graphs::layers;
  if (!job.model->moe || needed) return idle_without_experts(job, "--dispatcher");
  return "--dispatcher has no effect: with --expert-parallel 1 no rows travel";
}

std::string dispatcher_help() {
  std::string names;
  for (const scenario::NamedValue& form : scenario::dispatcher_forms()) {
    names += form.name;
    names += form.name == scenario::nccl_dispatcher ? " (NCCL), allgather (tokens to all ranks), "
                                                    : ", ";
  }
  return "what carries rows to their experts: " + names + "or a document";
}

void check_graphs(const TrainingJob& job) {
  if (const auto refusal = training::graphs_refusal(job)) throw UsageError(*refusal);
}

}  // namespace

void declare_documents(JobOptionTable& table) {
  table.begin(Section::machine);
  table.document("profile", set_profile)
      .by_default("h100-sxm")
      .shown_as([](const TrainingJob& job) { return Cell(job.typed.profile); })
      .help(
          "the GPU: a shipped profile, a document, or one of moesim calibrate, which is its "
          "--software too");
  table.document("cluster", set_cluster)
      .by_default("the GPU's usual one", use_usual_cluster)
      .shown_as([](const TrainingJob& job) { return Cell(job.typed.cluster); })
      .checked(check_cluster)
      .help("nodes, NVLink domains and NICs");
  table.document("dispatcher", set_dispatcher)
      .by_default(no_dispatcher)
      .searched()
      .shown_as([](const TrainingJob& job) { return Cell(job.typed.dispatcher); })
      .idle(idle_dispatcher)
      .help(dispatcher_help());
}

void declare_placement(JobOptionTable& table) {
  table.begin(Section::machine);
  table.whole("ranks-per-domain", 1, cluster::most_gpus, field(&TrainingJob::ranks_per_domain))
      .by_default("all, of several domains a power of two", nullptr)
      .searched()
      .shown_as([](const TrainingJob& job) { return Cell(std::int64_t{job.placed_ranks()}); })
      .help("ranks placed in each NVLink domain");
}

void declare_kernels(JobOptionTable& table) {
  table.begin(Section::machine);
  table.choice("fused-experts", fused_names, field(&TrainingJob::fused_experts), "off|on")
      .by_default("off")
      .built_in()
      .idle([](const TrainingJob& job) { return idle_without_experts(job, "--fused-experts"); })
      .help("kernels of experts:");
  table
      .choice("tensor-overlap", tensor_overlap_names, field(&TrainingJob::overlaps_tensor),
              "off|on")
      .by_default("off")
      .rare()
      .megatron("tp-comm-overlap", "on")
      .idle([](const TrainingJob& job) -> std::string {
        return job.layout.sizes.tensor > 1
                   ? ""
                   : "--tensor-overlap has no effect: --tensor-parallel 1 exchanges no activations";
      })
      .help("when tensor-parallel ranks exchange activations:");
  table.choice("cuda-graphs", training::graphs_names, field(&TrainingJob::graphs), "WHICH")
      .by_default("none")
      .built_in()
      .searched()
      .checked(check_graphs)
      .idle([](const TrainingJob& job) -> std::string {
        return job.graphs == training::Graphs::router
                   ? idle_without_experts(job, "--cuda-graphs router")
                   : "";
      })
      .help("what is launched as graphs:");
}

void declare_host(JobOptionTable& table) {
  table.begin(Section::machine);
  table.number("launch-us", "US", HostCosts::most_launch_us, in_host(&HostCosts::launch_us))
      .by_default("15")
      .assumed_by(in_host(&HostCosts::assumes_launch))
      .help("host time for each kernel launched outside graphs (assumed)");
  table.number("host-read-us", "US", HostCosts::most_sync_us, in_host(&HostCosts::sync_us))
      .by_default("20")
      .assumed_by(in_host(&HostCosts::assumes_read))
      .idle(idle_host_read)
      .help("GPU idle after the host read row counts (assumed)");
  table
      .number("step-overhead-ms", "MS", HostCosts::most_step_us / 1e3, in_host(&HostCosts::step_us),
              1e3)
      .by_default("2")
      .assumed_by(in_host(&HostCosts::assumes_step))
      .help("fixed host time per step (assumed)");
}

}  // namespace moesim::job
