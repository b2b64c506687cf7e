#include "sim/step/step_model.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/step/exchanges/overlapped_gradients.hpp"
#include "sim/step/program/message_bytes.hpp"

namespace moesim::step {

StepModel::StepModel(const scenario::Scenario& scenario, const Calibration& calibration)
    : scenario_(scenario),
      program_(scenario_),
      prices_(scenario_, program_, calibration),
      durations_(scenario_, program_, prices_) {}

engine::Durations StepModel::durations(const routing::ReplicaRouting* routing, int replica) {
  if (routing != nullptr && !scenario_.router.pads_exchange()) {
    return durations_.unpadded(*routing, replica);
  }
  return durations_.padded(routing, replica);
}

std::vector<engine::LostTime> StepModel::slow_gradients(engine::Durations& durations, int replica) {
  if (scenario_.gradient_overlap == scenario::GradientOverlap::none) return {};
  const auto time_of = [&](int op) {
    if (is_by_matrix(op)) return prices_.time(even_exchange(), replica);
    const std::vector<Picoseconds>& ranks = durations.per_rank[static_cast<std::size_t>(op)];
    return ranks.empty() ? durations.uniform[static_cast<std::size_t>(op)]
                         : *std::max_element(ranks.begin(), ranks.end());
  };
  return slow_overlapped_gradients(program(), *scenario_.cluster,
                                   scenario_.conditions.slowdowns.exchange, time_of, durations);
}

bool StepModel::is_by_matrix(int operation) const {
  return direction(operation) != Direction::none && !scenario_.router.pads_exchange() &&
         scenario_.dispatcher == nullptr;
}

double StepModel::row_bytes() const { return step::row_bytes(scenario_, 1); }

double StepModel::row_bytes(int operation) const {
  const bool probabilities = program_.operation(operation).work == Work::exchange_probabilities;
  return probabilities ? probability_bytes : row_bytes();
}

StepModel::Element StepModel::element(int operation) const {
  const StepOperation& work = program_.operation(operation);
  if (work.work == Work::exchange_probabilities) return {"Float", probability_bytes};
  if (!work.announces) return {};
  if (gathers(operation)) return {"Long", 8};  // counts
  return {"Int", 4};
}

PricedWork& StepModel::even_exchange() {
  const std::int64_t routes = scenario_.tokens_per_gpu * scenario_.router.top_k;
  const std::int64_t even = std::max<std::int64_t>(1, routes / scenario_.experts);
  StepOperation exchange;
  exchange.work = Work::exchange_rows;
  exchange.phase = MoePhase::dispatch_exchange;
  exchange.groups = Groups::expert_parallel;
  return prices_.sized(exchange, {true, even, 0}, 0);
}

double StepModel::error_of(PricedWork& work, int replica) const {
  const Picoseconds without = prices_.time(work, no_errors);
  return without == Picoseconds(0) ? 1 : prices_.time(work, replica).us() / without.us();
}

double StepModel::exchange_error(int operation, int gpu, const routing::ReplicaRouting& routing,
                                 int replica) {
  PricedWork* work = durations_.work_of(operation, gpu, &routing);
  return work == nullptr ? 1 : error_of(*work, replica);
}

StepModel::CurveParts StepModel::curve_parts(int operation, int gpu,
                                             const routing::ReplicaRouting* routing, int replica) {
  PricedWork* work =
      is_by_matrix(operation) ? &even_exchange() : durations_.work_of(operation, gpu, routing);
  if (work == nullptr) return {};
  return {&prices_.parts(*work), prices_.time(*work, replica).us()};
}

std::string StepModel::assumptions() const {
  const routing::RouterConfig& router = scenario_.router;
  if (!scenario_.has_moe()) return "";
  std::string text;
  const auto add = [&](const std::string& what) { text += (text.empty() ? "" : ", ") + what; };
  const bool ragged = scenario_.is_ragged();
  const bool counts = std::any_of(
      program().operations.begin(), program().operations.end(),
      [](const engine::Operation& operation) { return operation.name == "counts_to_host"; });
  if (ragged) add("GPUs with fewer tokens hold fewer sequences, as long");
  if (ragged && router.pads_exchange()) {
    add("blocks padded to the group's largest after an all-reduce");
  }
  if (counts) {
    add(fmt::format("{:g} us for the host to read counts", host_read_us));
  }
  if (scenario_.dispatcher == nullptr && scenario_.dedup == scenario::Deduplication::node &&
      scenario_.expert_parallel > scenario_.cluster->gpus_per_domain) {
    add("tokens forwarded inside a node without delay");
  }
  if (scenario_.dispatcher != nullptr && scenario_.dedup != scenario::Deduplication::none &&
      !scenario_.routing_job().count_copies) {
    add("the experts of a token independent of each other");
  }
  if (*router.kind->assumed != '\0') add(router.kind->assumed);
  return text;
}

std::string StepModel::provenance() const {
  std::string text = prices_.provenance();
  if (const std::string law = durations_.dispatcher_provenance(); !law.empty()) text += "; " + law;
  const std::string assumed = assumptions();
  return assumed.empty() ? text : text + "; assumed: " + assumed;
}

}  // namespace moesim::step
