#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/study/search/machine_prices.hpp"
#include "tools/moesim/bands/place_ratio.hpp"
#include "tools/moesim/recommend/several/best_searches.hpp"
#include "tools/moesim/rows/named_cells.hpp"

namespace moesim::tool {

// The best on a machine, one of several on as many GPUs.
struct MachineBest {
  std::string machine;  // Machine::name
  BestFound best;
  std::size_t search = 0;  // its place among all searches

  PlacedStep placed() const { return {best.best.job, best.best.step, best.band}; }
  // Of a GPU hour; 1 where none is given.
  double price() const { return best.band.cost.price.value_or(1); }
};

// How each machine compares with the first, and which is the cheapest per token: at the prices of
// --gpu-hour-price, else at one for all. Precondition: at least one.
std::string prices_text(const std::vector<const MachineBest*>& machines);

// The columns of a row of `machine` for its ratio to `first`, absent in the row of `first`, and
// whether it is the cheapest of `machines`.
void add_price_cells(const MachineBest& machine, const std::vector<const MachineBest*>& machines,
                     NamedCells& row);

}  // namespace moesim::tool
