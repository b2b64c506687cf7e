#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/routing/rules/router_options.hpp"

namespace moesim::routing {

// The auxiliary losses of router training. Usual weights: 0.01 for balance (Switch, Fedus et al.
// 2021), 0.001 for z (ST-MoE, Zoph et al. 2022).
struct AuxiliaryLosses {
  double balance = 0;      // E sum_e f_e P_e: 1 when choices and probabilities are balanced
  double balance_all = 0;  // the same with the share of all k choices in place of f_e
  // balance_all of each sequence by itself, mean over sequences (DeepSeek-V3's sequence-wise loss,
  // Megatron's seq_aux_loss). With sequences of a whole rank it is the mean over ranks.
  double balance_sequence = 0;
  double z = 0;  // mean over tokens of logsumexp(a)^2
};

// What a router chose: choice c of token t is expert[c * stride + t].
struct ChosenExperts {
  const std::uint16_t* expert = nullptr;  // null: the best by logit
  std::size_t stride = 0;
};

// The losses of the tokens of one rank after another. P_e is the mean probability, f_e the share of
// first choices before any drop (GShard, Lepikhin et al. 2020; Switch; DeepSpeed's top-2), in
// balance_all of all k choices over k (DeepSpeed's topkgating, Megatron; transformers' Mixtral and
// OLMoE do not divide by k). With ScoreFunction::sigmoid P_e is the mean of sigmoids over their sum
// (DeepSeek-V3, Megatron). No tokens: all 0.
class AuxiliarySums {
 public:
  // top_k from 1 to experts. Sequences are `sequence_tokens` of a rank, the last one maybe shorter;
  // 0: all tokens of a rank.
  AuxiliarySums(int experts, int top_k, std::int64_t sequence_tokens = 0,
                ScoreFunction scores = ScoreFunction::softmax);
  // Row-major logits [tokens, experts]. Throws UsageError naming `rank` and token for a NaN or +inf
  // logit.
  void add(std::span<const float> logits, std::int64_t tokens, int rank,
           const ChosenExperts& chosen = {});
  AuxiliaryLosses losses() const;

 private:
  struct Sums {
    std::int64_t tokens = 0;
    std::vector<double> mass;              // [expert], sum of probabilities
    std::vector<std::int64_t> first, all;  // [expert], choices
  };
  Sums no_sums() const;
  double balance(const Sums& sums, const std::vector<std::int64_t>& choices,
                 double per_token) const;
  void find_best(const float* logits);
  void add_token(const float* logits, Sums& sums);
  void close_sequence(const Sums& sequence);

  std::size_t experts_, top_k_;
  std::int64_t sequence_tokens_;
  ScoreFunction scores_;
  double squares_ = 0;
  Sums sums_;
  double of_sequences_ = 0;  // sum of their losses
  std::int64_t sequences_ = 0;
  std::vector<float> probabilities_, scratch_;  // of one token
  std::vector<std::uint32_t> order_;            // its choices first
};

AuxiliaryLosses auxiliary_losses(std::span<const float> logits, std::int64_t tokens, int experts,
                                 int rank = 0, int top_k = 1);

}  // namespace moesim::routing
