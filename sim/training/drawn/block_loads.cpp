#include "sim/training/drawn/block_loads.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>

#include "sim/parallel/layout_rules.hpp"
#include "sim/routing/jobs/token_copies.hpp"

namespace moesim::training {
namespace {

using routing::LayerRouting;

constexpr double steps_of_balance = 1024;

double largest(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

void add_to(std::vector<double>& sums, const std::vector<double>& values) {
  for (std::size_t at = 0; at < sums.size(); ++at) sums[at] += values[at];
}

// Divides the rows of each rank evenly among the experts that it holds.
std::vector<double> spread_over(const std::vector<double>& of_ranks, int experts) {
  const std::size_t held = static_cast<std::size_t>(experts) / of_ranks.size();
  std::vector<double> rows;
  for (const double each : of_ranks)
    rows.insert(rows.end(), held, each / static_cast<double>(held));
  return rows;
}

DispatchedLoad rounded(const DispatchedLoad& load) {
  return {rounded_load(load.sent_copies), rounded_load(load.returned_copies),
          rounded_load(load.link_rows), rounded_load(load.nic_rows),
          rounded_load(load.expert_rows)};
}

}  // namespace

bool counts_copies(const TrainingJob& job, const routing::RoutingJob& block) {
  const parallel::ParallelLayout& layout = job.layout.sizes;
  const routing::Trace* const trace = block.scores.trace.get();
  if (trace == nullptr || trace->kind() == routing::Trace::Kind::counts) return false;
  if (!job.dispatcher || job.exchanging_ranks() < 2) return false;
  if (job.dispatcher->sent == profile::SentOnce::per_expert) return false;
  const profile::DispatchGroup group = dispatch_spread(job);
  const int nodes = routing::group_nodes(block);
  if (nodes != group.domains()) return false;
  return nodes == 1 || (layout.expert % block.gpus_per_domain == 0 &&
                        block.gpus_per_domain * layout.expert_tensor == group.per_domain);
}

BlockLoads::BlockLoads(const TrainingJob& asked, const routing::RoutingJob& job, bool sums)
    : asked_(asked), job_(job), sums_(sums) {
  const parallel::ParallelLayout& layout = asked.layout.sizes;
  const routing::Trace* const trace = job.scores.trace.get();
  sources_differ_ = trace != nullptr && trace->shape().ranks > 1 && layout.expert > 1;
  if (asked.dispatcher && asked.exchanging_ranks() > 1) dispatcher_.emplace(asked);
}

double rounded_load(double load) { return std::round(load * steps_of_balance) / steps_of_balance; }

// The slots of one rank, empty ones too: C of each expert and source, or as many as the fullest
// ones of the group have rows.
double BlockLoads::padded_rows(const LayerRouting& routing, std::size_t first_source) const {
  std::int64_t slots = routing.capacity;
  const bool to_busiest = job_.router.pads_to_busiest();
  if (to_busiest || job_.router.capacity_scope == routing::CapacityScope::group) {
    const auto experts = static_cast<std::size_t>(job_.experts);
    const auto begin =
        routing.kept_rows.begin() + static_cast<std::ptrdiff_t>(first_source * experts);
    slots = *std::max_element(
        begin, begin + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(job_.expert_parallel) *
                                                   experts));
    if (to_busiest) slots = job_.router.aligned(slots);
  }
  return static_cast<double>(slots * job_.experts);
}

BlockLoads::SentRows BlockLoads::sent_rows(const LayerRouting& routing, std::size_t first,
                                           std::size_t sources) const {
  const auto experts = static_cast<std::size_t>(job_.experts);
  SentRows sent{std::vector<double>(experts, 0)};
  for (std::size_t source = first; source < first + sources; ++source) {
    const std::int32_t* kept = routing.kept_rows.data() + source * experts;
    std::int64_t of_source = 0;
    for (std::size_t expert = 0; expert < experts; ++expert) {
      sent.to_expert[expert] += kept[expert];
      of_source += kept[expert];
    }
    sent.most = std::max(sent.most, static_cast<double>(of_source));
  }
  return sent;
}

std::vector<double> BlockLoads::expert_rows(const LayerRouting& routing, std::size_t block) const {
  const parallel::ParallelLayout& layout = asked_.layout.sizes;
  const auto sources = static_cast<std::size_t>(sums_ ? 1 : layout.expert * layout.expert_tensor);
  return sent_rows(routing, block * sources, sources).to_expert;
}

std::vector<double> BlockLoads::received_rows(const std::vector<double>& to_expert,
                                              const ExpertCopies* copies) const {
  if (copies != nullptr) return copies->rows_of_ranks(to_expert);
  const auto ranks = static_cast<std::size_t>(asked_.layout.sizes.expert);
  const std::size_t per_rank = to_expert.size() / ranks;
  std::vector<double> received(ranks, 0);
  for (std::size_t at = 0; at < to_expert.size(); ++at) received[at / per_rank] += to_expert[at];
  return received;
}

// NCCL's all-to-all is priced by a balanced buffer, of which (P - 1) / P leave a rank, of P ranks,
// (P - n) / P its domain with n of them, and (n - 1) / P reach others there.
BlockLoads::LeavingRows BlockLoads::leaving_rows(const LayerRouting& routing,
                                                 std::size_t first) const {
  const auto ranks = static_cast<std::size_t>(asked_.layout.sizes.expert);
  const auto domain = std::min(ranks, static_cast<std::size_t>(job_.gpus_per_domain));
  std::vector<double> link_out(ranks), link_in(ranks), nic_out(ranks), nic_in(ranks);
  for (std::size_t source = 0; source < ranks; ++source) {
    const std::vector<double> to_rank =
        received_rows(sent_rows(routing, first + source, 1).to_expert, nullptr);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (rank == source) continue;
      const bool stays = rank / domain == source / domain;
      (stays ? link_out : nic_out)[source] += to_rank[rank];
      (stays ? link_in : nic_in)[rank] += to_rank[rank];
    }
  }
  const auto over_balance = [&](double rows, std::size_t leaving) {
    return leaving == 0 ? 0 : rows * static_cast<double>(ranks) / static_cast<double>(leaving);
  };
  const double inside = std::max(largest(link_out), largest(link_in));
  if (domain == ranks) return {over_balance(inside, ranks - 1), 0};
  return {over_balance(std::max(largest(nic_out), largest(nic_in)), ranks - domain),
          over_balance(inside, domain - 1)};
}

