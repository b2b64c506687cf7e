#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/profile/collective.hpp"
#include "sim/profile/estimate.hpp"

namespace moesim::network {

// The measured curve of `kind` among as many GPUs, spread over as many nodes as `members`; null if
// the cluster document has none, or the members are not spread evenly. Of several libraries the
// last in the document.
const cluster::MeasuredExchange* find_measured(const cluster::Cluster& cluster,
                                               profile::Collective kind,
                                               std::span<const int> members);

// The curves of `kind` between nodes, on any number of nodes and GPUs.
std::vector<const cluster::MeasuredExchange*> measured_between_nodes(
    const cluster::Cluster& cluster, profile::Collective kind);

// The curves of `kind` inside one domain by their number of GPUs. Of several of one number the last
// in the document.
using InsideCurves = std::map<int, const cluster::MeasuredExchange*>;
InsideCurves measured_inside(const cluster::Cluster& cluster, profile::Collective kind);

// GPUs of the cluster that lie as those of a measured curve did: the first of each node.
std::vector<int> members_of(const cluster::MeasuredExchange& measured,
                            const cluster::Cluster& cluster);

// What of the cluster's curves the times of `kind` among `members` go by: the origin of the curve
// that answers, or between domains "corrected by what was measured on 2, 4 nodes of cluster NAME";
// "": none. DomainCurves::measured has what is scaled inside a domain. `is_answer`: whether the
// curve of as many GPUs on as many nodes answers; else it corrects the law as the others do.
std::string measured_basis(const cluster::Cluster& cluster, profile::Collective kind,
                           std::span<const int> members, bool is_answer = true);

// The time of `bytes`. Its quantiles are those of the runs, and at least 6 % on either side for
// another run on another day (public repeats and siblings differ by 2 to 8 %); half as much again
// for each factor of two beyond what was measured, where MeasuredExchange::at() goes on by itself.
// Between two sizes half as much again for each factor of two from the nearer, around both the
// straight line and the power law: of public curves with every 2nd or 4th size kept such bands hold
// 90 % of the others.
profile::Estimate estimate_of(const cluster::MeasuredExchange& measured, double bytes);

// The time of the same exchange of so many bytes as it is without this measurement: the profile's
// curve inside a domain, the law between domains.
using UsualTime = std::function<profile::Estimate(double bytes)>;

// The same between the measured sizes. Beyond them the usual time by the ratio of measured to usual
// time at the edge, as profile::carry_beyond() has it: a log from 8 MiB on does not show latency,
// nor one to 2 MiB the rate of larger sizes. The band reaches to both readings of that ratio; the
// band of the edge joins in squares, and that of the usual time with a share that grows to all of
// it over the first octave. Derived and extrapolated there. Throws what `usual` throws.
profile::Estimate estimate_of(const cluster::MeasuredExchange& measured, double bytes,
                              const UsualTime& usual);

}  // namespace moesim::network
