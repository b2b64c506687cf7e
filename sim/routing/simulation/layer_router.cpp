#include "sim/routing/simulation/layer_router.hpp"

#include <algorithm>
#include <utility>

#include "sim/routing/groups/bias_training.hpp"
#include "sim/routing/jobs/group_blocks.hpp"
#include "sim/routing/jobs/shared_scores.hpp"
#include "sim/routing/simulation/trace_routing.hpp"

namespace moesim::routing {

void LayerRouter::draw_group(std::span<const RoutingJob> jobs, const LogitSource& logits,
                             int group) {
  const RoutingJob& first = jobs.front();
  const int ranks = first.expert_parallel;
  const GroupPlace place{group * ranks, first.gpus_per_domain};
  int choices = 0;
  int sets = 0;
  int places = 0;
  std::fill(std::begin(local_set_), std::end(local_set_), -1);
  for (const std::size_t index : sharing_) {
    const RoutingJob& job = jobs[index];
    choices = std::max(choices, job.router.choices());
    if (job.router.rectification == Rectification::none) continue;
    int& set = local_set_[static_cast<int>(job.router.rectification)];
    if (set < 0) set = sets++;
  }
  // A set has enough experts for its most demanding job.
  std::vector<LocalExperts> locals(static_cast<std::size_t>(ranks) *
                                   static_cast<std::size_t>(sets));
  for (const std::size_t index : sharing_) {
    const RoutingJob& job = jobs[index];
    const int set = local_set_[static_cast<int>(job.router.rectification)];
    for (int rank = 0; set >= 0 && rank < ranks; ++rank) {
      const LocalExperts wanted = local_experts(job.router, first.experts, ranks, rank, place);
      const std::size_t row = static_cast<std::size_t>(rank) * static_cast<std::size_t>(sets);
      LocalExperts& held = locals[row + static_cast<std::size_t>(set)];
      if (wanted.wanted > held.wanted) held = wanted;
      places = std::max(places, held.wanted);
    }
  }
  std::int64_t tokens = 0;
  for (int rank = 0; rank < ranks; ++rank) tokens += first.tokens_of(place.first_gpu + rank);
  table_.reset(first.experts, choices, sets, places, tokens);
  for (int rank = 0; rank < ranks; ++rank) {
    const auto gpu = static_cast<std::uint32_t>(place.first_gpu + rank);
    if (!logits.has_logits()) {
      const LogitSource::Choices recorded = logits.choices(gpu);
      table_.append_choices(logits.positions(recorded.expert, positions_), recorded.probability,
                            recorded.held, first.tokens_per_gpu);
      continue;
    }
    const std::span<const LocalExperts> sets_of_rank(
        locals.data() + static_cast<std::size_t>(rank * sets), static_cast<std::size_t>(sets));
    table_.append_tiles(first.tokens_of(place.first_gpu + rank), rank, sets_of_rank, kernels_,
                        [&](std::int64_t token, float* tile) {
                          logits.fill_tile(gpu, static_cast<std::uint64_t>(token), kernels_, tile);
                        });
  }
}

void LayerRouter::start(std::span<const RoutingJob> jobs, std::span<LayerRouting> results) {
  const RoutingJob& first = jobs.front();
  const auto experts = static_cast<std::size_t>(first.experts);
  sums_.assign(jobs.size(), LossSums{});
  sharing_.clear();
  others_.clear();
  for (std::size_t job = 0; job < jobs.size(); ++job) {
    results[job] = LayerRouting{};
    results[job].capacity = jobs[job].router.capacity(first.tokens_per_gpu, first.experts);
    results[job].kept_rows.resize(static_cast<std::size_t>(first.gpus) * experts);
    results[job].ir_rows.resize(static_cast<std::size_t>(first.gpus));
    results[job].demand.resize(experts);
    auto other = make_kind_router({jobs[job].router, first.experts, first.expert_parallel, kernels_,
                                   false, jobs[job].count_copies ? group_nodes(first) : 0});
    if (other == nullptr) {
      sharing_.push_back(job);
    } else {
      others_.emplace_back(job, std::move(other));
    }
  }
}

void LayerRouter::add_group(const GroupView& part, int group, const RoutingJob& job, LossSums& sums,
                            LayerRouting& result) {
  const auto first_gpu = static_cast<std::ptrdiff_t>(group) * job.expert_parallel;
  sums += part.sums;
  std::copy(part.kept_rows.begin(), part.kept_rows.end(),
            result.kept_rows.begin() + first_gpu * job.experts);
  std::copy(part.ir_rows.begin(), part.ir_rows.end(), result.ir_rows.begin() + first_gpu);
  for (std::size_t expert = 0; expert < part.demand.size(); ++expert) {
    result.demand[expert] += part.demand[expert];
  }
  result.group_blocks.push_back(part.exchanged_capacity);
  const auto append = [](std::vector<std::int32_t>& all, const std::vector<std::int32_t>& more) {
    all.insert(all.end(), more.begin(), more.end());
  };
  append(result.copies.to_gpu, part.copies.to_gpu);
  append(result.copies.to_node, part.copies.to_node);
}

void LayerRouter::route_sharing(std::span<const RoutingJob> jobs, const LogitSource& logits,
                                const RouterContext& context, int group,
                                std::span<LayerRouting> results) {
  if (sharing_.empty()) return;
  const RoutingJob& first = jobs.front();
  draw_group(jobs, logits, group);
  std::vector<StreamKey> keys;
  for (int rank = 0; rank < first.expert_parallel; ++rank) {
    keys.push_back({context.seed, Purpose::drop_priority, context.replica, context.layer,
                    static_cast<std::uint32_t>(context.place.first_gpu + rank)});
  }
  orders_.reset(table_, std::move(keys), sharing_.size());
  for (const std::size_t job : sharing_) {
    const RouterConfig& router = jobs[job].router;
    std::vector<std::int64_t> capacity;
    for (int rank = 0; rank < first.expert_parallel; ++rank) {
      capacity.push_back(router.capacity(first.tokens_of(rank), first.experts));
    }
    const int set = local_set_[static_cast<int>(router.rectification)];
    decision_.decide({router, table_, orders_, kernels_, set, capacity});
    if (jobs[job].count_copies) {
      count_copies(table_, decision_, router.choices(), context.place, group_nodes(first), copies_);
    }
    add_group({decision_.sums(), decision_.kept_rows(), decision_.ir_rows(), decision_.demand(),
               decision_.exchanged_capacity(), jobs[job].count_copies ? copies_ : no_copies_},
              group, jobs[job], sums_[job], results[job]);
  }
}

void LayerRouter::route_others(std::span<const RoutingJob> jobs, const LogitSource& logits,
                               const RouterContext& context, int group,
                               std::span<LayerRouting> results) {
  const SeenLogits drawn(jobs.front(), logits, context.place.first_gpu, kernels_);
  for (const auto& [job, router] : others_) {
    const GroupLogits& seen = drawn.by(jobs[job].router);
    if (group == 0) start_layer(*router, jobs[job], seen, context, kernels_);
    router->decide(seen, context);
    const GroupOutcome& outcome = router->outcome();
    add_group({outcome.sums, outcome.kept_rows, outcome.ir_rows, outcome.demand,
               outcome.exchanged_capacity, outcome.copies},
              group, jobs[job], sums_[job], results[job]);
    results[job].capacity =
        group == 0 ? outcome.capacity : std::max(results[job].capacity, outcome.capacity);
    results[job].exchanged = outcome.exchanged;
  }
}

void LayerRouter::route(std::span<const RoutingJob> jobs, int replica, int layer,
                        std::span<LayerRouting> results) {
  const RoutingJob& first = jobs.front();
  if (first.fidelity == Fidelity::counts) return by_counts_.route(jobs, replica, layer, results);
  if (std::all_of(jobs.begin(), jobs.end(), keeps_all_choices)) {
    return by_choices_.route(jobs, replica, layer, results);
  }
  RouterContext context{{0, first.gpus_per_domain},
                        first.seed,
                        static_cast<std::uint32_t>(replica),
                        static_cast<std::uint32_t>(layer)};
  const LogitSource logits(shared_scores(jobs), logit_shape(first), first.seed, context.replica,
                           context.layer);
  start(jobs, results);
  for (int group = 0; group < first.gpus / first.expert_parallel; ++group) {
    context.place.first_gpu = group * first.expert_parallel;
    route_sharing(jobs, logits, context, group, results);
    route_others(jobs, logits, context, group, results);
  }
  for (std::size_t job = 0; job < jobs.size(); ++job) {
    results[job].loss = sums_[job].loss(jobs[job].router);
    set_blocks(std::move(results[job].group_blocks), results[job]);
    if (!has_exact_counts(jobs[job])) continue;
    take_exact_counts(jobs[job], replica, layer, results[job]);
    results[job].copies = {};  // counts do not tell which routes belong to one token
  }
}

}  // namespace moesim::routing
