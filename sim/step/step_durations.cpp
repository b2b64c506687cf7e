#include "sim/step/step_durations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <map>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>

#include "sim/base/error.hpp"

namespace moesim::step {
namespace {

using routing::PhaseRows;

std::int64_t most_rectified(const routing::LayerRouting& layer) {
  return *std::max_element(layer.ir_rows.begin(), layer.ir_rows.end());
}

bool is_rectify(const StepOperation& operation) {
  return operation.work == Work::phase && operation.phase == MoePhase::rectify;
}

bool exchanges_rows(const StepOperation& operation) {
  return operation.work == Work::exchange_rows || operation.work == Work::exchange_probabilities;
}

bool sorts_rows(const StepOperation& operation) {
  return operation.work == Work::phase &&
         routing::traits_of(operation.phase).rows == PhaseRows::sorted;
}

bool all_equal(const std::vector<Picoseconds>& times) {
  return std::all_of(times.begin(), times.end(),
                     [&](Picoseconds time) { return time == times.front(); });
}

// Times of an operation on each rank, or one of all. Equal ones are stored once, which saves memory
// and lets ranks fold.
void store(std::vector<Picoseconds> times, int op, engine::Durations& durations) {
  const auto at = static_cast<std::size_t>(op);
  if (!times.empty() && all_equal(times)) {
    durations.uniform[at] = times.front();
  } else {
    durations.per_rank[at] = std::move(times);
  }
}

void check_copies(const scenario::Scenario& scenario, const routing::ReplicaRouting& routing) {
  const auto members = static_cast<std::size_t>(scenario.expert_parallel);
  const auto nodes = static_cast<std::size_t>(routing::group_nodes(scenario.routing_job()));
  for (const routing::LayerRouting& layer : routing.layers) {
    const std::size_t gpus = routing::GpuRows(layer.kept_rows, scenario.experts).gpus();
    const routing::TokenCopies& copies = layer.copies;
    if (copies.to_gpu.size() == gpus * members && copies.to_node.size() == gpus * nodes) continue;
    throw Error("an exchange without duplicates needs the copies of tokens that routing counts");
  }
}

void check_unpadded(const scenario::Scenario& scenario, const routing::ReplicaRouting& routing) {
  if (scenario.dispatch == scenario::Dispatch::einsum) {
    throw UsageError("--dispatch einsum: one-hot products need blocks of equal size; use index");
  }
  if (scenario.router.rectification != routing::Rectification::none &&
      scenario.router.ir_compute == routing::IrCompute::grouped) {
    throw UsageError("--ir-compute grouped: needs blocks of equal size; use separate or overlap");
  }
  const bool estimated =  // by a dispatcher, from counts
      scenario.dispatcher != nullptr && routing.layers.front().copies.to_gpu.empty();
  if (scenario.dedup != scenario::Deduplication::none && !estimated) {
    check_copies(scenario, routing);
  }
  const auto experts = static_cast<std::size_t>(scenario.experts);
  for (const routing::LayerRouting& layer : routing.layers) {
    const std::size_t cells = layer.kept_rows.size();
    const bool all = cells == experts * static_cast<std::size_t>(scenario.gpus);
    const bool group = cells == experts * static_cast<std::size_t>(scenario.expert_parallel);
    if (!all && !group) {
      throw Error(fmt::format(
          "a step without padding needs the rows of {} GPUs or of one expert-parallel group of {} "
          "to {} experts, but a layer has {} counts",
          scenario.gpus, scenario.expert_parallel, experts, cells));
    }
  }
}

}  // namespace

engine::Durations StepDurations::empty() const {
  engine::Durations durations;
  durations.uniform.resize(program_.operations().size());
  durations.per_rank.resize(program_.operations().size());
  return durations;
}

// The collectives without bytes to send; empty if there are none.
std::vector<bool> StepDurations::skipped(const routing::ReplicaRouting& routing) const {
  const auto is_skipped = [&](const StepOperation& operation) {
    if (operation.groups == Groups::none || operation.moe_layer < 0) return false;
    const routing::LayerRouting& layer = layer_of(operation, routing);
    if (exchanges_rows(operation) || operation.announces) return !layer.exchanged;
    return operation.work == Work::exchange_rectified && most_rectified(layer) == 0;
  };
  const std::vector<StepOperation>& operations = program_.operations();
  std::vector<bool> marks;
  for (std::size_t op = 0; op < operations.size(); ++op) {
    if (!is_skipped(operations[op])) continue;
    marks.resize(operations.size());
    marks[op] = true;
  }
  return marks;
}

// C, rows per source GPU and expert. In a layer without exchange the GPU's own experts get all the
// slots that the GPU would fill on the experts of its group.
std::int64_t StepDurations::block_rows(const routing::LayerRouting& layer,
                                       const GpuClass& gpus) const {
  const std::int64_t block = layer.block_of(gpus.group);
  if (layer.exchanged) return block;
  const std::int64_t sources = scenario_.expert_parallel;
  const int own = scenario_.experts / scenario_.expert_parallel;
  const std::int64_t slots =
      gpus.tokens == 0
          ? block
          : scenario_.router.own_capacity(prices_.token_classes().tokens(gpus.tokens), own);
  return (slots + sources - 1) / sources;
}

// The work of an operation on the GPUs of a class, in equal blocks; null: no work.
PricedWork* StepDurations::work_on(int op, const routing::ReplicaRouting* routing,
                                   const GpuClass& gpus) {
  const StepOperation& operation = program_.operation(op);
  if (is_fixed(operation) && !operation.announces) return &prices_.fixed(op, gpus.tokens);
  assert(routing != nullptr);
  const routing::LayerRouting& layer = layer_of(operation, *routing);
  const bool moves = exchanges_rows(operation) || sorts_rows(operation);
  if ((moves || operation.announces) && !layer.exchanged) return nullptr;
  if (is_fixed(operation)) return &prices_.fixed(op, gpus.tokens);
  if (operation.work == Work::exchange_rectified) {
    // The busiest GPU determines the time of its domain; the maximum over domains is used for all.
    return &prices_.sized(operation, {true, 0, most_rectified(layer)}, 0);
  }
  return &prices_.sized(operation, {true, block_rows(layer, gpus), 0}, gpus.tokens);
}

Picoseconds StepDurations::time_on(int op, const routing::ReplicaRouting* routing,
                                   const GpuClass& gpus, int replica) {
  PricedWork* work = work_on(op, routing, gpus);
  return work == nullptr ? Picoseconds(0) : prices_.time(*work, replica);
}

// Whether the operation takes longer in groups with larger blocks.
bool StepDurations::goes_by_blocks(int op, const routing::ReplicaRouting* routing) const {
  const StepOperation& operation = program_.operation(op);
  if (routing == nullptr || is_fixed(operation)) return false;
  if (!exchanges_rows(operation) && operation.work != Work::phase) return false;
  return !layer_of(operation, *routing).group_blocks.empty();
}

std::vector<Picoseconds> StepDurations::by_gpu_class(int op, const routing::ReplicaRouting* routing,
                                                     int replica) {
  const TokenClasses& classes = prices_.token_classes();
  const StepOperation& operation = program_.operation(op);
  const bool by_tokens = goes_by_tokens(operation) || operation.work == Work::phase;
  const std::size_t count = by_tokens ? classes.count() : 1;
  const bool by_blocks = goes_by_blocks(op, routing);
  const int groups = by_blocks ? scenario_.gpus / scenario_.expert_parallel : 1;
  std::vector<Picoseconds> times;  // [group, class]
  for (int group = 0; group < groups; ++group) {
    for (TokenClass tokens = 0; tokens < count; ++tokens) {
      times.push_back(time_on(op, routing, {tokens, group}, replica));
    }
  }
  if (all_equal(times)) return {times.front()};
  std::vector<Picoseconds> of_gpus;
  of_gpus.reserve(static_cast<std::size_t>(scenario_.gpus));
  for (int gpu = 0; gpu < scenario_.gpus; ++gpu) {
    const auto group = static_cast<std::size_t>(by_blocks ? group_of(gpu) : 0);
    of_gpus.push_back(times[group * count + (by_tokens ? classes.of(gpu) : 0)]);
  }
  return of_gpus;
}

std::vector<Picoseconds> StepDurations::by_rectified_rows(const StepOperation& operation,
                                                          const routing::LayerRouting& layer,
                                                          int replica) {
  const bool with_experts = scenario_.router.ir_compute == routing::IrCompute::grouped;
  std::map<std::tuple<TokenClass, std::int64_t, std::int64_t>, Picoseconds> known;
  std::vector<Picoseconds> times;
  times.reserve(layer.ir_rows.size());
  for (std::size_t gpu = 0; gpu < layer.ir_rows.size(); ++gpu) {
    const std::int64_t rows = layer.ir_rows[gpu];
    const TokenClass tokens = prices_.token_classes().of(static_cast<int>(gpu));
    const std::int64_t block =
        with_experts ? block_rows(layer, {tokens, group_of(static_cast<int>(gpu))}) : 0;
    const auto [found, added] = known.try_emplace({tokens, block, rows});
    if (added) {
      found->second = prices_.time(prices_.sized(operation, {true, block, rows}, tokens), replica);
    }
    times.push_back(found->second);
  }
  return times;
}

engine::Durations StepDurations::padded(const routing::ReplicaRouting* routing, int replica) {
  engine::Durations durations = empty();
  if (routing != nullptr) durations.skipped = skipped(*routing);
  const bool one_class = prices_.token_classes().all_alike();
  for (int op = 0; op < static_cast<int>(program_.operations().size()); ++op) {
    const StepOperation& operation = program_.operation(op);
    const auto at = static_cast<std::size_t>(op);
    if (is_rectify(operation)) {
      assert(routing != nullptr);
      durations.per_rank[at] = by_rectified_rows(operation, layer_of(operation, *routing), replica);
    } else if (goes_by_blocks(op, routing) ||
               (!one_class && (goes_by_tokens(operation) || operation.work == Work::phase))) {
      store(by_gpu_class(op, routing, replica), op, durations);
    } else {
      durations.uniform[at] = time_on(op, routing, {}, replica);
    }
  }
  return durations;
}

// The rows that the GPUs of a layer send and that their experts receive, in one pass over the
// counts.
StepDurations::RowCounts StepDurations::count_rows(const routing::LayerRouting& layer) const {
  const auto experts = static_cast<std::size_t>(scenario_.experts);
  const auto members = static_cast<std::size_t>(scenario_.expert_parallel);
  const std::size_t gpus = kept_rows(layer).gpus();
  RowCounts counts;
  counts.sent.reserve(gpus);
  counts.received.resize(gpus / members * experts);
  const std::int32_t* rows = layer.kept_rows.data();
  for (std::size_t gpu = 0; gpu < gpus; ++gpu, rows += experts) {
    std::int32_t* received = counts.received.data() + gpu / members * experts;
    std::int32_t sum = 0;
    for (std::size_t expert = 0; expert < experts; ++expert) {
      sum += rows[expert];
      received[expert] += rows[expert];
    }
    counts.sent.push_back(sum);
  }
  return counts;
}

// Times by the rows that a GPU sends, or by those that all GPUs of the group send to each expert of
// the GPU.
std::vector<Picoseconds> StepDurations::by_rows(const StepOperation& operation,
                                                const RowCounts& counts, int replica) {
  std::vector<Picoseconds> times;
  times.reserve(static_cast<std::size_t>(scenario_.gpus));
  const PhaseRows kind = routing::traits_of(operation.phase).rows;
  if (kind == PhaseRows::received || kind == PhaseRows::sorted) {
    const bool together = kind == PhaseRows::sorted ||
                          scenario_.expert_products != scenario::ExpertProducts::separate;
    RowPrices& prices = prices_.by_rows(operation, 0, replica);
    const auto local = static_cast<std::size_t>(scenario_.experts / scenario_.expert_parallel);
    for (std::size_t first = 0; first < counts.received.size(); first += local) {
      const auto of_gpu = std::span(counts.received).subspan(first, local);
      if (together) {
        const std::int64_t rows = std::accumulate(of_gpu.begin(), of_gpu.end(), std::int64_t{0});
        times.push_back(rows == 0 ? Picoseconds(0) : prices.of(rows));
        continue;
      }
      Picoseconds sum;
      for (const std::int32_t rows : of_gpu) {
        if (rows != 0) sum += prices.of(rows);
      }
      times.push_back(sum);
    }
  } else {
    std::vector<RowPrices*> prices;  // [token class]
    for (TokenClass tokens = 0; tokens < prices_.token_classes().count(); ++tokens) {
      prices.push_back(&prices_.by_rows(operation, tokens, replica));
    }
    for (std::size_t gpu = 0; gpu < counts.sent.size(); ++gpu) {
      const TokenClass tokens = prices_.token_classes().of(static_cast<int>(gpu));
      times.push_back(prices[tokens]->of(counts.sent[gpu]));
    }
  }
  return routing::for_all_gpus(std::move(times), scenario_.gpus);
}

StepDurations::Dispatched StepDurations::dispatched(int op) const {
  if (program_.direction(op) == Direction::to_experts) {
    return {profile::DispatcherStage::dispatch, "dispatcher: dispatch"};
  }
  return {profile::DispatcherStage::combine, "dispatcher: combine"};
}

// For every GPU the time of its group.
std::vector<Picoseconds> StepDurations::by_dispatcher(int op, const routing::LayerRouting& layer,
                                                      int replica) {
  const auto members = static_cast<std::size_t>(scenario_.expert_parallel);
  if (!layer.exchanged) {
    return std::vector<Picoseconds>(static_cast<std::size_t>(scenario_.gpus));
  }
  const Dispatched dispatch = dispatched(op);
  const std::size_t groups = kept_rows(layer).gpus() / members;
  std::vector<Picoseconds> times;
  for (std::size_t group = 0; group < groups; ++group) {
    const profile::Estimate estimate =
        dispatcher_->time(layer, static_cast<int>(group), dispatch.stage);
    times.insert(times.end(), members, prices_.exchange_time(estimate, dispatch.label, replica));
  }
  return routing::for_all_gpus(std::move(times), scenario_.gpus);
}

std::vector<Picoseconds> StepDurations::unpadded_times(int op,
                                                       const routing::ReplicaRouting& routing,
                                                       int replica,
                                                       std::vector<RowCounts>& counts) {
  const StepOperation& operation = program_.operation(op);
  if (exchanges_rows(operation)) {
    if (!dispatcher_) return {};
    return by_dispatcher(op, layer_of(operation, routing), replica);
  }
  if (!prices_.token_classes().all_alike() && goes_by_tokens(operation)) {
    return by_gpu_class(op, &routing, replica);
  }
  if (is_fixed(operation) || operation.work != Work::phase) {
    return {time_on(op, &routing, {}, replica)};
  }
  const routing::LayerRouting& layer = layer_of(operation, routing);
  if (is_rectify(operation)) return by_rectified_rows(operation, layer, replica);
  if (sorts_rows(operation) && !layer.exchanged) return {Picoseconds(0)};
  RowCounts& of_layer = counts[static_cast<std::size_t>(operation.moe_layer)];
  if (of_layer.sent.empty()) of_layer = count_rows(layer);
  return by_rows(operation, of_layer, replica);
}

engine::Durations StepDurations::unpadded(const routing::ReplicaRouting& routing, int replica) {
  check_unpadded(scenario_, routing);
  engine::Durations durations = empty();
  durations.skipped = skipped(routing);
  std::vector<RowCounts> counts(routing.layers.size());
  for (int op = 0; op < static_cast<int>(program_.operations().size()); ++op) {
    store(unpadded_times(op, routing, replica, counts), op, durations);
  }
  return durations;
}

// The rows that a GPU sends, or the most that one of its experts receives; batched or sorted, that
// they all receive.
std::int64_t StepDurations::rows_of(const StepOperation& operation,
                                    const routing::LayerRouting& layer, int gpu) const {
  const routing::GpuRows kept = kept_rows(layer);
  const int experts = scenario_.experts;
  const PhaseRows kind = routing::traits_of(operation.phase).rows;
  if (kind != PhaseRows::received && kind != PhaseRows::sorted) {
    return std::accumulate(kept.of(gpu), kept.of(gpu) + experts, std::int64_t{0});
  }
  const int members = scenario_.expert_parallel;
  const int local = experts / members;
  const int first = gpu % members * local;
  const std::int32_t* of_group = kept.of(gpu / members * members);
  std::int64_t most = 0, all = 0;
  for (int expert = first; expert < first + local; ++expert) {
    std::int64_t received = 0;
    for (int source = 0; source < members; ++source) {
      received += of_group[source * experts + expert];
    }
    most = std::max(most, received);
    all += received;
  }
  const bool together =
      kind == PhaseRows::sorted || scenario_.expert_products != scenario::ExpertProducts::separate;
  return together ? all : most;
}

PricedWork* StepDurations::work_of(int op, int gpu, const routing::ReplicaRouting* routing) {
  const StepOperation& operation = program_.operation(op);
  const bool by_tokens = goes_by_tokens(operation) || operation.work == Work::phase;
  const TokenClass tokens = by_tokens ? prices_.token_classes().of(gpu) : 0;
  if (is_rectify(operation)) {
    const routing::LayerRouting& layer = layer_of(operation, *routing);
    const bool with_experts = scenario_.router.ir_compute == routing::IrCompute::grouped;
    const std::int64_t rows = *routing::GpuRows(layer.ir_rows, 1).of(gpu);
    const std::int64_t block = with_experts ? block_rows(layer, {tokens, group_of(gpu)}) : 0;
    return &prices_.sized(operation, {true, block, rows}, tokens);
  }
  const bool goes_by_rows = operation.work == Work::phase && !is_fixed(operation);
  if (routing == nullptr || scenario_.router.pads_exchange() ||
      !(exchanges_rows(operation) || goes_by_rows)) {
    return work_on(op, routing, {tokens, group_of(gpu)});
  }
  const routing::LayerRouting& layer = layer_of(operation, *routing);
  if (exchanges_rows(operation)) {
    if (!dispatcher_ || !layer.exchanged) return nullptr;
    const Dispatched at = dispatched(op);
    dispatched_ = prices_.exchange_work(
        dispatcher_->time(layer, gpu / scenario_.expert_parallel, at.stage), at.label);
    return &dispatched_;
  }
  const std::int64_t rows = rows_of(operation, layer, gpu);
  if (rows == 0 || (sorts_rows(operation) && !layer.exchanged)) return nullptr;
  const PhaseRows kind = routing::traits_of(operation.phase).rows;
  const bool received = kind == PhaseRows::received || kind == PhaseRows::sorted;
  return &prices_.sized(operation, {false, priced_rows(operation, rows), 0}, received ? 0 : tokens);
}

// What slow links do not stretch, for each group: kernels' starts, copies by SMs, notify phases.
std::vector<double> StepDurations::dispatcher_waits(int op,
                                                    const routing::ReplicaRouting& routing) const {
  const routing::LayerRouting& layer = layer_of(program_.operation(op), routing);
  if (!layer.exchanged) return {};
  const int members = scenario_.expert_parallel;
  const int known = static_cast<int>(kept_rows(layer).gpus()) / members;
  const profile::DispatcherStage stage = dispatched(op).stage;
  std::vector<double> factors(static_cast<std::size_t>(scenario_.gpus / members), 1);
  for (const scenario::GpuFactor& slow : scenario_.conditions.slow_links) {
    double& factor = factors[static_cast<std::size_t>(slow.gpu / members)];
    factor = std::max(factor, slow.factor);
  }
  std::vector<double> waits;
  for (std::size_t group = 0; group < factors.size(); ++group) {
    const double factor = factors[group];
    if (factor <= 1) {
      waits.push_back(0);
      continue;
    }
    const int same = static_cast<int>(group) % known;
    const double alone = dispatcher_->time(layer, same, stage).time_us;
    const double slowed = dispatcher_->time(layer, same, stage, factor).time_us;
    waits.push_back((factor - slowed / alone) / (factor - 1));
  }
  return waits;
}

std::vector<std::vector<double>> StepDurations::latency_shares(
    const routing::ReplicaRouting* routing) {
  std::vector<std::vector<double>> shares(program_.operations().size());
  if (scenario_.conditions.slow_links.empty()) return shares;
  for (int op = 0; op < static_cast<int>(shares.size()); ++op) {
    if (program_.operation(op).groups == Groups::none) continue;
    if (dispatcher_ && exchanges_rows(program_.operation(op))) {
      shares[static_cast<std::size_t>(op)] = dispatcher_waits(op, *routing);
      continue;
    }
    const int groups = goes_by_blocks(op, routing) ? scenario_.gpus / scenario_.expert_parallel : 1;
    for (int group = 0; group < groups; ++group) {
      const PricedWork* work = work_on(op, routing, {0, group});
      shares[static_cast<std::size_t>(op)].push_back(work == nullptr ? 0 : work->latency_share());
    }
  }
  return shares;
}

}  // namespace moesim::step
