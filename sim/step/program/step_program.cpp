#include "sim/step/program/step_program.hpp"

#include <utility>

#include "sim/base/domain_parts.hpp"
#include "sim/step/program/gpu_parameters.hpp"
#include "sim/step/program/message_bytes.hpp"
#include "sim/step/program/part.hpp"
#include "sim/step/program/training_schedule.hpp"

namespace moesim::step {
namespace {

using profile::Collective;
using routing::CapacityScope;
using routing::IrCompute;
using routing::Rectification;

StepPart part_of(routing::LayerPart part) {
  switch (part) {
    case routing::LayerPart::router:
      return StepPart::router;
    case routing::LayerPart::dispatch_combine:
      return StepPart::dispatch_combine;
    case routing::LayerPart::exchange:
      return StepPart::exposed_exchange;
    case routing::LayerPart::expert:
      return StepPart::expert;
    case routing::LayerPart::rectify:
      break;
  }
  return StepPart::rectify;
}

std::string with_pass(const std::string& name, Pass pass) {
  return pass == Pass::forward ? name : name + "_backward";
}

}  // namespace

routing::MoeLayerShape moe_layer_shape(const scenario::Scenario& scenario) {
  if (!scenario.has_moe()) return {};
  routing::MoeLayerShape shape;
  shape.exchanges = scenario.expert_parallel > 1;
  shape.shuffles = shape.exchanges && scenario.router.kind->shuffles_tokens;
  shape.shared_expert = scenario.model->moe->shared_ffn > 0;
  shape.rectified = scenario.router.rectification != Rectification::none;
  shape.ir_compute = scenario.router.ir_compute;
  // A dispatcher makes rows where their experts are, in their order; fused kernels gather them.
  shape.sorts = shape.exchanges && scenario.experts > scenario.expert_parallel &&
                scenario.dispatcher == nullptr &&
                scenario.expert_products != scenario::ExpertProducts::fused;
  return shape;
}

class StepProgram::Builder {
 public:
  Builder(const scenario::Scenario& scenario, StepProgram& built)
      : scenario_(scenario),
        parameters_(scenario),
        shape_(moe_layer_shape(scenario)),
        program_(built.program_),
        operations_(built.operations_) {
    program_.ranks = scenario.gpus;
    // In the order of Groups.
    program_.partitions = {
        engine::blocks(scenario.gpus, scenario.expert_parallel),
        engine::strided(scenario.gpus, scenario.expert_parallel),
        engine::blocks(scenario.gpus, scenario.gpus),
        engine::blocks(scenario.gpus, part_in_domain(scenario.gpus, scenario.expert_parallel,
                                                     scenario.cluster->gpus_per_domain))};
    int ordinal = 0;
    for (int layer = 0; layer < scenario.model->layers; ++layer) {
      moe_ordinal_.push_back(is_moe(layer) ? ordinal++ : -1);
    }
  }

  void build() {
    for (const ScheduleEntry& entry : training_schedule(scenario_)) add(entry);
  }

 private:
  bool is_moe(int layer) const {
    return scenario_.has_moe() && scenario_.model->is_moe_layer(layer);
  }
  std::size_t group_size(Groups groups) const {
    return program_.partitions[static_cast<std::size_t>(groups)].groups.front().size();
  }

  // Waits for all communication since the last compute operation.
  void add_compute(const std::string& name, StepPart part, int layer, StepOperation operation) {
    engine::Operation described;
    described.name = name;
    described.category = static_cast<int>(part);
    described.layer = layer;
    described.after = std::exchange(pending_, {});
    operations_.push_back(std::move(operation));
    last_compute_ = program_.add(std::move(described));
  }

  // Waits for the last compute operation.
  void add_exchange(const std::string& name, StepPart part, int layer, StepOperation operation,
                    engine::StreamKind stream = engine::StreamKind::communication) {
    engine::Operation described;
    described.name = name;
    described.stream = stream;
    described.category = static_cast<int>(part);
    described.layer = layer;
    described.groups = static_cast<int>(operation.groups);
    if (last_compute_ >= 0) described.after = {last_compute_};
    operations_.push_back(std::move(operation));
    pending_.push_back(program_.add(std::move(described)));
  }

