#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/routing/tokens/tile_kernels.hpp"

namespace moesim::routing {

// The largest probabilities of each expert among the tokens of a domain, ties: lower tokens first,
// found while a tile is at hand. Experts take few tokens: only cells that reach a bound of their
// expert are listed, and the best of a list are selected exactly. The bounds of a domain are
// guessed from the one before; any guess gives the same result.
class ColumnLists {
 public:
  ColumnLists(int experts, const TileKernels& kernels);

  // A domain of `tokens`, of which each expert takes `taken` <= tokens. Throws Error if lists would
  // have more than 2^32 places.
  void start(std::size_t tokens, std::size_t taken);
  void add(const ExpTile& tile);  // in ascending order of tokens, all experts
  // After all tiles. False: guesses were too high; all tiles must be added once more before a
  // second call, which is true.
  bool settle();

  // [expert]: which tokens it takes, and which these are, in ascending order, with probabilities.
  const Cut* cuts() const { return cut_.data(); }
  const std::uint32_t* tokens(std::size_t expert) const { return token_.data() + start_[expert]; }
  const float* values(std::size_t expert) const { return value_.data() + start_[expert]; }

 private:
  struct List {
    float guess = 0;  // the bound at the start of the domain
    float bound = 0;
    bool is_cut = false;  // to as many as the expert takes, because it was too long
    bool is_settled = false;
  };
  std::size_t held(std::size_t expert) const { return next_[expert] - start_[expert]; }
  void set_bound(std::size_t expert, float bound);
  Cut cut_list(std::size_t expert);
  bool settle(std::size_t expert);
  void guess(std::size_t expert, std::size_t listed);

  std::size_t experts_;
  const TileKernels& kernels_;
  std::size_t taken_ = 0;
  std::vector<List> lists_;
  std::vector<float> reach_;                        // [expert]: its bound, a little lower
  std::vector<std::uint32_t> start_, next_, last_;  // [expert]; last_: a longer list is cut
  std::vector<float> value_;
  std::vector<std::uint32_t> token_;
  std::vector<Cut> cut_;
};

}  // namespace moesim::routing
