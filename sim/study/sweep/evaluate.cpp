#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "sim/base/check_range.hpp"
#include "sim/base/statistics.hpp"
#include "sim/cluster/rank_placement.hpp"
#include "sim/engine/critical_path.hpp"
#include "sim/engine/engine.hpp"
#include "sim/network/ports/domain_curves.hpp"
#include "sim/routing/simulation/load_distribution.hpp"
#include "sim/routing/simulation/popular_load.hpp"
#include "sim/routing/simulation/trace_routing.hpp"
#include "sim/step/curve_spread.hpp"
#include "sim/step/exchanges/exchange_traffic.hpp"
#include "sim/step/memory.hpp"
#include "sim/step/step_runner.hpp"
#include "sim/study/sweep/evaluate.hpp"
#include "sim/study/sweep/hidden_exchanges.hpp"
#include "sim/study/sweep/outcome.hpp"
#include "sim/study/sweep/step_band.hpp"
#include "sim/study/sweep/unknown_weights.hpp"

namespace moesim::study {
namespace {

struct Replica {
  Picoseconds step;
  std::array<double, part_count> parts_ms{};
  double exchange_ms = 0;
  double exchange_and_waiting_ms = 0;
  double hidden = 0;  // hidden_gain()
  step::CurveSpread spread;
};

// How long an exchange keeps `rank` busy: from its last member's arrival, before which the rank
// waits, or from its own where it is done earlier.
Picoseconds busy(const engine::Program& program, const engine::Execution& execution, std::size_t op,
                 int rank) {
  const auto index = static_cast<int>(op);
  const engine::Partition& partition =
      program.partitions[static_cast<std::size_t>(program.operations[op].groups)];
  const int group = partition.group_of[static_cast<std::size_t>(rank)];
  const Picoseconds finish = execution.finish[execution.at(index, rank)];
  Picoseconds last;
  for (const int member : partition.groups[static_cast<std::size_t>(group)]) {
    last = std::max(last, execution.start[execution.at(index, member)]);
  }
  return finish - (last <= finish ? last : execution.began[execution.at(index, rank)]);
}

// All exchanges of dispatch and combine of the GPUs that the critical path is on. `exposed`: what
// each operation has on that path. None is shorter than that: one that slows computation down may
// expose more of itself on several GPUs than it takes on one.
Picoseconds exchange_time(const engine::Program& program, const engine::Execution& execution,
                          const std::vector<Picoseconds>& exposed) {
  const std::vector<int> ranks = engine::ranks_of_path(program, execution);
  Picoseconds sum;
  for (std::size_t op = 0; op < program.operations.size(); ++op) {
    if (program.operations[op].category != static_cast<int>(StepPart::exposed_exchange)) continue;
    sum += std::max(exposed[op], busy(program, execution, op, ranks[op]));
  }
  return sum;
}

Replica measure(const engine::Program& program, const engine::Execution& execution) {
  Replica replica;
  const int rank = execution.slowest_rank();
  replica.step = execution.end_of(rank);
  std::array<Picoseconds, part_count> parts{};
  std::vector<Picoseconds> exposed(program.operations.size());
  for (const engine::PathStep& stretch : engine::critical_path(program, execution)) {
    const auto op = static_cast<std::size_t>(stretch.operation);
    parts[static_cast<std::size_t>(program.operations[op].category)] += stretch.duration;
    exposed[op] += stretch.duration;
  }
  for (std::size_t part = 0; part < part_count; ++part) replica.parts_ms[part] = parts[part].ms();
  for (const engine::PathStep& stretch : engine::path_of_rank(program, execution, rank)) {
    const int part = program.operations[static_cast<std::size_t>(stretch.operation)].category;
    if (part == static_cast<int>(StepPart::exposed_exchange)) {
      replica.exchange_and_waiting_ms += stretch.duration.ms();
    }
  }
  replica.exchange_ms = exchange_time(program, execution, exposed).ms();
  return replica;
}

void add(std::optional<double>& sum, const std::optional<double>& value, double weight) {
  if (value) sum = sum.value_or(0) + weight * *value;
}

// Means over replicas of the losses, layer by layer and in all.
class LossMean {
 public:
  LossMean(Outcome& outcome, int replicas) : outcome_(outcome), weight_(1.0 / replicas) {}