  static StepOperation compute(Work work, Pass pass = Pass::forward) {
    StepOperation operation;
    operation.work = work;
    operation.pass = pass;
    return operation;
  }
  static StepOperation over_parameters(Work work, double parameters) {
    StepOperation operation = compute(work);
    operation.parameters = parameters;
    return operation;
  }
  static StepOperation collective(Collective kind, Groups groups, double bytes,
                                  const std::string& label) {
    StepOperation operation;
    operation.work = Work::collective;
    operation.groups = groups;
    operation.collective = kind;
    operation.bytes = bytes;
    operation.label = label;
    return operation;
  }
  StepOperation in_layer(Work work, MoePhase phase, Pass pass, int layer) const {
    StepOperation operation = compute(work, pass);
    operation.phase = phase;
    operation.moe_layer = moe_ordinal_[static_cast<std::size_t>(layer)];
    return operation;
  }
  StepOperation announcing(StepOperation operation, int layer) const {
    operation.moe_layer = moe_ordinal_[static_cast<std::size_t>(layer)];
    operation.announces = true;
    return operation;
  }

  void add(const ScheduleEntry& entry) {
    switch (entry.action) {
      case Action::embedding:
      case Action::head:
        return add_outer(entry);
      case Action::layer:
        return entry.pass == Pass::forward ? layer_forward(entry.layer)
                                           : layer_backward(entry.layer);
      case Action::reduce_layer:
      case Action::reduce_outer:
      case Action::reduce_all:
        return reduce(entry);
      case Action::accumulate_shards:
        return add_compute("gradient_accumulation", StepPart::other, -1,
                           over_parameters(Work::accumulate_gradients, parameters_.shard()));
      case Action::update:
        return update();
    }
  }

  void add_outer(const ScheduleEntry& entry) {
    const bool head = entry.action == Action::head;
    if (entry.pass == Pass::forward) gather_embedding();
    add_compute(with_pass(head ? "head" : "embedding", entry.pass), StepPart::other, -1,
                compute(head ? Work::head : Work::embedding, entry.pass));
  }

  void layer_forward(int layer) {
    gather_layer(layer);
    attention(Pass::forward, layer);
    if (is_moe(layer)) {
      moe_layer(Pass::forward, layer);
    } else {
      add_compute("dense_ffn", StepPart::dense_ffn, layer, compute(Work::dense_ffn));
    }
  }

  void layer_backward(int layer) {
    if (scenario_.checkpointing == scenario::Checkpointing::full) {
      layer_forward(layer);
    } else {
      gather_layer(layer);
    }
    if (is_moe(layer)) {
      moe_layer(Pass::backward, layer);
    } else {
      add_compute("dense_ffn_backward", StepPart::dense_ffn, layer,
                  compute(Work::dense_ffn, Pass::backward));
    }
    attention(Pass::backward, layer);
  }

  void attention(Pass pass, int layer) {
    StepOperation operation = compute(Work::attention, pass);
    operation.causal = scenario_.model->is_causal(layer);
    operation.cross_attends = scenario_.model->cross_attends(layer);
    add_compute(with_pass("attention", pass), StepPart::attention, layer, std::move(operation));
  }

  void moe_layer(Pass pass, int layer) {
    for (const MoePhase phase : routing::moe_phases(pass, shape_)) {
      switch (phase) {
        case MoePhase::shuffle:
        case MoePhase::unshuffle:
          shuffle(phase, pass, layer);
          break;
        case MoePhase::announce:
          announce(layer);
          break;
        case MoePhase::dispatch_exchange:
        case MoePhase::combine_exchange:
          exchange(phase, pass, layer);
          break;
        case MoePhase::rectify:
          rectify(pass, layer);
          break;
        default:
          add_phase(phase, pass, layer);
      }
    }
  }

  void add_phase(MoePhase phase, Pass pass, int layer) {
    const routing::MoePhaseTraits traits = routing::traits_of(phase);
    add_compute(with_pass(traits.name, pass), part_of(traits.part), layer,
                in_layer(Work::phase, phase, pass, layer));
  }

  // IR on the rows of each GPU. With ir@node the rows are first sent to their expert's GPU inside
  // the NVLink domain, and back afterwards. With `overlap` it does not wait for tokens in transit.
  void rectify(Pass pass, int layer) {
    std::vector<int> under_way;
    if (shape_.ir_compute == IrCompute::overlap) under_way = std::exchange(pending_, {});
    const bool travel =
        scenario_.router.rectification == Rectification::node && group_size(Groups::domain) > 1;
    StepOperation moved = in_layer(Work::exchange_rectified, MoePhase::rectify, pass, layer);
    moved.groups = Groups::domain;
    if (travel) add_exchange("nccl:all_to_all", StepPart::exposed_exchange, layer, moved);
    add_phase(MoePhase::rectify, pass, layer);
    if (travel) add_exchange("nccl:all_to_all", StepPart::exposed_exchange, layer, moved);
    pending_.insert(pending_.end(), under_way.begin(), under_way.end());
  }

