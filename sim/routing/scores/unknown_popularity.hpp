#pragma once

#include <cstdint>

namespace moesim::routing {

// How uneven the experts of trained routers are, as the SIGMA of gaussian:SIGMA that gives a layer
// the coefficient of variation of its recorded loads: log SIGMA is normal among trainings and,
// inside one, among layers.
struct PopularitySpreads {
  double median = 0;     // SIGMA
  double trainings = 0;  // standard deviation of log SIGMA
  double layers = 0;
};

// Models trained with a balance loss: OLMoE (allenai/OLMoE; 3 layers on each of 5 combinations of
// model and text): median 0.37, deviations 0.24 and 0.33. The shipped trace tiny-moe-top1 has 0.43.
// One large model and texts of one kind each: 0.35 is assumed among trainings.
inline constexpr PopularitySpreads balanced_spreads{0.37, 0.35, 0.33};

// Without: the last 400 of 1,001 recorded iterations of a top-2 training of 24 layers and 32
// experts (SmartMoE): median 1.4, deviation among layers 0.32. One training: 0.35 is assumed too.
inline constexpr PopularitySpreads unbalanced_spreads{1.4, 0.35, 0.33};

// SIGMA of a layer. One draw per replica, without a balance loss in `unbalanced` of them, is common
// to all layers; replicas are spread evenly over its distribution (a Weyl sequence).
double drawn_spread(double unbalanced, std::uint64_t seed, std::uint32_t replica,
                    std::uint32_t layer);

}  // namespace moesim::routing
