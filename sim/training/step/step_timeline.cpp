#include "sim/training/step/step_timeline.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/base/error.hpp"
#include "sim/base/numbers.hpp"
#include "sim/training/job/stage_division.hpp"
#include "sim/training/step/pair_spans.hpp"
#include "sim/training/step/pipelines.hpp"

namespace moesim::training {
namespace {

using parallel::ChunkPass;
using parallel::OperationKind;
using parallel::PipelineOperation;

constexpr const char* host_text = "waiting for the host";

// What runs a part, by a name that study::classify_kernel() knows: NCCL's kernel among a group of
// ranks, that of a dispatcher, or one that computes.
struct Kernel {
  std::string name;
  std::string group;                // empty: no collective
  std::string element{"BFloat16"};  // that a collective moves, as PyTorch names types
};

constexpr const char* fp32_element = "Float";

// The type in which gradients are reduced.
std::string gradient_element(const TrainingJob& job) {
  return job.states.gradient_bytes == 4 ? fp32_element : "BFloat16";
}

Kernel kernel_of(TrainingPart part, const TrainingJob& job) {
  switch (part) {
    case TrainingPart::tensor:
      return {"nccl:all_gather", "tensor_parallel"};
    case TrainingPart::context:
      return {"nccl:send_recv", "context_parallel"};
    case TrainingPart::dispatch:
    case TrainingPart::combine:
      if (job.gathers_tokens) {
        return {part == TrainingPart::dispatch ? "nccl:all_gather" : "nccl:reduce_scatter",
                "expert_parallel"};
      }
      if (job.dispatcher == nullptr) return {"nccl:all_to_all", "expert_parallel"};
      return {job.dispatcher->name + "::" + name_in(part_names, part), ""};
    case TrainingPart::parameters:
      return {"nccl:all_gather", "data_parallel"};
    case TrainingPart::gradients:
      return {"nccl:reduce_scatter", "data_parallel", gradient_element(job)};
    case TrainingPart::dense_ffn:
      return {"dense_ffn", ""};
    case TrainingPart::experts:
      return {"expert_ffn", ""};
    case TrainingPart::offload:
      return {"Memcpy DtoH, HtoD", ""};
    default:
      return {name_in(part_names, part), ""};
  }
}

// As PyTorch says a collective's group of ranks, in words of study::classify_kernel().
const char* group_text(parallel::GroupKind kind) {
  return kind == parallel::GroupKind::expert_data ? "expert_data_parallel"
                                                  : "data_parallel_with_cp";
}

const char* collective_text(profile::Collective kind) {
  switch (kind) {
    case profile::Collective::all_reduce:
      return "nccl:all_reduce";
    case profile::Collective::all_gather:
      return "nccl:all_gather";
    default:
      return "nccl:reduce_scatter";
  }
}

const char* stream_of(TrainingPart part) {
  if (is_exchange(part) || part == TrainingPart::offload) return "communication";
  return part == TrainingPart::host ? "host" : "compute";
}

std::string pass_text(const char* what, const ChunkPass& pass) {
  return fmt::format("{}: micro-batch {}, chunk {}", what, pass.micro_batch, pass.stage);
}

std::string what_ran(const PipelineOperation& operation) {
  switch (operation.kind) {
    case OperationKind::forward:
      return pass_text("forward", operation.pass);
    case OperationKind::backward:
      return pass_text("backward", operation.pass);
    case OperationKind::input_gradient:
      return pass_text("input gradient", operation.pass);
    case OperationKind::weight_gradient:
      return pass_text("weight gradient", operation.pass);
    case OperationKind::forward_backward:
      break;
  }
  return pass_text("forward", operation.pass) + "; " + pass_text("backward", operation.paired);
}

// What a chunk runs one after another: layers, and what is beside them.
struct ChunkWork {
  const Passes* passes;
  int layer;  // of the model; -1: none
};

// What a kernel belongs to.
struct Belonging {
  int layer = -1;  // of the model; -1: none
  std::string detail{};
  int chunk = -1;  // whose gradients are exchanged; -1: none
};

class TimelineWriter {
 public:
  TimelineWriter(const TrainingJob& job, const TrainingStep& step)
      : job_(job), step_(step), pipelines_(job), run_(pipelines_.slowest(step.shown_step)) {}

  engine::Timeline write() {
    for (int rank = 0; rank < pipelines_.shape().ranks; ++rank) {
      gpu_ = gpu_of(rank);
      const std::vector<PipelineOperation>& operations =
          pipelines_.schedule().ranks[index_of(rank)];
      computing_.clear();
      Picoseconds ended;
      for (std::size_t index = 0; index < operations.size(); ++index) {
        const parallel::OperationSpan& span = run_.run.ranks[index_of(rank)].spans[index];
        add_kernel("p2p", {"nccl:recv", "pipeline_parallel"}, TrainingPart::p2p, ended, span.start);
        add_operation(operations[index], span);
        ended = span.end;
      }
      add_end(rank);
    }
    return std::move(timeline_);
  }

 private:
  int gpu_of(int rank) const {
    const parallel::ParallelLayout& layout = job_.layout.sizes;
    return rank * stage_ranks(layout) + run_.place.set * stage_division(layout).ranks;
  }

