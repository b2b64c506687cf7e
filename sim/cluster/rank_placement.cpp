#include "sim/cluster/rank_placement.hpp"

#include <fmt/format.h>

#include <numeric>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "sim/base/error.hpp"
#include "sim/base/no_answer.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/text.hpp"

namespace moesim::cluster {
namespace {

// "x.json" or the name of the cluster where it was not read from a file.
std::string where(const Cluster& cluster) {
  return cluster.file.empty() ? fmt::format("cluster '{}'", cluster.name) : cluster.file;
}

void check_size(const Cluster& cluster, int rank, int gpu) {
  const int most = cluster.max_gpus();
  if (most == 0 || gpu < most) return;
  if (cluster.nodes > 0 && cluster.nodes * cluster.gpus_per_node == most) {
    throw NoAnswer(
        fmt::format("{}: /nodes: rank {} would sit on GPU {}, and {} nodes of {} have GPUs 0 to {}",
                    where(cluster), rank, gpu, cluster.nodes, cluster.gpus_per_node, most - 1));
  }
  throw NoAnswer(fmt::format(
      "{}: /nic: rank {} would sit on GPU {}, and without NICs the cluster ends with its "
      "first domain of {} GPUs: describe the nic, or take fewer ranks",
      where(cluster), rank, gpu, most));
}

std::vector<int> parse_list(const std::string& text, const std::string& what) {
  std::vector<int> gpus;
  for (const std::string_view part : split(text, ',')) {
    const std::optional<int> gpu = parse_number<int>(part);
    if (!gpu || *gpu < 0) {
      throw UsageError(fmt::format(
          "{}: '{}' is no placement{}: even, contiguous, round-robin, or the GPU of each rank: "
          "0,8,1,9",
          what, text, suggestion(text, {"even", "contiguous", "round-robin"})));
    }
    gpus.push_back(*gpu);
  }
  return gpus;
}

}  // namespace

int usual_ranks_per_domain(const Cluster& cluster, int ranks) {
  const int domain = cluster.gpus_per_domain;
  const int node = cluster.gpus_per_node;
  if (domain <= node || ranks <= domain || ranks % domain == 0) return domain;
  for (const int step : {node, 1}) {
    for (int each = domain - domain % step; 2 * each >= domain; each -= step) {
      if (ranks % each == 0) return each;
    }
  }
  const int domains = (ranks + domain - 1) / domain;
  return (ranks + domains - 1) / domains;
}

std::vector<int> even_placement(const Cluster& cluster, int ranks) {
  const int each = usual_ranks_per_domain(cluster, ranks);
  std::vector<int> gpus;
  for (int rank = 0; rank < ranks; ++rank) {
    gpus.push_back(rank / each * cluster.gpus_per_domain + rank % each);
  }
  const int most = cluster.max_gpus();
  return most > 0 && !gpus.empty() && gpus.back() >= most ? contiguous_placement(ranks) : gpus;
}

std::shared_ptr<const Cluster> on_parts_of_domains(std::shared_ptr<const Cluster> cluster,
                                                   int ranks) {
  const int each = usual_ranks_per_domain(*cluster, ranks);
  if (each == cluster->gpus_per_domain || each % cluster->gpus_per_node != 0) return cluster;
  auto parts = std::make_shared<Cluster>(*cluster);
  parts->gpus_per_domain = each;
  return parts;
}

std::vector<int> contiguous_placement(int ranks) {
  std::vector<int> gpus(static_cast<std::size_t>(ranks));
  std::iota(gpus.begin(), gpus.end(), 0);
  return gpus;
}

std::vector<int> round_robin_placement(const Cluster& cluster, int ranks) {
  const int nodes = (ranks + cluster.gpus_per_node - 1) / cluster.gpus_per_node;
  std::vector<int> gpus;
  for (int rank = 0; rank < ranks; ++rank) {
    gpus.push_back(rank % nodes * cluster.gpus_per_node + rank / nodes);
  }
  return gpus;
}

std::vector<int> parse_placement(const std::string& text, const Cluster& cluster, int ranks,
                                 const std::string& what) {
  std::vector<int> gpus;
  if (text == "even") {
    gpus = even_placement(cluster, ranks);
  } else if (text == "contiguous") {
    gpus = contiguous_placement(ranks);
  } else if (text == "round-robin") {
    gpus = round_robin_placement(cluster, ranks);
  } else {
    gpus = parse_list(text, what);
    if (gpus.size() != static_cast<std::size_t>(ranks)) {
      throw NoAnswer(fmt::format("{}: {} GPUs are given for {} ranks", what, gpus.size(), ranks));
    }
  }
  check_placement(cluster, gpus);
  return gpus;
}

void check_placement(const Cluster& cluster, std::span<const int> gpu_of_rank) {
  if (gpu_of_rank.empty()) {
    throw UsageError(fmt::format("{}: a job of no ranks has no place", where(cluster)));
  }
  std::unordered_map<int, int> rank_of;
  rank_of.reserve(gpu_of_rank.size());
  for (int rank = 0; rank < static_cast<int>(gpu_of_rank.size()); ++rank) {
    const int gpu = gpu_of_rank[static_cast<std::size_t>(rank)];
    if (gpu < 0) {
      throw UsageError(fmt::format("{}: rank {} has no place: GPU {}", where(cluster), rank, gpu));
    }
    check_size(cluster, rank, gpu);
    const auto [at, is_new] = rank_of.emplace(gpu, rank);
    if (!is_new) {
      throw UsageError(fmt::format("{}: ranks {} and {} are both on GPU {}: each needs its own",
                                   where(cluster), at->second, rank, gpu));
    }
  }
}

}  // namespace moesim::cluster
