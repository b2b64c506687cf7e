#include "sim/routing/counts/count_router.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "sim/routing/counts/count_distribution.hpp"
#include "sim/routing/counts/count_growth.hpp"
#include "sim/routing/tokens/choice_shares.hpp"

namespace moesim::routing {

namespace {

constexpr std::size_t position_parts = 8;

// The rectified rows of a GPU and their distribution over the ranks of its domain.
struct OutgoingRows {
  std::int32_t rows = 0;
  double failed = 0;                // expected rows that follow a failed route, over all ranks
  std::vector<double> failed_here;  // [rank] of them
  double others = 0;                // expected other rows
};

// Rows that follow failed routes are distributed proportionally, the others are drawn by `shares`
// [rank].
void deal_rows(const OutgoingRows& out, const std::vector<double>& shares, Stream& stream,
               std::int32_t* computed) {
  double failed_left = out.failed;
  double share_left = std::accumulate(shares.begin(), shares.end(), 0.0);
  std::int64_t bound = std::llround(out.rows * share(failed_left, failed_left + out.others));
  auto free = static_cast<std::int32_t>(out.rows - bound);
  for (std::size_t target = 0; target < shares.size(); ++target) {
    const bool last = target + 1 == shares.size();
    const double failed_part = std::min(1.0, share(out.failed_here[target], failed_left));
    const std::int64_t follow =
        last ? bound : std::llround(static_cast<double>(bound) * failed_part);
    const double part = std::min(1.0, share(shares[target], share_left));
    const std::int32_t here = last ? free : binomial_quantile(free, part, stream.normal());
    computed[target] += here + static_cast<std::int32_t>(follow);
    free -= here;
    bound -= follow;
    failed_left -= out.failed_here[target];
    share_left -= shares[target];
  }
}

}  // namespace

// How fast the share of partial tokens grows with the share of failed routes: the pilot is judged
// again with slightly less capacity.
double CountRouter::growth_at_less_capacity(const RoutingJob& job, const PilotLoss& pilot,
                                            const LayerRouting& result) {
  const RouterConfig& router = job.router;
  const std::int64_t ranks =
      router.capacity_scope == CapacityScope::source ? 1 : job.expert_parallel;
  const std::int64_t slots = result.capacity * ranks;
  const std::int64_t less = slots - std::max<std::int64_t>(1, slots / 32);
  const double usual = share(pilot.partial, pilot.failed);
  if (less < 0) return usual;
  fill_queues(router, less, split_of(counts_of(router), router.capacity_scope));
  const PilotLoss other = pilot_.judge(router, queues_);
  if (other.failed <= pilot.failed) return usual;
  return (other.partial - pilot.partial) / (other.failed - pilot.failed);
}

// [gpu]: tokens with a failed primary route. With `group` scope and priority by position the last
// ranks lose most: each rank uses the growth law of the tokens at its position in the order.
// Otherwise GPUs differ little.
std::vector<double> CountRouter::partial_tokens(const RoutingJob& job, const PilotLoss& pilot,
                                                const LayerRouting& result) {
  const RouterConfig& router = job.router;
  const double tokens = static_cast<double>(job.tokens_per_gpu);
  std::vector<double> failed, partial;
  for (const std::int64_t kept : kept_.primary) {
    failed.push_back(1 - static_cast<double>(kept) / (tokens * router.top_k));
  }
  const double partial_share = result.loss.partial;
  if (router.priority == Priority::position && router.capacity_scope == CapacityScope::group) {
    const auto ranks = static_cast<std::size_t>(job.expert_parallel);
    const std::size_t parts = std::min(ranks, position_parts);
    const std::vector<PilotLoss> at = pilot_.judge_parts(router, static_cast<int>(parts));
    for (std::size_t gpu = 0; gpu < failed.size(); ++gpu) {
      const PilotLoss& here = at[gpu % ranks * parts / ranks];
      const Growth law = fit_growth(false, here.failed, here.partial, router.top_k);
      partial.push_back(tokens * law(failed[gpu]));
    }
    return partial;
  }
  const double slope = router.top_k == 1 ? 1.0 : growth_at_less_capacity(job, pilot, result);
  // The scatter from tokens with two failed routes; 1.4 was found by comparison with routed tokens.
  const double twice = std::max(0.0, router.top_k * result.loss.failed - partial_share);
  const double apart = partial_share * (1 - partial_share);
  const double scatter = std::min(1.4 * std::sqrt(tokens * twice), 1.2 * std::sqrt(tokens * apart));
  StreamKey key = key_;
  key.rank = ir_plane;
  Stream stream(key);
  for (const double value : failed) {
    const double mean = tokens * (partial_share + slope * (value - result.loss.failed));
    partial.push_back(std::clamp(mean + scatter * stream.normal(), 0.0, tokens));
  }
  return partial;
}

// [gpu], IrDuplicates::exclude: how often all local experts of a token already have it, up to a
// factor: the product of their kept rows divided by tokens.
std::vector<double> CountRouter::missing_locals(const RoutingJob& job,
                                                const LayerRouting& result) const {
  const int ranks = job.expert_parallel;
  std::vector<double> missing;
  for (int gpu = 0; gpu < job.gpus; ++gpu) {
    const int first_gpu = gpu / ranks * ranks;
    const LocalExperts local = local_experts(job.router, job.experts, ranks, gpu - first_gpu,
                                             {first_gpu, job.gpus_per_domain});
    double all = 1;
    for (int expert = local.first; expert < local.last; ++expert) {
      const auto at = static_cast<std::size_t>(gpu) * static_cast<std::size_t>(job.experts) +
                      static_cast<std::size_t>(expert);
      all *= static_cast<double>(result.kept_rows[at]) / static_cast<double>(job.tokens_per_gpu);
    }
    missing.push_back(all);
  }
  return missing;
}

// A partial token is rectified unless a nomination replaced the failed route (FR), or all its local
// experts already have it (IrDuplicates::exclude).
void CountRouter::set_ir_rows(const RoutingJob& job, const PilotLoss& pilot, LayerRouting& result) {
  const RouterConfig& router = job.router;
  const double tokens = static_cast<double>(job.tokens_per_gpu);
  const bool by_node = router.rectification == Rectification::node;
  const DomainTargets targets = by_node ? pilot_.ir_targets(router) : DomainTargets{};
  const std::vector<double> partial = partial_tokens(job, pilot, result);
  std::vector<double> missing(partial.size(), 0.0);
  if (router.ir_duplicates == IrDuplicates::exclude) missing = missing_locals(job, result);
  const double mean_missing =
      std::accumulate(missing.begin(), missing.end(), 0.0) / static_cast<double>(missing.size());
  const double excluded = 1 - (pilot.needing > 0 ? pilot.ir / pilot.needing : 1.0);
  const double part = router.fill_in ? share(pilot.needing, pilot.partial) : 1.0;
  const double unfilled = result.loss.fill_failed.value_or(1.0);
  StreamKey key = key_;
  key.rank = unfilled_plane;
  Stream stream(key);
  for (std::size_t gpu = 0; gpu < partial.size(); ++gpu) {
    double mine = part;
    if (router.fill_in) {
      // One failed route is replaced by a nomination that finds a slot; several are not.
      const double failed = 1 - static_cast<double>(kept_.filled[gpu]) / tokens;
      mine = std::clamp(part + share(1 - part, 1 - unfilled) * (failed - unfilled), 0.0, 1.0);
    }
    mine *= 1 - std::min(1.0, excluded * share(missing[gpu], mean_missing));
    const auto asking = static_cast<std::int32_t>(std::lround(partial[gpu]));
    result.ir_rows[gpu] = mine >= 1 ? asking : binomial_quantile(asking, mine, stream.normal());
  }
  if (by_node) send_ir_rows(job, targets, result);
}

// [rank of the experts first .. last - 1]: the share of a domain's tokens that each rank rectifies,
// excluding tokens that go to an expert that rejected them. The best expert of a token in the
// domain follows from the scores; how often the token then needs it, from the pilot.
std::vector<double> CountRouter::target_shares(int first, int last, int per_rank,
                                               const std::vector<double>& rate) const {
  const std::span<const float> offsets(offsets_.data() + first,
                                       static_cast<std::size_t>(last - first));
  std::vector<double> best(offsets.size(), 0.0);
  if (std::all_of(offsets.begin(), offsets.end(),
                  [](float offset) { return std::isinf(offset); })) {
    best[0] = 1;
  } else {
    best = choice_shares(offsets, noise_, 1);
  }
  std::vector<double> shares(offsets.size() / static_cast<std::size_t>(per_rank), 0.0);
  for (std::size_t at = 0; at < best.size(); ++at) {
    shares[at / static_cast<std::size_t>(per_rank)] +=
        best[at] * rate[static_cast<std::size_t>(first) + at];
  }
  return shares;
}

// [rank, expert] of the group of `first_gpu`: failed primary routes.
std::vector<double> CountRouter::failed_routes(const RoutingJob& job, int first_gpu,
                                               const LayerRouting& result) {
  const auto experts = static_cast<std::size_t>(job.experts);
  const auto ranks = static_cast<std::size_t>(job.expert_parallel);
  const std::vector<std::int32_t>& primary = counts_of(job.router).primary;
  const std::size_t begin = static_cast<std::size_t>(first_gpu) * experts;
  std::vector<double> failed(ranks * experts, 0.0);
  if (job.router.capacity_scope == CapacityScope::source) {
    for (std::size_t at = 0; at < failed.size(); ++at) {
      const std::int64_t over = primary[begin + at] - result.capacity;
      failed[at] = static_cast<double>(std::max<std::int64_t>(0, over));
    }
    return failed;
  }
  const std::int64_t slots = result.capacity * job.expert_parallel;
  for (std::size_t expert = 0; expert < experts; ++expert) {
    std::int64_t asked = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      asked += primary[begin + rank * experts + expert];
    }
    const double part = share(static_cast<double>(std::max<std::int64_t>(0, asked - slots)),
                              static_cast<double>(asked));
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const std::size_t at = rank * experts + expert;
      failed[at] = part * static_cast<double>(primary[begin + at]);
    }
  }
  return failed;
}

