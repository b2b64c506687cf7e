#include "sim/step/program/message_bytes.hpp"

#include "sim/base/units.hpp"

namespace moesim::step {

double row_bytes(const scenario::Scenario& scenario, std::int64_t rows) {
  return bf16_bytes * static_cast<double>(rows * scenario.model->hidden);
}

double dispatch_bytes(const scenario::Scenario& scenario, std::int64_t capacity) {
  return row_bytes(scenario, scenario.experts * capacity);
}

double counts_bytes(const scenario::Scenario& scenario) {
  return 8.0 * scenario.experts * scenario.expert_parallel;
}

}  // namespace moesim::step
