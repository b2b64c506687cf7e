#pragma once

#include <optional>

namespace moesim::routing {

// Token loss and padding, named as the result columns; shares in 0..1. Figures of a disabled
// rectification are absent.
struct TokenLoss {
  double failed = 0;                       // of the k primary routes: not kept
  double partial = 0;                      // tokens with fewer than k primary routes kept
  double lost_mass = 0;                    // of the top-k probability mass: not kept
  std::optional<double> fill_failed;       // of the nominations: without a slot
  std::optional<double> failed_attempted;  // of all k' S routes: not kept
  double unrouted = 0;                     // tokens with no expert at all, after FR and IR
  double residual_loss = 0;  // mean of max(0, 1 - processed mass / top-k mass): the token loss
  // The part of residual_loss that the choice of experts makes, which is not that of the k best:
  // what is lost without a capacity. 0 for the k best.
  double not_chosen = 0;
  double padded = 0;                   // of the E C slots: empty, after fill-in
  std::optional<double> duplicate_ir;  // IR rows whose expert had the token already, over S
};

}  // namespace moesim::routing
