#pragma once

#include <string>
#include <vector>

#include "sim/training/step/pipelines.hpp"

namespace moesim::training {

// Parts of a layer in the order in which a forward pass runs them.
inline constexpr TrainingPart forward_order[] = {
    TrainingPart::parameters, TrainingPart::head,      TrainingPart::attention,
    TrainingPart::context,    TrainingPart::tensor,    TrainingPart::router,
    TrainingPart::dispatch,   TrainingPart::experts,   TrainingPart::dense_ffn,
    TrainingPart::combine,    TrainingPart::recompute, TrainingPart::host,
    TrainingPart::offload,    TrainingPart::gradients};

// The other way round, but for gradients: what reduces them comes last here too.
std::vector<TrainingPart> backward_order();

// A stretch of a forward chunk beside a backward chunk that is spent on one part.
struct PairSpan {
  TrainingPart part = TrainingPart::attention;
  bool is_beside = false;  // exchange of experts, which computation runs beside
  int layer = -1;          // of the model; -1: beside the layers
  Picoseconds start;       // from the start of the pair
  Picoseconds end;
  std::string piece;  // "attention forward"; empty beside the layers
};

// The two streams of overlapped_time(), each piece divided into its parts as they were priced
// (slowed alike where an exchange takes SMs), then waiting for the host, then what is beside
// the layers. The last end is how long the pair takes. By start; of two that start together
// the one beside first.
std::vector<PairSpan> pair_spans(Pipelines& pipelines, const PipelineRun& run,
                                 const parallel::ChunkPass& forward,
                                 const parallel::ChunkPass& backward);

// What each moment of a pair is spent on: computation, or else of two exchanges the first span.
PartTimes exposed_parts(const std::vector<PairSpan>& spans);

}  // namespace moesim::training
