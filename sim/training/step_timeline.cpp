#include "sim/training/step_timeline.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/base/error.hpp"
#include "sim/training/pipelines.hpp"

namespace moesim::training {
namespace {

using parallel::ChunkPass;
using parallel::OperationKind;
using parallel::PipelineOperation;

// Parts of a layer in the order in which a forward pass runs them.
constexpr Part forward_order[] = {Part::parameters, Part::head,     Part::attention, Part::context,
                                  Part::tensor,     Part::router,   Part::dispatch,  Part::experts,
                                  Part::dense_ffn,  Part::combine,  Part::recompute, Part::host,
                                  Part::offload,    Part::gradients};

std::size_t at(Part part) { return static_cast<std::size_t>(part); }
std::size_t at(int index) { return static_cast<std::size_t>(index); }

const char* stream_of(Part part) {
  switch (part) {
    case Part::tensor:
    case Part::context:
    case Part::dispatch:
    case Part::combine:
    case Part::parameters:
    case Part::gradients:
    case Part::offload:
      return "communication";
    case Part::host:
      return "host";
    default:
      return "compute";
  }
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

class TimelineWriter {
 public:
  TimelineWriter(const TrainingJob& job, const TrainingStep& step)
      : job_(job), step_(step), pipelines_(job), run_(pipelines_.slowest()) {}

  engine::Timeline write() {
    for (int rank = 0; rank < pipelines_.shape().ranks; ++rank) {
      gpu_ = gpu_of(rank);
      const std::vector<PipelineOperation>& operations = pipelines_.schedule().ranks[at(rank)];
      for (std::size_t index = 0; index < operations.size(); ++index) {
        add_operation(operations[index], run_.run.ranks[at(rank)].spans[index]);
      }
      add_end(rank);
    }
    return std::move(timeline_);
  }

 private:
  int gpu_of(int rank) const {
    const parallel::ParallelLayout& layout = job_.layout.layout;
    return rank * (layout.gpus / layout.pipeline) + run_.set * stage_division(layout).ranks;
  }

  void add(const char* stream, std::string name, const std::string& part, int layer,
           Picoseconds start, Picoseconds end) {
    if (end <= start) return;
    if (timeline_.size() >= most_timeline_events) {
      throw UsageError(
          fmt::format("--timeline: more than {} events: give a smaller --global-batch; fewer "
                      "micro-batches show the same pattern",
                      most_timeline_events));
    }
    timeline_.push_back({gpu_, stream, std::move(name), part, layer, start, end - start});
  }

  std::vector<ChunkWork> work_of(const ChunkPass& pass) {
    const Stage& stage = pipelines_.stages()[at(pass.stage)];
    const LayerPrices& prices = pipelines_.prices();
    std::vector<ChunkWork> work;
    if (stage.chunk.embedding) work.push_back({&prices.embedding(), -1});
    int layer = stage.chunk.first_layer;
    for (const Passes* each : pipelines_.layers_of(run_.set, pass)) {
      work.push_back({each, layer++});
    }
    for (const int number : stage.predictions) {
      work.push_back({&prices.prediction(), -1});
      work.push_back({&pipelines_.priced(number, run_.set, pass.micro_batch),
                      static_cast<int>(job_.model->layers)});
      work.push_back({&prices.head(), -1});
    }
    if (stage.chunk.loss) work.push_back({&prices.head(), -1});
    return work;
  }

  // One direction of one piece of work, from `from_us` on; returns its end.
  template <class Order>
  double add_parts(const PartTimes& times, const Order& order, int layer, Picoseconds start,
                   Picoseconds end, double from_us) {
    for (const Part part : order) {
      const double us = times[at(part)];
      const std::string name = name_in(part_names, part);
      add(stream_of(part), name, name, layer, std::min(end, start + Picoseconds::from_us(from_us)),
          std::min(end, start + Picoseconds::from_us(from_us + us)));
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
    const std::vector<Part> backward_order(std::rbegin(forward_order), std::rend(forward_order));
    std::reverse(work.begin(), work.end());
    for (const ChunkWork& each : work) {
      if (operation.is_backward()) {
        from_us = add_parts(each.passes->input_gradient, backward_order, each.layer, span.start,
                            span.end, from_us);
      }
      if (operation.has_weight_gradient()) {
        from_us = add_parts(each.passes->weight_gradient, backward_order, each.layer, span.start,
                            span.end, from_us);
      }
    }
    return from_us;
  }

  // Two streams side by side, as overlapped_time() runs them.
  void add_pair(const PipelineOperation& operation, const parallel::OperationSpan& span) {
    const Pipelines::Pair pair = pipelines_.pair_of(run_, operation.pass, operation.paired);
    const int first = pipelines_.stages()[at(operation.pass.stage)].chunk.first_layer;
    const parallel::PipelineChunk& other = pipelines_.stages()[at(operation.paired.stage)].chunk;
    Picoseconds end;
    for (const parallel::PieceSpan& piece :
         parallel::overlapped_pieces(pair.forward, pair.backward, pair.rules)) {
      const bool is_exchange = parallel::is_exchange(piece.piece);
      const std::string name = name_in(parallel::layer_piece_names, piece.piece);
      const int layer = parallel::is_forward(piece.piece)
                            ? first + static_cast<int>(piece.layer)
                            : other.first_layer + other.layers - 1 - static_cast<int>(piece.layer);
      add(is_exchange ? "communication" : "compute", name, name.substr(0, name.find(' ')), layer,
          span.start + piece.start, span.start + piece.end);
      end = std::max(end, piece.end);
    }
    add("host", "host", "host", -1, span.start + end, span.start + pair.launches);
    end = std::max(end, pair.launches);
    add("compute", "embedding, head, prediction", "embedding, head", -1, span.start + end,
        span.end);
  }

  void add_operation(const PipelineOperation& operation, const parallel::OperationSpan& span) {
    const std::string name = what_ran(operation);
    add("pipeline", name, name.substr(0, name.find(':')), -1, span.start, span.end);
    if (operation.kind == OperationKind::forward_backward && pipelines_.hides_exchanges()) {
      add_pair(operation, span);
      return;
    }
    double from_us = 0;
    if (operation.is_forward()) from_us = add_passes(operation, operation.pass, true, span, 0);
    if (operation.kind == OperationKind::forward) return;
    add_passes(operation, operation.backward_pass(), false, span, from_us);
  }

  // Buckets end where the step's model lets them end: so much behind the last backward pass.
  void add_buckets(int rank, Picoseconds end) {
    const RankEnd& own = step_.ends[at(rank)];
    double all_us = 0;
    for (const BucketExchange& each : own.exchanges) {
      if (each.part == Part::gradients) all_us += each.buckets * each.each_us;
    }
    Picoseconds start = end - Picoseconds::from_us(all_us);
    for (const BucketExchange& each : own.exchanges) {
      if (each.part != Part::gradients) continue;
      for (int bucket = 0; bucket < each.buckets; ++bucket) {
        const Picoseconds next = start + Picoseconds::from_us(each.each_us);
        add("gradients",
            fmt::format("gradients over {}: bucket {} of {}",
                        name_in(parallel::group_names, each.group), bucket + 1, each.buckets),
            "gradients", -1, std::max(start, Picoseconds(0)), next);
        start = next;
      }
    }
  }

  void add_end(int rank) {
    const std::vector<parallel::OperationSpan>& spans = run_.run.ranks[at(rank)].spans;
    const Picoseconds last = spans.empty() ? Picoseconds(0) : spans.back().end;
    const RankEnd& own = step_.ends[at(rank)];
    add_buckets(rank, last + Picoseconds::from_us(own.parts[at(Part::gradients)] / own.reductions));
    // All ranks wait for the gradient norm; the rank whose end is longest sets the times.
    const auto longest = std::max_element(
        step_.ends.begin(), step_.ends.end(),
        [](const RankEnd& one, const RankEnd& other) { return sum(one.parts) < sum(other.parts); });
    double from_us = run_.run.makespan.us() + longest->parts[at(Part::gradients)];
    for (const auto& [part, stream, name] :
         {std::tuple{Part::optimizer, "compute", "gradient norm, optimizer"},
          std::tuple{Part::parameters, "gradients", "parameters, exposed part of the gather"},
          std::tuple{Part::host, "host", "fixed part of the step"}}) {
      const double us = longest->parts[at(part)];
      add(stream, name, name_in(part_names, part), -1, Picoseconds::from_us(from_us),
          Picoseconds::from_us(from_us + us));
      from_us += us;
    }
  }

  const TrainingJob& job_;
  const TrainingStep& step_;
  Pipelines pipelines_;
  PipelineRun run_;
  int gpu_ = 0;
  engine::Timeline timeline_;
};

}  // namespace

engine::Timeline step_timeline(const TrainingJob& job, const TrainingStep& step) {
  return TimelineWriter(job, step).write();
}

}  // namespace moesim::training
