#pragma once

#include "kernels/base/device.cuh"
#include "kernels/routing/arguments.hpp"
#include "sim/routing/tokens/softmax.hpp"

// One token's logits in the registers of `lanes` lanes (8, 16 or 32; a warp holds 32 / lanes
// tokens): lane l has experts l, l + lanes, ... This is the layout in which softmax.hpp's folded
// sum costs additions inside a lane first and one shuffle per halving of the lanes then.
namespace moesim::kernels::routing {

template <int lanes>
MOESIM_DEVICE std::uint32_t group_max(std::uint32_t value) {
  if constexpr (lanes == warp_lanes) {
    return warp_max(value);
  } else {
    for (int mask = lanes / 2; mask > 0; mask /= 2) {
      const std::uint32_t other = shuffle_xor(value, mask);
      value = other > value ? other : value;
    }
    return value;
  }
}

template <int lanes>
MOESIM_DEVICE std::uint32_t group_min(std::uint32_t value) {
  return ~group_max<lanes>(~value);
}

template <int lanes>
MOESIM_DEVICE bool group_any(bool vote) {
  const std::uint32_t votes = ballot(vote);
  if constexpr (lanes == warp_lanes) return votes != 0;
  const int first = lane_index() / lanes * lanes;
  return (votes >> first & ((1U << lanes % 32) - 1)) != 0;
}

template <int lanes, int values>
struct TokenLogits {
  float logit[values];  // -inf where there is no expert
  float maximum = 0;
  float sum = 0;  // of exp(a - maximum), in the order of softmax.hpp
  int experts = 0;
  bool valid = true;  // no NaN, no +inf

  MOESIM_DEVICE int expert_at(int value) const { return value * lanes + lane_index() % lanes; }

  // Logits that are all -inf count as all equal.
  MOESIM_DEVICE void prepare() {
    const float infinity = __builtin_huge_valf();
    bool bad = false;
    std::uint32_t best = 0;
    for (int value = 0; value < values; ++value) {
      if (expert_at(value) >= experts) continue;
      bad = bad || !(logit[value] < infinity);
      const std::uint32_t ordered = ordered_of(logit[value]);
      best = ordered > best ? ordered : best;
    }
    valid = !group_any<lanes>(bad);
    maximum = unordered(group_max<lanes>(best));
    if (maximum == -infinity) {
      maximum = 0;
      for (int value = 0; value < values; ++value) {
        if (expert_at(value) < experts) logit[value] = 0;
      }
    }
    sum = folded_exponentials();
  }

  MOESIM_DEVICE float exponential(float a) const {
    return ::moesim::routing::exp_nonpositive(::moesim::routing::add(a, -maximum));
  }
  MOESIM_DEVICE float probability(float a) const {
    return ::moesim::routing::divide(exponential(a), sum);
  }

  // The folds of softmax.hpp over lanes * values places: those without an expert add exact zeros.
  MOESIM_DEVICE float folded_exponentials() const {
    float part[values];
    for (int value = 0; value < values; ++value) {
      part[value] = expert_at(value) < experts ? exponential(logit[value]) : 0.0F;
    }
    MOESIM_UNROLL_ALL
    for (int half = values / 2; half > 0; half /= 2) {
      for (int value = 0; value < half; ++value) {
        part[value] = ::moesim::routing::add(part[value], part[value + half]);
      }
    }
    float total = part[0];
    for (int mask = lanes / 2; mask > 0; mask /= 2) {
      total = ::moesim::routing::add(total, shuffle_xor(total, mask));
    }
    return total;
  }

  // The `wanted` largest logits among experts [first, last), equal ones by lower expert: lane c of
  // the token's lanes gets the c-th. `wanted` is at most `lanes` and at most last - first.
  MOESIM_DEVICE void largest(int first, int last, int wanted, std::uint16_t& expert,
                             float& chosen) const {
    std::uint32_t left[values];  // 0: not there, or taken
    for (int value = 0; value < values; ++value) {
      const int at = expert_at(value);
      left[value] = at >= first && at < last ? ordered_of(logit[value]) : 0;
    }
    expert = no_expert;
    chosen = 0;
    for (int choice = 0; choice < wanted; ++choice) {
      std::uint32_t best = 0;
      std::uint32_t place = 0xffffffffU;
      for (int value = 0; value < values; ++value) {
        if (left[value] > best) {  // the first of equal ones: the lowest expert of this lane
          best = left[value];
          place = static_cast<std::uint32_t>(expert_at(value));
        }
      }
      const std::uint32_t top = group_max<lanes>(best);
      const std::uint32_t winner = group_min<lanes>(best == top ? place : 0xffffffffU);
      for (int value = 0; value < values; ++value) {
        if (static_cast<std::uint32_t>(expert_at(value)) == winner) left[value] = 0;
      }
      if (lane_index() % lanes == choice) {
        expert = static_cast<std::uint16_t>(winner);
        chosen = unordered(top);
      }
    }
  }
};

}  // namespace moesim::kernels::routing
