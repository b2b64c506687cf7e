#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/scenario/scenario.hpp"

namespace moesim::step {

// GPUs with the same number of tokens, which have the same prices. 0: GPUs with S tokens.
using TokenClass = std::size_t;

class TokenClasses {
 public:
  explicit TokenClasses(const scenario::Scenario& scenario);

  bool all_alike() const { return class_of_.empty(); }
  std::size_t count() const { return tokens_.size(); }
  std::int64_t tokens(TokenClass tokens) const { return tokens_[tokens]; }
  TokenClass of(int gpu) const {
    return class_of_.empty() ? 0 : class_of_[static_cast<std::size_t>(gpu)];
  }

 private:
  std::vector<std::int64_t> tokens_;  // [class]
  std::vector<TokenClass> class_of_;  // [gpu], empty: all have S tokens
};

}  // namespace moesim::step
