#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/routing/tokens/tile_kernels.hpp"

namespace moesim::routing {

// The largest probabilities of each expert among the tokens of a domain, ties: lower tokens first,
// found while their exponentials are at hand. Experts take few tokens: only cells that reach a
// bound of their expert are listed, and the best of a list are selected exactly. The bounds of a
// domain are guessed from the one before; any guess gives the same result.
class ColumnLists {
 public:
  ColumnLists(int experts, const TileKernels& kernels);

  // A domain of `tokens`, of which each expert takes `taken` <= tokens; sum[token] is known when
  // its block is added, and stays until settle() is true. Throws Error if lists would have more
  // than 2^32 places.
  void start(std::size_t tokens, std::size_t taken, const float* sum);
  void add(const ExpBlock& block);  // in ascending order of tokens, all experts
  // After all blocks. False: guesses were too high; all blocks must be added once more before a
  // second call, which is true.
  bool settle();

  // [expert]: which tokens it takes, in ascending order, and their probabilities.
  const std::uint32_t* tokens(std::size_t expert) const { return token_.data() + start_[expert]; }
  const float* values(std::size_t expert) const { return value_.data() + start_[expert]; }

 private:
  struct List {
    float guess = 0;  // the bound at the start of the domain
    float bound = 0;
    float least = 0;      // of its last cut
    bool is_cut = false;  // to as many as the expert takes, because it was too long
    bool is_settled = false;
  };
  std::size_t held(std::size_t expert) const { return next_[expert] - start_[expert]; }
  void set_bound(std::size_t expert, float bound);
  void cut_list(std::size_t expert);
  bool settle(std::size_t expert);
  void guess(std::size_t expert, std::size_t listed);

  std::size_t experts_;
  const TileKernels& kernels_;
  std::size_t taken_ = 0;
  const float* sum_ = nullptr;
  std::vector<List> lists_;
  std::vector<float> reach_;                        // [expert]: its bound, a little lower
  std::vector<std::uint32_t> start_, next_, last_;  // [expert]; last_: a longer list is cut
  std::vector<std::uint32_t> divided_;  // [expert]: up to where value_ is divided by sum
  std::vector<float> value_;
  std::vector<std::uint32_t> token_;
};

}  // namespace moesim::routing
