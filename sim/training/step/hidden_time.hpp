#pragma once

#include <vector>

#include "sim/training/step/pipelines.hpp"

namespace moesim::training {

// How much of the exchanges of gradients and weights at the two ends of a step the passes of a
// pipeline rank hide, chunk by chunk. An exchange goes on at its own pace while the rank waits, and
// at TrainingJob::hidden_share of it while the rank computes.
class HiddenTime {
 public:
  // Refers to all but the last. `cross`: whether the exchanges use NICs,
  // ExchangePrices::hiding_us().
  HiddenTime(const Pipelines& pipelines, const PipelineRun& run, int rank, bool cross);

  // `chunks_us`: what the exchanges of each chunk take alone, in microseconds, in the order of
  // ScheduleShape::stages_of(). Both give what is left of them.
  // What is left of the exchange of gradients behind the rank's last pass. That of a chunk begins
  // with the last pass that has weight gradients of it. `taken`: the share of the rank's time that
  // other exchanges on the same links have hidden.
  double left_of_gradients_us(const std::vector<double>& chunks_us, double taken = 0) const;
  // What the rank's passes have to wait for weights: all are gathered from the beginning of the
  // step, those of a chunk until the end of its first forward pass.
  double left_of_weights_us(const std::vector<double>& chunks_us) const;

 private:
  std::size_t place_of(int stage) const;
  // How much of its own time an exchange gets done beside an operation, and in the wait before it.
  double beside_us(std::size_t operation, double taken) const;
  double before_us(std::size_t operation) const;

  const Pipelines& pipelines_;
  const PipelineRun& run_;
  const std::vector<parallel::PipelineOperation>& operations_;
  const std::vector<parallel::OperationSpan>& spans_;
  std::vector<int> stages_;
  bool cross_;
};

}  // namespace moesim::training