  void take(const routing::ReplicaRouting& routing) {
    const routing::TokenLoss& loss = routing.loss;
    routing::TokenLoss& sum = outcome_.loss;
    sum.failed += weight_ * loss.failed;
    sum.partial += weight_ * loss.partial;
    sum.lost_mass += weight_ * loss.lost_mass;
    add(sum.fill_failed, loss.fill_failed, weight_);
    add(sum.failed_attempted, loss.failed_attempted, weight_);
    sum.unrouted += weight_ * loss.unrouted;
    sum.residual_loss += weight_ * loss.residual_loss;
    sum.not_chosen += weight_ * loss.not_chosen;
    residual_.push_back(loss.residual_loss);
    sum.padded += weight_ * loss.padded;
    add(sum.duplicate_ir, loss.duplicate_ir, weight_);
    outcome_.layer_failed.resize(routing.layers.size());
    for (std::size_t layer = 0; layer < routing.layers.size(); ++layer) {
      outcome_.layer_failed[layer] += weight_ * routing.layers[layer].loss.failed;
      take_rows(routing.layers[layer].ir_rows, static_cast<double>(routing.layers.size()));
    }
  }

  // Sets the band of the replicas that were taken.
  void finish(const routing::RoutingJob& job) {
    outcome_.loss_band = band_of_losses(job, residual_);
  }

 private:
  void take_rows(const std::vector<std::int32_t>& rows, double layers) {
    if (rows.empty()) return;
    const double count = static_cast<double>(rows.size());
    double sum = 0;
    double squares = 0;
    for (const double value : rows) {
      sum += value;
      squares += value * value;
    }
    if (sum == 0) return;
    const double average = sum / count;
    const double variance = std::max(0.0, squares / count - average * average);
    outcome_.ir_rows_mean += weight_ * average / layers;
    outcome_.ir_rows_spread += weight_ * std::sqrt(variance) / average / layers;
  }

