#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sim/routing/rules/expert_placement.hpp"
#include "sim/routing/scores/score_source.hpp"
#include "sim/routing/tokens/choice_shares.hpp"
#include "sim/routing/tokens/tile_kernels.hpp"

namespace moesim::routing {

class ScoreDraw;

// The experts of a job and their GPUs: the inputs that a score source may depend on.
struct LogitShape {
  int experts = 0;
  int expert_parallel = 1;  // P, a divisor of experts: expert e is on rank e / (E / P)
  int gpus = 1;             // ranks are numbered over all of them
  const ExpertPlacement* expert_placement = nullptr;  // null: in the order of their numbers
  int top_k = 1;   // choices of a token, which counts of experts are of
  int slices = 1;  // as RoutingJob has it
};

// The recorded rank that a GPU of a job takes, modulo the number of them. Where experts are divided
// into slices, GPUs are recorded as [rank of P, slice], each a source of its own; a job has a
// group of P after the other, one for each slice: GPU g P + r takes rank r S + g of S slices.
int recorded_rank(int gpu, int expert_parallel, int slices, int recorded);

// Draws the logits of one layer of one replica. Experts are in the order of their positions. Every
// (rank, token) has its own random numbers, so any part can be drawn separately, in any order, by
// any thread.
class LogitSource {
 public:
  // `experts` as in the job: a counts file of another number is an error (UsageError).
  LogitSource(const ScoreSource& source, const LogitShape& shape, std::uint64_t seed,
              std::uint32_t replica, std::uint32_t layer);
  // A source with all experts on one GPU.
  LogitSource(const ScoreSource& source, int experts, std::uint64_t seed, std::uint32_t replica,
              std::uint32_t layer)
      : LogitSource(source, LogitShape{experts}, seed, replica, layer) {}

  // Whether there are logits: a trace of choices has choices() instead.
  bool has_logits() const { return trace_ == nullptr || trace_->kind() != Trace::Kind::choices; }

  // Recorded choices of a rank's tokens: expert and probability of each, [token, held]. Empty
  // probabilities: none were recorded. Experts by their number: positions() has their positions.
  struct Choices {
    std::span<const std::uint16_t> expert;
    std::span<const float> probability;
    int held = 0;
  };
  Choices choices(std::uint32_t rank) const;
  // `experts` themselves, or their positions in `scratch`.
  std::span<const std::uint16_t> positions(std::span<const std::uint16_t> experts,
                                           std::vector<std::uint16_t>& scratch) const;

  // The logits of 16 tokens from `first_token` on (a multiple of 16) of a rank: [expert][16].
  void fill_tile(std::uint32_t rank, std::uint64_t first_token, const TileKernels& kernels,
                 float* tile) const;

  // The logits of all tokens of a rank, row-major [tokens, experts]: the same bits as the tiles.
  std::vector<float> rank_logits(std::uint32_t rank, std::int64_t tokens,
                                 const TileKernels& kernels) const;

  // The offsets that noise is added to: the bias per expert, or the log-popularity, for this layer
  // and replica; the same on all ranks unless differs_between_ranks(). Zeros for a trace.
  const std::vector<float>& offsets() const { return offsets_; }
  // Whether each GPU has its own offsets around these: possible for a fitted model, always so for a
  // trace of counts.
  bool differs_between_ranks() const { return !rank_offsets_.empty(); }
  std::span<const float> offsets_of(std::uint32_t rank) const;
  // Whether tokens have types (score_model.hpp) with their own offsets; the offsets above are then
  // those of a typical token.
  bool has_token_types() const { return !type_offsets_.empty(); }
  Noise noise() const { return normal_ ? Noise::normal : Noise::gumbel; }

 private:
  std::vector<double> model_offsets(const ScoreModel& model, const LogitShape& shape,
                                    std::uint64_t seed, std::uint32_t replica, std::uint32_t layer);
  void draw_types(const ScoreDraw& draw, int gpus);
  void add_type_offsets(std::uint32_t rank, std::uint64_t first_token, float* tile) const;

  void place(const ExpertPlacement& placement, int layer);

  bool normal_ = true;
  std::vector<std::uint16_t> expert_at_, position_of_;  // empty: each expert at its number
  StreamKey key_;
  std::vector<float> offsets_;
  std::vector<float> rank_offsets_;  // [gpu, expert]; empty: the same on all
  std::vector<float> type_offsets_;  // [gpu or 1, type, expert]; empty: no types

  // Takes the offsets of a trace.
  void trace_offsets(int gpus);
  void recorded_tile(std::uint32_t rank, std::uint64_t first_token, const TileKernels& kernels,
                     float* tile) const;
  int trace_rank(std::uint32_t rank) const {
    return recorded_rank(static_cast<int>(rank), expert_parallel_, slices_, trace_->shape().ranks);
  }
  std::shared_ptr<const Trace> trace_;
  int step_ = 0, layer_ = 0;  // of the trace
  int expert_parallel_ = 1, slices_ = 1;
};

}  // namespace moesim::routing