  // BASE in training sends every token to a random GPU before it assigns tokens to experts, and
  // back at the end (Lewis et al. 2021, arXiv:2103.16716, section 3.2): S rows over the group.
  void shuffle(MoePhase phase, Pass pass, int layer) {
    add_compute(with_pass(routing::traits_of(phase).name, pass), StepPart::dispatch_combine, layer,
                compute(Work::shuffle_rows));
    add_exchange("nccl:all_to_all", StepPart::exposed_exchange, layer,
                 collective(Collective::all_to_all, Groups::expert_parallel,
                            row_bytes(scenario_, scenario_.tokens_per_gpu),
                            "all-to-all of shuffled tokens"));
  }

  // Megatron-Core sends the probability of every row in a separate all-to-all with the same counts,
  // because its experts apply the weights (MoEAlltoAllTokenDispatcher.token_dispatch in
  // megatron/core/transformer/moe/token_dispatcher.py, v0.12 and later; in fp32 with
  // --moe-router-dtype fp32). In the backward pass their gradients are sent back. Kernels that send
  // tokens without duplicates include the probabilities.
  void exchange(MoePhase phase, Pass pass, int layer) {
    StepOperation rows = in_layer(Work::exchange_rows, phase, pass, layer);
    rows.groups = Groups::expert_parallel;
    if (scenario_.dispatcher != nullptr) {
      const char* stage = routing::goes_to_experts(phase, pass) ? "dispatch" : "combine";
      add_exchange(scenario_.dispatcher->name + ":" + stage, StepPart::exposed_exchange, layer,
                   rows);
      return;  // probabilities travel with their rows
    }
    add_exchange("nccl:all_to_all", StepPart::exposed_exchange, layer, rows);
    if (phase != MoePhase::dispatch_exchange) return;
    if (scenario_.router.dialect != routing::Dialect::megatron) return;
    if (scenario_.dedup != scenario::Deduplication::none) return;
    rows.work = Work::exchange_probabilities;
    add_exchange("nccl:all_to_all", StepPart::exposed_exchange, layer, rows);
  }

  // Sizes that ranks exchange first: the rows of every pair where these differ, or the size of
  // padded blocks. 32-bit integers: the largest kept count of the group for each expert, or the
  // largest C of ragged sources.
  void announce(int layer) {
    const routing::RouterConfig& router = scenario_.router;
    const bool ragged = scenario_.is_ragged();
    const auto agree = [&](double bytes, const std::string& label) {
      add_exchange(
          "nccl:all_reduce", StepPart::exposed_exchange, layer,
          announcing(collective(Collective::all_reduce, Groups::expert_parallel, bytes, label),
                     layer));
    };
    if (!router.pads_exchange()) {
      if (!router.counts_known() || (ragged && !router.stays_on_gpu())) exchange_counts(layer);
    } else if (router.has_capacity() && router.capacity_scope == CapacityScope::group) {
      agree(4.0 * scenario_.experts, "all-reduce of counts");
    } else if (ragged || router.pads_to_busiest()) {
      agree(4.0, "all-reduce of capacities");
    }
  }

  // The counts of all pairs, which the host needs before it can start the all-to-all. A
  // dispatcher's kernels tell each other (its notify phase); the host may have to wait for them.
  void exchange_counts(int layer) {
    if (scenario_.dispatcher != nullptr) {
      if (scenario_.dispatcher->host_reads) read_counts(layer);
      return;
    }
    add_exchange("nccl:all_gather", StepPart::exposed_exchange, layer,
                 announcing(collective(Collective::all_gather, Groups::expert_parallel,
                                       counts_bytes(scenario_), "all-gather of counts"),
                            layer));
    read_counts(layer);
  }

  void read_counts(int layer) {
    add_compute("counts_to_host", StepPart::router, layer,
                announcing(compute(Work::host_read), layer));
  }

  // A collective over parameters or their gradients, of one layer (-1: of none).
  struct ParameterExchange {
    const char* name;  // of the collective
    Collective kind;
    Groups groups;
    double parameters;
    const char* label;
    int layer;
    engine::StreamKind stream = engine::StreamKind::communication;
  };
  // No operation without parameters or with one GPU.
  void over_group(const ParameterExchange& asked) {
    if (asked.parameters <= 0 || group_size(asked.groups) < 2) return;
    add_exchange(
        std::string("nccl:") + asked.name, StepPart::gradient, asked.layer,
        collective(asked.kind, asked.groups, parameter_bytes * asked.parameters, asked.label),
        asked.stream);
  }
  void gather_dense(double parameters, int layer) {
    over_group({.name = "all_gather",
                .kind = Collective::all_gather,
                .groups = Groups::world,
                .parameters = parameters,
                .label = "all-gather of parameters",
                .layer = layer});
  }
  void gather_experts(double parameters, int layer) {
    over_group({.name = "all_gather",
                .kind = Collective::all_gather,
                .groups = Groups::expert_data_parallel,
                .parameters = parameters,
                .label = "all-gather of expert parameters",
                .layer = layer});
  }

