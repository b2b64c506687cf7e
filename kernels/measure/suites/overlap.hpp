#pragma once

#include <string>
#include <vector>

#include "kernels/measure/suites/suite.hpp"

// What a product and an exchange lose while both run on a GPU. A point of op "overlap" times one of
// them ("timed": "gemm" or "exchange"), back-to-back, while the other one runs ("beside") or
// nothing does. On one GPU a copy on the device stands for the exchange, and such points are
// synthetic.
namespace moesim::kernels::measure {

struct OverlapParts {
  PointSpec product;
  PointSpec exchange;  // an all-to-all, or a copy of as many bytes
  std::string timed;   // "gemm" or "exchange"
  std::string beside;  // the other one; "" for nothing
};
// The parts of a point of op "overlap".
OverlapParts overlap_parts(const PointSpec& spec);
// "beside" of a point that times one side alone.
constexpr const char* overlap_alone = "nothing";
// Four points for each pair of a product and a size: each side alone and beside the other.
std::vector<PointSpec> overlap_points(Ranks ranks);
Suite overlap_suite();

}  // namespace moesim::kernels::measure
