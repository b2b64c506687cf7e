#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/formats/document.hpp"
#include "sim/profile/collective.hpp"
#include "sim/profile/estimate.hpp"
#include "sim/profile/gpu_count_law.hpp"
#include "sim/profile/node_links.hpp"
#include "sim/profile/residual.hpp"
#include "sim/profile/size_curve.hpp"

namespace moesim::profile {

// What runs of one setting on one machine differ by on other days, to either side: public repeats
// and siblings differ by 2 to 8 %.
inline constexpr double another_day = 0.06;

// The difference from which on a measured size at which the curve says another time is no measured
// point of it: the least of the above.
inline constexpr double apart_from_curve = 0.02;

// The time of one kind of exchange inside a node, under one NCCL version, by GPU count and size.
class CollectiveCurve {
 public:
  // Reads a curve of model "piecewise-alpha-beta"; errors name file and key. A branch whose
  // "from_curve" says so was kept from another curve and has the NCCL version and the errors of
  // that one; "measured_bytes" of a branch are its own sizes, in the place of the curve's, and
  // "measured_time_us" the times there, where the curve, which does not fall, is another. For more
  // GPUs than it has branches for the law of sim/profile/gpu_count_law.hpp answers: as many as the
  // curve's "law" says, with its error bar, or without one those that `links` join, with the bar of
  // the law's checks on other machines.
  explicit CollectiveCurve(const Node& node, const NodeLinks& links = {});

  Collective kind() const { return kind_; }
  const std::string& nccl() const { return nccl_; }
  bool is_default() const { return is_default_; }
  const Residual& residual() const { return errors_->residual; }
  std::vector<int> gpu_counts() const;

  // `bytes` > 0 is nccl-tests' size column. `same_version`: who asks runs the curve's own NCCL
  // version, so that the bar leaves out what lies between versions. A GPU count between those of
  // the curve is marked derived and interpolated at equal bytes sent: latencies by the count, what
  // bytes take by the share (n - 1) / n that leaves a GPU. So is its band below a count that was
  // not measured; between two measured ones it is the hull of both. A count that the law answers
  // for is derived too, beyond twice the largest measured one extrapolated, with a wider bar. Times
  // and both ends of every band rise with size. Throws NoAnswer for fewer than 2 GPUs (a device
  // copy, not communication), NotMeasured for more than the curve knows.
  Estimate estimate(int gpus, double bytes, bool same_version = false) const;

 private:
  // The errors of a GPU count that was not measured on this machine.
  struct OwnResidual {
    Residual any_version;
    Residual same_version;
    bool has_scatter;  // between runs: it is not to be added
  };
  // How far other runs lie from such a curve.
  struct Scatter {
    Residual any_version;
    Residual same_version;
  };
  // The errors of what was measured together, and where that was.
  struct Errors {
    std::string nccl;
    Residual residual;                    // of sizes one octave from any measured one
    std::optional<Residual> at_measured;  // of the measured sizes themselves
    std::optional<Residual> tail;         // of knots beyond them; none: the last piece goes on
    std::optional<Scatter> scatter;
    std::vector<double> measured_bytes;  // ascending

    double octaves_to_measured(double bytes) const;
    bool beyond_measured(double bytes) const { return bytes > measured_bytes.back(); }
    bool is_outside(double bytes) const;
  };
  // How far the readings of a ratio that was carried over lie from the curve, in logs.
  struct Readings {
    double below = 0;
    double above = 0;
  };
  // The ends of a band at one size: by whether the curve's own version was asked for.
  struct Ends {
    double bytes = 0;
    std::array<double, 2> low_us{};
    std::array<double, 2> high_us{};
  };
  struct Branch {
    int gpus;
    Origin origin;
    SizeCurve curve;
    std::shared_ptr<const Errors> errors;  // the curve's, or those of the curve it was kept from
    std::optional<OwnResidual> own;        // none: the residual of `errors` holds
    double doublings = 0;                  // of the GPU count beyond the law's checks
    std::map<double, double> measured_us;  // by size; empty: as the curve has them
    std::map<double, Readings> beyond;     // by size, outside the measured ones
    std::vector<Ends> ends;                // of a measured count, from its smallest to largest size
  };
  static Errors read_errors(const Node& node, const std::string& nccl,
                            std::vector<double> measured_bytes);
  Branch read_branch(const Node& node) const;
  static void read_beyond(const Node& node, Branch& branch);
  std::shared_ptr<const Errors> errors_of_branch(const Node& node) const;
  [[noreturn]] void refuse(int gpus) const;
  void add_law(const NodeLinks& links, int up_to, const Residual& residual);
  void raise_low_end(const Branch& branch, double bytes, bool same_version,
                     Estimate& estimate) const;
  Estimate at_branch(const Branch& branch, double bytes, bool asked_version) const;
  // With the errors of that size alone, which may fall from one region of sizes to the next.
  Estimate at_size(const Branch& branch, double bytes, bool asked_version) const;
  void rise_with_size(const Branch& branch, double bytes, bool asked_version,
                      Estimate& estimate) const;
  static void keep_between(const Ends& below, const Ends& above, bool asked_version,
                           Estimate& estimate);
  void rise_beyond_measured(const Branch& branch, double bytes, bool asked_version,
                            Estimate& estimate) const;
  std::vector<Ends> rising_ends(const Branch& branch) const;
  std::vector<double> borders_of_errors() const;
  void near_measured(const Branch& branch, double bytes, Estimate& estimate) const;
  void spread(const Branch& branch, double bytes, bool same_version, Estimate& estimate) const;
  void hold_measured(const Branch& branch, double bytes, Estimate& estimate) const;
  void reach_readings(const Branch& branch, double bytes, Estimate& estimate) const;
  bool is_far(const Branch& branch) const;  // more than one doubling from what was measured
  const Residual& residual_of(const Branch& branch, double bytes, bool same_version) const;

  Collective kind_;
  NodeLinks links_;
  std::string nccl_;
  bool is_default_;
  std::shared_ptr<const Errors> errors_;
  std::vector<Branch> branches_;  // ascending GPU counts
  std::vector<double> borders_;   // sizes at which errors begin that differ from those below
};

Collective read_collective(const Node& node, const std::string& key);

}  // namespace moesim::profile
