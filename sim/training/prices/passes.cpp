#include "sim/training/prices/passes.hpp"

#include <algorithm>
#include <numeric>

#include "sim/base/units.hpp"

namespace moesim::training {

bool is_exchange(TrainingPart part) {
  switch (part) {
    case TrainingPart::tensor:
    case TrainingPart::context:
    case TrainingPart::dispatch:
    case TrainingPart::combine:
    case TrainingPart::parameters:
    case TrainingPart::gradients:
      return true;
    default:
      return false;
  }
}

std::vector<TrainingPart> exchange_parts() {
  std::vector<TrainingPart> parts;
  for (const auto& part : part_names) {
    if (is_exchange(part.value)) parts.push_back(part.value);
  }
  return parts;
}

double sum(const PartTimes& times) { return std::accumulate(times.begin(), times.end(), 0.0); }

void add(PartTimes& times, const PartTimes& more) {
  for (std::size_t part = 0; part < times.size(); ++part) times[part] += more[part];
}

namespace {

constexpr std::array pass_times = {&Passes::forward,
                                   &Passes::input_gradient,
                                   &Passes::weight_gradient,
                                   &Passes::forward_under_host,
                                   &Passes::backward_under_host,
                                   &Passes::weight_gradient_under_host,
                                   &Passes::exchanged_again};

}  // namespace

void Passes::add(const Passes& other) {
  for (PartTimes Passes::*const times : pass_times) training::add(this->*times, other.*times);
}

void Passes::divide(double by) {
  for (PartTimes Passes::*const times : pass_times) {
    for (double& part : this->*times) part /= by;
  }
}

void Passes::multiply(double by) {
  for (PartTimes Passes::*const times : pass_times) {
    for (double& part : this->*times) part *= by;
  }
}

parallel::LayerPieces pieces_of(const Passes& passes) {
  const auto time = [](double us) { return Picoseconds::from_us(std::max(0.0, us)); };
  const auto experts = [](const PartTimes& times) { return times[at(TrainingPart::experts)]; };
  const auto exchanges = [](const PartTimes& times) {
    return times[at(TrainingPart::dispatch)] + times[at(TrainingPart::combine)];
  };
  const auto rest = [&](const PartTimes& times) {
    return time(sum(times) - experts(times) - exchanges(times) - times[at(TrainingPart::host)]);
  };
  parallel::LayerPieces pieces;
  pieces.attention_forward = rest(passes.forward) + time(sum(passes.forward_under_host));
  pieces.attention_backward = rest(passes.input_gradient) + time(sum(passes.backward_under_host));
  pieces.attention_weight_gradient =
      rest(passes.weight_gradient) + time(sum(passes.weight_gradient_under_host));
  pieces.experts_forward = time(experts(passes.forward));
  pieces.experts_backward = time(experts(passes.input_gradient));
  pieces.experts_weight_gradient = time(experts(passes.weight_gradient));
  pieces.dispatch_forward = time(passes.forward[at(TrainingPart::dispatch)]);
  pieces.combine_forward = time(passes.forward[at(TrainingPart::combine)]);
  pieces.combine_backward = time(passes.input_gradient[at(TrainingPart::combine)]);
  pieces.dispatch_backward = time(passes.input_gradient[at(TrainingPart::dispatch)]);
  return pieces;
}

PartTimes parts_of(const Passes& layer, parallel::LayerPiece piece) {
  using enum parallel::LayerPiece;
  const auto only = [](TrainingPart part, const PartTimes& times) {
    PartTimes parts{};
    parts[at(part)] = times[at(part)];
    return parts;
  };
  const auto rest = [](PartTimes parts) {
    for (const TrainingPart other : {TrainingPart::experts, TrainingPart::dispatch,
                                     TrainingPart::combine, TrainingPart::host}) {
      parts[at(other)] = 0;
    }
    return parts;
  };
  PartTimes parts{};
  switch (piece) {
    case attention_forward:
      parts = rest(layer.forward);
      training::add(parts, layer.forward_under_host);
      return parts;
    case attention_backward:
      parts = rest(layer.input_gradient);
      training::add(parts, layer.backward_under_host);
      return parts;
    case attention_weight_gradient:
      parts = rest(layer.weight_gradient);
      training::add(parts, layer.weight_gradient_under_host);
      return parts;
    case experts_forward:
      return only(TrainingPart::experts, layer.forward);
    case experts_backward:
      return only(TrainingPart::experts, layer.input_gradient);
    case experts_weight_gradient:
      return only(TrainingPart::experts, layer.weight_gradient);
    case dispatch_forward:
      return only(TrainingPart::dispatch, layer.forward);
    case combine_forward:
      return only(TrainingPart::combine, layer.forward);
    case dispatch_backward:
      return only(TrainingPart::dispatch, layer.input_gradient);
    case combine_backward:
      return only(TrainingPart::combine, layer.input_gradient);
  }
  return parts;
}

}  // namespace moesim::training
