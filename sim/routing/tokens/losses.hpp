#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moesim::routing {

// The auxiliary losses of router training, and their usual weights.
inline constexpr double balance_loss_weight = 1e-2;  // Switch (Fedus et al. 2021)
inline constexpr double z_loss_weight = 1e-3;        // ST-MoE (Zoph et al. 2022)

struct AuxiliaryLosses {
  double balance = 0;      // E sum_e f_e P_e: 1 when choices and probabilities are balanced
  double balance_all = 0;  // the same with the share of all k choices in place of f_e
  double z = 0;            // mean over tokens of logsumexp(a)^2
};

// The losses of the tokens of one rank after another. P_e is the mean probability, f_e the share of
// first choices before any drop (GShard, Lepikhin et al. 2020; Switch; DeepSpeed's top-2), in
// balance_all of all k choices over k (DeepSpeed's topkgating, Megatron; transformers' Mixtral and
// OLMoE do not divide by k). No tokens: all 0.
class AuxiliarySums {
 public:
  // top_k from 1 to experts.
  AuxiliarySums(int experts, int top_k);
  // Row-major logits [tokens, experts]. Throws UsageError naming `rank` and token for a NaN or +inf
  // logit.
  void add(std::span<const float> logits, std::int64_t tokens, int rank);
  AuxiliaryLosses losses() const;

 private:
  std::size_t experts_, top_k_;
  std::int64_t tokens_ = 0;
  double squares_ = 0;
  std::vector<double> mass_;                    // [expert], sum of probabilities
  std::vector<std::int64_t> first_, all_;       // [expert], choices
  std::vector<float> probabilities_, scratch_;  // of one token
  std::vector<std::uint32_t> order_;
};

AuxiliaryLosses auxiliary_losses(std::span<const float> logits, std::int64_t tokens, int experts,
                                 int rank = 0, int top_k = 1);

}  // namespace moesim::routing
