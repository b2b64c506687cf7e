#pragma once

#include <optional>

#include "sim/routing/jobs/routing_job.hpp"
#include "sim/uncertainty/bands/loss_band.hpp"

namespace moesim::study {

// How far the logits behind recorded counts may spread: 1 / 3 to 3 times as far as those that are
// taken, with 90 % chance. Assumed.
inline constexpr double weight_spread = 3;
// By how much, besides, recorded logits lose other than drawn ones with their counts: a standard
// deviation, of the loss. Assumed: by 1.07 to 1.24 times in the one model with recorded logits.
inline constexpr double of_recorded_logits = 0.15;

// `band` of a job's token loss `loss`, and the weights that counts do not tell: where weights are
// drawn (routing::loss_basis) the ends also hold the losses of logits that spread less or further,
// of `replica`. Else the band as it is. Precondition: check() of the job passes.
std::optional<uncertainty::LossBand> with_unknown_weights(std::optional<uncertainty::LossBand> band,
                                                          const routing::RoutingJob& job,
                                                          int replica, double loss);

}  // namespace moesim::study