  void add(engine::TimelineEvent event, Picoseconds end) {
    if (end <= event.start) return;
    if (timeline_.size() >= most_timeline_events) {
      throw UsageError(
          fmt::format("--timeline: more than {} events: give a smaller --global-batch; fewer "
                      "micro-batches show the same pattern",
                      most_timeline_events));
    }
    event.rank = gpu_;
    event.duration = end - event.start;
    if (event.stream == "compute") computing_.push_back({event.start, end});
    timeline_.push_back(std::move(event));
  }

  void add_kernel(const char* stream, Kernel kernel, TrainingPart part, Picoseconds start,
                  Picoseconds end, Belonging of = {}) {
    engine::TimelineEvent event;
    event.stream = stream;
    event.name = std::move(kernel.name);
    event.element = std::move(kernel.element);
    event.category = name_in(part_names, part);
    event.layer = of.layer;
    event.chunk = of.chunk;
    event.start = start;
    event.group_name = std::move(kernel.group);
    event.detail = std::move(of.detail);
    add(std::move(event), end);
  }

  // No kernel: around several, or the host.
  void add_range(const char* stream, std::string name, Picoseconds start, Picoseconds end) {
    engine::TimelineEvent event;
    event.stream = stream;
    event.name = std::move(name);
    event.start = start;
    event.is_range = true;
    add(std::move(event), end);
  }

  std::vector<ChunkWork> work_of(const ChunkPass& pass) {
    const Stage& stage = pipelines_.stages()[index_of(pass.stage)];
    const LayerPrices& prices = pipelines_.prices();
    std::vector<ChunkWork> work;
    if (stage.chunk.embedding) work.push_back({&prices.embedding(), -1});
    const std::vector<const Passes*> layers = pipelines_.layers_of(run_.place, pass);
    int losses = 0;
    for (std::size_t place = 0; place < layers.size(); ++place) {
      const bool predicts = place >= stage.layers.size();
      if (predicts) work.push_back({&prices.prediction(), -1});
      work.push_back({layers[place], pipelines_.layer_number(stage, place)});
      if (predicts && stage.chunk.loss) work.push_back({&prices.head(losses++ == 0), -1});
    }
    while (losses < stage.losses()) work.push_back({&prices.head(losses++ == 0), -1});
    return work;
  }

  // One direction of one piece of work, from `from_us` on; returns its end.
  template <class Order>
  double add_parts(const PartTimes& times, const Order& order, int layer, Picoseconds start,
                   Picoseconds end, double from_us) {
    for (const TrainingPart part : order) {
      const double us = times[at(part)];
      const Picoseconds begins = std::min(end, start + Picoseconds::from_us(from_us));
      const Picoseconds ends = std::min(end, start + Picoseconds::from_us(from_us + us));
      if (part == TrainingPart::host) {
        add_range("host", host_text, begins, ends);
      } else {
        add_kernel(stream_of(part), kernel_of(part, job_), part, begins, ends, {.layer = layer});
      }
      from_us += us;
    }
    return from_us;
  }

  // Passes one after another, as they were priced.
  double add_passes(const PipelineOperation& operation, const ChunkPass& pass, bool forward,
                    const parallel::OperationSpan& span, double from_us) {
    std::vector<ChunkWork> work = work_of(pass);
    if (forward) {
      for (const ChunkWork& each : work) {
        from_us = add_parts(each.passes->forward, forward_order, each.layer, span.start, span.end,
                            from_us);
      }
      return from_us;
    }
    const std::vector<TrainingPart> order = backward_order();
    std::reverse(work.begin(), work.end());
    for (const ChunkWork& each : work) {
      if (operation.is_backward()) {
        from_us = add_parts(each.passes->input_gradient, order, each.layer, span.start, span.end,
                            from_us);
      }
      if (operation.has_weight_gradient()) {
        from_us = add_parts(each.passes->weight_gradient, order, each.layer, span.start, span.end,
                            from_us);
      }
    }
    return from_us;
  }

  void add_pair(const PipelineOperation& operation, const parallel::OperationSpan& span) {
    for (const PairSpan& each : pair_spans(pipelines_, run_, operation.pass, operation.paired)) {
      const Picoseconds start = span.start + each.start;
      const Picoseconds end = span.start + each.end;
      const std::string stream = stream_of(each.part);
      if (each.part == TrainingPart::host) {
        add_range("host", host_text, start, end);
        continue;
      }
      Kernel kernel = kernel_of(each.part, job_);
      // "attention forward": which pass
      const bool computes = stream == "compute";
      if (computes && !each.piece.empty()) kernel.name += each.piece.substr(each.piece.find(' '));
      // Not on the stream of exchanges that run beside them.
      const bool blocks = !computes && !each.is_beside;
      add_kernel(blocks ? "blocking exchange" : stream.c_str(), std::move(kernel), each.part, start,
                 end, {.layer = each.layer, .detail = each.piece});
    }
  }

