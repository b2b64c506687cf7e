#include "sim/step/program/training_schedule.hpp"

#include <string>

#include "sim/step/program/step_program.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/scenarios.hpp"

namespace moesim::step {
namespace {

// "F0" is layer 0 forward, "B0" backward, "r0" its reduction; e, h: embedding, head; o, a: the rest
// of the gradients and all of them; s: shards; u: update.
std::string order_of(const scenario::Scenario& scenario) {
  std::string order;
  for (const ScheduleEntry& entry : training_schedule(scenario)) {
    const bool forward = entry.pass == Pass::forward;
    const std::string layer = std::to_string(entry.layer);
    switch (entry.action) {
      case Action::embedding:
        order += forward ? "e" : "E";
        break;
      case Action::layer:
        order += (forward ? "F" : "B") + layer;
        break;
      case Action::head:
        order += forward ? "h" : "H";
        break;
      case Action::reduce_layer:
        order += "r" + layer;
        break;
      case Action::reduce_outer:
        order += "o";
        break;
      case Action::reduce_all:
        order += "a";
        break;
      case Action::accumulate_shards:
        order += "s";
        break;
      case Action::update:
        order += "u";
        break;
    }
  }
  return order;
}

scenario::Scenario two_layers() {
  scenario::Scenario scenario = support::scenario_of("llama2-7b-moe8", 2);
  scenario.micro_steps = 2;
  return scenario;
}

TEST_CASE("micro-steps run one after the other, backward in reverse, and one update ends them") {
  scenario::Scenario scenario = two_layers();
  CHECK(order_of(scenario) == "eF0F1hHB1B0EaeF0F1hHB1B0Eau");
  scenario.zero = 2;
  CHECK(order_of(scenario) == "eF0F1hHB1B0EaeF0F1hHB1B0Easu");
  scenario.mode = scenario::Mode::prefill;
  CHECK(order_of(scenario) == "eF0F1h");
}

TEST_CASE("overlapped gradients are reduced layer by layer") {
  scenario::Scenario scenario = two_layers();
  scenario.micro_steps = 1;
  scenario.gradient_overlap = scenario::GradientOverlap::gradient;
  CHECK(order_of(scenario) == "eF0F1hHB1r1B0r0Eou");
}

TEST_CASE("the operations of an MoE layer are those of its phases, in both passes") {
  scenario::Scenario scenario = two_layers();
  scenario.micro_steps = 1;
  const StepProgram program(scenario);
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    std::vector<MoePhase> phases;
    for (const StepOperation& operation : program.operations()) {
      if (operation.moe_layer == 0 && operation.pass == pass && !operation.announces) {
        phases.push_back(operation.phase);
      }
    }
    std::vector<MoePhase> expected = routing::moe_phases(pass, moe_layer_shape(scenario));
    std::erase(expected, MoePhase::announce);  // blocks of one size need no announcement
    CHECK(phases == expected);
  }
}

}  // namespace
}  // namespace moesim::step
