#include "sim/step/program/training_schedule.hpp"

namespace moesim::step {
namespace {

using Schedule = std::vector<ScheduleEntry>;

void add_forward(const scenario::Scenario& scenario, std::int64_t micro_step, Schedule& schedule) {
  schedule.push_back({Action::embedding, Pass::forward, -1, micro_step});
  for (int layer = 0; layer < scenario.model->layers; ++layer) {
    schedule.push_back({Action::layer, Pass::forward, layer, micro_step});
  }
  schedule.push_back({Action::head, Pass::forward, -1, micro_step});
}

// Gradients are reduced at the end of the pass, or layer by layer with `overlap`.
void add_backward(const scenario::Scenario& scenario, std::int64_t micro_step, Schedule& schedule) {
  const bool overlapped = scenario.gradient_overlap == scenario::GradientOverlap::gradient;
  schedule.push_back({Action::head, Pass::backward, -1, micro_step});
  for (int layer = scenario.model->layers - 1; layer >= 0; --layer) {
    schedule.push_back({Action::layer, Pass::backward, layer, micro_step});
    if (overlapped) {
      schedule.push_back({Action::reduce_layer, Pass::backward, layer, micro_step});
    }
  }
  schedule.push_back({Action::embedding, Pass::backward, -1, micro_step});
  const Action rest = overlapped ? Action::reduce_outer : Action::reduce_all;
  schedule.push_back({rest, Pass::backward, -1, micro_step});
  if (scenario.zero >= 2 && micro_step > 0) {
    schedule.push_back({Action::accumulate_shards, Pass::backward, -1, micro_step});
  }
}

}  // namespace

std::vector<ScheduleEntry> training_schedule(const scenario::Scenario& scenario) {
  Schedule schedule;
  if (scenario.mode != scenario::Mode::train) {
    add_forward(scenario, 0, schedule);
    return schedule;
  }
  for (std::int64_t micro_step = 0; micro_step < scenario.micro_steps; ++micro_step) {
    add_forward(scenario, micro_step, schedule);
    add_backward(scenario, micro_step, schedule);
  }
  schedule.push_back({Action::update, Pass::backward, -1, scenario.micro_steps - 1});
  return schedule;
}

}  // namespace moesim::step
