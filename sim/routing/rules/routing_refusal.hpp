#pragma once

#include <string>

#include "sim/base/error.hpp"

namespace moesim::routing {

// What decides the tokens and experts of a job, as text to put behind "choose" or "use": the
// options of a scenario, or of a training step, whose tokens per rank and experts follow from the
// layout and the model.
struct RoutingTerms {
  const char* tokens = "--tokens-per-gpu ";  // a number follows
  const char* experts = "change --experts to ";
  const char* more_experts = "more --experts";
  const char* per_rank_and_layer = "per GPU and layer";
};
inline constexpr RoutingTerms scenario_terms{};
inline constexpr RoutingTerms training_terms{
    "--sequence-length, --micro-batch, tensor and context ranks for tokens per rank of ",
    "a --model whose experts number ", "a --model with more experts", "per rank and layer"};

// A routing that cannot be, whose remedy names options: what() those of a scenario, in_training()
// those of a training step.
class RoutingRefusal : public UsageError {
 public:
  // `text`: the message, from RoutingTerms.
  template <class Text>
  explicit RoutingRefusal(const Text& text)
      : UsageError(text(scenario_terms)), in_training_(text(training_terms)) {}

  const std::string& in_training() const { return in_training_; }

 private:
  std::string in_training_;
};

}  // namespace moesim::routing
