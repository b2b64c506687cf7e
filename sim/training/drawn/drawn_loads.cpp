#include "sim/training/drawn/drawn_loads.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/numbers.hpp"
#include "sim/base/statistics.hpp"
#include "sim/routing/jobs/group_blocks.hpp"
#include "sim/routing/simulation/mean_loss.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "sim/training/drawn/block_loads.hpp"
#include "sim/training/drawn/block_routing.hpp"
#include "sim/training/drawn/routing_misfit.hpp"
#include "sim/training/drawn/sampled_rows.hpp"
#include "sim/training/job/expert_copies.hpp"

namespace moesim::training {
namespace {

using routing::LayerRouting;
using routing::ScoreSource;

constexpr double most_logits = 4e10;  // tens of minutes of one core
constexpr double most_counts = 4e8;   // of a layer: 3 GB

void tell(const DrawProgress& progress, int drawn, int layers) {
  if (progress) progress(static_cast<std::size_t>(drawn), static_cast<std::size_t>(layers));
}

// Gives a job whose blocks are one source each as many slots as all sources together have.
void give_slots_of_all(routing::RoutingJob& job, int sources) {
  routing::RouterConfig& router = job.router;
  if (!router.has_capacity()) return;
  router.min_capacity = sources * router.capacity(job.tokens_per_gpu, job.experts);
  router.capacity_factor = Decimal::parse("0.000001", "capacity factor");
  router.dialect = routing::Dialect::paper;
  router.capacity_scope = routing::CapacityScope::source;
}

// The variance of one value, from at least two.
double variance_of_one(const std::vector<double>& values) {
  const double middle = mean(values);
  double squares = 0;
  for (const double value : values) squares += square(value - middle);
  return squares / (static_cast<double>(values.size()) - 1);
}

// Blocks of a group are as long as its longest: of their slots, not of C.
void set_padded_share(const routing::RouterConfig& router, LayerRouting& layer) {
  if (!router.pads_exchange() || !layer.exchanged) return;
  if (router.capacity_scope != routing::CapacityScope::group) return;
  const double slots = routing::padded_slots(layer);
  const double kept = std::accumulate(layer.kept_rows.begin(), layer.kept_rows.end(), 0.0);
  layer.loss.padded = slots > 0 ? 1 - kept / slots : 0;
}

}  // namespace

std::string drawn_key(const TrainingJob& job) {
  const DrawnRouting& drawn = *job.routing;
  return fmt::format("{}{} {} {} {} {} {}", block_routing(job).key(),
                     static_cast<int>(drawn.router.padding), drawn.replica, drawn.trace_step,
                     static_cast<int>(drawn.draws), static_cast<int>(drawn.fidelity),
                     job.redundant_experts);
}

DrawnShape drawn_shape(const TrainingJob& job) {
  const parallel::ParallelLayout& layout = job.layout.sizes;
  const StageDivision division = stage_division(layout);
  DrawnShape shape;
  shape.expert = layout.expert;
  shape.expert_tensor = layout.expert_tensor;
  shape.blocks_per_set = division.blocks_per_set;
  if (job.routing->draws == RoutingDraws::per_micro_batch) {
    shape.sets = division.sets;
    shape.micro_batches = job.layout.micro_batches();
  }
  shape.layers = drawn_layers(job);
  shape.tokens_per_rank = std::llround(job.tokens_per_rank());
  shape.dispatcher = job.dispatcher != nullptr;
  if (shape.dispatcher) {
    shape.sent = job.dispatcher->sent;
    shape.per_domain = dispatch_spread(job).per_domain;
  }
  return shape;
}

DrawnLoads::DrawnLoads(const TrainingJob& job, bool with_losses, routing::DrawCache* draws,
                       const DrawProgress& progress)
    : asked_(job), division_(stage_division(job.layout.sizes)) {
  const DrawnRouting& drawn = *job.routing;
  check_drawn(drawn);
  job_ = block_routing(job);
  job_.with_losses = with_losses;
  job_.count_copies = counts_copies(job, job_);
  layers_ = job_.layers;
  if (drawn.draws == RoutingDraws::per_micro_batch) {
    sets_ = division_.sets;
    micro_batches_ = job.layout.micro_batches();
  }
  const std::vector<int> replicas = drawn_replicas(job);
  if (drawn.draws == RoutingDraws::per_layer) steps_ = static_cast<int>(replicas.size());
  note_recorded(replicas);
  const std::size_t parts = static_cast<std::size_t>(layers_) * static_cast<std::size_t>(steps_);
  loads_.resize(parts * static_cast<std::size_t>(sets_) * static_cast<std::size_t>(micro_batches_));
  rank_rows_.resize(parts * static_cast<std::size_t>(job.layout.sizes.expert));
  routing::LayerRouter router(best_simd_level(), draws);
  if (takes_sample(job)) {
    draw_from_samples(router, progress);
    return;
  }
  set_blocks();
  // Recorded steps stand for micro-batches; otherwise these are more sources of the same layer.
  const bool by_step = job_.scores.trace != nullptr;
  const int together = by_step ? 1 : micro_batches_;
  for (int layer = 0; layer < layers_; ++layer) {
    for (int step = 0; step < steps_; ++step) {
      for (int first = 0; first < micro_batches_; first += together) {
        const auto replica = static_cast<std::size_t>(step + first) % replicas.size();
        draw(router, layer, replicas[replica], {step, first, together});
      }
    }
    tell(progress, layer + 1, layers_);
  }
  set_figures();
}

void DrawnLoads::note_recorded(const std::vector<int>& replicas) {
  const routing::Trace* const trace = job_.scores.trace.get();
  if (trace == nullptr) return;
  figures_.recorded_steps = trace->shape().steps;
  figures_.recorded_ranks = trace->shape().ranks;
  figures_.taken_ranks =
      std::min(figures_.recorded_ranks, sets_ * division_.blocks_per_set * job_.gpus);
  for (const int replica : replicas) {
    std::vector<int>& taken = figures_.taken_steps;
    if (taken.empty() || taken.back() != replica + 1) taken.push_back(replica + 1);
  }
}

// All layers from a sample of their tokens.
void DrawnLoads::draw_from_samples(routing::LayerRouter& router, const DrawProgress& progress) {
  check_routing(job_, asked_);
  const parallel::ParallelLayout& layout = asked_.layout.sizes;
  const double tokens = asked_.tokens_per_rank() * layout.expert * layout.expert_tensor;
  const double balance = job_.router.top_k * tokens / layout.expert;
  const BlockLoads blocks(asked_, job_, true);
  figures_.sampled = true;
  std::size_t place = 0;
  for (int layer = 0; layer < layers_; ++layer) {
    const SampledRows rows(job_, asked_.routing->replica, layer, router);
    losses_.emplace_back().loss = rows.loss();
    std::uint32_t block = 0;
    for (int at = 0; at < sets_ * micro_batches_; ++at) {
      MoeLoad most;
      for (int part = 0; part < division_.blocks_per_set; ++part) {
        std::vector<double> computed = rows.draw(tokens, block++);
        for (double& each : computed) each /= balance;
        const MoeLoad load = blocks.load_of_ranks(computed);
        most = part == 0 ? load : most_of(most, load);
        add_rows(layer, 0, computed);
        figures_.draws += 1;
      }
      loads_[place++] = most;
    }
    tell(progress, layer + 1, layers_);
  }
  set_figures();
}

// Capacity of each source, rectification and padding depend on the counts of sources; popular ranks
// of the source on their number.
bool DrawnLoads::only_sums_matter() const {
  const DrawnRouting& drawn = *asked_.routing;
  const routing::RouterConfig& router = drawn.router;
  if (router.rectification != routing::Rectification::none || router.pads_exchange()) return false;
  if (router.has_capacity() && router.capacity_scope == routing::CapacityScope::source) {
    return false;
  }
  if (router.kind->make_counter != nullptr || !router.chooses_top_k()) return false;
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
  check_routing(job, asked_);
}

void DrawnLoads::draw(routing::LayerRouter& router, int layer, int replica,
                      MicroBatches micro_batches) {
  LayerRouting routing;
  router.route({&job_, 1}, replica, layer, {&routing, 1});
  take(routing, layer, micro_batches);
  set_padded_share(job_.router, routing);
  figures_.capacity =
      asked_.routing->router.capacity(std::llround(asked_.tokens_per_rank()), job_.experts);
  const std::vector<double> of_blocks = block_losses(routing);
  if (!of_blocks.empty() && job_.router.kind->keeps_ids) {
    of_blocks_.resize(of_blocks.size());
    for (std::size_t block = 0; block < of_blocks.size(); ++block) {
      of_blocks_[block] += of_blocks[block];
    }
  } else if (!of_blocks.empty()) {
    figures_.block_variance += variance_of_one(of_blocks);
  }
  LayerRouting losses;
  losses.loss = routing.loss;
  losses_.push_back(std::move(losses));
}

// The routes that a block drops are exact; its loss is not known apart from the other blocks'.
std::vector<double> DrawnLoads::block_losses(const LayerRouting& routing) const {
  const routing::RouterConfig& router = job_.router;
  const auto blocks = static_cast<std::size_t>(blocks_);
  if (!router.drops || blocks < 2 || routing.loss.residual_loss <= 0) return {};
  const std::size_t sources = static_cast<std::size_t>(job_.gpus) / blocks;
  const std::size_t rows = sources * static_cast<std::size_t>(job_.experts);
  const double attempted =
      static_cast<double>(sources) * static_cast<double>(job_.tokens_per_gpu) * router.choices();
  std::vector<double> dropped;
  for (std::size_t block = 0; block < blocks; ++block) {
    const auto first = routing.kept_rows.begin() + static_cast<std::ptrdiff_t>(block * rows);
    const auto kept =
        std::accumulate(first, first + static_cast<std::ptrdiff_t>(rows), std::int64_t{0});
    dropped.push_back(1 - static_cast<double>(kept) / attempted);
  }
  const double middle = mean(dropped);
  if (middle <= 0) return {};
  for (double& each : dropped) each *= routing.loss.residual_loss / middle;
  return dropped;
}

// Blocks are numbered [micro-batch, set, block of the set].
void DrawnLoads::take(const LayerRouting& routing, int layer, MicroBatches micro_batches) {
  const BlockLoads blocks(asked_, job_, sums_);
  std::optional<ExpertCopies> copies;
  if (asked_.redundant_experts > 0) {
    // Placed by the load of other tokens with the same popularity: those of an earlier step.
    copies.emplace(blocks.expert_rows(routing, static_cast<std::size_t>(blocks_)),
                   asked_.layout.sizes.expert, asked_.redundant_experts);
  }
  std::size_t block = 0;
  const int end = micro_batches.first + micro_batches.count;
  for (int micro = micro_batches.first; micro < end; ++micro) {
    for (int set = 0; set < sets_; ++set) {
      MoeLoad most;
      for (int part = 0; part < division_.blocks_per_set; ++part) {
        const BlockLoad found = blocks.load_of(routing, block++, copies ? &*copies : nullptr);
        most = part == 0 ? found.load : most_of(most, found.load);
        expert_loads_ += found.expert;
        add_rows(layer, micro_batches.step, found.computed);
        figures_.draws += 1;
      }
      loads_[place_of(layer, micro_batches.step, set, micro)] = most;
    }
  }
}

MoeLoad DrawnLoads::at(int layer, int set, int micro_batch, int step) const {
  return loads_[place_of(layer, step, set % sets_, micro_batch % micro_batches_)];
}

std::size_t DrawnLoads::place_of(int layer, int step, int set, int micro_batch) const {
  std::size_t place = static_cast<std::size_t>(layer) * static_cast<std::size_t>(steps_) +
                      static_cast<std::size_t>(step);
  place = place * static_cast<std::size_t>(sets_) + static_cast<std::size_t>(set);
  return place * static_cast<std::size_t>(micro_batches_) + static_cast<std::size_t>(micro_batch);
}

void DrawnLoads::add_rows(int layer, int step, std::span<const double> computed) {
  RankRows* rows =
      rank_rows_.data() + static_cast<std::size_t>(layer * steps_ + step) * computed.size();
  for (std::size_t rank = 0; rank < computed.size(); ++rank) {
    rows[rank].sum += computed[rank];
    rows[rank].squares += computed[rank] * computed[rank];
  }
}

double DrawnLoads::held_load(std::span<const int> layers) const {
  if (layers.empty()) return 1;
  double most = 0;
  for (int step = 0; step < steps_; ++step) most = std::max(most, held_load(layers, step));
  return most;
}

// Layers are independent of each other, and a micro-batch's rows nearly normal.
double DrawnLoads::held_load(std::span<const int> layers, int step) const {
  constexpr double quantile = 2.326;  // of 99 %
  const auto ranks = static_cast<std::size_t>(asked_.layout.sizes.expert);
  const double draws = figures_.draws / layers_ / steps_;
  double fullest = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    double mean = 0;
    double variance = 0;
    for (const int layer : layers) {
      const RankRows& rows =
          rank_rows_[static_cast<std::size_t>(layer * steps_ + step) * ranks + rank];
      const double each = rows.sum / draws;
      mean += each;
      variance += std::max(0.0, rows.squares / draws - each * each);
    }
    fullest = std::max(fullest, mean + quantile * std::sqrt(variance));
  }
  return fullest / static_cast<double>(layers.size());
}

std::size_t DrawnLoads::bytes() const {
  return sizeof *this + loads_.capacity() * sizeof(MoeLoad) +
         rank_rows_.capacity() * sizeof(RankRows) + losses_.capacity() * sizeof(LayerRouting);
}

void DrawnLoads::set_figures() {
  figures_.loss = routing::mean_loss(losses_);
  for (const LayerRouting& layer : losses_) {
    figures_.layer_losses.push_back(layer.loss.residual_loss);
  }
  const auto layers = static_cast<double>(losses_.size());
  figures_.block_variance /= layers;
  for (double& each : of_blocks_) each /= layers;
  if (!of_blocks_.empty()) figures_.block_variance = variance_of_one(of_blocks_);
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
