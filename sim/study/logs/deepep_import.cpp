#include "sim/study/logs/deepep_import.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "sim/base/error.hpp"
#include "sim/cluster/measured_between.hpp"
#include "sim/profile/moe_exchange_law.hpp"
#include "sim/study/logs/link_figures.hpp"

namespace moesim::study {
namespace {

constexpr int gpus_of_tests = 8;
constexpr int most_node_groups = 4;  // num_topk_groups of test_internode.py, where not given

// Bytes of a GPU's tokens for `groups` nodes or GPUs, its own included.
double bytes_of(const DeepEpBest& best, int experts, int groups) {
  const double met = profile::distinct_places({experts, best.top_k, 0}, groups);
  const double row =
      best.row_format == "fp8" ? profile::fp8_row_bytes(best.hidden) : 2 * best.hidden;
  return best.tokens * met * row;
}

double time_of(const DeepEpBest& best, const DeepEpRun& run, int gpus) {
  if (best.time_us > 0) return best.time_us;
  const bool across = best.rdma_gb_per_s > 0;
  const double rate = across ? best.rdma_gb_per_s : best.nvlink_gb_per_s;
  return bytes_of(best, run.experts, across ? run.nodes : gpus) / (rate * 1e3);
}

// What leaves the GPU, or its node, by the line rate of the base.
void check_rate(const std::string& file, const DeepEpBest& best,
                const cluster::MeasuredDispatch& found, const cluster::Cluster& cluster) {
  const bool across = found.nodes > 1;
  if (across ? !crosses_domains(cluster, found.nodes) : cluster.gpus_per_domain < found.gpus) {
    return;
  }
  const double line = (across ? cluster.nic_per_gpu : cluster.domain.port).gb_per_s();
  if (line == 0) return;
  const int groups = across ? found.nodes : found.gpus;
  const double rate =
      bytes_of(best, found.experts, groups) * (groups - 1) / groups / (found.time_us * 1e3);
  check_line_rate(
      file, rate / line,
      fmt::format("DeepEP {} ({}) in {:.1f} us is {:.1f} GB/s of a GPU {}", found.stage,
                  found.row_format, found.time_us, rate, across ? "to other nodes" : "to others"),
      fmt::format("{:g} GB/s ({})", line,
                  across ? "of its NICs, nic.gbit_per_s" : "domain.gb_per_s"));
}

// The tests print no number of experts.
void check_experts(const std::string& file, const DeepEpBest& best, int experts, int gpus) {
  const std::string why = experts % gpus != 0 ? fmt::format("not spread evenly over {} GPUs", gpus)
                          : best.top_k > experts
                              ? fmt::format("num_topk={}, so that a token went to more", best.top_k)
                              : "";
  if (why.empty()) return;
  throw UsageError(fmt::format(
      "{}: --experts {}: {}: DeepEP's tests do not print how many experts there were: give the "
      "number of the run, a multiple of {}",
      file, experts, why, gpus));
}

// A dispatch is kept as one of experts drawn evenly over all nodes.
void check_groups(const std::string& file, const DeepEpBest& best, const DeepEpRun& run) {
  if (best.node_groups == 0 || best.node_groups == run.nodes) return;
  if (best.node_groups > run.nodes) {
    throw UsageError(
        fmt::format("{}: num_topk_groups={}: a run on {} nodes at least, not --nodes {}", file,
                    best.node_groups, best.node_groups, run.nodes));
  }
  throw UsageError(fmt::format(
      "{}: num_topk_groups={}: a token went to {} of the {} nodes at most, and the time is not "
      "that of experts drawn evenly over all: run test_internode.py with --num-topk-groups {}",
      file, best.node_groups, best.node_groups, run.nodes, run.nodes));
}

}  // namespace

std::vector<cluster::MeasuredDispatch> deepep_dispatches(const std::string& file,
                                                         const std::vector<DeepEpBest>& results,
                                                         const DeepEpRun& run,
                                                         const cluster::Cluster& cluster) {
  std::vector<cluster::MeasuredDispatch> dispatches;
  const int gpus = run.nodes * std::min(gpus_of_tests, cluster.gpus_per_node);
  for (const DeepEpBest& best : results) {
    const bool across = best.rdma_gb_per_s > 0;
    if (across != (run.nodes > 1)) {
      throw UsageError(fmt::format(
          "{}: DeepEP {} nodes: {}", file, across ? "between" : "inside",
          across ? "it does not print how many: give --nodes, 2 to 4" : "leave --nodes out"));
    }
    if (run.nodes > most_node_groups) {
      throw UsageError(
          fmt::format("{}: --nodes {}: DeepEP's test lets a token go to {} nodes at most, and the "
                      "time is not that of experts drawn evenly: import runs of 2 to 4 nodes",
                      file, run.nodes, most_node_groups));
    }
    check_groups(file, best, run);
    if (best.tokens == 0 || best.hidden == 0 || best.top_k == 0) {
      throw UsageError(fmt::format(
          "{}: no line '[config] num_tokens=..., hidden=..., num_topk=...' before the results",
          file));
    }
    check_experts(file, best, run.experts, gpus);
    if (best.time_us == 0 && best.rdma_gb_per_s == 0 && best.nvlink_gb_per_s == 0) {
      throw UsageError(fmt::format("{}: 'Best {}' without a time or a rate", file, best.stage));
    }
    dispatches.push_back(
        {"deepep", best.stage, best.row_format, run.nodes, gpus, best.tokens, best.hidden,
         best.top_k, run.experts, best.sms, time_of(best, run, gpus),
         "measured: DeepEP's test, " + std::filesystem::path(file).filename().string(), ""});
    check_rate(file, best, dispatches.back(), cluster);
  }
  return dispatches;
}

}  // namespace moesim::study