  Outcome& outcome_;
  double weight_;
  std::vector<double> residual_;
};

uncertainty::AveragedDraws averaged_draws(const scenario::Scenario& scenario,
                                          const std::vector<Replica>& replicas) {
  uncertainty::AveragedDraws averaged;
  for (const Replica& replica : replicas) {
    averaged.mean_ms.push_back(replica.spread.mean_ms);
    averaged.variance.push_back(replica.spread.variance);
  }
  if (!scenario.has_moe()) return averaged;
  const routing::RoutingJob job = scenario.routing_job();
  averaged.loads = routing::popular_loads(job, 0, scenario.replicas);
  averaged.all_loads = routing::load_distribution(job);
  return averaged;
}

// The index of the lower median: a replica that really was, so that its parts sum to its step.
std::size_t median_replica(const std::vector<Replica>& replicas) {
  std::vector<std::size_t> order(replicas.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return replicas[a].step < replicas[b].step;
  });
  return order[(order.size() - 1) / 2];
}

// Which of the cluster's own measurements the exchanges go by, for the provenance: those among the
// first expert group, and among all GPUs.
std::string measured_exchanges(const scenario::Scenario& scenario) {
  using profile::Collective;
  const cluster::Cluster& cluster = *scenario.cluster;
  if (cluster.exchanges.empty()) return "";
  std::string text;
  const auto add = [&](Collective kind, int gpus) {
    if (gpus < 2) return;
    const std::string basis = network::measured_among(*scenario.profile, cluster, kind,
                                                      cluster::contiguous_placement(gpus));
    if (!basis.empty()) text += fmt::format("; {} {}", name_of(kind), basis);
  };
  add(Collective::all_to_all, scenario.expert_parallel);
  if (scenario.mode == scenario::Mode::train) {
    for (const Collective kind :
         {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather}) {
      add(kind, scenario.gpus);
    }
  }
  return text;
}

void fill_memory(const scenario::Scenario& scenario, Outcome& outcome) {
  const model::MemoryFootprint memory =
      step::memory_footprint(scenario, outcome.ir_rows_mean, outcome.rows);
  outcome.memory_gib = memory.total().gib();
  outcome.fits_memory = memory.total() <= scenario.profile->device().hbm_bytes;
  outcome.memory_parts_gib = {{"parameters", memory.parameters.gib()},
                              {"gradients", memory.gradients.gib()},
                              {"optimizer", memory.optimizer.gib()},
                              {"activations", memory.activations.gib()},
                              {"kv_cache", memory.kv_cache.gib()},
                              {"exchange_buffers", memory.exchange_buffers.gib()},
                              {"einsum_masks", memory.einsum_masks.gib()},
                              {"workspace", memory.workspace.gib()}};
}

// What each rank sends in the exchanges of a timeline in the order of engine::timeline().
void add_bytes(const step::StepModel& model, const routing::ReplicaRouting* routing,
               engine::Timeline& timeline) {
  const engine::Program& program = model.program();
  const scenario::Scenario& scenario = model.scenario();
  const std::size_t operations = program.operations.size();
  std::optional<step::PaddedTraffic> equal;
  std::optional<step::UnpaddedTraffic> uneven;
  const engine::Traffic* traffic = nullptr;
  if (routing != nullptr && scenario.router.pads_exchange()) {
    traffic = &equal.emplace(model, *routing);
  } else if (routing != nullptr) {
    traffic = &uneven.emplace(model, *routing);
  }
  for (std::size_t op = 0; op < operations; ++op) {
    const int index = static_cast<int>(op);
    const int groups = program.operations[op].groups;
    if (groups < 0) continue;
    const engine::Partition& partition = program.partitions[static_cast<std::size_t>(groups)];
    const bool of_rows = traffic != nullptr && traffic->is_uneven(index);
    const step::StepModel::Element element = model.element(index);
    for (std::size_t group = 0; group < partition.groups.size(); ++group) {
      const std::vector<int>& members = partition.groups[group];
      ByteMatrix sent(of_rows ? static_cast<int>(members.size()) : 1);
      if (of_rows) traffic->fill(index, static_cast<int>(group), sent);
      for (std::size_t member = 0; member < members.size(); ++member) {
        double bytes = model.collective_bytes(index);
        if (model.gathers(index)) bytes /= static_cast<double>(members.size());
        if (of_rows) {
          const auto* const row = sent.row(static_cast<int>(member));
          bytes = 0;
          for (int target = 0; target < sent.ranks(); ++target) {
            bytes += static_cast<double>(row[target]);
          }
        }
        engine::TimelineEvent& event =
            timeline[static_cast<std::size_t>(members[member]) * operations + op];
        event.bytes = bytes;
        event.element = element.name;
        event.element_bytes = element.bytes;
      }
    }
  }
}

// What a step's time is based on: its curves, the exchanges that the cluster has measured, what its
// token loss is drawn from, and the network where its answer is no plain curve.
std::string provenance_of(const scenario::Scenario& scenario, const step::StepModel& model,
                          const step::NetworkChoice& network) {
  std::string text = model.provenance() + measured_exchanges(scenario);
  const std::string basis =
      scenario.has_moe() ? routing::loss_basis(scenario.scores, scenario.router) : "";
  if (!basis.empty()) text += "; token loss from " + basis;
  if (network.used == scenario::Network::flows || !network.certified) {
    text += fmt::format("; network {}: {}", name_in(scenario::network_names, network.used),
                        network.reason);
  }
  return text;
}

// Simulates the replicas of a scenario.
class ReplicaRunner {
 public:
  ReplicaRunner(step::StepModel& model, const EvaluateSettings& settings,
                routing::RoutingCache& cache)
      : model_(model), settings_(settings), cache_(cache), runner_(model) {}

  struct Run {
    std::shared_ptr<const routing::ReplicaRouting> routing;  // null: without MoE layers
    engine::Execution execution;
  };
  Run run(int index) {
    const scenario::Scenario& scenario = model_.scenario();
    std::shared_ptr<const routing::ReplicaRouting> routing;
    if (scenario.has_moe()) routing = cache_.get(scenario.routing_job(), index);
    const int errors = settings_.curve_errors ? index : step::StepModel::no_errors;
    engine::Execution execution = runner_.run(routing.get(), index, errors);
    return {std::move(routing), std::move(execution)};
  }

  // All of them, measured; the figures of their routing and their times go to `outcome`.
  std::vector<Replica> measure_all(Outcome& outcome) {
    const scenario::Scenario& scenario = model_.scenario();
    LossMean losses(outcome, scenario.replicas);
    step::RowPeak rows(scenario);
    std::vector<Replica> replicas;
    for (int index = 0; index < scenario.replicas; ++index) {
      const auto [routing, execution] = run(index);
      if (routing) {
        losses.take(*routing);
        outcome.capacity =
            std::max(outcome.capacity, routing::slots_per_expert(scenario.routing_job(), *routing));
        rows.take(*routing);
      }
      replicas.push_back(measure(model_.program(), execution));
      replicas.back().hidden = hidden_gain(scenario, model_.program(), execution);
      if (settings_.curve_errors) {
        replicas.back().spread = step::curve_spread(model_, execution, routing.get(), index);
      }
      outcome.replica_step_ms.push_back(replicas.back().step.ms());
    }
    if (scenario.has_moe()) losses.finish(scenario.routing_job());
    outcome.rows = rows.rows();
    outcome.busiest_rows = rows.busiest_of_layer();
    outcome.empty_rows_sent = rows.empty_share();
    return replicas;
  }