BlockLoads::BlockRows BlockLoads::rows_of(const LayerRouting& routing, std::size_t block,
                                          const ExpertCopies* copies) const {
  const parallel::ParallelLayout& layout = asked_.layout.sizes;
  const auto ranks = static_cast<std::size_t>(layout.expert);
  const auto groups = static_cast<std::size_t>(sums_ ? 1 : layout.expert_tensor);
  const std::size_t sources = sums_ ? 1 : ranks;             // of a group
  const double together = sums_ ? layout.expert_tensor : 1;  // groups that are drawn as one
  BlockRows rows(ranks, static_cast<std::size_t>(job_.experts));
  for (std::size_t group = 0; group < groups; ++group) {
    const std::size_t first = (block * groups + group) * sources;
    const SentRows sent = sent_rows(routing, first, sources);
    add_to(rows.of_expert, sent.to_expert);
    const std::vector<double> received = received_rows(sent.to_expert, copies);
    add_to(rows.received, received);
    if (sources_differ_ && !asked_.dispatcher) {
      const LeavingRows leaving = leaving_rows(routing, first);
      rows.exchanged = std::max(rows.exchanged, leaving.exchanged);
      rows.inside = std::max(rows.inside, leaving.inside);
    } else {
      rows.exchanged = std::max(rows.exchanged, largest(received) / together);
      if (!sums_) rows.exchanged = std::max(rows.exchanged, sent.most);
    }
    if (!sums_) {
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const double rectified = routing.ir_rows[first + rank];
        rows.rectified[rank] += rectified;
        rows.rectified_by_one = std::max(rows.rectified_by_one, rectified);
      }
    }
    if (job_.router.pads_exchange() && routing.exchanged) {
      rows.padded = std::max(rows.padded, padded_rows(routing, first));
    }
  }
  return rows;
}

// GPUs are numbered [rank, group], sources [group, rank].
std::size_t BlockLoads::source_of(std::size_t gpu) const {
  const parallel::ParallelLayout& layout = asked_.layout.sizes;
  const auto groups = static_cast<std::size_t>(layout.expert_tensor);
  return gpu % groups * static_cast<std::size_t>(layout.expert) + gpu / groups;
}

