#include "kernels/routing/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "kernels/base/alignment.hpp"
#include "kernels/routing/assign.cuh"
#include "sim/base/error.hpp"

namespace moesim::kernels::routing {

namespace {

using ::moesim::routing::IrDuplicates;
using ::moesim::routing::Priority;
using ::moesim::routing::Weights;

// What a block may have on the smallest of the targets (sm_80: 163 KiB less what the system
// keeps), and what lists of routes may fill of it: so much is to be had on every GPU from sm_80 on.
constexpr std::size_t most_shared_bytes = std::size_t{160} * 1024;
constexpr std::size_t usual_shared_bytes = std::size_t{96} * 1024;

}  // namespace

void RouterProblem::check() const {
  if (config.is_dense()) throw UsageError("a dense model has no router: choose --router top2, say");
  if (config.varies() || !(config.weight_scale == Decimal(1))) {
    throw UsageError(
        "there are no kernels for --score-function, --second-expert, --router-dtype, --expert-bias "
        "and --weight-scale: leave them out");
  }
  if (!config.takes_best() || !config.has_capacity()) {
    throw UsageError(
        fmt::format("there are no kernels for {}: choose --router top1, top2, ...", config.name()));
  }
  if (config.priority == Priority::own_weight || config.priority == Priority::token_order) {
    throw UsageError(
        fmt::format("there are no kernels for --priority {}: choose {}", name_of(config.priority),
                    config.priority == Priority::own_weight ? "own-score" : "position"));
  }
  if (config.top_k < 1 || choices() > most_choices) {
    throw UsageError(
        fmt::format("{} choices per token: the kernels do 1 to {}", choices(), most_choices));
  }
  if (experts < 1 || experts > most_experts) {
    throw UsageError(fmt::format("{} experts: the kernels do 1 to {}", experts, most_experts));
  }
  if (choices() > experts) {
    throw UsageError(fmt::format(
        "{} needs {} different experts per token, but there are {}: lower --top-k or raise "
        "--experts",
        config.name(), choices(), experts));
  }
  if (ranks < 1 || experts % ranks != 0 || rank < 0 || rank >= ranks) {
    throw UsageError(fmt::format(
        "{} experts over {} ranks, rank {}: the number of ranks must divide that of the experts",
        experts, ranks, rank));
  }
  if (tokens < 0) throw UsageError(fmt::format("{} tokens: 0 or more", tokens));
  assign_shape(tokens, choices());
}

std::int64_t RouterProblem::stride() const { return (std::int64_t{tokens} + 31) / 32 * 32; }

std::int32_t RouterProblem::capacity() const {
  return static_cast<std::int32_t>(std::min<std::int64_t>(
      config.capacity(tokens, experts), std::numeric_limits<std::int32_t>::max()));
}

::moesim::routing::LocalExperts RouterProblem::local() const {
  return ::moesim::routing::local_experts(config, experts, ranks, rank, context.place);
}

AssignShape assign_shape(int tokens, int choices) {
  AssignShape shape;
  const std::size_t masks = assign_shared_bytes(tokens, choices, 0);
  if (masks > most_shared_bytes) {
    throw UsageError(fmt::format(
        "{} tokens of {} choices share an expert's slots: their bit masks take {} bytes of shared "
        "memory, {} are to be had; split the batch, or use --capacity-scope source",
        tokens, choices, masks, most_shared_bytes));
  }
  // An expert has a token at most once, so never more routes than tokens.
  const auto room =
      static_cast<int>((usual_shared_bytes - std::min(usual_shared_bytes, masks)) / 8);
  shape.buffered_keys = std::min(tokens, room);
  shape.shared_bytes = assign_shared_bytes(tokens, choices, shape.buffered_keys);
  return shape;
}

namespace {

// Hands out pieces of one allocation, or, from null, only adds up their sizes.
class Carver {
 public:
  explicit Carver(void* memory) : memory_(static_cast<unsigned char*>(memory)) {}
  template <typename Value>
  void take(Value*& pointer, std::int64_t count) {
    if (memory_ != nullptr) pointer = reinterpret_cast<Value*>(memory_ + used_);
    used_ += aligned(static_cast<std::size_t>(count) * sizeof(Value));
  }
  std::size_t used() const { return used_; }