  const step::NetworkChoice& choice() const { return runner_.choice(); }

 private:
  step::StepModel& model_;
  const EvaluateSettings& settings_;
  routing::RoutingCache& cache_;
  step::StepRunner runner_;
};

// The step of `shown`, its parts and speed, and the band that all replicas make.
void fill_step(const scenario::Scenario& scenario, const std::vector<Replica>& replicas,
               const Replica& shown, Outcome& outcome) {
  outcome.step_ms = shown.step.ms();
  outcome.parts_ms = shown.parts_ms;
  outcome.exchange_ms = shown.exchange_ms;
  outcome.exchange_and_waiting_ms = shown.exchange_and_waiting_ms;
  for (const Replica& replica : replicas) {
    outcome.draws.push_back({replica.step.ms(), work_shares(scenario, replica.parts_ms)});
  }
  outcome.band = uncertainty::simulated_band(
      outcome.draws, software_error(scenario, work_shares(scenario, outcome.parts_ms)),
      outcome.averaged);
  outcome.hidden = shown.hidden;
  uncertainty::widen_by_hidden(outcome.hidden, scenario.zero, outcome.band);
  const std::int64_t micro_steps =
      scenario.mode == scenario::Mode::train ? scenario.micro_steps : 1;
  outcome.tokens_per_gpu_mean = scenario.mean_tokens();
  outcome.tokens_per_s_per_gpu =
      outcome.tokens_per_gpu_mean * static_cast<double>(micro_steps) / (outcome.step_ms * 1e-3);
}

}  // namespace

namespace {

void check_calibration(const step::Calibration& calibration) {
  const std::size_t classes = calibration.multiplier.size();
  check_range("Calibration::multiplier, classes of kernels,", classes, step::kernel_class_count,
              step::kernel_class_count);
  for (const double multiplier : calibration.multiplier) {
    check_range("Calibration::multiplier", multiplier, 0, 1e6);
  }
}

}  // namespace

std::optional<uncertainty::LossBand> band_of_losses(const routing::RoutingJob& job,
                                                    const std::vector<double>& losses) {
  const int distinct = job.scores.distinct_replicas(static_cast<int>(losses.size()));
  const std::vector<double> steps(losses.begin(), losses.begin() + distinct);
  if (steps.empty()) return std::nullopt;
  return with_unknown_weights(uncertainty::loss_band(steps), job, 0, mean(steps));
}

Outcome evaluate(const scenario::Scenario& scenario, routing::RoutingCache& cache,
                 engine::Timeline* timeline) {
  return evaluate(scenario, EvaluateSettings{{}, true, timeline}, cache);
}

Outcome evaluate(const scenario::Scenario& scenario, const EvaluateSettings& settings,
                 routing::RoutingCache& cache) {
  scenario::check(scenario);
  check_calibration(settings.calibration);
  Outcome outcome;
  step::StepModel model(scenario, settings.calibration);
  ReplicaRunner runner(model, settings, cache);
  const std::vector<Replica> replicas = runner.measure_all(outcome);
  const std::size_t middle = median_replica(replicas);
  if (settings.curve_errors) outcome.averaged = averaged_draws(scenario, replicas);
  fill_step(scenario, replicas, replicas[middle], outcome);
  fill_memory(scenario, outcome);
  const step::NetworkChoice& network = runner.choice();
  outcome.provenance = provenance_of(scenario, model, network);
  outcome.network_used = name_in(scenario::network_names, network.used);
  outcome.network_why = network.reason;
  if (settings.timeline != nullptr) {
    const auto [routing, execution] = runner.run(static_cast<int>(middle));
    *settings.timeline = engine::timeline(model.program(), execution, step::part_names());
    add_bytes(model, routing.get(), *settings.timeline);
  }
  return outcome;
}

}  // namespace moesim::study
