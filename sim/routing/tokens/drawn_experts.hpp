#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/base/random.hpp"
#include "sim/routing/rules/router_config.hpp"

namespace moesim::routing {

// Which experts tokens get from the routers that look at no logit: random and hash.

// The ids of tokens, id 0 the most frequent, and the expert that each is hashed to. Static: the
// hash knows neither seed nor replica; it differs between layers, as the layers' tables do in
// Roller et al. 2021.
class HashedIds {
 public:
  HashedIds(const Decimal& exponent, int experts);

  // `draw` in (0, 1): where the token's id lies among all, the most frequent first.
  std::uint16_t expert(double draw, std::uint32_t layer) const;
  // [expert]: P(a token has it). They sum to 1.
  std::vector<double> shares(std::uint32_t layer) const;

 private:
  std::uint16_t hashed(std::uint64_t id, std::uint32_t layer) const;

  std::uint64_t experts_;
  std::vector<double> cumulative_;  // [id], not normalised
};

// random:balanced deals a GPU's tokens to the experts in turn, from this one on. The first that the
// GPU's stream is asked for.
std::size_t first_dealt(Stream& stream, std::size_t experts);

// [expert]: P(a token has it) under `random` or `hash`.
std::vector<double> drawn_shares(const RouterConfig& router, int experts, std::uint32_t layer);

}  // namespace moesim::routing