std::vector<std::vector<double>> BlockLoads::sent_rows_of(const LayerRouting& routing,
                                                          std::size_t block,
                                                          const ExpertCopies* copies) const {
  const parallel::ParallelLayout& layout = asked_.layout.sizes;
  const auto ranks = static_cast<std::size_t>(layout.expert);
  const auto groups = static_cast<std::size_t>(layout.expert_tensor);
  const std::size_t sources = sums_ ? 1 : ranks * groups;
  const double together = sums_ ? static_cast<double>(ranks * groups) : 1;  // drawn as one
  std::vector<std::vector<double>> sent;
  for (std::size_t gpu = 0; gpu < sources; ++gpu) {
    const std::size_t source = sums_ ? 0 : source_of(gpu);
    std::vector<double> rows = sent_rows(routing, block * sources + source, 1).to_expert;
    if (copies != nullptr) rows = copies->rows_of_slots(rows);
    for (double& each : rows) each /= together;
    sent.push_back(std::move(rows));
  }
  return sent;
}

DispatchedLoad BlockLoads::dispatched_load(const LayerRouting& routing, std::size_t block,
                                           const ExpertCopies* copies) const {
  if (routing.copies.to_gpu.empty()) {
    return dispatcher_->load_of(sent_rows_of(routing, block, copies));
  }
  const parallel::ParallelLayout& layout = asked_.layout.sizes;
  const std::size_t gpus =
      static_cast<std::size_t>(layout.expert) * static_cast<std::size_t>(layout.expert_tensor);
  const auto places_of = [&](const std::vector<std::int32_t>& all, std::size_t source, int places) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(source) * places;
    return std::vector<double>(begin, begin + places);
  };
  std::vector<std::vector<double>> to_ranks, to_domains;
  for (std::size_t gpu = 0; gpu < gpus; ++gpu) {
    const std::size_t source = block * gpus + source_of(gpu);
    to_ranks.push_back(places_of(routing.copies.to_gpu, source, layout.expert));
    to_domains.push_back(places_of(routing.copies.to_node, source, routing::group_nodes(job_)));
  }
  return dispatcher_->load_of_copies(to_ranks, to_domains);
}

MoeLoad BlockLoads::load_of_ranks(const std::vector<double>& computed) const {
  const double most = rounded_load(largest(computed));
  MoeLoad load{.computed = most, .exchanged = most};
  if (!dispatcher_) return load;
  std::vector<double> rows = spread_over(computed, dispatcher_->experts());
  const double balance = asked_.balanced_rows();
  for (double& each : rows) each *= balance / asked_.layout.sizes.expert;
  load.dispatched = rounded(dispatcher_->load_of({rows}));
  return load;
}

BlockLoad BlockLoads::load_of(const LayerRouting& routing, std::size_t block,
                              const ExpertCopies* copies) const {
  const BlockRows rows = rows_of(routing, block, copies);
  const double balance = asked_.balanced_rows();
  // An exchange of no rows is one all the same.
  const double exchanged =
      std::max(rounded_load(rows.exchanged / balance), sources_differ_ ? 1 / steps_of_balance : 0);
  // Slices of an expert get the rows of all their groups.
  const auto share = [&](double of_slices) {
    return of_slices / balance / asked_.layout.sizes.expert_tensor;
  };
  BlockLoad found;
  found.expert = largest(rows.of_expert) * static_cast<double>(rows.of_expert.size()) /
                 std::max(1.0, std::accumulate(rows.of_expert.begin(), rows.of_expert.end(), 0.0));
  if (rows.padded > 0) {
    const double padded = rows.padded / balance;
    found.load = {.computed = padded + rounded_load(share(largest(rows.rectified))),
                  .exchanged = asked_.dispatcher ? exchanged : padded};
    found.computed.assign(rows.received.size(), found.load.computed);
  } else {
    for (std::size_t rank = 0; rank < rows.received.size(); ++rank) {
      found.computed.push_back(share(rows.received[rank] + rows.rectified[rank]));
    }
    found.load = {.computed = rounded_load(largest(found.computed)),
                  .exchanged = routing.exchanged ? exchanged : 0};
    const double inside = rounded_load(rows.inside / balance);
    if (routing.exchanged && inside > exchanged) found.load.inside = inside;
  }
  if (job_.router.rectification == routing::Rectification::node) {
    found.load.rectified = rounded_load(rows.rectified_by_one / balance);
  }
  if (dispatcher_ && routing.exchanged) {
    found.load.dispatched = rounded(dispatched_load(routing, block, copies));
  }
  return found;
}

}  // namespace moesim::training
