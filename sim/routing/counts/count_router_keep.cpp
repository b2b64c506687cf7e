#include "sim/routing/counts/count_router.hpp"

#include <algorithm>

#include "sim/routing/counts/count_distribution.hpp"
#include "sim/routing/counts/count_growth.hpp"
#include "sim/routing/jobs/group_blocks.hpp"

namespace moesim::routing {

void CountRouter::keep_by_source(const Counts& counts, std::int64_t capacity,
                                 LayerRouting& result) {
  const auto slots = static_cast<std::int32_t>(std::min<std::int64_t>(capacity, 1 << 30));
  const auto experts = static_cast<std::size_t>(job_.experts);
  for (std::size_t gpu = 0; gpu < kept_.primary.size(); ++gpu) {
    const std::int32_t* asked = counts.primary.data() + gpu * experts;
    std::int32_t* rows = result.kept_rows.data() + gpu * experts;
    std::int64_t sum = 0;
    for (std::size_t expert = 0; expert < experts; ++expert) {
      rows[expert] = std::min(asked[expert], slots);
      sum += rows[expert];
    }
    kept_.primary[gpu] = sum;
    if (!counts.fill_in) continue;
    const std::int32_t* nominees = counts.nominees.data() + gpu * experts;
    sum = 0;
    for (std::size_t expert = 0; expert < experts; ++expert) {
      const std::int32_t filled = std::min(slots - rows[expert], nominees[expert]);
      rows[expert] += filled;
      sum += filled;
    }
    kept_.filled[gpu] = sum;
  }
}

void CountRouter::keep_by_group(const RouterConfig& router, const Counts& counts,
                                std::int64_t capacity, LayerRouting& result) {
  const auto experts = static_cast<std::size_t>(job_.experts);
  const auto ranks = static_cast<std::size_t>(job_.expert_parallel);
  const std::int64_t slots = capacity * job_.expert_parallel;
  std::vector<std::int64_t> primary(experts), filled(experts);
  // All routes of a drawing router have g = 1, and equal keys are ordered by index.
  const bool by_index = router.priority == Priority::position ||
                        (!router.has_gate() && router.priority != Priority::random);
  for (std::size_t gpu = 0; gpu < static_cast<std::size_t>(job_.gpus); gpu += ranks) {
    if (by_index) {
      deal_by_rank(counts, gpu, slots, result);
      continue;
    }
    std::fill(primary.begin(), primary.end(), 0);
    std::fill(filled.begin(), filled.end(), 0);
    for (std::size_t at = gpu * experts; at < (gpu + ranks) * experts; ++at) {
      primary[at % experts] += counts.primary[at];
      if (counts.fill_in) filled[at % experts] += counts.nominees[at];
    }
    for (std::size_t expert = 0; expert < experts; ++expert) {
      primary[expert] = std::min(primary[expert], slots);
      filled[expert] = std::min(filled[expert], slots - primary[expert]);
    }
    deal_by_chance(counts.primary, deal_plane, gpu, primary, kept_.primary, result);
    if (!counts.fill_in) continue;
    deal_by_chance(counts.nominees, deal_fill_plane, gpu, filled, kept_.filled, result);
  }
  set_largest_kept(job_, result);
}

// Keys are independent of ranks: all sets of routes of a group with the same size are equally
// likely to be kept. `kept` [expert] of the group's routes to each expert are kept.
void CountRouter::deal_by_chance(const std::vector<std::int32_t>& routes, std::uint32_t plane,
                                 std::size_t first_gpu, std::vector<std::int64_t> kept,
                                 std::vector<std::int64_t>& of_gpu, LayerRouting& result) const {
  const auto experts = static_cast<std::size_t>(job_.experts);
  const auto ranks = static_cast<std::size_t>(job_.expert_parallel);
  std::vector<std::int64_t> left(experts, 0);
  for (std::size_t at = first_gpu * experts; at < (first_gpu + ranks) * experts; ++at) {
    left[at % experts] += routes[at];
  }
  std::vector<float> z(experts * tile_tokens);
  for (std::size_t gpu = first_gpu; gpu < first_gpu + ranks; ++gpu) {
    const std::size_t lane = gpu % tile_tokens;
    if (gpu == first_gpu || lane == 0) normals(plane, gpu - lane, z.data());
    for (std::size_t expert = 0; expert < experts; ++expert) {
      const std::size_t at = gpu * experts + expert;
      const std::int64_t mine = routes[at];
      const std::int64_t rows =
          kept[expert] == left[expert]
              ? mine
              : hypergeometric_quantile(left[expert], kept[expert], mine,
                                        static_cast<double>(z[expert * tile_tokens + lane]));
      result.kept_rows[at] += static_cast<std::int32_t>(rows);
      of_gpu[gpu] += rows;
      kept[expert] -= rows;
      left[expert] -= mine;
    }
  }
}

// Choice by choice, the tokens of the first rank first. Nominees follow the primary choices, by
// score or by rank; here always by rank, because few free slots are left where the difference
// matters.
void CountRouter::deal_by_rank(const Counts& counts, std::size_t first_gpu, std::int64_t slots,
                               LayerRouting& result) {
  const auto experts = static_cast<std::size_t>(job_.experts);
  const auto ranks = static_cast<std::size_t>(job_.expert_parallel);
  const auto top_k = static_cast<std::size_t>(counts.top_k);
  const auto first = counts.primary.begin() + static_cast<std::ptrdiff_t>(first_gpu * experts);
  std::vector<std::int32_t> waiting(first, first + static_cast<std::ptrdiff_t>(ranks * experts));
  std::vector<std::int64_t> left(experts, slots), asked(experts, 0);
  for (std::size_t at = 0; at < waiting.size(); ++at) asked[at % experts] += waiting[at];
  std::vector<double> share_left(experts, 0.0);
  for (std::size_t at = 0; at < top_k * experts; ++at)
    share_left[at % experts] += counts.shares[at];
  std::vector<float> z(experts * tile_tokens);
  const std::size_t choices = top_k + (counts.fill_in ? 1 : 0);
  for (std::size_t choice = 0; choice < choices; ++choice) {
    for (std::size_t gpu = first_gpu; gpu < first_gpu + ranks; ++gpu) {
      const std::size_t lane = gpu % tile_tokens;
      if (choice + 1 < top_k && (gpu == first_gpu || lane == 0)) {
        normals(static_cast<std::uint32_t>(rank_split_plane + choice), gpu - lane, z.data());
      }
      std::int64_t kept_here = 0;
      for (std::size_t expert = 0; expert < experts; ++expert) {
        std::int32_t& mine = waiting[(gpu - first_gpu) * experts + expert];
        std::int32_t here = mine;
        if (choice == top_k) {
          here = counts.nominees[gpu * experts + expert];
        } else if (choice + 1 < top_k && asked[expert] > slots) {
          const double part =
              std::min(1.0, share(counts.shares[choice * experts + expert], share_left[expert]));
          here = binomial_quantile(mine, part, static_cast<double>(z[expert * tile_tokens + lane]));
        }
        if (choice < top_k) mine -= here;
        const std::int64_t kept = std::min<std::int64_t>(here, left[expert]);
        left[expert] -= kept;
        kept_here += kept;
        result.kept_rows[gpu * experts + expert] += static_cast<std::int32_t>(kept);
      }
      (choice < top_k ? kept_.primary : kept_.filled)[gpu] += kept_here;
    }
    for (std::size_t expert = 0; expert < experts && choice < top_k; ++expert) {
      share_left[expert] -= counts.shares[choice * experts + expert];
    }
  }
}

void CountRouter::fill_queues(const RouterConfig& router, std::int64_t slots,
                              const std::vector<std::int32_t>& split) {
  const auto experts = static_cast<std::size_t>(job_.experts);
  const auto choices = static_cast<std::size_t>(router.choices());
  const auto top_k = static_cast<std::size_t>(router.top_k);
  const bool own = router.has_one_queue();
  queues_.resize(split.size());
  const auto most = static_cast<std::int32_t>(std::min<std::int64_t>(slots, 1 << 30));
  for (std::size_t block = 0; block < pilot_.blocks(); ++block) {
    for (std::size_t expert = 0; expert < experts; ++expert) {
      const std::size_t at = block * choices * experts + expert;
      std::int32_t left = most;
      std::int32_t primary = 0;
      for (std::size_t choice = 0; choice < top_k; ++choice) {
        const std::int32_t waiting = split[at + choice * experts];
        queues_[at + choice * experts] = {left, waiting};
        left = std::max(0, left - waiting);
        primary += waiting;
      }
      for (std::size_t choice = 0; own && choice < top_k; ++choice) {
        queues_[at + choice * experts] = {most, primary};
      }
      if (router.fill_in) queues_[at + top_k * experts] = {left, split[at + top_k * experts]};
    }
  }
}

}  // namespace moesim::routing
