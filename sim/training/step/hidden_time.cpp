#include "sim/training/step/hidden_time.hpp"

#include <algorithm>

namespace moesim::training {

HiddenTime::HiddenTime(const Pipelines& pipelines, const PipelineRun& run, int rank, bool cross)
    : pipelines_(pipelines),
      run_(run),
      operations_(pipelines.schedule().ranks[static_cast<std::size_t>(rank)]),
      spans_(run.run.ranks[static_cast<std::size_t>(rank)].spans),
      stages_(pipelines.shape().stages_of(rank)),
      cross_(cross) {}

std::size_t HiddenTime::place_of(int stage) const {
  const auto found = std::find(stages_.begin(), stages_.end(), stage);
  return static_cast<std::size_t>(found - stages_.begin());
}

double HiddenTime::before_us(std::size_t operation) const {
  const Picoseconds free = operation == 0 ? Picoseconds(0) : spans_[operation - 1].end;
  return (spans_[operation].start - free).us();
}

double HiddenTime::beside_us(std::size_t operation, double taken) const {
  const parallel::PipelineOperation& ran = operations_[operation];
  double all_us = 0;
  double hiding_us = 0;
  const ExchangePrices& exchanges = pipelines_.prices().exchanges();
  const auto add = [&](const PartTimes& pass, double hides_us) {
    all_us += sum(pass);
    hiding_us += hides_us;
  };
  if (ran.is_forward()) {
    const PartTimes& forward = pipelines_.passes(run_, ran.pass).forward;
    add(forward, exchanges.hiding_us(forward, cross_));
  }
  const Passes& backward = pipelines_.passes(run_, ran.backward_pass());
  if (ran.is_backward()) {
    add(backward.input_gradient, exchanges.hiding_input_gradient_us(backward, cross_));
  }
  if (ran.has_weight_gradient()) {
    add(backward.weight_gradient, exchanges.hiding_us(backward.weight_gradient, cross_));
  }
  if (all_us <= 0) return 0;
  const double pace = std::max(0.0, pipelines_.hidden_share() * hiding_us / all_us - taken);
  return pace * (spans_[operation].end - spans_[operation].start).us();
}

double HiddenTime::left_of_gradients_us(const std::vector<double>& chunks_us, double taken) const {
  // The operation of each chunk with its last weight gradients.
  std::vector<std::size_t> last(stages_.size(), operations_.size());
  for (std::size_t operation = 0; operation < operations_.size(); ++operation) {
    const parallel::PipelineOperation& ran = operations_[operation];
    if (ran.has_weight_gradient()) last[place_of(ran.backward_pass().stage)] = operation;
  }
  double left_us = 0;
  const std::size_t first = *std::min_element(last.begin(), last.end());
  for (std::size_t operation = first; operation < operations_.size(); ++operation) {
    left_us = std::max(0.0, left_us - before_us(operation));
    for (std::size_t place = 0; place < last.size(); ++place) {
      if (last[place] == operation) left_us += chunks_us[place];
    }
    left_us = std::max(0.0, left_us - beside_us(operation, taken));
  }
  return left_us;
}

double HiddenTime::left_of_weights_us(const std::vector<double>& chunks_us) const {
  std::vector<bool> is_begun(stages_.size(), false);
  std::size_t begun = 0;
  double wanted_us = 0;
  double done_us = 0;
  double left_us = 0;
  for (std::size_t operation = 0; begun < stages_.size() && operation < operations_.size();
       ++operation) {
    const parallel::PipelineOperation& ran = operations_[operation];
    done_us += before_us(operation) + beside_us(operation, 0);
    const std::size_t place = place_of(ran.pass.stage);
    if (!ran.is_forward() || is_begun[place]) continue;
    is_begun[place] = true;
    ++begun;
    wanted_us += chunks_us[place];
    left_us = std::max(left_us, wanted_us - done_us);
  }
  return left_us;
}

}  // namespace moesim::training
