#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sim/routing/simulation/routing_cache.hpp"
#include "sim/scenario/document_cache.hpp"
#include "sim/scenario/scenario.hpp"
#include "sim/training/job/training_job.hpp"
#include "sim/training/step/training_step.hpp"
#include "sim/uncertainty/software/step_fit.hpp"
#include "tools/moesim/base/command.hpp"
#include "tools/moesim/predict/predict_source.hpp"

namespace moesim::tool {

// What a row of measured times is of where its column op does not say.
inline constexpr const char* step_op = "step";

// What is predicted of a row.
struct RowPrediction {
  uncertainty::StepClasses classes;
  // The same with the host's times multiplied; empty: it does not hang on the host, or has no
  // factor of it. May be called by several threads.
  std::function<uncertainty::StepClasses(double host_factor)> with_host;
  std::string machine;                       // of the profile's device
  std::string profile;                       // as it was asked for
  std::optional<training::TrainingJob> job;  // of steps and layers of train
  std::optional<training::TrainingStep> step;
  std::optional<scenario::Scenario> scenario;  // of simulate
  uncertainty::ExchangeSize size;              // of exchanges
  // The MFU of the predicted time. 0: it is no step, or one whose model FLOPs, which count routes
  // that are dropped, are more than it computes.
  double mfu = 0;
  double memory_gib = 0;  // of a step, on the fullest GPU
  double room_gib = 0;    // of its GPU
};

// What rows of measured times may be, and their predictions, one after another.
class RowPredictor {
 public:
  RowPredictor() = default;
  RowPredictor(const RowPredictor&) = delete;
  RowPredictor& operator=(const RowPredictor&) = delete;
  virtual ~RowPredictor() = default;

  // The commands whose options are columns, for error messages.
  virtual std::string commands() const = 0;
  // What to do about a column that only rows of the other command have; "": it has none either.
  virtual std::string elsewhere(const std::string& column) const = 0;
  // The operations that the column op may name.
  virtual std::vector<std::string> operations() const = 0;
  // The columns that rows of an operation take, beside those of every row. Throws UsageError for
  // one that is none of operations().
  virtual std::set<std::string> columns_of(const std::string& op) const = 0;
  // Whether a column software says whose published steps are known before, as --software does.
  virtual bool takes_software() const = 0;
  // Takes all rows of a file, before predict() is asked for each: what they share is computed once.
  // Rows that are refused are left for predict() to say so.
  virtual void prepare(const std::vector<CommandLine>&) {}
  // `asked`: the options of the row, by flag. Throws UsageError and Error as the commands do.
  virtual RowPrediction predict(const std::string& op, const CommandLine& asked) = 0;
  // The columns that the command adds to its own CSV; nothing where this row does not tell.
  virtual std::vector<std::string> result_columns(const RowPrediction& row) const = 0;
};

// Rows of `train`: "step", "moe-layer" and "layer" with a pass, and the exchanges of `predict`.
class TrainRows : public RowPredictor {
 public:
  std::string commands() const override { return "train or the exchanges of predict"; }
  std::string elsewhere(const std::string& column) const override;
  std::vector<std::string> operations() const override;
  std::set<std::string> columns_of(const std::string& op) const override;
  bool takes_software() const override { return true; }
  RowPrediction predict(const std::string& op, const CommandLine& asked) override;
  std::vector<std::string> result_columns(const RowPrediction& row) const override;

 private:
  RowPrediction exchange(const std::string& op, const CommandLine& asked);
  const std::string& machine_of(const std::string& profile);

  std::map<std::string, QuerySource> sources_;  // by profile
  std::map<std::string, std::string> machines_;
  scenario::DocumentCache documents_;
};

// Rows of `simulate`: steps and forward passes, its scenario options as columns.
class SimulateRows : public RowPredictor {
 public:
  explicit SimulateRows(routing::RoutingCache& cache) : cache_(cache) {}
  std::string commands() const override { return "simulate"; }
  std::string elsewhere(const std::string& column) const override;
  std::vector<std::string> operations() const override { return {step_op}; }
  std::set<std::string> columns_of(const std::string& op) const override;
  bool takes_software() const override { return false; }
  // Logits are drawn once for all routers and capacity factors.
  void prepare(const std::vector<CommandLine>& rows) override;
  RowPrediction predict(const std::string& op, const CommandLine& asked) override;
  std::vector<std::string> result_columns(const RowPrediction& row) const override;

 private:
  scenario::DocumentCache documents_;
  std::set<std::string> hardware_;  // profiles that are no software
  routing::RoutingCache& cache_;
};

}  // namespace moesim::tool
