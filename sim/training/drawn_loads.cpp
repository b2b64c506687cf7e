#include "sim/training/drawn_loads.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/routing/jobs/group_blocks.hpp"
#include "sim/routing/simulation/mean_loss.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "sim/training/job_rules.hpp"
#include "sim/training/routing_misfit.hpp"
#include "sim/training/sampled_rows.hpp"

namespace moesim::training {
namespace {

using routing::LayerRouting;
using routing::ScoreSource;

constexpr double steps_of_balance = 1024;
constexpr double most_logits = 4e10;  // tens of minutes of one core
constexpr double most_counts = 4e8;   // of a layer: 3 GB

double rounded(double load) { return std::round(load * steps_of_balance) / steps_of_balance; }

double largest(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

void add_to(std::vector<double>& sums, const std::vector<double>& values) {
  for (std::size_t at = 0; at < sums.size(); ++at) sums[at] += values[at];
}

// Of a job whose blocks are one source each: as many slots as all sources together have.
void give_slots_of_all(routing::RoutingJob& job, int sources) {
  routing::RouterConfig& router = job.router;
  if (!router.has_capacity()) return;
  router.min_capacity = sources * router.capacity(job.tokens_per_gpu, job.experts);
  router.capacity_factor = Decimal::parse("0.000001", "capacity factor");
  router.dialect = routing::Dialect::paper;
  router.capacity_scope = routing::CapacityScope::source;
}

// Blocks of a group are as long as its longest: of their slots, not of C.
void set_padded_share(const routing::RouterConfig& router, LayerRouting& layer) {
  if (!router.pads_exchange() || !layer.exchanged) return;
  if (router.capacity_scope != routing::CapacityScope::group) return;
  const double slots = routing::padded_slots(layer);
  const double kept = std::accumulate(layer.kept_rows.begin(), layer.kept_rows.end(), 0.0);
  layer.loss.padded = slots > 0 ? 1 - kept / slots : 0;
}

// Those of prediction depths too.
int moe_layers_of(const TrainingJob& job) {
  const bool predicts = job.model->is_moe_layer(job.model->layers - 1);
  return job.model->moe_layers() +
         (predicts ? parallel::stages_of(*job.model, job.layout).mtp() : 0);
}

// Routers without counts, unless single tokens are asked for. Recorded tokens are there anyway;
// how long the longest block of a source is, the rows of ranks do not say.
bool takes_sample(const TrainingJob& job) {
  const DrawnRouting& drawn = *job.routing;
  const routing::RouterConfig& router = drawn.router;
  return job.redundant_experts == 0 && drawn.fidelity == routing::Fidelity::automatic &&
         router.kind->no_counts != nullptr && router.chooses_top_k() && !router.has_capacity() &&
         !router.pads_exchange() && drawn.scores.trace == nullptr &&
         router.rectification == routing::Rectification::none;
}

// Of jobs that share their logits.
std::vector<ExpectedLoss> shared_losses(const std::vector<routing::RoutingJob>& jobs, int replica,
                                        int most_layers) {
  const int layers = jobs.front().layers;
  const int drawn = std::min(layers, most_layers);
  std::vector<std::vector<LayerRouting>> by_job(jobs.size());
  std::vector<LayerRouting> results(jobs.size());
  routing::LayerRouter router;
  for (int at = 0; at < drawn; ++at) {
    const auto layer = static_cast<int>(std::int64_t{at} * layers / drawn);
    router.route(jobs, replica, layer, results);
    for (std::size_t job = 0; job < jobs.size(); ++job) {
      by_job[job].emplace_back().loss = results[job].loss;
    }
  }
  std::vector<ExpectedLoss> losses;
  for (const std::vector<LayerRouting>& of_job : by_job) {
    ExpectedLoss& found = losses.emplace_back();
    found.loss = routing::mean_loss(of_job);
    double squares = 0;
    for (const LayerRouting& layer : of_job) {
      squares += std::pow(layer.loss.residual_loss - found.loss.residual_loss, 2);
    }
    if (drawn > 1) found.error = std::sqrt(squares / (drawn - 1.0) / drawn);
  }
  return losses;
}

void check_drawn(const DrawnRouting& drawn) {
  if (const std::string why = draw_refusal(drawn.router); !why.empty()) {
    throw UsageError(fmt::format("--router: {} {}", drawn.router.name(), why));
  }
  if (drawn.scores.is_ragged()) {
    throw UsageError(fmt::format("--routing {}: all ranks of a training step have the same tokens",
                                 drawn.scores.name()));
  }
}

}  // namespace

StageDivision stage_division(const parallel::ParallelLayout& layout) {
  const int block = layout.expert * layout.expert_tensor;
  StageDivision division;
  division.ranks = std::lcm(block, layout.tensor * layout.context);
  division.sets = layout.gpus / layout.pipeline / division.ranks;
  division.blocks_per_set = division.ranks / block;
  return division;
}

std::string draw_refusal(const routing::RouterConfig& router) {
  if (router.is_dense()) return "has no experts: choose top1, topk, dropless, ...";
  if (router.mixes_tokens()) {
    return "mixes all tokens of a rank into slots, by products that train does not price";
  }
  if (router.kind->shuffles_tokens) {
    return "exchanges tokens before and after its layer, which train does not price";
  }
  if (router.kind->blocks == routing::ExchangeBlocks::full) {
    return "lets experts choose tokens, by a selection that train does not price";
  }
  if (router.kind->blocks == routing::ExchangeBlocks::pooled) {
    return "sends blocks of different sizes by pool, which train does not price";
  }
  return "";
}

routing::RoutingJob block_routing(const TrainingJob& job) {
  const DrawnRouting& drawn = *job.routing;
  const parallel::ParallelLayout& layout = job.layout.layout;
  routing::RoutingJob made;
  made.router = drawn.router;
  made.scores = drawn.scores;
  made.experts = job.model->moe->experts;
  made.gpus = layout.expert * layout.expert_tensor;
  made.expert_parallel = layout.expert;
  made.place(drawn.placement);
  made.gpus_per_domain = job.cluster->gpus_per_domain;
  made.tokens_per_gpu = std::llround(job.tokens_per_rank());
  made.layers = moe_layers_of(job);
  made.seed = drawn.seed;
  made.fidelity = drawn.fidelity;
  if (made.fidelity == routing::Fidelity::automatic) {
    made.fidelity = routing::counts_refusal(made).empty() ? routing::Fidelity::counts
                                                          : routing::Fidelity::tokens;
  }
  return made;
}

std::vector<ExpectedLoss> drawn_losses(std::span<const TrainingJob> jobs, int most_layers) {
  std::vector<ExpectedLoss> losses(jobs.size());
  // By (logits, replica).
  std::map<std::pair<std::string, int>, std::vector<std::size_t>> together;
  std::vector<routing::RoutingJob> routings(jobs.size());
  for (std::size_t at = 0; at < jobs.size(); ++at) {
    check_drawn(*jobs[at].routing);
    if (takes_sample(jobs[at])) {
      losses[at].loss = DrawnLoads(jobs[at]).figures().loss;
      continue;
    }
    routings[at] = block_routing(jobs[at]);
    check_routing(routings[at]);
    together[{routings[at].logits_key(), jobs[at].routing->replica}].push_back(at);
  }
  for (const auto& [key, members] : together) {
    std::vector<routing::RoutingJob> sharing;
    for (const std::size_t at : members) sharing.push_back(routings[at]);
    const std::vector<ExpectedLoss> drawn = shared_losses(sharing, key.second, most_layers);
    for (std::size_t at = 0; at < members.size(); ++at) losses[members[at]] = drawn[at];
  }
  return losses;
}

DrawnShape drawn_shape(const TrainingJob& job) {
  const parallel::ParallelLayout& layout = job.layout.layout;
  const StageDivision division = stage_division(layout);
  DrawnShape shape;
  shape.expert = layout.expert;
  shape.expert_tensor = layout.expert_tensor;
  shape.blocks_per_set = division.blocks_per_set;
  if (job.routing->draws == RoutingDraws::per_micro_batch) {
    shape.sets = division.sets;
    shape.micro_batches = job.layout.micro_batches();
  }
  shape.layers = moe_layers_of(job);
  shape.tokens_per_rank = std::llround(job.tokens_per_rank());
  shape.dispatcher = job.dispatcher != nullptr;
  shape.precision = job.states.precision;
  return shape;
}

DrawnLoads::DrawnLoads(const TrainingJob& job)
    : asked_(job), division_(stage_division(job.layout.layout)) {
  const DrawnRouting& drawn = *job.routing;
  check_drawn(drawn);
  check_options(job);
  job_ = block_routing(job);
  layers_ = job_.layers;
  if (drawn.draws == RoutingDraws::per_micro_batch) {
    sets_ = division_.sets;
    micro_batches_ = job.layout.micro_batches();
  }
  loads_.resize(static_cast<std::size_t>(layers_) * static_cast<std::size_t>(sets_) *
                static_cast<std::size_t>(micro_batches_));
  rank_rows_.resize(static_cast<std::size_t>(layers_) *
                    static_cast<std::size_t>(job.layout.layout.expert));
  routing::LayerRouter router;
  if (takes_sample(job)) {
    draw_from_samples(router);
    return;
  }
  set_blocks();
  // Recorded steps stand for micro-batches; otherwise these are more sources of the same layer.
  const bool by_step = job_.scores.trace != nullptr;
  for (int layer = 0; layer < layers_; ++layer) {
    const int together = by_step ? 1 : micro_batches_;
    for (int first = 0; first < micro_batches_; first += together) {
      draw(router, layer, drawn.replica + (by_step ? first : 0), first, together);
    }
  }
  set_figures();
}

// All layers from a sample of their tokens.
void DrawnLoads::draw_from_samples(routing::LayerRouter& router) {
  check_routing(job_);
  const parallel::ParallelLayout& layout = asked_.layout.layout;
  const double tokens = asked_.tokens_per_rank() * layout.expert * layout.expert_tensor;
  const double balance = job_.router.top_k * tokens / layout.expert;
  figures_.sampled = true;
  std::size_t place = 0;
  for (int layer = 0; layer < layers_; ++layer) {
    const SampledRows rows(job_, asked_.routing->replica, layer, router);
    losses_.emplace_back().loss = rows.loss();
    std::uint32_t block = 0;
    for (int at = 0; at < sets_ * micro_batches_; ++at) {
      double most = 0;
      for (int part = 0; part < division_.blocks_per_set; ++part) {
        std::vector<double> computed = rows.draw(tokens, block++);
        for (double& each : computed) {
          most = std::max(most, each);
          each /= balance;
        }
        add_rows(layer, computed);
        figures_.draws += 1;
      }
      const double load = rounded(most / balance);
      loads_[place++] = {load, load};
    }
  }
  set_figures();
}

// Capacity of each source, rectification and blocks depend on the counts of sources; popular ranks
// of the source on their number.
bool DrawnLoads::only_sums_matter() const {
  const DrawnRouting& drawn = *asked_.routing;
  const routing::RouterConfig& router = drawn.router;
  if (router.rectification != routing::Rectification::none || router.pads_exchange()) return false;
  if (router.has_capacity() && router.capacity_scope == routing::CapacityScope::source) {
    return false;
  }
  if (router.kind->count_exactly != nullptr || !router.chooses_top_k()) return false;
  if (router.groups > 1 && router.has_capacity()) return false;
  return drawn.scores.kind != ScoreSource::Kind::hot_rank &&
         drawn.scores.kind != ScoreSource::Kind::spread_heat && drawn.scores.trace == nullptr;
}

void DrawnLoads::set_blocks() {
  routing::RoutingJob& job = job_;
  const int sources = job.gpus;
  blocks_ = sets_ * division_.blocks_per_set * (job.scores.trace != nullptr ? 1 : micro_batches_);
  const int blocks = blocks_ + (asked_.redundant_experts > 0 ? 1 : 0);
  job.gpus = blocks * sources;
  const double logits = routing::token_logits(job);
  if (job.fidelity == routing::Fidelity::tokens && logits > most_logits) {
    throw UsageError(fmt::format(
        "--routing-draws: {:.1g} scores of single tokens are too many to draw{}: give "
        "--routing-draws per-layer, or a router that is drawn by counts",
        logits,
        routing::counts_refusal(job).empty() ? "" : " (" + routing::counts_refusal(job) + ")"));
  }
  if (job.fidelity == routing::Fidelity::counts && only_sums_matter()) {
    sums_ = true;
    give_slots_of_all(job, sources);
    job.tokens_per_gpu *= sources;
    job.expert_parallel = 1;
    job.gpus = blocks;
  }
  if (static_cast<double>(job.gpus) * job.experts > most_counts) {
    throw UsageError(fmt::format(
        "--routing-draws: the counts of {} sources and {} experts do not fit: give --routing-draws "
        "per-layer, or fewer micro-batches (--global-batch)",
        job.gpus, job.experts));
  }
  check_routing(job);
}

void DrawnLoads::draw(routing::LayerRouter& router, int layer, int replica, int first,
                      int micro_batches) {
  LayerRouting routing;
  router.route({&job_, 1}, replica, layer, {&routing, 1});
  take(routing, layer, first, micro_batches);
  set_padded_share(job_.router, routing);
  figures_.capacity =
      asked_.routing->router.capacity(std::llround(asked_.tokens_per_rank()), job_.experts);
  LayerRouting losses;
  losses.loss = routing.loss;
  losses_.push_back(std::move(losses));
}

// Blocks are numbered [micro-batch, set, block of the set].
void DrawnLoads::take(const LayerRouting& routing, int layer, int first, int micro_batches) {
  std::optional<ExpertCopies> copies;
  if (asked_.redundant_experts > 0) {
    // Placed by the load of other tokens with the same popularity: those of an earlier step.
    copies.emplace(expert_rows(routing, static_cast<std::size_t>(blocks_)),
                   asked_.layout.layout.expert, asked_.redundant_experts);
  }
  std::size_t block = 0;
  for (int micro = first; micro < first + micro_batches; ++micro) {
    for (int set = 0; set < sets_; ++set) {
      MoeLoad most{0, 0};
      for (int part = 0; part < division_.blocks_per_set; ++part) {
        const BlockLoad found = load_of(routing, block++, copies ? &*copies : nullptr);
        most.computed = std::max(most.computed, found.load.computed);
        most.exchanged = std::max(most.exchanged, found.load.exchanged);
        expert_loads_ += found.expert;
        add_rows(layer, found.computed);
        figures_.draws += 1;
      }
      loads_[(static_cast<std::size_t>(layer) * static_cast<std::size_t>(sets_) +
              static_cast<std::size_t>(set)) *
                 static_cast<std::size_t>(micro_batches_) +
             static_cast<std::size_t>(micro)] = most;
    }
  }
}

// Of one rank: all blocks have C rows, or as many as the fullest of the group.
double DrawnLoads::padded_rows(const LayerRouting& routing, std::size_t first_source) const {
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

DrawnLoads::SentRows DrawnLoads::sent_rows(const LayerRouting& routing, std::size_t first,
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

// Of all sources of a block.
std::vector<double> DrawnLoads::expert_rows(const LayerRouting& routing, std::size_t block) const {
  const parallel::ParallelLayout& layout = asked_.layout.layout;
  const auto sources = static_cast<std::size_t>(sums_ ? 1 : layout.expert * layout.expert_tensor);
  return sent_rows(routing, block * sources, sources).to_expert;
}

std::vector<double> DrawnLoads::received_rows(const std::vector<double>& to_expert,
                                              const ExpertCopies* copies) const {
  if (copies != nullptr) return copies->rows_of_ranks(to_expert);
  const auto ranks = static_cast<std::size_t>(asked_.layout.layout.expert);
  const std::size_t per_rank = to_expert.size() / ranks;
  std::vector<double> received(ranks, 0);
  for (std::size_t at = 0; at < to_expert.size(); ++at) received[at / per_rank] += to_expert[at];
  return received;
}

DrawnLoads::BlockRows DrawnLoads::rows_of(const LayerRouting& routing, std::size_t block,
                                          const ExpertCopies* copies) const {
  const parallel::ParallelLayout& layout = asked_.layout.layout;
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
    rows.exchanged = std::max(rows.exchanged, largest(received) / together);
    if (!sums_) {
      rows.exchanged = std::max(rows.exchanged, sent.most);
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        rows.rectified[rank] += routing.ir_rows[first + rank];
      }
    }
    if (job_.router.pads_exchange() && routing.exchanged) {
      rows.padded = std::max(rows.padded, padded_rows(routing, first));
    }
  }
  return rows;
}

DrawnLoads::BlockLoad DrawnLoads::load_of(const LayerRouting& routing, std::size_t block,
                                          const ExpertCopies* copies) const {
  const BlockRows rows = rows_of(routing, block, copies);
  const double balance = asked_.experts_per_token() * asked_.tokens_per_rank();
  const double exchanged = rounded(rows.exchanged / balance);
  // Slices of an expert get the rows of all their groups.
  const auto share = [&](double of_slices) {
    return of_slices / balance / asked_.layout.layout.expert_tensor;
  };
  BlockLoad found;
  found.expert = largest(rows.of_expert) * static_cast<double>(rows.of_expert.size()) /
                 std::max(1.0, std::accumulate(rows.of_expert.begin(), rows.of_expert.end(), 0.0));
  if (rows.padded > 0) {
    const double padded = rows.padded / balance;
    found.load = {padded + rounded(share(largest(rows.rectified))),
                  asked_.dispatcher ? exchanged : padded};
    found.computed.assign(rows.received.size(), found.load.computed);
    return found;
  }
  for (std::size_t rank = 0; rank < rows.received.size(); ++rank) {
    found.computed.push_back(share(rows.received[rank] + rows.rectified[rank]));
  }
  found.load = {rounded(largest(found.computed)), routing.exchanged ? exchanged : 0};
  return found;
}

MoeLoad DrawnLoads::at(int layer, int set, int micro_batch) const {
  const auto sets = static_cast<std::size_t>(sets_);
  const auto micros = static_cast<std::size_t>(micro_batches_);
  return loads_[(static_cast<std::size_t>(layer) * sets + static_cast<std::size_t>(set) % sets) *
                    micros +
                static_cast<std::size_t>(micro_batch) % micros];
}

void DrawnLoads::add_rows(int layer, std::span<const double> computed) {
  RankRows* rows = rank_rows_.data() + static_cast<std::size_t>(layer) * computed.size();
  for (std::size_t rank = 0; rank < computed.size(); ++rank) {
    rows[rank].sum += computed[rank];
    rows[rank].squares += computed[rank] * computed[rank];
  }
}

// Layers are independent of each other, and a micro-batch's rows nearly normal.
double DrawnLoads::held_load(std::span<const int> layers) const {
  constexpr double quantile = 2.326;  // of 99 %
  if (layers.empty()) return 1;
  const auto ranks = static_cast<std::size_t>(asked_.layout.layout.expert);
  const double draws = figures_.draws / layers_;
  double fullest = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    double mean = 0;
    double variance = 0;
    for (const int layer : layers) {
      const RankRows& rows = rank_rows_[static_cast<std::size_t>(layer) * ranks + rank];
      const double each = rows.sum / draws;
      mean += each;
      variance += std::max(0.0, rows.squares / draws - each * each);
    }
    fullest = std::max(fullest, mean + quantile * std::sqrt(variance));
  }
  return fullest / static_cast<double>(layers.size());
}

void DrawnLoads::set_figures() {
  figures_.loss = routing::mean_loss(losses_);
  figures_.fidelity = job_.fidelity;
  std::vector<double> computed;
  computed.reserve(loads_.size());
  for (const MoeLoad& load : loads_) computed.push_back(load.computed);
  figures_.mean_load =
      std::accumulate(computed.begin(), computed.end(), 0.0) / static_cast<double>(computed.size());
  const std::ptrdiff_t at = std::lround(0.99 * static_cast<double>(computed.size() - 1));
  std::nth_element(computed.begin(), computed.begin() + at, computed.end());
  figures_.p99_load = computed[static_cast<std::size_t>(at)];
  figures_.largest_load = *std::max_element(computed.begin(), computed.end());
  if (!figures_.sampled) figures_.mean_expert_load = expert_loads_ / figures_.draws;
}

}  // namespace moesim::training
