#include "sim/profile/kernels/correction_trees.hpp"

#include <nlohmann/json.hpp>
#include <vector>

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using profile::CorrectionTrees;

namespace {

CorrectionTrees read(const nlohmann::json& trees, std::size_t inputs = 2) {
  return {Document::parse(trees.dump(), "curve.json").root(), inputs};
}

double at(const nlohmann::json& trees, double first, double second) {
  return read(trees).at(std::vector<double>{first, second});
}

// x0 <= 3 ? (x1 <= 10 ? 0.5 : -0.25) : 1; then a tree of one leaf.
const nlohmann::json two_trees = {{"split", {0, 1, -1, -1, -1, -1}},
                                  {"figure", {3, 10, 0.5, -0.25, 1, 0.125}}};

}  // namespace

TEST_CASE("trees add up the leaves that a point falls into, thresholds included") {
  CHECK(at(two_trees, 3, 10) == 0.5 + 0.125);
  CHECK(at(two_trees, 2, 10.5) == -0.25 + 0.125);
  CHECK(at(two_trees, 3.5, 0) == 1 + 0.125);
  CHECK(at({{"split", nlohmann::json::array()}, {"figure", nlohmann::json::array()}}, 1, 1) == 0);
}

TEST_CASE("a fork on the second branch ends with the tree") {
  // x0 <= 0 ? 1 : (x0 <= 5 ? 2 : 3), twice.
  const nlohmann::json trees = {{"split", {0, -1, 0, -1, -1, 0, -1, 0, -1, -1}},
                                {"figure", {0, 1, 5, 2, 3, 0, 1, 5, 2, 3}}};
  CHECK(at(trees, -1, 0) == 2);
  CHECK(at(trees, 4, 0) == 4);
  CHECK(at(trees, 6, 0) == 6);
}

TEST_CASE("trees that are none are refused with the key") {
  nlohmann::json trees = two_trees;
  trees["figure"].erase(5);
  CHECK_THROWS_WITH(read(trees), ContainsSubstring("figure: expected one figure per split"));
  for (const double input : {2.0, 0.5, -2.0, 1e30}) {
    trees = two_trees;
    trees["split"][1] = input;
    CHECK_THROWS_WITH(read(trees), ContainsSubstring("split: expected -1 or the number"));
  }
  trees = two_trees;
  trees["split"][5] = 0;
  CHECK_THROWS_WITH(read(trees), ContainsSubstring("split: the last tree has no end"));
}
