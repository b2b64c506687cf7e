#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/engine/timeline.hpp"
#include "sim/model/memory/memory.hpp"
#include "sim/routing/simulation/routing_cache.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "sim/scenario/scenario.hpp"
#include "sim/step/program/part.hpp"
#include "sim/uncertainty/bands/loss_band.hpp"
#include "sim/uncertainty/bands/simulated_band.hpp"

namespace moesim::study {

// The ten parts of a step sum to it: the critical path of the median replica on its slowest rank.
using step::part_count;
using step::StepPart;

// How many times as fast as a baseline, with the quantiles of that. p05 <= value <= p95.
struct SpeedRatio {
  double value = 1;
  double p05 = 1;
  double p95 = 1;
  bool within_noise() const { return p05 <= 1 && 1 <= p95; }
};

// The result of one scenario. Times in milliseconds.
struct Outcome {
  // The step of the median replica: with an even number of them the lower of the two in the middle,
  // so that it is one that was simulated and its parts sum to it.
  double step_ms = 0;
  // Where the measured step lies, and what makes that uncertain; with any number of replicas.
  uncertainty::SimulatedBand band;
  double hidden = 0;                        // hidden_gain(), on which the band's lower ends depend
  std::optional<SpeedRatio> over_baseline;  // of a sweep with one
  double tokens_per_gpu_mean = 0;           // of a micro-step, over GPUs
  double tokens_per_s_per_gpu = 0;          // mean over GPUs
  std::int64_t capacity = 0;                // the most slots_per_expert(), 0 for a dense router
  routing::TokenLoss loss;                  // mean over replicas
  // How sure its residual_loss is: none where fewer than two replicas are different steps.
  std::optional<uncertainty::LossBand> loss_band;
  std::array<double, part_count> parts_ms{};
  // Exchanges of dispatch and combine of the ranks that the critical path is on, hidden or not,
  // without waits: parts_ms has of them what nothing hides.
  double exchange_ms = 0;
  // Of the rank that ends last: its exchanges that nothing hides, waits for others included.
  double exchange_and_waiting_ms = 0;
  double memory_gib = 0;  // per GPU
  bool fits_memory = true;
  model::ExchangeRows rows;  // of RowPeak: of the busiest GPU, where the exchange is not padded
  double busiest_rows = 0;   // of the busiest GPU of each layer, mean over layers; likewise
  std::string provenance;    // what the prediction is based on, and its weakest parts
  // RowPeak::empty_share(): of blocks padded to the largest, where these are not C alone.
  double empty_rows_sent = 0;
  // Detail for JSON.
  std::string network_used;  // fast or flows
  std::string network_why;   // why, and how sure that is; empty without all-to-alls
  std::vector<double> replica_step_ms;
  std::vector<uncertainty::StepDraw> draws;  // of the replicas
  uncertainty::AveragedDraws averaged;
  std::vector<double> layer_failed;  // mean over replicas, per MoE layer
  double ir_rows_mean = 0;           // per GPU and layer
  double ir_rows_spread = 0;         // standard deviation over GPUs / mean, mean over layers
  std::vector<std::pair<std::string, double>> memory_parts_gib;
};

// The band of a mean over replicas, from the residual_loss of each; where weights are drawn for
// counts, with_unknown_weights().
std::optional<uncertainty::LossBand> band_of_losses(const routing::RoutingJob& job,
                                                    const std::vector<double>& losses);

// Simulates the scenario, which throws UsageError as scenario::check() where it cannot be. The same
// scenario gives the same bits, whatever is in the cache. If `timeline` is given, it receives the
// bars of the median replica, all ranks.
Outcome evaluate(const scenario::Scenario& scenario, routing::RoutingCache& cache,
                 engine::Timeline* timeline = nullptr);

}  // namespace moesim::study
