#include "sim/routing/jobs/token_copies.hpp"

#include <algorithm>

#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/tokens/choice_table.hpp"
#include "sim/routing/tokens/decision.hpp"

namespace moesim::routing {

namespace {

// Counts tokens per destination: a token counts once for each of its destinations.
class OnceEach {
 public:
  explicit OnceEach(std::size_t destinations) : last_token_(destinations, -1) {}

  void add(std::size_t destination, std::int64_t token, std::int32_t* counts) {
    if (last_token_[destination] == token) return;
    last_token_[destination] = token;
    ++counts[destination];
  }

 private:
  std::vector<std::int64_t> last_token_;  // [destination]: the last token that was counted
};

int node_of(int gpu, int gpus_per_domain) {
  return gpus_per_domain > 0 ? gpu / gpus_per_domain : 0;
}

}  // namespace

int group_nodes(const RoutingJob& job) {
  std::size_t most = 0;
  for (int last = job.expert_parallel - 1; last < job.gpus; last += job.expert_parallel) {
    most = std::max(most, node_in_group(job, last));
  }
  return static_cast<int>(most) + 1;
}

std::size_t node_in_group(const RoutingJob& job, int gpu) {
  const int first = gpu / job.expert_parallel * job.expert_parallel;
  return static_cast<std::size_t>(node_of(gpu, job.gpus_per_domain) -
                                  node_of(first, job.gpus_per_domain));
}

void count_copies(const ChoiceTable& table, const Decision& decision, int choices,
                  const GroupPlace& place, int nodes, TokenCopies& copies) {
  const auto ranks = static_cast<std::size_t>(table.ranks());
  const std::size_t per_rank = static_cast<std::size_t>(table.experts()) / ranks;
  std::vector<std::size_t> rank_of, node_of_rank;
  for (std::size_t expert = 0; expert < static_cast<std::size_t>(table.experts()); ++expert) {
    rank_of.push_back(expert / per_rank);
  }
  const int first_node = node_of(place.first_gpu, place.gpus_per_domain);
  for (int rank = 0; rank < table.ranks(); ++rank) {
    const int node = node_of(place.first_gpu + rank, place.gpus_per_domain);
    node_of_rank.push_back(static_cast<std::size_t>(node - first_node));
  }
  copies.to_gpu.assign(ranks * ranks, 0);
  copies.to_node.assign(ranks * static_cast<std::size_t>(nodes), 0);
  OnceEach gpus(ranks), domains(static_cast<std::size_t>(nodes));
  for (int rank = 0; rank < table.ranks(); ++rank) {
    const auto source = static_cast<std::size_t>(rank);
    std::int32_t* to_gpu = copies.to_gpu.data() + source * ranks;
    std::int32_t* to_node = copies.to_node.data() + source * static_cast<std::size_t>(nodes);
    for (std::int64_t token = table.rank_begin(rank); token < table.rank_begin(rank + 1); ++token) {
      for (int choice = 0; choice < choices; ++choice) {
        if (decision.keep(choice)[token] == 0) continue;
        const std::size_t owner = rank_of[table.expert(choice)[token]];
        gpus.add(owner, token, to_gpu);
        domains.add(node_of_rank[owner], token, to_node);
      }
    }
  }
}

}  // namespace moesim::routing
