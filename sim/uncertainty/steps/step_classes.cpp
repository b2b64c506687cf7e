#include "sim/uncertainty/steps/step_classes.hpp"

#include <algorithm>
#include <cmath>

namespace moesim::uncertainty {
namespace {

using training::TrainingPart;

constexpr std::array class_parts = {&StepClasses::compute, &StepClasses::exchange,
                                    &StepClasses::host, &StepClasses::experts,
                                    &StepClasses::crossing};

constexpr double same_factor = 1e-6;

}  // namespace

StepClasses classes_of(const training::PartTimes& parts, const CrossingParts& crossing) {
  StepClasses classes;
  for (const auto& part : training::part_names) {
    const auto place = static_cast<std::size_t>(part.value);
    const double ms = parts[place] / 1e3;
    if (part.value == TrainingPart::host) {
      classes.host += ms;
    } else if (part.value == TrainingPart::experts) {
      classes.experts += ms;
    } else if (training::is_exchange(part.value)) {
      (crossing[place] ? classes.crossing : classes.exchange) += ms;
    } else {
      classes.compute += ms;
    }
  }
  return classes;
}

StepClasses classes_of(const training::TrainingStep& step, const CrossingParts& crossing) {
  StepClasses classes = classes_of(step.parts, crossing);
  if (step.host_gain_us) classes.host_gain = *step.host_gain_us / 1e3;
  return classes;
}

void HostCurve::add(double factor, const StepClasses& priced) {
  kind_ = priced.kind;
  Node node{factor, {}, {}};
  for (std::size_t part = 0; part < class_count; ++part) {
    node.values[part] = priced.*class_parts[part];
  }
  const auto after = std::find_if(nodes_.begin(), nodes_.end(),
                                  [&](const Node& other) { return other.factor > factor; });
  nodes_.insert(after, node);
  set_slopes();
}

bool HostCurve::has(double factor) const {
  return std::any_of(nodes_.begin(), nodes_.end(), [&](const Node& node) {
    return std::abs(node.factor - factor) < same_factor * factor;
  });
}

void HostCurve::set_slopes() {
  if (nodes_.size() < 2) return;
  const std::size_t last = nodes_.size() - 1;
  for (std::size_t part = 0; part < class_count; ++part) {
    const auto width = [&](std::size_t at) { return nodes_[at + 1].factor - nodes_[at].factor; };
    const auto secant = [&](std::size_t at) {
      return (nodes_[at + 1].values[part] - nodes_[at].values[part]) / width(at);
    };
    nodes_[0].slopes[part] = secant(0);
    nodes_[last].slopes[part] = secant(last - 1);
    for (std::size_t at = 1; at < last; ++at) {
      const double before = secant(at - 1), after = secant(at);
      double& slope = nodes_[at].slopes[part];
      slope = 0;
      if (before * after <= 0) continue;
      // A harmonic mean, the wider neighbour of less weight.
      const double first = 2 * width(at) + width(at - 1), second = width(at) + 2 * width(at - 1);
      slope = (first + second) / (first / before + second / after);
    }
  }
}

StepClasses HostCurve::at(double factor) const {
  StepClasses found;
  found.kind = kind_;
  const auto after = std::find_if(nodes_.begin(), nodes_.end(),
                                  [&](const Node& node) { return node.factor >= factor; });
  for (std::size_t part = 0; part < class_count; ++part) {
    double& value = found.*class_parts[part];
    if (after == nodes_.begin() || after == nodes_.end()) {
      const Node& end = after == nodes_.end() ? nodes_.back() : nodes_.front();
      value = std::max(0.0, end.values[part] + end.slopes[part] * (factor - end.factor));
      continue;
    }
    const Node& low = *(after - 1);
    const double width = after->factor - low.factor;
    const double share = (factor - low.factor) / width, rest = 1 - share;
    value = rest * rest * (1 + 2 * share) * low.values[part] +
            share * share * (1 + 2 * rest) * after->values[part] +
            width * share * rest * (rest * low.slopes[part] - share * after->slopes[part]);
  }
  return found;
}

}  // namespace moesim::uncertainty
