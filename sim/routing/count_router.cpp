#include "sim/routing/count_router.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "sim/routing/choice_shares.hpp"
#include "sim/routing/count_law.hpp"

namespace moesim::routing {

namespace {

// What a plane of normals is for; planes per choice come last, max_choices of them each.
enum Plane : std::uint32_t {
  primary_plane,
  nominee_plane,
  deal_plane,
  deal_fill_plane,
  ir_plane,
  unfilled_plane,
  split_plane = 64,
  rank_split_plane = 128,
  chance_plane = 192
};

constexpr std::size_t position_parts = 8;

double share(double part, double whole) { return whole > 0 ? part / whole : 0.0; }

double sum_of(const std::vector<std::int64_t>& values) {
  return static_cast<double>(std::accumulate(values.begin(), values.end(), std::int64_t{0}));
}

// How a share of the tokens grows with the share of routes that failed: 1 - (1 - x)^a where one
// failed route is enough, x^a where all have to fail; a such that the pilot's figures fit.
struct Growth {
  bool all = false;
  double exponent = 1;

  double operator()(double failed) const {
    if (failed <= 0) return 0;
    if (std::isinf(exponent)) return all ? 0 : 1;
    return all ? std::pow(failed, exponent) : 1 - std::pow(1 - std::min(failed, 1.0), exponent);
  }
};

// `independent`: the exponent of failures that know nothing of each other, for a pilot without any.
Growth fit_growth(bool all, double failed, double found, double independent) {
  if (failed <= 0 || failed >= 1) return {all, independent};
  if (all ? found <= 0 : found >= 1) return {all, std::numeric_limits<double>::infinity()};
  return {all, all ? std::log(found) / std::log(failed) : std::log1p(-found) / std::log1p(-failed)};
}

}  // namespace

void CountRouter::prepare(std::span<const RoutingJob> jobs, int replica, int layer) {
  job_ = jobs.front();
  key_ = {job_.seed, Purpose::counts, static_cast<std::uint32_t>(replica),
          static_cast<std::uint32_t>(layer), 0};
  const LogitSource logits(job_.scores, {job_.experts, job_.expert_parallel, job_.gpus}, job_.seed,
                           key_.replica, key_.layer);
  noise_ = logits.noise();
  offsets_ = logits.offsets();
  no_offsets_.assign(offsets_.size(), 0.0F);
  shares_.clear();
  counts_.clear();
  counts_.reserve(jobs.size());
  StreamKey chance = key_;
  chance.rank = chance_plane;
  pilot_.draw(jobs, logits, chance);
}

void CountRouter::route(std::span<const RoutingJob> jobs, int replica, int layer,
                        std::span<LayerRouting> results) {
  prepare(jobs, replica, layer);
  for (std::size_t job = 0; job < jobs.size(); ++job) settle(jobs[job], results[job]);
}

void CountRouter::route_counts(std::span<const RoutingJob> jobs, int replica, int layer,
                               std::span<const std::int32_t> primary,
                               std::span<LayerRouting> results) {
  prepare(jobs, replica, layer);
  for (const bool fill_in : {false, true}) {
    RouterConfig router = jobs.front().router;
    router.fill_in = fill_in;
    const bool wanted = std::any_of(jobs.begin(), jobs.end(), [&](const RoutingJob& job) {
      return job.router.fill_in == fill_in;
    });
    if (!wanted) continue;
    Counts& counts = add_counts(router);
    counts.primary.assign(primary.begin(), primary.end());
    draw_counts(counts, true);
  }
  for (std::size_t job = 0; job < jobs.size(); ++job) settle(jobs[job], results[job]);
}

// By k', not the most that any job asks for: what a job gets must not depend on the others.
const std::vector<double>& CountRouter::shares_of(int choices) {
  std::vector<double>& shares = shares_[choices];
  if (!shares.empty()) return shares;
  shares = choice_shares(offsets_, noise_, choices);
  std::vector<double> popularity(offsets_.size(), 0.0);
  for (std::size_t at = 0; at < shares.size(); ++at) {
    popularity[at % offsets_.size()] += shares[at];
  }
  pilot_.set_popularity(choices, popularity);
  return shares;
}

// 16 rows of standard normals from row `first` of a plane: [expert][16].
void CountRouter::normals(std::uint32_t plane, std::uint64_t first, float* tile) const {
  StreamKey key = key_;
  key.rank = plane;
  kernels_.gaussian({philox_words(key), first}, job_.experts, no_offsets_.data(), tile);
}

CountRouter::Counts& CountRouter::counts_of(const RouterConfig& router) {
  for (Counts& counts : counts_) {
    if (counts.top_k == router.top_k && counts.fill_in == router.fill_in) return counts;
  }
  Counts& counts = add_counts(router);
  draw_counts(counts, false);
  return counts;
}

CountRouter::Counts& CountRouter::add_counts(const RouterConfig& router) {
  Counts& counts = counts_.emplace_back();
  counts.top_k = router.top_k;
  counts.fill_in = router.fill_in;
  counts.shares = shares_of(router.choices()).data();
  return counts;
}

// A nominee is no primary choice of its token: cov(primary, nominee) = -S s_primary s_nominee.
void CountRouter::draw_counts(Counts& counts, bool primary_given) const {
  const auto experts = static_cast<std::size_t>(job_.experts);
  const auto gpus = static_cast<std::size_t>(job_.gpus);
  std::vector<double> primary(experts, 0.0);
  const auto top_k = static_cast<std::size_t>(counts.top_k);
  for (std::size_t at = 0; at < top_k * experts; ++at) primary[at % experts] += counts.shares[at];
  const CountLaw primary_law(primary, job_.tokens_per_gpu, counts.top_k);
  std::vector<double> nominee(experts, 0.0);
  std::vector<float> like(experts, 0.0F), unlike(experts, 1.0F);
  if (counts.fill_in) {
    std::copy_n(counts.shares + top_k * experts, experts, nominee.begin());
    for (std::size_t expert = 0; expert < experts; ++expert) {
      const double p = primary[expert];
      const double q = nominee[expert];
      const double spread = std::sqrt(p * (1 - p) * q * (1 - q));
      const double correlation = spread > 1e-12 ? std::max(-1.0, -p * q / spread) : 0.0;
      like[expert] = static_cast<float>(correlation);
      unlike[expert] = static_cast<float>(std::sqrt(1 - correlation * correlation));
    }
    counts.nominees.resize(gpus * experts);
  }
  if (!primary_given) counts.primary.resize(gpus * experts);
  const CountLaw nominee_law(counts.fill_in ? nominee : primary, job_.tokens_per_gpu,
                             counts.fill_in ? 1 : counts.top_k);
  std::vector<float> z(experts * tile_tokens), other(experts * tile_tokens);
  std::vector<std::int32_t> scrap(experts * tile_tokens);
  for (std::size_t gpu = 0; gpu < gpus; gpu += tile_tokens) {
    const int here = static_cast<int>(std::min<std::size_t>(tile_tokens, gpus - gpu));
    normals(primary_plane, gpu, z.data());
    primary_law.draw(z.data(), here,
                     primary_given ? scrap.data() : counts.primary.data() + gpu * experts);
    if (!counts.fill_in) continue;
    normals(nominee_plane, gpu, other.data());
    for (std::size_t at = 0; at < experts * tile_tokens; ++at) {
      const std::size_t expert = at / tile_tokens;
      other[at] = like[expert] * z[at] + unlike[expert] * other[at];
    }
    nominee_law.draw(other.data(), here, counts.nominees.data() + gpu * experts);
  }
}

// Given how many routes of a GPU go to an expert, each is its token's choice c with probability
// share(c, e) / sum of them: a multinomial, drawn choice by choice.
const std::vector<std::int32_t>& CountRouter::split_of(Counts& counts, CapacityScope scope) const {
  std::vector<std::int32_t>& split = counts.split[static_cast<int>(scope)];
  if (!split.empty()) return split;
  const auto experts = static_cast<std::size_t>(job_.experts);
  const auto top_k = static_cast<std::size_t>(counts.top_k);
  const std::size_t choices = top_k + (counts.fill_in ? 1 : 0);
  const std::size_t ranks =
      scope == CapacityScope::source ? 1 : static_cast<std::size_t>(job_.expert_parallel);
  const std::size_t domains = static_cast<std::size_t>(job_.gpus) / ranks;
  const std::size_t blocks = pilot_.blocks();
  split.assign(blocks * choices * experts, 0);
  for (std::size_t block = 0; block < blocks; ++block) {
    // Blocks come rank by rank: a stride makes every rank meet GPUs from all over.
    const std::size_t domain =
        domains >= blocks ? block * domains / blocks : (block * 7 + block / domains) % domains;
    std::int32_t* last = split.data() + (block * choices + top_k - 1) * experts;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const std::size_t row = (domain * ranks + rank) * experts;
      for (std::size_t expert = 0; expert < experts; ++expert) {
        last[expert] += counts.primary[row + expert];
        if (counts.fill_in) last[experts + expert] += counts.nominees[row + expert];
      }
    }
  }
  std::vector<double> left(experts, 0.0);
  for (std::size_t at = 0; at < top_k * experts; ++at) left[at % experts] += counts.shares[at];
  std::vector<float> z(experts * tile_tokens);
  for (std::size_t choice = 0; choice + 1 < top_k; ++choice) {
    for (std::size_t block = 0; block < blocks; ++block) {
      const std::size_t lane = block % tile_tokens;
      const auto plane = static_cast<std::uint32_t>(split_plane + choice);
      if (lane == 0) normals(plane, block, z.data());
      std::int32_t* here = split.data() + (block * choices + choice) * experts;
      std::int32_t* last = split.data() + (block * choices + top_k - 1) * experts;
      for (std::size_t expert = 0; expert < experts; ++expert) {
        const double part =
            std::min(1.0, share(counts.shares[choice * experts + expert], left[expert]));
        here[expert] = binomial_quantile(last[expert], part,
                                         static_cast<double>(z[expert * tile_tokens + lane]));
        last[expert] -= here[expert];
      }
    }
    for (std::size_t expert = 0; expert < experts; ++expert) {
      left[expert] -= counts.shares[choice * experts + expert];
    }
  }
  return split;
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

void CountRouter::settle(const RoutingJob& job, LayerRouting& result) {
  const auto experts = static_cast<std::size_t>(job.experts);
  const auto gpus = static_cast<std::size_t>(job.gpus);
  const Counts& counts = counts_of(job.router);
  result = LayerRouting{};
  result.capacity = job.router.capacity(job.tokens_per_gpu, job.experts);
  result.exchanged_capacity = result.capacity;
  result.kept_rows.resize(gpus * experts);
  result.ir_rows.resize(gpus);
  result.demand.resize(experts);
  for (std::size_t at = 0; at < gpus * experts; at += experts) {
    for (std::size_t expert = 0; expert < experts; ++expert) {
      result.demand[expert] += counts.primary[at + expert];
    }
  }
  if (!job.router.drops) {
    result.kept_rows = counts.primary;
    result.exchanged_capacity = *std::max_element(result.kept_rows.begin(), result.kept_rows.end());
    return;
  }
  kept_.primary.assign(gpus, 0);
  kept_.filled.assign(gpus, 0);
  if (job.router.capacity_scope == CapacityScope::source) {
    keep_by_source(counts, result.capacity, result);
  } else {
    keep_by_group(job.router, counts, result.capacity, result);
  }
  set_losses(job, result);
}

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
  for (std::size_t gpu = 0; gpu < static_cast<std::size_t>(job_.gpus); gpu += ranks) {
    if (router.priority == Priority::position) {
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
  result.exchanged_capacity = *std::max_element(result.kept_rows.begin(), result.kept_rows.end());
}

// Keys say nothing of ranks: any set of as many routes of a group is as likely to be kept. `kept`
// [expert] of the group's routes to each expert are.
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

// Choice after choice, the first rank's tokens first. The nominees follow the primary choices, by
// score or by rank; dealt by rank either way, as few free slots are left where that matters.
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

void CountRouter::set_losses(const RoutingJob& job, LayerRouting& result) {
  const RouterConfig& router = job.router;
  const std::int64_t ranks =
      router.capacity_scope == CapacityScope::source ? 1 : job.expert_parallel;
  fill_queues(router, result.capacity * ranks, split_of(counts_of(router), router.capacity_scope));
  const PilotLoss pilot = pilot_.judge(router, queues_);
  const double tokens = static_cast<double>(job.tokens_per_gpu) * job.gpus;
  const double routes = tokens * router.top_k;
  const double kept_primary = sum_of(kept_.primary);
  const double filled = sum_of(kept_.filled);
  const double slots = static_cast<double>(result.capacity) * job.gpus * job.experts;
  TokenLoss& loss = result.loss;
  loss.failed = 1 - kept_primary / routes;
  loss.padded = share(slots - kept_primary - filled, slots);
  double attempted = loss.failed;
  if (router.fill_in) {
    loss.fill_failed = 1 - filled / tokens;
    attempted = 1 - (kept_primary + filled) / (routes + tokens);
    loss.failed_attempted = attempted;
  }
  // The pilot's sampling error is mostly one of how many routes failed, which the counts know.
  const auto scaled = [](double found, double pilot_failed, double failed) {
    return pilot_failed > 0 ? std::min(1.0, found * failed / pilot_failed) : failed;
  };
  loss.partial = fit_growth(false, pilot.failed, pilot.partial, router.top_k)(loss.failed);
  loss.lost_mass = scaled(pilot.lost_mass, pilot.failed, loss.failed);
  const double pilot_attempted = router.fill_in ? pilot.attempted : pilot.failed;
  loss.residual_loss = scaled(pilot.residual, pilot_attempted, attempted);
  if (router.rectification == Rectification::none) {
    loss.unrouted = fit_growth(true, pilot_attempted, pilot.unrouted, router.choices())(attempted);
    return;
  }
  loss.unrouted = pilot.unrouted;
  loss.duplicate_ir = scaled(pilot.duplicate_ir, pilot_attempted, attempted);
  set_ir_rows(job, pilot, result);
}

// How fast the share of partial tokens grows with that of failed routes: the pilot's judged again
// with a little less capacity.
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

// [gpu]: tokens with a failed primary route. Under `group` scope by position the last ranks lose
// most: each has the law of growth of the tokens at its place in the order. Else GPUs differ
// little.
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
  // What routes failed twice for one token scatters; 1.4 as found against routed tokens.
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

// [gpu], IrDuplicates::exclude: how often all local experts of a token have it already, up to a
// factor: the product of their kept rows over tokens.
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

// A partial token is rectified unless a nomination made up for it (FR), or all its local experts
// have it already (IrDuplicates::exclude).
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
      // One failed route is made up for by a nomination that finds a slot; several are not.
      const double failed = 1 - static_cast<double>(kept_.filled[gpu]) / tokens;
      mine = std::clamp(part + share(1 - part, 1 - unfilled) * (failed - unfilled), 0.0, 1.0);
    }
    mine *= 1 - std::min(1.0, excluded * share(missing[gpu], mean_missing));
    const auto asking = static_cast<std::int32_t>(std::lround(partial[gpu]));
    result.ir_rows[gpu] = mine >= 1 ? asking : binomial_quantile(asking, mine, stream.normal());
  }
  if (by_node) send_ir_rows(job, targets, result);
}

