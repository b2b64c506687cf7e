#include "sim/routing/tokens/drawn_experts.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace moesim::routing {

namespace {

// Tokens of a language model's usual vocabulary (LLaMA 2's).
constexpr std::size_t vocabulary = 32000;

}  // namespace

HashedIds::HashedIds(const Decimal& exponent, int experts)
    : experts_(static_cast<std::uint64_t>(experts)), cumulative_(vocabulary) {
  const double falling = -exponent.to_double();
  for (std::size_t id = 0; id < vocabulary; ++id) {
    cumulative_[id] = std::pow(static_cast<double>(id + 1), falling);
  }
  std::partial_sum(cumulative_.begin(), cumulative_.end(), cumulative_.begin());
}

std::uint16_t HashedIds::expert(double draw, std::uint32_t layer) const {
  const double at = draw * cumulative_.back();
  const auto found = std::upper_bound(cumulative_.begin(), cumulative_.end(), at);
  const auto id = static_cast<std::uint64_t>(found - cumulative_.begin());
  return hashed(std::min<std::uint64_t>(id, vocabulary - 1), layer);
}

std::vector<double> HashedIds::shares(std::uint32_t layer) const {
  std::vector<double> shares(experts_, 0.0);
  double before = 0;
  for (std::size_t id = 0; id < vocabulary; ++id) {
    shares[hashed(id, layer)] += (cumulative_[id] - before) / cumulative_.back();
    before = cumulative_[id];
  }
  return shares;
}

// The finaliser of SplitMix64 (Steele et al. 2014).
std::uint16_t HashedIds::hashed(std::uint64_t id, std::uint32_t layer) const {
  std::uint64_t mixed = (id + (std::uint64_t{layer} << 32) + 1) * 0x9e3779b97f4a7c15U;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9U;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebU;
  mixed ^= mixed >> 31;
  return static_cast<std::uint16_t>(mixed % experts_);
}

std::size_t first_dealt(Stream& stream, std::size_t experts) {
  return static_cast<std::size_t>(std::uint64_t{stream.next_u32()} * experts >> 32);
}

std::vector<double> drawn_shares(const RouterConfig& router, int experts, std::uint32_t layer) {
  if (router.kind == RouterKind::hash) {
    return HashedIds(router.hash_exponent, experts).shares(layer);
  }
  return std::vector<double>(static_cast<std::size_t>(experts), 1.0 / experts);
}

}  // namespace moesim::routing
