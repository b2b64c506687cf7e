#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/profile/profile.hpp"

namespace moesim::study {

// A figure as a cluster document has it.
struct FittedShare {
  double value = 1;
  double low = 1;
  double high = 1;
};
// The median of the values; low and high enclose all of them, and `spread` of it either way.
FittedShare range_of(const std::vector<double>& values, double spread);
// The same of shares of a line rate, at most 1, with the 5 % by which versions and specimens of one
// setting differ.
FittedShare share_of(const std::vector<double>& shares);
// The spread of nic.start, whose figure varies more: a quarter.
inline constexpr double start_spread = 0.25;

// GB/s per GPU that cross the NICs (across domains) or the ports of the domain's switch, at the
// best of the sizes from 16 MiB on, over the line rate of the links in use; nothing if no size is
// as large. All-to-all: what leaves the domain; all-gather, reduce-scatter, all-reduce: one ring
// over all GPUs, which spreads over all NICs of a node; send-receive: the rank at the border.
std::optional<double> line_share(const cluster::MeasuredExchange& measured,
                                 const cluster::Cluster& cluster);

struct FittedEfficiency {
  double value = 1;
  double slower = 1;  // the time that the model says with it, over the measured one
};
// The nic.efficiency, at most 1, with which `network::predict_exchange` says what was measured of
// an all-to-all at the largest size, 16 MiB at least: where it says more at 1 too, `slower` is
// above 1. Nothing for smaller sizes, or without a profile with curves of that operation.
std::optional<FittedEfficiency> nic_efficiency_of(
    const cluster::MeasuredExchange& measured, const cluster::Cluster& cluster,
    const std::shared_ptr<const profile::Profile>& profile);

// What a ring or tree says of nic.efficiency: no more than bounds. The part inside the nodes and
// the bytes on the NICs move at the same time, so where the former decides any efficiency above
// some value says the same time; and which of the two NCCL took is not in the log.
struct EfficiencyBounds {
  double low = 0;
  double high = 1;
  double slower = 1;  // the model's time at 1 over the measured one, where its band is above that
};
// The values with which the band of `network::predict_exchange`, without the error of
// nic.efficiency itself, holds what was measured at the largest size, 16 MiB at least; and those
// that a ring needs for its line_share(). Without a profile with curves of that operation its
// line_share() alone, with 1 as the upper bound where the GPUs of a node may be what limits the
// ring. Nothing for smaller sizes.
std::optional<EfficiencyBounds> nic_efficiency_bounds(
    const cluster::MeasuredExchange& measured, const cluster::Cluster& cluster,
    const std::shared_ptr<const profile::Profile>& profile);

inline constexpr std::pair<double, double> searched_starts{0.05, 20};
// The nic.start with which the model says what was measured at the smallest size, 64 KiB at most;
// an end of searched_starts where none does.
std::optional<double> nic_start_of(const cluster::MeasuredExchange& measured,
                                   const cluster::Cluster& cluster,
                                   const std::shared_ptr<const profile::Profile>& profile);

// By how much more of its links an exchange inside a domain uses at 256 MiB, for which
// domain.efficiency stands, than at its largest measured size, by the curve of the profile: a log
// may end early. 1 of larger ones, and without a curve of that operation.
double more_at_large_size(const cluster::MeasuredExchange& measured,
                          const cluster::Cluster& cluster,
                          const std::shared_ptr<const profile::Profile>& profile);

// The shipped profile of hardware whose GPU has the same model ("H200") in its name; nullptr: none.
std::shared_ptr<const profile::Profile> profile_of_gpu(const std::string& model);

// The one that a cluster is built of: which names it as its usual cluster, else by the GPU model in
// the cluster's name, or its source (but of "no product"); nullptr: none.
std::shared_ptr<const profile::Profile> profile_of_cluster(const cluster::Cluster& cluster);
// The GPU models in a cluster's name, or its source as above.
std::vector<std::string> gpu_models_of(const cluster::Cluster& cluster);

// The GPU models named in a text, such as "H100" in "NVIDIA H100 80GB HBM3" or "hgx-h100".
std::vector<std::string> gpu_models(const std::string& text);

}  // namespace moesim::study
