#include "sim/profile/kernels/correction_trees.hpp"

#include <string>

namespace moesim::profile {

CorrectionTrees::CorrectionTrees(const Node& node, std::size_t inputs) {
  const std::vector<double> split = node.numbers("split");
  const std::vector<double> figure = node.numbers("figure");
  if (split.size() != figure.size()) node.fail("expected one figure per split", "figure");
  places_.resize(split.size());
  std::vector<std::uint32_t> open;  // forks whose second branch has not begun
  bool complete = true;             // the tree before
  for (std::uint32_t at = 0; at < split.size(); ++at) {
    if (complete) roots_.push_back(at);
    complete = false;
    const double input = split[at];
    const bool leaf = input == -1;
    if (!leaf && !(input >= 0 && input < static_cast<double>(inputs) &&
                   input == static_cast<double>(static_cast<std::int32_t>(input)))) {
      node.fail("expected -1 or the number of an input, below " + std::to_string(inputs), "split");
    }
    places_[at] = {static_cast<std::int32_t>(input), 0, figure[at]};
    if (!leaf) {
      open.push_back(at);
    } else if (open.empty()) {
      complete = true;
    } else {
      places_[open.back()].second = at + 1;
      open.pop_back();
    }
  }
  if (!complete) node.fail("the last tree has no end", "split");
}

double CorrectionTrees::at(std::span<const double> inputs) const {
  double sum = 0;
  for (std::uint32_t at : roots_) {
    while (places_[at].input >= 0) {
      const Place& fork = places_[at];
      at = inputs[static_cast<std::size_t>(fork.input)] <= fork.figure ? at + 1 : fork.second;
    }
    sum += places_[at].figure;
  }
  return sum;
}

}  // namespace moesim::profile
