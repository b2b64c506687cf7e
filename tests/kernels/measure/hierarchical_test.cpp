#include "kernels/measure/suites/hierarchical.hpp"

#include <deque>
#include <map>
#include <utility>

#include "kernels/measure/suites/suites.hpp"
#include "tests/support/catch.hpp"

namespace measure = moesim::kernels::measure;
using measure::Stretch;

namespace {

using Chunk = std::pair<int, int>;  // sender, receiver
using Buffers = std::vector<std::vector<Chunk>>;

// Carries out one step of all ranks: `rank_at` says which rank peer `peer` of rank `own` is, and
// `place_of` as which peer a rank is known to the others.
template <typename RankAt, typename PlaceOf>
int carry(const measure::Transfers& step, const Buffers& from, Buffers& to, const RankAt& rank_at,
          const PlaceOf& place_of) {
  const int ranks = static_cast<int>(from.size());
  std::map<std::pair<int, int>, std::deque<std::vector<Chunk>>> under_way;
  int sent = 0;
  for (int own = 0; own < ranks; ++own) {
    for (const Stretch& each : step.sends) {
      const auto first = from[static_cast<std::size_t>(own)].begin() + each.first;
      under_way[{own, rank_at(own, each.peer)}].emplace_back(first, first + each.chunks);
      if (rank_at(own, each.peer) != own) sent += each.chunks;
    }
  }
  for (int own = 0; own < ranks; ++own) {
    for (const Stretch& each : step.receives) {
      const int other = rank_at(own, each.peer);
      REQUIRE(place_of(other) == each.peer);
      auto& queue = under_way[{other, own}];
      REQUIRE_FALSE(queue.empty());
      REQUIRE(static_cast<int>(queue.front().size()) == each.chunks);
      std::copy(queue.front().begin(), queue.front().end(),
                to[static_cast<std::size_t>(own)].begin() + each.first);
      queue.pop_front();
    }
  }
  for (const auto& [pair, queue] : under_way) CHECK(queue.empty());
  return sent;
}

}  // namespace

TEST_CASE("a hierarchical all-to-all brings every chunk to its receiver, in the sender's place") {
  for (const auto& [nodes, gpus] :
       std::vector<std::pair<int, int>>{{2, 2}, {3, 4}, {4, 1}, {1, 8}}) {
    CAPTURE(nodes, gpus);
    const int ranks = nodes * gpus, width = gpus;
    const measure::HierarchicalPlan plan = measure::hierarchical_plan(nodes, gpus);
    Buffers input, staging, output;
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<Chunk> row;
      for (int other = 0; other < ranks; ++other) row.emplace_back(rank, other);
      input.push_back(row);
      staging.emplace_back(row.size(), Chunk{-1, -1});
      output.emplace_back(row.size(), Chunk{-1, -1});
    }
    const int inside = carry(
        plan.inside, input, staging,
        [width](int own, int peer) { return own - own % width + peer; },
        [width](int rank) { return rank % width; });
    const int across = carry(
        plan.across, staging, output,
        [width](int own, int peer) { return peer * width + own % width; },
        [width](int rank) { return rank / width; });
    for (int rank = 0; rank < ranks; ++rank) {
      for (int other = 0; other < ranks; ++other) {
        CHECK(output[static_cast<std::size_t>(rank)][static_cast<std::size_t>(other)] ==
              Chunk{other, rank});
      }
    }
    // Each rank passes all but the nodes' chunks of its own place on inside the node; and what goes
    // to another node crosses once: ranks * (ranks - gpus) chunks in all.
    CHECK(inside == ranks * nodes * (gpus - 1));
    CHECK(across == ranks * (ranks - gpus));
  }
}

TEST_CASE("hierarchical exchanges are measured across nodes only") {
  const auto count = [](measure::Ranks ranks) {
    int found = 0;
    for (const auto& spec : measure::find_suite("collectives").points(ranks)) {
      if (spec.params.at("pattern") != "hierarchical") continue;
      CHECK(spec.params.at("nodes") == ranks.nodes);
      ++found;
    }
    return found;
  };
  CHECK(count({8, 1}) == 0);
  CHECK(count({2, 2}) == 0);    // one GPU on each: nothing to gather
  CHECK(count({16, 2}) == 19);  // 4 KiB to 1 GiB
}
