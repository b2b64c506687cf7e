#pragma once

#include <string>
#include <vector>

#include "sim/model/model.hpp"
#include "sim/routing/rules/router_config.hpp"
#include "sim/training/step/training_step.hpp"

namespace moesim::study {

// Its column in rows of steps, and in those of routing alone.
inline constexpr const char* counted_loss_column = "counted_loss";

// The token loss that tables state, and that a search compares with what is acceptable:
// `residual_loss`, but for the model's own router, and for one that samples the second expert,
// without `not_chosen`, so that it is 0 where nothing is dropped. residual_loss is relative to the
// k best of all experts; a router that biases its choice, confines it to groups or samples does not
// take these, but the model was trained with its choice. Sampling is DeepSpeed's own choice, in
// training and evaluation (`top2gating`), which counts as dropped what a capacity drops alone.
double counted_loss(const routing::TokenLoss& loss, const routing::RouterConfig& router,
                    const model::Model& model);

// Whether a step of a front loses enough less than the one before it: 1 % and 0.01 points of the
// routing weight. What is less, other draws change.
bool loses_clearly_less(double loss, double than);

// What the residual loss of a router is that drops nothing, or the part of it that is not dropped,
// and why it is no token loss: follows "of the weight of a token's k best experts, ".
inline constexpr const char* not_chosen =
    "which the router's groups, bias or sampling pass over, as the model was trained";

// The columns residual_loss and counted_loss of a row, shares.
struct StatedLoss {
  double residual = 0;
  double counted = 0;
};
// A line below a table whose losses are counted ones: what of the residual losses they leave out;
// empty where that is nothing.
std::string not_counted_text(const std::vector<StatedLoss>& losses);

// The counted loss of a step; 0 with forced balance.
double counted_loss(const training::TrainingJob& job, const training::TrainingStep& step);

}  // namespace moesim::study