  // ZeRO-3: parameters are gathered before each pass that uses them; nothing is prefetched. A
  // checkpointed layer keeps them from its second forward pass to its backward pass.
  void gather_layer(int layer) {
    if (scenario_.zero < 3 || scenario_.mode != scenario::Mode::train) return;
    gather_dense(parameters_.layer_dense(layer), layer);
    gather_experts(parameters_.layer_expert(layer), layer);
  }

  // The embedding table, or the matrix of the head.
  void gather_embedding() {
    if (scenario_.zero < 3 || scenario_.mode != scenario::Mode::train) return;
    gather_dense(static_cast<double>(scenario_.model->vocabulary * scenario_.model->hidden), -1);
  }

  // Dense gradients are reduced over all GPUs, those of an expert over the GPUs that hold it:
  // all-reduce with ZeRO-0, else reduce-scatter to the shard that updates them.
  void reduce_gradients(double dense, double expert, int layer) {
    const bool whole = scenario_.zero == 0;
    const bool overlapped = scenario_.gradient_overlap == scenario::GradientOverlap::gradient;
    const auto stream =
        overlapped ? engine::StreamKind::gradients : engine::StreamKind::communication;
    ParameterExchange reduction{.name = whole ? "all_reduce" : "reduce_scatter",
                                .kind = whole ? Collective::all_reduce : Collective::reduce_scatter,
                                .groups = Groups::world,
                                .parameters = dense,
                                .label = "reduction of dense gradients",
                                .layer = layer,
                                .stream = stream};
    over_group(reduction);
    reduction.groups = Groups::expert_data_parallel;
    reduction.parameters = expert;
    reduction.label = "reduction of expert gradients";
    over_group(reduction);
  }

  // Up to ZeRO-1 every GPU accumulates full gradients and reduces them once, after the last
  // micro-step; from ZeRO-2 on it keeps only its shard, so the gradients of each micro-step are
  // reduced before they are accumulated (Rajbhandari et al. 2020, arXiv:1910.02054, section 5.2).
  void settle_gradients(double dense, double expert, int layer, std::int64_t micro_step) {
    const bool whole = scenario_.zero < 2;
    if (whole && micro_step > 0) {
      add_compute("gradient_accumulation", StepPart::other, layer,
                  over_parameters(Work::accumulate_gradients, dense + expert));
    }
    if (whole && micro_step + 1 < scenario_.micro_steps) return;
    reduce_gradients(dense, expert, layer);
  }

  // A layer's reduction overlaps the backward pass of the layers before it: only later reductions,
  // which share its stream, and operations after the pass wait for it.
  void reduce(const ScheduleEntry& entry) {
    if (entry.action == Action::reduce_layer) {
      settle_gradients(parameters_.layer_dense(entry.layer), parameters_.layer_expert(entry.layer),
                       entry.layer, entry.micro_step);
      if (!pending_.empty()) last_reduction_ = {pending_.back()};
      pending_.clear();
      return;
    }
    if (entry.action == Action::reduce_outer) {
      settle_gradients(parameters_.outer(), 0, -1, entry.micro_step);
    } else {
      settle_gradients(parameters_.dense(), parameters_.expert(), -1, entry.micro_step);
    }
    std::vector<int> last = std::exchange(last_reduction_, {});
    if (pending_.empty()) pending_ = std::move(last);
  }

  void update() {
    const double dense = parameters_.dense();
    const double expert = parameters_.expert();
    const double kept = scenario_.zero > 0 ? parameters_.shard() : dense + expert;
    add_compute("optimizer", StepPart::optimizer, -1, over_parameters(Work::optimizer, kept));
    if (scenario_.zero != 1 && scenario_.zero != 2) return;
    gather_dense(dense, -1);
    gather_experts(expert, -1);
  }

  const scenario::Scenario& scenario_;
  GpuParameters parameters_;
  routing::MoeLayerShape shape_;
  engine::Program& program_;
  std::vector<StepOperation>& operations_;
  std::vector<int> moe_ordinal_;  // [layer], -1: dense
  int last_compute_ = -1;
  std::vector<int> pending_;         // what the next compute operation waits for
  std::vector<int> last_reduction_;  // of a layer's gradients
};

StepProgram::StepProgram(const scenario::Scenario& scenario) { Builder(scenario, *this).build(); }

Direction StepProgram::direction(int index) const {
  const StepOperation& operation = this->operation(index);
  if (operation.work != Work::exchange_rows && operation.work != Work::exchange_probabilities) {
    return Direction::none;
  }
  return routing::goes_to_experts(operation.phase, operation.pass) ? Direction::to_experts
                                                                   : Direction::to_tokens;
}

}  // namespace moesim::step