  void add_operation(const PipelineOperation& operation, const parallel::OperationSpan& span) {
    const std::string name = what_ran(operation);
    add_range("pipeline", name, span.start, span.end);
    if (operation.kind == OperationKind::forward_backward && pipelines_.hides_exchanges()) {
      add_pair(operation, span);
      return;
    }
    double from_us = 0;
    if (operation.is_forward()) from_us = add_passes(operation, operation.pass, true, span, 0);
    if (operation.kind == OperationKind::forward) return;
    add_passes(operation, operation.backward_pass(), false, span, from_us);
  }

  // Draws the buckets of a rank's last reduction, which ends at `end`; behind `last`, its last
  // pass, they are exposed. Earlier ones are drawn where kernels compute, which hide them: drawn
  // beside the host's waits and exchanges of experts, they would seem to be what the GPU waits for.
  void add_buckets(int rank, Picoseconds last, Picoseconds end) {
    std::vector<Stretch> free = {{last, end}};
    free.insert(free.end(), computing_.rbegin(), computing_.rend());
    auto stretch = free.begin();
    const std::vector<int> chunks = pipelines_.shape().stages_of(rank);
    const std::vector<BucketExchange>& exchanges = step_.ends[index_of(rank)].exchanges;
    for (auto each = exchanges.rbegin(); each != exchanges.rend(); ++each) {
      if (each->part != TrainingPart::gradients) continue;
      const bool is_across = each->replicas == Replicas::shard_of_instances;
      const char* among = is_across ? "inter_partial_" : "";  // as Megatron-Core
      const Kernel kernel = {collective_text(each->kind),
                             std::string(among) + group_text(each->group), gradient_element(job_)};
      const int chunk = each->place < 0 ? -1 : chunks[index_of(each->place)];
      std::string whose = chunk >= 0 && chunks.size() > 1 ? fmt::format(", chunk {}", chunk) : "";
      if (each->replicas == Replicas::shard_of_copies) whose += ", to the other copy of the stage";
      for (int bucket = each->buckets; bucket > 0; --bucket) {
        Picoseconds left = Picoseconds::from_us(each->each_us);
        const std::string detail = fmt::format("bucket {} of {}{}", bucket, each->buckets, whose);
        while (left > Picoseconds(0) && stretch != free.end()) {
          const Picoseconds taken = std::min(left, stretch->end - stretch->start);
          add_kernel("gradients", kernel, TrainingPart::gradients, stretch->end - taken,
                     stretch->end, {.detail = detail, .chunk = chunk});
          left = left - taken;
          stretch->end = stretch->end - taken;
          if (stretch->end <= stretch->start) ++stretch;
        }
      }
    }
  }

  void add_end(int rank) {
    const Picoseconds last = last_pass(run_.run.ranks[index_of(rank)]);
    const RankEnd& own = step_.ends[index_of(rank)];
    const Picoseconds reduced = last + Picoseconds::from_us(own.parts[at(TrainingPart::gradients)]);
    add_buckets(rank, last, reduced);
    const PartTimes joint = joint_end(run_.run, step_.ends);
    double from_us = run_.run.makespan.us() + joint[at(TrainingPart::gradients)];
    // What reductions take longer than this rank's is drawn as such, as the parts have it.
    const Picoseconds norm = Picoseconds::from_us(from_us);
    const double longer_us =
        std::max(0.0, joint[at(TrainingPart::gradients)] - own.parts[at(TrainingPart::gradients)]);
    const Picoseconds waited = std::max(reduced, norm - Picoseconds::from_us(longer_us));
    add_kernel("p2p", {"nccl:all_reduce", "pipeline_parallel", fp32_element}, TrainingPart::p2p,
               reduced, waited, {.detail = "gradient norm: waits for the other pipeline ranks"});
    add_kernel("gradients", kernel_of(TrainingPart::gradients, job_), TrainingPart::gradients,
               waited, norm, {.detail = "reductions of the rank that ends last"});
    const auto next = [&](TrainingPart part) {
      from_us += joint[at(part)];
      return Picoseconds::from_us(from_us);
    };
    // The host's part is not last: a step ends with its last kernel.
    Picoseconds start = Picoseconds::from_us(from_us);
    Picoseconds end = next(TrainingPart::host);
    add_range("host", "fixed part of the step", start, end);
    start = end;
    end = next(TrainingPart::optimizer);
    add_kernel("compute", {"gradient norm, optimizer", ""}, TrainingPart::optimizer, start, end);
    start = end;
    end = next(TrainingPart::parameters);
    add_kernel("gradients", kernel_of(TrainingPart::parameters, job_), TrainingPart::parameters,
               start, end, {.detail = "exposed part of the gather"});
  }

  struct Stretch {
    Picoseconds start;
    Picoseconds end;
  };

  const TrainingJob& job_;
  const TrainingStep& step_;
  Pipelines pipelines_;
  PipelineRun run_;
  int gpu_ = 0;
  std::vector<Stretch> computing_;  // of this GPU's pipeline rank, in order
  engine::Timeline timeline_;
};

}  // namespace

engine::Timeline step_timeline(const TrainingJob& job, const TrainingStep& step) {
  return TimelineWriter(job, step).write();
}

}  // namespace moesim::training
