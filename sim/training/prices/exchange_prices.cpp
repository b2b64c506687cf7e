#include "sim/training/prices/exchange_prices.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "sim/base/units.hpp"
#include "sim/model/memory/stage_weights.hpp"
#include "sim/network/exchange/measured_dispatch.hpp"
#include "sim/network/ports/domain_curves.hpp"
#include "sim/training/job/rank_gpus.hpp"
#include "sim/training/job/stage_division.hpp"
#include "sim/training/prices/dispatched_rows.hpp"

namespace moesim::training {
namespace {

using model::ExchangeGroup;
using model::ExchangeKind;
using parallel::GroupKind;
using profile::Collective;
using profile::DispatcherStage;

// An all-to-all inside an NVLink domain takes so many times as long as nccl-tests'. Fitted together
// with the other corrections of README.md ("What is priced, and how") to the public training steps
// that `moesim validate training` compares, with one factor per machine and software. How sure it
// is alone was not found: the bands have its error among the residuals of whole steps. Between
// nodes 1.
constexpr double all_to_all_slowdown = 1.3;

std::size_t at(GroupKind kind) { return static_cast<std::size_t>(kind); }

GroupKind group_of(ExchangeGroup group) {
  switch (group) {
    case ExchangeGroup::tensor:
      return GroupKind::tensor;
    case ExchangeGroup::context:
      return GroupKind::context;
    case ExchangeGroup::expert:
      return GroupKind::expert;
    case ExchangeGroup::expert_tensor:
      break;
  }
  return GroupKind::expert_tensor;
}

Collective collective_of(ExchangeKind kind) {
  switch (kind) {
    case ExchangeKind::reduce_scatter:
      return Collective::reduce_scatter;
    case ExchangeKind::all_reduce:
      return Collective::all_reduce;
    case ExchangeKind::all_to_all:
      return Collective::all_to_all;
    default:
      return Collective::all_gather;  // a ring passes the same blocks
  }
}

// Bytes per second of messages between neighbouring stages that leave a domain, all ranks at once.
double boundary_nic_rate(const TrainingJob& job) {
  const cluster::Cluster& cluster = *job.cluster;
  if (!network::has_less_above(cluster)) return cluster.effective_nic().bytes_per_second;
  const parallel::ParallelLayout& sizes = job.layout.sizes;
  const int stage = stage_ranks(sizes);
  std::vector<std::pair<int, int>> messages;
  for (int rank = 0; rank + stage < sizes.gpus; ++rank) {
    messages.emplace_back(gpu_of(job, rank), gpu_of(job, rank + stage));
  }
  return network::message_nic_rate(cluster, messages) * cluster.nic_efficiency;
}

}  // namespace

// A group of a kind is the one that touches most domains.
ExchangePrices::ExchangePrices(const TrainingJob& job)
    : job_(job), network_(job.profile, job.cluster), traffic_(even_traffic(job)) {
  for (const auto& known : parallel::group_names) {
    members_[at(known.value)] = widest_members(job, known.value);
  }
  if (job.dispatcher) dispatch_group_ = dispatch_spread(job);
  if (job.shards().stage_copies > 1) {
    const parallel::ParallelLayout& sizes = job.layout.sizes;
    for (const GroupKind kind : {GroupKind::data_context, GroupKind::expert_data}) {
      of_both_copies_[at(kind)] =
          gpus_of(job, sizes.widest_mirrored_group(kind, job.placed_ranks()));
    }
  }
  for (const auto& known : parallel::group_names) {
    crosses_[at(known.value)] = cross_domains(members_of_all_copies(known.value));
  }
}

const std::vector<int>& ExchangePrices::members(GroupKind kind) const { return members_[at(kind)]; }

const std::vector<int>& ExchangePrices::members_of_all_copies(GroupKind kind) const {
  const std::vector<int>& both = of_both_copies_[at(kind)];
  return both.empty() ? members(kind) : both;
}

bool ExchangePrices::cross_domains(const std::vector<int>& members) const {
  return std::any_of(members.begin(), members.end(), [&](int gpu) {
    return job_.cluster->domain_of(gpu) != job_.cluster->domain_of(members.front());
  });
}

bool ExchangePrices::crosses_domains(GroupKind group) const { return crosses_[at(group)]; }

// The members of the optimizer instance that touches most domains. `all`: members of one copy of a
// stage, or of both. An instance is consecutive members of each copy.
std::vector<int> ExchangePrices::instance(GroupKind kind, const std::vector<int>& all) const {
  const std::size_t replicas = members(kind).size();
  const auto sharing =
      static_cast<std::size_t>(model::sharing_ranks(static_cast<int>(replicas), job_.states));
  std::vector<int> widest;
  std::size_t most_domains = 0;
  for (std::size_t first = 0; first < replicas; first += sharing) {
    std::vector<int> block;
    std::set<int> domains;
    for (std::size_t copy = 0; copy < all.size(); copy += replicas) {
      for (std::size_t place = first; place < first + sharing; ++place) {
        block.push_back(all[copy + place]);
        domains.insert(job_.cluster->domain_of(block.back()));
      }
    }
    if (domains.size() <= most_domains) continue;
    most_domains = domains.size();
    widest = std::move(block);
  }
  return widest;
}

std::vector<int> ExchangePrices::members(GroupKind kind, Replicas replicas) const {
  const std::vector<int>& one = members(kind);
  const std::vector<int>& both = of_both_copies_[at(kind)];
  switch (replicas) {
    case Replicas::instance_of_copy:
      return instance(kind, one);
    case Replicas::instance:
      return instance(kind, members_of_all_copies(kind));
    case Replicas::shard_of_copies: {
      if (both.empty()) return {};
      std::vector<int> pair;
      for (std::size_t place = 0; place < one.size() && !cross_domains(pair); ++place) {
        pair = {both[place], both[one.size() + place]};
      }
      return cross_domains(pair) ? pair : std::vector<int>{both.front(), both[one.size()]};
    }
    case Replicas::shard_of_instances:
      break;
  }
  std::vector<int> same;
  const int sharing = model::sharing_ranks(static_cast<int>(one.size()), job_.states);
  for (std::size_t member = 0; member < one.size(); member += static_cast<std::size_t>(sharing)) {
    same.push_back(one[member]);
  }
  return same;
}

double ExchangePrices::replicas_us(Collective kind, GroupKind group, Replicas replicas,
                                   double bytes) const {
  return among(kind, members(group, replicas), bytes);
}

bool ExchangePrices::replicas_cross_domains(GroupKind group, Replicas replicas) const {
  return cross_domains(members(group, replicas));
}

double ExchangePrices::hiding_us(const PartTimes& pass, bool cross) const {
  const bool rows = crosses_domains(GroupKind::expert);
  const bool slices =
      crosses_domains(GroupKind::tensor) || crosses_domains(GroupKind::expert_tensor);
  const bool pieces = crosses_domains(GroupKind::context);
  double time_us = sum(pass);
  for (const auto& [part, crosses] :
       {std::pair{TrainingPart::dispatch, rows}, std::pair{TrainingPart::combine, rows},
        std::pair{TrainingPart::tensor, slices}, std::pair{TrainingPart::context, pieces}}) {
    if (crosses == cross) time_us -= pass[at(part)];
  }
  return time_us;
}

double ExchangePrices::hiding_input_gradient_us(const Passes& passes, bool cross) const {
  const PartTimes& again = passes.exchanged_again;
  return hiding_us(passes.input_gradient, cross) - (sum(again) - hiding_us(again, cross));
}

double ExchangePrices::among(Collective kind, const std::vector<int>& members, double bytes) const {
  if (members.size() < 2 || bytes <= 0) return 0;
  return network_.price(kind, members, bytes, network::Senders{job_.placed_ranks()}).time_us;
}

double ExchangePrices::exchange_us(Collective kind, GroupKind group, double bytes) const {
  return among(kind, members(group), bytes);
}

ExchangePrices::Times ExchangePrices::times(const model::TrainingExchanges& exchanges) const {
  Times times;
  for (const model::TrainingExchange& exchange : exchanges) {
    if (exchange.group == ExchangeGroup::expert) continue;  // dispatch_us
    const GroupKind group = group_of(exchange.group);
    const double time_us = exchange_us(collective_of(exchange.kind), group, exchange.buffer);
    if (exchange.kind == ExchangeKind::ring) {
      times.ring_us += time_us;
    } else {
      (group == GroupKind::context         ? times.context_us
       : group == GroupKind::expert_tensor ? times.expert_tensor_us
                                           : times.tensor_us) += time_us;
    }
  }
  return times;
}

model::ExchangeQuery ExchangePrices::query() const {
  model::ExchangeQuery query;
  query.model = job_.model.get();
  query.shards = job_.shards();
  query.sequences = job_.layout.micro_batch;
  query.length = job_.layout.sequence_length;
  query.choices = std::max(1, job_.experts_per_token());
  query.sequence_parallel = job_.layout.sequence_parallel;
  query.context = job_.layout.context_method;
  query.reaches_slices = job_.exchanges_slices();
  return query;
}

std::string ExchangePrices::measured(Collective kind, GroupKind group) const {
  return network::measured_among(*job_.profile, *job_.cluster, kind, members_of_all_copies(group));
}

double ExchangePrices::boundary_us(int from, int to, int hidden_states) const {
  if (from == to) return 0;
  const cluster::Cluster& cluster = *job_.cluster;
  const int stage = stage_ranks(job_.layout.sizes);
  const auto leaves_domain = [&](int place) {
    return cluster.domain_of(gpu_of(job_, from * stage + place)) !=
           cluster.domain_of(gpu_of(job_, to * stage + place));
  };
  // Each rank of a stage sends to the one in its place; the slowest message decides.
  bool crosses = false;
  for (int place = 0; place < stage && !crosses; ++place) crosses = leaves_domain(place);
  const double rate = crosses
                          ? boundary_nic_rate(job_)
                          : cluster.domain.port.bytes_per_second * cluster.domain.efficiency.value;
  const double latency = crosses ? cluster.nic_latency_us : cluster.domain.latency_us;
  const double bytes =
      hidden_states * bf16_bytes * job_.tokens_per_rank() * static_cast<double>(job_.model->hidden);
  return latency + bytes / rate * 1e6;
}

bool ExchangePrices::exchanges_rows() const { return job_.exchanging_ranks() > 1; }

double ExchangePrices::dispatch_us(DispatcherStage stage, const MoeLoad& load) const {
  if (!exchanges_rows()) return 0;
  const double rows_us = load.exchanged == 0   ? 0
                         : job_.dispatcher     ? kernel_us(stage, load.dispatched)
                         : job_.gathers_tokens ? gather_us(stage, false)
                                               : all_to_all_us(stage, load);
  return rows_us + rectified_us(load.rectified);
}

double ExchangePrices::dispatch_gradient_us(DispatcherStage stage, const MoeLoad& load) const {
  if (exchanges_rows() && job_.gathers_tokens) {
    return (load.exchanged == 0 ? 0 : gather_us(stage, true)) + rectified_us(load.rectified);
  }
  return dispatch_us(
      stage == DispatcherStage::dispatch ? DispatcherStage::combine : DispatcherStage::dispatch,
      load);
}

// Every token to all ranks of the group, with its probability and mark for each expert, whatever
// its experts are; the outputs of a rank's experts for all tokens, added up on their way home. The
// gradients of the outputs go to all ranks alone, those of tokens and probabilities are added up;
// marks have none. Megatron-Core, MoEAllGatherTokenDispatcher of moe/token_dispatcher.py.
double ExchangePrices::gather_us(DispatcherStage stage, bool backward) const {
  constexpr double mark = 1;  // byte
  const double tokens = job_.exchanging_ranks() * job_.tokens_per_rank();
  const double rows = tokens * bf16_bytes * static_cast<double>(job_.model->hidden);
  const double cells = tokens * job_.experts();
  const auto us = [&](double bytes) {
    const bool to_experts = (stage == DispatcherStage::dispatch) != backward;
    return exchange_us(to_experts ? Collective::all_gather : Collective::reduce_scatter,
                       GroupKind::expert_tensor_expert, bytes);
  };
  if (stage == DispatcherStage::combine) return us(rows);
  return us(rows) + us(cells * fp32_bytes) + (backward ? 0 : us(cells * mark));
}

// The all-to-all of NCCL, with the probabilities of the choices. What stays in a domain takes its
// links' time while the rest takes that of the NICs.
double ExchangePrices::all_to_all_us(DispatcherStage stage, const MoeLoad& load) const {
  const double routes = job_.balanced_rows();
  const auto hidden = static_cast<double>(job_.model->hidden);
  const double element =
      stage == DispatcherStage::dispatch ? job_.dispatched_element_bytes() : bf16_bytes;
  const double rest = stage == DispatcherStage::dispatch ? routes * fp32_bytes : 0;
  double rows_us = (crosses_domains(GroupKind::expert) ? 1 : all_to_all_slowdown) *
                   exchange_us(Collective::all_to_all, GroupKind::expert,
                               load.exchanged * routes * hidden * element);
  if (load.inside > 0) {
    const std::vector<int> neighbours = expert_neighbours(job_);
    const double share =
        static_cast<double>(neighbours.size()) / static_cast<double>(job_.layout.sizes.expert);
    rows_us = std::max(rows_us, among(Collective::all_to_all, neighbours,
                                      load.inside * share * routes * hidden * element));
  }
  return rows_us + exchange_us(Collective::all_to_all, GroupKind::expert, rest);
}

network::DispatchPlace ExchangePrices::dispatch_place() const {
  network::DispatchPlace place =
      network::dispatch_place(job_.profile->device().name, *job_.cluster, dispatch_group_);
  place.rates.in_training = true;
  return place;
}

std::string ExchangePrices::dispatcher_provenance() const {
  if (!job_.dispatcher || !exchanges_rows()) return "";
  const network::DispatchPlace place = dispatch_place();
  return network::MeasuredDispatcher(*job_.dispatcher, place, *job_.cluster)
             .provenance(job_.dispatcher->training_sms, true) +
         profile::extrapolation(*job_.dispatcher, place.group,
                                {job_.tokens_per_rank(), static_cast<double>(job_.model->hidden),
                                 job_.dispatcher->training_sms});
}

double ExchangePrices::kernel_us(DispatcherStage stage, const DispatchedLoad& load) const {
  const auto hidden = static_cast<double>(job_.model->hidden);
  const network::DispatchPlace place = dispatch_place();
  const profile::Dispatcher& dispatcher = *job_.dispatcher;
  profile::DispatchLoad rows =
      profile::balanced_load(dispatcher.sent, stage, traffic_, place.group, job_.tokens_per_rank());
  rows.copies *= stage == DispatcherStage::dispatch ? load.sent_copies : load.returned_copies;
  rows.link_rows *= load.link_rows;
  rows.nic_rows *= load.nic_rows;
  rows.expert_rows *= load.expert_rows;
  const double wide = profile::dispatched_row_bytes(dispatcher, stage, hidden, false);
  const double narrower =
      stage == DispatcherStage::dispatch ? bf16_bytes - job_.dispatched_element_bytes() : 0;
  const double row = wide - narrower * hidden;
  const network::DispatchQuery query{
      stage, narrower > 0, row, job_.model->hidden, traffic_.top_k, dispatcher.training_sms};
  return network::MeasuredDispatcher(dispatcher, place, *job_.cluster)
             .time(query, rows, place.rates)
             .time_us +
         dispatcher.notify_us[place.group.crosses() ? 1 : 0];
}

// The exchange of rectified rows among the ranks of one domain, in bf16.
double ExchangePrices::rectified_us(double rows) const {
  if (rows == 0) return 0;
  const double routes = rows * job_.balanced_rows();
  return all_to_all_slowdown * among(Collective::all_to_all, expert_neighbours(job_),
                                     routes * bf16_bytes * static_cast<double>(job_.model->hidden));
}

}  // namespace moesim::training
