#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "sim/base/enum_names.hpp"
#include "sim/parallel/overlapped_layers.hpp"

namespace moesim::training {

// What the time of a rank is spent on: the parts sum to its step.
enum class TrainingPart {
  attention,
  dense_ffn,
  experts,
  router,      // gate, permute and combine of rows, padding
  head,        // embedding, output head, loss
  recompute,   // forward work done again in the backward pass
  tensor,      // exchanges of tensor ranks
  context,     // exchanges of context ranks
  dispatch,    // rows to their experts
  combine,     // and back
  host,        // GPU idle for the host: launches and reads
  p2p,         // between stages, and waiting for them: bubble
  gradients,   // reduce-scatter, beyond what backward hides
  parameters,  // all-gather, beyond what forward hides
  optimizer,
  reruns,   // expected, of steps whose rows overflow a capacity per rank
  offload,  // copies to and from the host's memory, beyond what computing hides
};
inline constexpr EnumNames<TrainingPart, 17> part_names{{
    {TrainingPart::attention, "attention"},
    {TrainingPart::dense_ffn, "dense FFN"},
    {TrainingPart::experts, "experts"},
    {TrainingPart::router, "router and rows"},
    {TrainingPart::head, "embedding, head"},
    {TrainingPart::recompute, "recompute"},
    {TrainingPart::tensor, "tensor exchange"},
    {TrainingPart::context, "context exchange"},
    {TrainingPart::dispatch, "dispatch"},
    {TrainingPart::combine, "combine"},
    {TrainingPart::host, "host"},
    {TrainingPart::p2p, "bubble and p2p"},
    {TrainingPart::gradients, "gradients"},
    {TrainingPart::parameters, "parameters"},
    {TrainingPart::optimizer, "optimizer"},
    {TrainingPart::reruns, "reruns"},
    {TrainingPart::offload, "offload"},
}};
using PartTimes = std::array<double, part_names.size()>;  // microseconds
constexpr std::size_t at(TrainingPart part) { return static_cast<std::size_t>(part); }

// Whether ranks send each other bytes, inside a layer or for its weights.
bool is_exchange(TrainingPart part);
std::vector<TrainingPart> exchange_parts();  // in the order above

// The times of one layer, or of the ends of a stage, for one micro-batch on one rank, in
// microseconds.
struct Passes {
  PartTimes forward{};
  PartTimes input_gradient{};
  PartTimes weight_gradient{};
  // What the waits for the host hide of copies and gathers: it is exposed where there are none.
  PartTimes forward_under_host{};
  PartTimes backward_under_host{};
  PartTimes weight_gradient_under_host{};
  // The exchanges among the recomputation of input_gradient, each as the part that it is in the
  // forward pass.
  PartTimes exchanged_again{};

  // Of one part, in all three passes.
  double all_of(std::size_t part) const {
    return forward[part] + input_gradient[part] + weight_gradient[part];
  }
  void add(const Passes& other);
  void divide(double by);
  void multiply(double by);
};
double sum(const PartTimes& times);
void add(PartTimes& times, const PartTimes& more);

// The pieces of a layer as parallel::overlapped_time() takes them, without waiting for the host.
parallel::LayerPieces pieces_of(const Passes& layer);
// What one of them is spent on.
PartTimes parts_of(const Passes& layer, parallel::LayerPiece piece);

}  // namespace moesim::training
