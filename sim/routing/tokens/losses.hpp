#pragma once

#include <cstdint>
#include <span>

namespace moesim::routing {

// The auxiliary losses of router training, and their usual weights.
inline constexpr double balance_loss_weight = 1e-2;  // Switch (Fedus et al. 2021)
inline constexpr double z_loss_weight = 1e-3;        // ST-MoE (Zoph et al. 2022)

struct AuxiliaryLosses {
  double balance = 0;  // E sum_e f_e P_e: 1 when choices and probabilities are balanced
  double z = 0;        // mean over tokens of logsumexp(a)^2
};

// Over row-major logits [tokens, experts]. f_e is the share of first choices before any drop, P_e
// the mean probability (GShard, Lepikhin et al. 2020). No tokens: both 0. Throws UsageError naming
// `rank` and token for a NaN or +inf logit.
AuxiliaryLosses auxiliary_losses(std::span<const float> logits, std::int64_t tokens, int experts,
                                 int rank = 0);

}  // namespace moesim::routing
