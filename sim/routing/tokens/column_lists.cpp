#include "sim/routing/tokens/column_lists.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "sim/base/error.hpp"

namespace moesim::routing {

ColumnLists::ColumnLists(int experts, const TileKernels& kernels)
    : experts_(static_cast<std::size_t>(experts)),
      kernels_(kernels),
      lists_(experts_),
      reach_(experts_),
      start_(experts_),
      next_(experts_),
      last_(experts_),
      divided_(experts_) {}

// Lists have room for one block more than they may hold, and for the formats of list_cells and
// keep_cells.
void ColumnLists::start(std::size_t tokens, std::size_t taken, const float* sum) {
  constexpr std::size_t room = std::size_t{block_tokens} + 2 * tile_tokens;
  taken_ = taken;
  sum_ = sum;
  const std::size_t longest = std::min(3 * taken + tile_tokens, tokens);
  // An odd number of cache lines each, so that the ends of all lists fit into a cache together.
  constexpr std::size_t line = 16;
  const std::size_t width = ((longest + room + line - 1) / line | 1) * line;
  const std::size_t places = experts_ * width;
  if (places > std::numeric_limits<std::uint32_t>::max()) {
    throw Error(
        fmt::format("{} experts that take {} of {} tokens each are too many: route fewer "
                    "tokens at a time",
                    experts_, taken, tokens));
  }
  if (value_.size() < places) {
    value_.resize(places);
    token_.resize(places);
  }
  for (std::size_t expert = 0; expert < experts_; ++expert) {
    start_[expert] = next_[expert] = divided_[expert] = static_cast<std::uint32_t>(expert * width);
    last_[expert] = start_[expert] + static_cast<std::uint32_t>(longest);
    lists_[expert].is_cut = lists_[expert].is_settled = false;
    set_bound(expert, lists_[expert].guess);
  }
}

// g = e / sum reaches the bound only if e reaches bound * sum less two roundings.
void ColumnLists::set_bound(std::size_t expert, float bound) {
  constexpr float rounding = 1 - 1e-6F;
  constexpr float least = 1e-30F;  // below it products are not accurate
  lists_[expert].bound = bound;
  reach_[expert] = bound > least ? bound * rounding : 0.0F;
}

// If a list becomes too long, later tokens must beat the last of those that the expert would take.
void ColumnLists::add(const ExpBlock& block) {
  kernels_.list_cells(block, reach_.data(), {value_.data(), token_.data(), next_.data()});
  std::uint32_t too_long = 0;
  for (std::size_t expert = 0; expert < experts_; ++expert) {
    too_long |= next_[expert] > last_[expert] ? 1U : 0U;
  }
  if (too_long == 0) return;
  for (std::size_t expert = 0; expert < experts_; ++expert) {
    if (next_[expert] <= last_[expert]) continue;
    cut_list(expert);
    List& list = lists_[expert];
    list.is_cut = true;
    set_bound(expert, std::max(list.bound, list.least));
  }
}

void ColumnLists::cut_list(std::size_t expert) {
  const std::size_t at = start_[expert];
  List& list = lists_[expert];
  list.least = kernels_.keep_cells({value_.data() + at, token_.data() + at, divided_[expert] - at,
                                    held(expert), sum_, list.bound, list.least},
                                   taken_);
  next_[expert] = divided_[expert] = start_[expert] + static_cast<std::uint32_t>(taken_);
}

// Cells that are not listed are below the guess, or were beaten by as many as the expert takes.
bool ColumnLists::settle(std::size_t expert) {
  const std::size_t listed = held(expert);
  if (listed < taken_) return false;
  cut_list(expert);
  if (taken_ == 0) return true;
  List& list = lists_[expert];
  if (list.least < list.guess) {  // a bound, which may be lower than all of them
    list.least = *std::min_element(values(expert), values(expert) + taken_);
    if (list.least < list.guess) return false;
  }
  guess(expert, listed);
  return true;
}

bool ColumnLists::settle() {
  constexpr float never = 2;  // no g reaches it
  bool all = true;
  for (std::size_t expert = 0; expert < experts_; ++expert) {
    if (lists_[expert].is_settled) continue;
    lists_[expert].is_settled = settle(expert);
    all = all && lists_[expert].is_settled;
  }
  if (all) return true;
  for (std::size_t expert = 0; expert < experts_; ++expert) {
    List& list = lists_[expert];
    set_bound(expert, list.is_settled ? never : 0);
    if (list.is_settled) continue;
    next_[expert] = divided_[expert] = start_[expert];
    list.guess = 0;
    list.is_cut = true;
  }
  return false;
}

// The next domain's bound should be reached by somewhat more tokens than the expert takes: how many
// reach a bound scatters as the root of their number, and this expert's own cut as much. The value
// of that rank follows from those of two others.
void ColumnLists::guess(std::size_t expert, std::size_t listed) {
  constexpr float lower = 0.8F;  // where the rank of the bound is not known
  constexpr float scatters = 5;  // roots
  List& list = lists_[expert];
  if (list.is_cut) {
    list.guess = lower * list.least;
    return;
  }
  const float above = scatters * std::sqrt(static_cast<float>(taken_));
  const float step = std::min(2.0F, above / static_cast<float>(listed - taken_ + 1));
  const float wanted = list.least - (list.least - list.guess) * step;
  list.guess = std::max(0.0F, (wanted + list.guess) / 2);
}

}  // namespace moesim::routing