 private:
  unsigned char* memory_;
  std::size_t used_ = 0;
};

RouterBuffers carve_all(Carver& carver, const RouterProblem& problem) {
  RouterBuffers buffers;
  const std::int64_t stride = std::max<std::int64_t>(problem.stride(), 32);
  const std::int64_t routes = stride * problem.choices();
  carver.take(buffers.expert, routes);
  carver.take(buffers.probability, routes);
  carver.take(buffers.slot, routes);
  carver.take(buffers.weight, routes);
  if (problem.list_rows) {
    carver.take(buffers.row_route, std::int64_t{problem.experts} * problem.capacity());
  }
  if (problem.sorts_tiles()) {
    const std::int64_t tiles = std::int64_t{tiles_of_choice(problem.tokens)} * problem.choices();
    carver.take(buffers.tile_begin, tiles * (problem.experts + 1));
    carver.take(buffers.tile_token, tiles * tile_tokens);
  }
  carver.take(buffers.kept_rows, problem.experts);
  carver.take(buffers.kept_primary, problem.experts);
  carver.take(buffers.invalid, 1);
  if (problem.config.priority == Priority::random) carver.take(buffers.key, stride);
  if (!problem.rectified()) return buffers;
  const auto local = problem.local();
  carver.take(buffers.local_expert, stride * local.wanted);
  carver.take(buffers.local_probability, stride * local.wanted);
  carver.take(buffers.ir_expert, stride);
  carver.take(buffers.ir_weight, stride);
  carver.take(buffers.ir_probability, stride);
  carver.take(buffers.ir_row, stride);
  carver.take(buffers.ir_row_token, stride);
  carver.take(buffers.ir_begin, std::int64_t{local.last} - local.first + 1);
  return buffers;
}

}  // namespace

std::size_t buffer_bytes(const RouterProblem& problem) {
  Carver carver(nullptr);
  carve_all(carver, problem);
  return carver.used();
}

RouterBuffers carve(void* memory, const RouterProblem& problem) {
  Carver carver(memory);
  return carve_all(carver, problem);
}

ChooseArguments choose_arguments(const RouterProblem& problem, const RouterBuffers& buffers,
                                 const float* logits) {
  ChooseArguments in;
  in.logits = logits;
  in.tokens = problem.tokens;
  in.experts = problem.experts;
  in.choices = problem.choices();
  const auto local = problem.local();
  in.local_first = local.first;
  in.local_last = local.last;
  in.local_places = local.wanted;
  if (buffers.key != nullptr) {
    const auto& context = problem.context;
    const PhiloxWords words =
        philox_words({context.seed, Purpose::drop_priority, context.replica, context.layer,
                      static_cast<std::uint32_t>(context.place.first_gpu + problem.rank)});
    for (std::size_t at = 0; at < 2; ++at) {
      in.random.key[at] = words.key[at];
      in.random.counter[at] = words.counter[at + 2];
    }
  }
  in.out.stride = problem.stride();
  in.out.expert = buffers.expert;
  in.out.probability = buffers.probability;
  in.out.slot = buffers.slot;
  in.out.local_expert = buffers.local_expert;
  in.out.local_probability = buffers.local_probability;
  in.out.key = buffers.key;
  in.out.invalid = buffers.invalid;
  return in;
}

AssignArguments assign_arguments(const RouterProblem& problem, const RouterBuffers& buffers) {
  const auto& config = problem.config;
  AssignArguments in;
  in.tokens = problem.tokens;
  in.experts = problem.experts;
  in.top_k = config.top_k;
  in.choices = problem.choices();
  in.capacity = problem.capacity();
  in.one_queue = config.priority == Priority::own_score;
  in.order = config.priority == Priority::random     ? KeyOrder::random
             : config.priority == Priority::position ? KeyOrder::position
                                                     : KeyOrder::probability;
  in.fill_by_nominee =
      in.one_queue || config.fill_order == ::moesim::routing::FillOrder::nominee_score;
  in.stride = problem.stride();
  in.expert = buffers.expert;
  in.probability = buffers.probability;
  in.key = buffers.key;
  in.slot = buffers.slot;
  in.row_route = buffers.row_route;
  in.tile_begin = buffers.tile_begin;
  in.tile_token = buffers.tile_token;
  in.kept_rows = buffers.kept_rows;
  in.kept_primary = buffers.kept_primary;
  in.buffered_keys =
      std::min(assign_shape(in.tokens, in.choices).buffered_keys, problem.most_listed);
  return in;
}

WeighArguments weigh_arguments(const RouterProblem& problem, const RouterBuffers& buffers) {
  const auto& config = problem.config;
  WeighArguments in;
  in.tokens = problem.tokens;
  in.top_k = config.top_k;
  in.choices = problem.choices();
  in.local_places = problem.local().wanted;
  in.exclude_duplicates = config.ir_duplicates == IrDuplicates::exclude;
  in.rule = config.weights == Weights::kept          ? WeightRule::kept
            : config.weights == Weights::before_drop ? WeightRule::before_drop
                                                     : WeightRule::raw;
  in.stride = problem.stride();
  in.expert = buffers.expert;
  in.probability = buffers.probability;
  in.slot = buffers.slot;
  in.local_expert = buffers.local_expert;
  in.local_probability = buffers.local_probability;
  in.weight = buffers.weight;
  in.ir_expert = buffers.ir_expert;
  in.ir_weight = buffers.ir_weight;
  in.ir_probability = buffers.ir_probability;
  return in;
}

CollectArguments collect_arguments(const RouterProblem& problem, const RouterBuffers& buffers) {
  const auto local = problem.local();
  return {problem.tokens, local.first,          local.last,      buffers.ir_expert,
          buffers.ir_row, buffers.ir_row_token, buffers.ir_begin};
}

BackwardArguments backward_arguments(const RouterProblem& problem, const RouterBuffers& buffers,
                                     const float* logits, const float* upstream,
                                     const float* ir_upstream, NormaliserRule rule,
                                     float* gradient) {
  if (problem.config.weights != Weights::kept) {
    throw UsageError(fmt::format(
        "the router's backward knows --weights kept only, not {}: its normaliser is the mass of "
        "the rows that process a token",
        ::moesim::routing::name_of(problem.config.weights)));
  }
  BackwardArguments in;
  in.logits = logits;
  in.tokens = problem.tokens;
  in.experts = problem.experts;
  in.choices = problem.choices();
  in.rectified = problem.rectified();
  in.normaliser = rule;
  in.stride = problem.stride();
  in.expert = buffers.expert;
  in.slot = buffers.slot;
  in.weight = buffers.weight;
  in.upstream = upstream;
  in.ir_expert = buffers.ir_expert;
  in.ir_weight = buffers.ir_weight;
  in.ir_upstream = ir_upstream;
  in.gradient = gradient;
  return in;
}

}  // namespace moesim::kernels::routing
