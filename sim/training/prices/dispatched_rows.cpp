#include "sim/training/prices/dispatched_rows.hpp"

#include <algorithm>
#include <cstddef>
#include <set>

#include "sim/training/job/rank_gpus.hpp"

namespace moesim::training {
namespace {

using profile::DispatcherStage;
using profile::DispatchLoad;
using profile::SentBy;

// Rows over those of an even load; 1 where that sends none.
double ratio(double rows, double even) { return even > 0 ? rows / even : 1; }

// [source], each for the GPU in its place, or the only one for all.
SentBy<double> by_gpu(const std::vector<std::vector<double>>& numbers, int gpus) {
  SentBy<double> sent;
  for (std::size_t gpu = 0; gpu < static_cast<std::size_t>(gpus); ++gpu) {
    sent.push_back(numbers[gpu % numbers.size()].data());
  }
  return sent;
}

// The rows of the experts of a place.
const double* rows_of(const std::vector<double>& rows, const profile::CopiesLaw& law, int place) {
  return rows.data() + static_cast<std::ptrdiff_t>(place) * law.experts();
}

}  // namespace

profile::MoeTraffic dispatch_traffic(const TrainingJob& job) {
  if (!job.model->moe) return {};
  const KeptGroups kept = job.kept_groups();
  return {.experts = job.held_experts(),
          .top_k = job.experts_per_token(),
          .groups = kept.groups,
          .kept_groups = kept.kept,
          .slices = job.layout.sizes.expert_tensor};
}

profile::MoeTraffic even_traffic(const TrainingJob& job) {
  profile::MoeTraffic traffic = dispatch_traffic(job);
  traffic.experts = job.experts();
  return traffic;
}

// Where a group fills no domain, its ranks lie on them as evenly as may be.
profile::DispatchGroup dispatch_spread(const TrainingJob& job) {
  const int slices = job.layout.sizes.expert_tensor;  // neighbours
  std::set<int> domains;
  int gpus = 0;
  for (const int rank :
       job.layout.sizes.widest_group(parallel::GroupKind::expert, job.placed_ranks())) {
    for (int slice = 0; slice < slices; ++slice) {
      domains.insert(job.cluster->domain_of(gpu_of(job, rank - rank % slices + slice)));
    }
    gpus += slices;
  }
  const auto touched = static_cast<int>(domains.size());
  return {gpus, touched > 1 ? (gpus + touched - 1) / touched : job.cluster->gpus_per_domain};
}

DispatchedRows::DispatchedRows(const TrainingJob& job)
    : sent_(job.dispatcher->sent),
      traffic_(dispatch_traffic(job)),
      group_(dispatch_spread(job)),
      tokens_(job.tokens_per_rank()),
      to_holders_(traffic_, group_.gpus / traffic_.slices),
      to_domains_(traffic_, group_.domains()),
      even_{profile::balanced_load(sent_, DispatcherStage::dispatch, traffic_, group_, tokens_),
            profile::balanced_load(sent_, DispatcherStage::combine, traffic_, group_, tokens_)} {}

DispatchedRows::Loads DispatchedRows::loads_of(const std::vector<std::vector<double>>& sent) const {
  const int gpus = group_.gpus;
  if (sent_ == profile::SentOnce::per_expert) {
    const DispatchLoad load =
        profile::load_of_rows(group_, experts(), traffic_.slices, by_gpu(sent, gpus));
    return {load, load};
  }
  const auto copies_to = [&](const profile::CopiesLaw& places, const std::vector<double>& rows) {
    std::vector<double> copies;
    for (int place = 0; place < places.places(); ++place) {
      copies.push_back(places.to_place(tokens_, rows_of(rows, places, place)));
    }
    return copies;
  };
  std::vector<std::vector<double>> to_ranks, to_domains;
  for (const std::vector<double>& rows : sent) {
    to_ranks.push_back(copies_to(to_holders_, rows));
    to_domains.push_back(copies_to(to_domains_, rows));
  }
  return loads_of_copies(to_ranks, to_domains);
}

DispatchedRows::Loads DispatchedRows::loads_of_copies(
    const std::vector<std::vector<double>>& to_ranks,
    const std::vector<std::vector<double>>& to_domains) const {
  std::vector<std::vector<double>> to_gpu;  // each slice of an expert gets a copy
  for (const std::vector<double>& ranks : to_ranks) {
    std::vector<double>& copies = to_gpu.emplace_back();
    for (const double each : ranks) {
      copies.insert(copies.end(), static_cast<std::size_t>(traffic_.slices), each);
    }
  }
  const SentBy<double> gpu_rows = by_gpu(to_gpu, group_.gpus),
                       domain_rows = by_gpu(to_domains, group_.gpus);
  return {profile::load_of_copies(group_, DispatcherStage::dispatch, gpu_rows, domain_rows),
          profile::load_of_copies(group_, DispatcherStage::combine, gpu_rows, domain_rows)};
}

DispatchedLoad DispatchedRows::load_of(const std::vector<std::vector<double>>& sent) const {
  return over_even(loads_of(sent));
}

DispatchedLoad DispatchedRows::load_of_copies(
    const std::vector<std::vector<double>>& to_ranks,
    const std::vector<std::vector<double>>& to_domains) const {
  return over_even(loads_of_copies(to_ranks, to_domains));
}

DispatchedLoad DispatchedRows::over_even(const Loads& loads) const {
  const auto& [there, back] = loads;
  const bool by_expert = sent_ == profile::SentOnce::per_expert;
  return {.sent_copies = ratio(there.copies, even_.there.copies),
          .returned_copies = ratio(back.copies, even_.back.copies),
          .link_rows = ratio(there.link_rows, even_.there.link_rows),
          .nic_rows = ratio(there.nic_rows, even_.there.nic_rows),
          .expert_rows = by_expert ? ratio(there.expert_rows, even_.there.expert_rows) : 1};
}

DispatchedLoad DispatchedRows::load_of(double busiest, double kept) const {
  const int holders = to_holders_.places();
  const double each = kept * tokens_ * static_cast<double>(traffic_.top_k) / experts();
  const double others = holders > 1 ? std::max(0.0, holders - busiest) / (holders - 1) : 1;
  std::vector<double> rows(static_cast<std::size_t>(experts()), others * each);
  for (int expert = 0; expert < to_holders_.experts(); ++expert) {
    rows[static_cast<std::size_t>(expert)] = (holders > 1 ? busiest : 1) * each;
  }
  return load_of({rows});
}

}  // namespace moesim::training
