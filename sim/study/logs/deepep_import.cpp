#include "sim/study/logs/deepep_import.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "sim/base/error.hpp"
#include "sim/profile/moe_exchange_law.hpp"

namespace moesim::study {
namespace {

constexpr int gpus_of_tests = 8;
constexpr int most_node_groups = 4;  // num_topk_groups of test_internode.py

double time_of(const DeepEpBest& best, const DeepEpRun& run, int gpus) {
  if (best.time_us > 0) return best.time_us;
  const bool across = best.rdma_gb_per_s > 0;
  const double rate = across ? best.rdma_gb_per_s : best.nvlink_gb_per_s;
  const double met =
      profile::distinct_groups({run.experts, best.top_k, 0}, across ? run.nodes : gpus);
  // 8-bit values have a scale of 4 bytes for each 128.
  const double row = best.hidden * (best.row_format == "fp8" ? 1 + 4.0 / 128 : 2);
  return best.tokens * met * row / (rate * 1e3);
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
    if (best.tokens == 0 || best.hidden == 0 || best.top_k == 0) {
      throw UsageError(fmt::format(
          "{}: no line '[config] num_tokens=..., hidden=..., num_topk=...' before the results",
          file));
    }
    if (best.time_us == 0 && best.rdma_gb_per_s == 0 && best.nvlink_gb_per_s == 0) {
      throw UsageError(fmt::format("{}: 'Best {}' without a time or a rate", file, best.stage));
    }
    dispatches.push_back(
        {"deepep", best.stage, best.row_format, run.nodes, gpus, best.tokens, best.hidden,
         best.top_k, run.experts, best.sms, time_of(best, run, gpus),
         "measured: DeepEP's test, " + std::filesystem::path(file).filename().string()});
  }
  return dispatches;
}

}  // namespace moesim::study