// Rows to an expert that has just rejected their token follow the failed routes; the others follow
// the scores.
void CountRouter::send_ir_rows(const RoutingJob& job, const DomainTargets& targets,
                               LayerRouting& result) {
  const int ranks = job.expert_parallel;
  const int per_rank = job.experts / ranks;
  std::map<std::pair<int, int>, std::vector<double>> known;  // by the experts of the domain
  std::vector<std::int32_t> computed(result.ir_rows.size(), 0);
  std::vector<double> failed;
  for (int gpu = 0; gpu < job.gpus; ++gpu) {
    const int rank = gpu % ranks;
    const int first_gpu = gpu - rank;
    if (rank == 0) failed = failed_routes(job, first_gpu, result);
    const LocalExperts local =
        local_experts(job.router, job.experts, ranks, rank, {first_gpu, job.gpus_per_domain});
    const std::pair<int, int> domain{local.first, local.last};
    const IrTargets& rates = targets.at(domain);
    std::vector<double>& shares = known[domain];
    if (shares.empty()) {
      shares = target_shares(local.first, local.last, per_rank, rates.other_rates);
    }
    StreamKey key = key_;
    key.purpose = Purpose::ir_targets;
    key.rank = static_cast<std::uint32_t>(gpu);
    Stream stream(key);
    const double* row = failed.data() + static_cast<std::ptrdiff_t>(rank) * job.experts;
    const auto expected = [&](int first, int end) {
      double sum = 0;
      for (int expert = first; expert < end; ++expert) {
        sum += row[expert] * rates.failed_rates[static_cast<std::size_t>(expert)];
      }
      return sum;
    };
    OutgoingRows out{result.ir_rows[static_cast<std::size_t>(gpu)],
                     expected(local.first, local.last),
                     {},
                     std::accumulate(shares.begin(), shares.end(), 0.0) *
                         static_cast<double>(job.tokens_per_gpu)};
    for (int first = local.first; first < local.last; first += per_rank) {
      out.failed_here.push_back(expected(first, first + per_rank));
    }
    deal_rows(out, shares, stream, computed.data() + first_gpu + local.first / per_rank);
  }
  result.ir_rows = computed;
}

}  // namespace moesim::routing
