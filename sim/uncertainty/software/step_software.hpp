#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/training/step/training_step.hpp"
#include "sim/uncertainty/published/step_errors.hpp"
#include "sim/uncertainty/software/unknowns.hpp"
#include "sim/uncertainty/steps/step_classes.hpp"

namespace moesim::uncertainty {

// How rows of a kind scatter around the fit.
struct Scatter {
  double deviation = 0;  // standard deviation of the log of one configuration
  double degrees = 1;    // of freedom
  int rows = 0;          // configurations that were measured
};

// What an exchange moves: bytes of each GPU, among how many. 0: not known.
struct ExchangeSize {
  double bytes = 0;
  double gpus = 0;
};

// Exchanges that were measured alone: how many configurations, from the least to the most of each.
struct MeasuredExchanges {
  int rows = 0;
  ExchangeSize least;
  ExchangeSize most;

  void add(const ExchangeSize& size);
  // How many times beyond these sizes one is, in bytes or GPUs, whichever is farther; 1 inside.
  double times_beyond(const ExchangeSize& size) const;
};

// How much longer steps of one's own software on one's own machine take than predicted: fitted by
// `moesim calibrate`.
struct StepSoftware {
  std::string name;
  std::string source;
  std::string machine;              // of the profile's device
  std::string profile;              // that predicted the rows, of hardware; "": not said
  std::string software;             // whose published steps were the prior; "": all
  std::vector<std::string> models;  // that were measured
  std::vector<std::string> precisions;
  std::vector<std::string> clusters;  // on which; empty: not said
  MeasuredTraits measured;            // what its rows have; empty: not said
  Unknowns unknowns{};
  Covariance covariance{};
  // Whether the unknown host is a factor on the host's times, with which a step is priced; of older
  // documents it is one on the wait for the host that was predicted.
  bool prices_host = false;
  std::array<Scatter, row_kind_count> scatters{};
  // The exchanges measured inside domains, and across. No rows in either: none was measured, or the
  // document is older.
  std::array<MeasuredExchanges, 2> exchanges{};
  // |predicted / measured - 1|, each row left out; none of one row.
  std::optional<double> median_error;
  std::optional<double> worst_error;

  // Reads and writes the document, JSON. load() throws UsageError naming file and key.
  static StepSoftware load(const std::string& path);
  std::string text() const;

  // The traits of a step that none of its rows has; none where it does not say what they have.
  std::vector<UnmeasuredTrait> unmeasured(const std::vector<StepTrait>& traits) const;
  const Scatter& scatter(RowKind kind) const { return scatters[static_cast<std::size_t>(kind)]; }
  int rows() const;  // of all kinds
  // The same software on a cluster. Where none of the rows was measured on it, exchanges are less
  // certain: to 25 %, between domains to 20 % more, as before any row.
  StepSoftware on(const std::string& cluster) const;

  // What the host's times are multiplied by before a step is priced: HostCosts::factor.
  double host_factor() const;
  // How far in its log, either way, a step's host_gain_us() is to look: a standard deviation.
  double host_reach() const;
  // The predicted step, priced with host_factor(), as this software runs it: step time, parts,
  // speeds.
  training::TrainingStep applied(const training::TrainingStep& step,
                                 const CrossingParts& crossing = {}) const;
  // What applied() makes of a step that takes at least `step_us`, at least: all of it in the parts
  // whose factor is smallest.
  double least_us(double step_us, const CrossingParts& crossing = {}) const;
  // Whether exchanges inside a domain, or across, were measured alone. Older documents do not say;
  // there NICs were in question only where an exchange crossed, and all may have been inside.
  bool has_exchanges(bool crosses) const;
  // An exchange by itself: the factor on its predicted time, and the half width of the logs of a
  // measured one around that at `level`. For software of which exchanges were measured.
  struct AloneFactor {
    double factor = 1;
    double half_width = 0;
  };
  AloneFactor exchange_factor(bool crosses, double level) const;
  // How much of that factor an exchange of this size takes: all of it up to 4 times beyond the
  // measured sizes, none from 16 times on, between them by the log. One factor knows neither starts
  // nor rates: which of them is off, other sizes would tell.
  double exchange_weight(bool crosses, const ExchangeSize& size) const;
  // The band of measured steps over applied(); `new_model` and `new_precision` are deviations that
  // count where the subject's model or precision was not measured. Student's t with the degrees of
  // the scatter.
  Band band(const StepClasses& classes, const Subject& subject, const std::string& precision,
            double new_model, double new_precision) const;
};

// Sets the host_gain_us of a step that is priced with the host_factor() of this software, where it
// prices the host and the step has none yet. `loads` as in training::training_step().
void add_host_gain(const StepSoftware& software, const training::TrainingJob& job,
                   training::TrainingStep& step,
                   std::shared_ptr<const training::DrawnLoads> loads = nullptr);

}  // namespace moesim::uncertainty
