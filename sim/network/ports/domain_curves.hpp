#pragma once

#include <optional>
#include <span>
#include <string>

#include "sim/cluster/cluster.hpp"
#include "sim/network/ports/cluster_measurements.hpp"
#include "sim/profile/carried_ratio.hpp"
#include "sim/profile/profile.hpp"

namespace moesim::network {

// The profile's curves of exchanges inside a domain, on the links of a cluster. Where the document
// says another line rate than the profile's GPU has (NVLink at 225 GB/s for an H100's 450), a size
// takes what the curve says of as many bytes as its links carry in that time (here twice the size):
// latency stays, what is bound by bandwidth scales. Other ways to count the same links make rates
// differ by up to 7 %, which count as none; from 25 % on a difference counts in full, in between
// its log by the share of the way there, so that no step comes in between. Between the public
// machines of 8 GPUs with line rates of 300, 450 and 900 GB/s that is off by 6 to 36 % from 16 MiB
// on and by up to 77 % below (the curves as they are: 38 to 233 %), and the band
// holds links that count as slower^(1 - 0.585) to slower^(1 + 0.585) times as slow: where bytes
// take the time, a factor of 1.5 to either side for each factor of two, and nothing where it is
// start alone. So both ends come later with slower links.
//
// Where the cluster has a curve of its own among as many GPUs of one domain, that answers, and
// beyond its sizes the profile's curve by the ratio at the edge (estimate_of()). Among
// other numbers its ratio to the profile's curve at as many bytes sent carries over, since all
// share links, switches and software: as far as all measured sizes from a quarter to four times of
// that have it, as a change of protocol comes at one size alone; between two numbers in proportion
// to their logs. Between public runs of one kind of GPU (all pairs of
// tests/data/nccl_intranode.csv.gz, 4 GPUs from 8 and back, 2 from 4) that is off by 1.8 % for
// all-to-all and 1.4 % for rings from 1 MiB on in the median, by 2.5 and 2.4 % below (without
// it 2.7, 2.5, 2.6 and 3.3 %; the whole ratio of each size 2.1, 1.2, 4.1 and 2.6 %, with twice the
// error of all-to-alls where the ratio is large). None of them is slow at all sizes. The band is
// half of the profile's, since machine, links and NCCL are the same, and up to the whole of it as
// those sizes differ (by 15 %); half of the ratio is added in squares, in logs. `moesim validate
// exchanges` judges it.
//
// Beyond the measured sizes, which may end where latency decides, a ratio says little of the other
// end: it carries over as profile::carry_beyond() has it. The answer is extrapolated, and its band
// reaches to either reading alone and is wider by the octaves.
class DomainCurves {
 public:
  DomainCurves(const profile::Profile& profile, const cluster::Cluster& cluster);

  // As Profile::collective.
  profile::Estimate collective(profile::Collective kind, int gpus, double bytes) const;
  // The time of a curve of the cluster that lies inside one domain, at any size: beyond its sizes
  // the profile's curve among as many GPUs times the ratio at the edge; where the profile has no
  // such curve, the curve alone.
  profile::Estimate of_curve(const cluster::MeasuredExchange& curve, profile::Collective kind,
                             double bytes) const;
  // What that time goes by: the curve's origin, and outside its sizes "...; outside its sizes the
  // profile's curve, scaled".
  std::string basis_of(const cluster::MeasuredExchange& curve, profile::Collective kind,
                       double bytes) const;
  // The cluster's own curve among as many GPUs of one domain; nullptr: it has none.
  const cluster::MeasuredExchange* own(profile::Collective kind, int gpus) const;
  // What of the cluster's curves that time goes by (without `bytes`, that of any measured size):
  // the origin of its own curve, "scaled as measured among 4, 8 GPUs of cluster NAME", or "" where
  // it is the profile's.
  std::string measured(profile::Collective kind, int gpus, std::optional<double> bytes) const;
  // "NVLink at 225 GB/s, measured at 450: its time for 2 times the bytes"; of a difference that
  // counts in part "NVLink at 400 GB/s, measured at 450, counted as 419: ...", as none "NVLink at
  // 430 GB/s counted as the profile's 450"; "" where they agree.
  std::string basis() const;

 private:
  profile::Estimate of_profile(profile::Collective kind, int gpus, double bytes) const;
  // Logs of measured over predicted time at sizes around one: what all share, and how far apart
  // they are.
  struct SizeRatios {
    double shared = 0;
    double spread = 0;
  };
  struct Carried {
    profile::CarriedRatio ratio;
    double spread = 0;
  };
  // Nothing where the profile does not know as many GPUs as a curve has.
  std::optional<SizeRatios> ratios(profile::Collective kind, const cluster::MeasuredExchange& curve,
                                   double buffer) const;
  std::optional<Carried> carried_from(const cluster::MeasuredExchange& curve,
                                      profile::Collective kind, int gpus, double bytes) const;
  std::optional<Carried> carried(profile::Collective kind, int gpus, double bytes,
                                 const InsideCurves& curves) const;
  static void carry_over(const Carried& found, profile::Estimate& estimate);

  const profile::Profile& profile_;
  const cluster::Cluster& cluster_;
  // Line rate of the profile's GPU, NVLink or PCIe, over what the cluster's counts as.
  double slower_ = 1;
};

// What of the cluster's curves the times of `kind` among `members` go by, inside a domain or
// between domains, for provenances: as measured_basis and DomainCurves::measured; "": none.
std::string measured_among(const profile::Profile& profile, const cluster::Cluster& cluster,
                           profile::Collective kind, std::span<const int> members);

}  // namespace moesim::network