// [rank of the experts first .. last - 1]: the share of a domain's tokens that is rectified by each
// rank but to no expert that turned them down. A token's best expert of the domain follows from the
// scores; how often it then needs it, from the pilot.
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

// [rank, expert] of the group of `first_gpu`: primary routes that failed.
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

// Rows that go where their token has just failed follow the routes that failed; the others, where
// scores send them.
void CountRouter::send_ir_rows(const RoutingJob& job, const DomainTargets& targets,
                               LayerRouting& result) {
  const int ranks = job.expert_parallel;
  const int per_rank = job.experts / ranks;
  std::map<std::pair<int, int>, std::vector<double>> known;  // by the domain's experts
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
    if (shares.empty())
      shares = target_shares(local.first, local.last, per_rank, rates.other_rates);
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
    double failed_left = expected(local.first, local.last);
    const std::int32_t rows = result.ir_rows[static_cast<std::size_t>(gpu)];
    double share_left = std::accumulate(shares.begin(), shares.end(), 0.0);
    const double others = share_left * static_cast<double>(job.tokens_per_gpu);
    std::int64_t bound = std::llround(rows * share(failed_left, failed_left + others));
    auto free = static_cast<std::int32_t>(rows - bound);
    std::int32_t* out = computed.data() + first_gpu + local.first / per_rank;
    for (std::size_t target = 0; target < shares.size(); ++target) {
      const int first = local.first + static_cast<int>(target) * per_rank;
      const double failed_here = expected(first, first + per_rank);
      const bool last = target + 1 == shares.size();
      const double failed_part = std::min(1.0, share(failed_here, failed_left));
      const std::int64_t follow =
          last ? bound : std::llround(static_cast<double>(bound) * failed_part);
      const double part = std::min(1.0, share(shares[target], share_left));
      const std::int32_t here = last ? free : binomial_quantile(free, part, stream.normal());
      out[target] += here + static_cast<std::int32_t>(follow);
      free -= here;
      bound -= follow;
      failed_left -= failed_here;
      share_left -= shares[target];
    }
  }
  result.ir_rows = computed;
}

}  // namespace moesim::routing
