#pragma once

#include "sim/model/model.hpp"
#include "sim/routing/rules/router_config.hpp"

namespace moesim::study {

// The token loss that a search compares with what is acceptable: `residual_loss`, but 0 for the
// model's own router where nothing is dropped. residual_loss is relative to the k best of all
// experts; a router that biases its choice, or confines it to groups, does not take these, but the
// model was trained with its choice.
double counted_loss(double residual_loss, const routing::RouterConfig& router,
                    const model::Model& model);

}  // namespace moesim::study
