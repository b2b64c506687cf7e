#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kernels/measure/points/suites.hpp"

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
// Of a point of op "overlap".
OverlapParts overlap_parts(const PointSpec& spec);
// Four points for each pair of a product and a size: each side alone and beside the other.
std::vector<PointSpec> overlap_points(Ranks ranks);

// Fewer pairs than this say nothing of another pair.
constexpr std::size_t fewest_overlap_pairs = 3;

// The profile's "overlap": by how much each side takes longer beside the other, the medians over
// all measured pairs (at least 1) and their ranges. Void and synthetic points do not count; nothing
// if there are too few.
std::optional<nlohmann::ordered_json> fit_overlap(const std::vector<Point>& points,
                                                  const std::string& source);

}  // namespace moesim::kernels::measure
