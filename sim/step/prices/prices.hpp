#pragma once

#include <array>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "sim/step/kernels/kernels.hpp"
#include "sim/step/kernels/operation_kernels.hpp"
#include "sim/step/prices/curve_errors.hpp"
#include "sim/step/prices/token_classes.hpp"
#include "sim/step/program/step_program.hpp"

namespace moesim::step {

// Groups of one partition may be placed differently on the nodes (expert groups of 6 on nodes of
// 8). All are assumed to take as long as the slowest group: the one on the most nodes, with the
// fewest members per node.
std::vector<int> farthest_group(const std::vector<std::vector<int>>& groups,
                                const cluster::Cluster& cluster);

// A kernel with the number of its curve error in place of the label.
struct PricedKernel {
  int error = 0;
  KernelClass kernel_class = KernelClass::memory;
  profile::Estimate estimate;
  double count = 1;
  double latency_us = 0;  // as in Kernel
};

// The part of a time that one curve prices, on the median of it, and by how much that times the
// logarithm of the factor changes with an error of one standard deviation: below and above 0.
struct CurvePart {
  int error = 0;  // as in PricedKernel
  double median_us = 0;
  double below_us = 0;  // a faster curve's, <= 0 where it counts as faster
  double above_us = 0;
};

// The kernels of one kind of operation, and their time in the replica that was requested last.
struct PricedWork {
  std::vector<PricedKernel> kernels;
  std::vector<CurvePart> parts;         // of Prices::parts(); empty until requested
  int replica = CurveErrors::none - 1;  // of the time
  Picoseconds time;
  double latency_share() const;  // of the time of an exchange on the median curve
};

class Prices;

// The times of one phase of an MoE layer as a function of its rows, without padding, in one
// replica.
class RowPrices {
 public:
  RowPrices(Prices& prices, const StepOperation& operation, TokenClass tokens, int replica)
      : prices_(prices), operation_(operation), tokens_(tokens), replica_(replica) {}

  Picoseconds of(std::int64_t rows) {
    const auto at = static_cast<std::size_t>(rows);
    return at < times_.size() && times_[at] >= Picoseconds(0) ? times_[at] : look_up(rows);
  }

 private:
  Picoseconds look_up(std::int64_t rows);

  Prices& prices_;
  StepOperation operation_;
  TokenClass tokens_;
  int replica_;
  std::vector<Picoseconds> times_;  // [rows], -1 where not computed yet
};

// The costs of the operations of a step: their kernels, the profile's estimates for these, and the
// total time with the curve errors of a replica. Each kernel is looked up in the profile once.
class Prices {
 public:
  // Keeps references to scenario and program.
  Prices(const scenario::Scenario& scenario, const StepProgram& program,
         const Calibration& calibration);
  Prices(const Prices&) = delete;  // the pricers refer to the scenario
  Prices& operator=(const Prices&) = delete;

  const TokenClasses& token_classes() const { return classes_; }

  // For an operation that depends on the scenario alone.
  PricedWork& fixed(int operation, TokenClass tokens);
  // For an operation whose amount of work depends on routing; exchanges of equal blocks.
  PricedWork& sized(const StepOperation& operation, const Amount& amount, TokenClass tokens);
  // The errors of the curves are those of `replica`, or CurveErrors::none.
  Picoseconds time(PricedWork& work, int replica) const;

  // The same time on median curves, taken apart.
  const std::vector<CurvePart>& parts(PricedWork& work) const;

  // The time of an exchange that no curve prices; `label` is that of its error.
  Picoseconds exchange_time(const profile::Estimate& estimate, const std::string& label,
                            int replica);

  PricedWork exchange_work(const profile::Estimate& estimate, const std::string& label);

  // Valid until another replica is requested.
  RowPrices& by_rows(const StepOperation& operation, TokenClass tokens, int replica);

  double multiplier(KernelClass kernel) const { return calibration_.of(kernel); }
  // The weakest origin and support per class of kernel, over all kernels requested so far.
  std::string provenance() const;

 private:
  using SizedKey = std::tuple<Work, Pass, MoePhase, Amount, TokenClass>;

  PricedWork price(const StepOperation& operation, const Amount& amount, TokenClass tokens);
  void price_fixed(const StepProgram& program);

  Calibration calibration_;
  TokenClasses classes_;
  std::vector<KernelPricer> pricers_;  // [token class]
  CurveErrors errors_;
  std::vector<std::vector<int>> members_;  // [Groups]: the members that exchanges are priced for
  std::vector<int> fixed_of_;  // [operation]: its index in fixed_, -1: depends on routing
  std::vector<std::vector<PricedWork>> fixed_;  // [index][token class], one class where all agree
  std::map<SizedKey, PricedWork> sized_;
  std::map<std::tuple<MoePhase, Pass, TokenClass>, RowPrices> by_rows_;
  int by_rows_replica_ = CurveErrors::none;
};

// Rows whose price RowPrices looks up for that of `rows`: themselves, or the next lower ones
// between which it interpolates.
std::int64_t priced_rows(const StepOperation& operation, std::int64_t rows);

// Whether the cost of an operation depends on the scenario alone, and whether it depends on the
// GPU's tokens.
bool is_fixed(const StepOperation& operation);
bool goes_by_tokens(const StepOperation& operation);

}  // namespace moesim::step
