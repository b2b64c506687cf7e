#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim/base/byte_matrix.hpp"
#include "sim/cluster/cluster.hpp"
#include "sim/network/exchange/exchange.hpp"
#include "sim/network/ports/port_model.hpp"
#include "sim/network/ports/switch_limits.hpp"
#include "sim/network/topology/cluster_topology.hpp"
#include "sim/profile/profile.hpp"

namespace moesim::network {

// The time of one exchange of a byte matrix, with what it is based on.
struct ExchangeAnswer {
  profile::Estimate estimate;          // of the makespan, from the origin of the start times
  std::vector<double> rank_finish_us;  // of the median
  Method used = Method::flows;
  double lower_us = 0;  // the median is certain to lie here if the links are as described; both are
  double upper_us = 0;  // the median under flows
  std::string provenance;
};

// Prices exchanges on a cluster, with the profile's measurements where there are some.
//
// Inside a domain, the schedules that NCCL runs (nccl, hierarchical, pxn) are calibrated: the links
// of the cluster document are scaled so that the busiest one takes as long as the profile's size
// curve says of a uniform exchange that loads a link as much (W bytes out of a port of n ranks: a
// buffer of W n / (n - 1)); a uniform matrix takes the curve's time, an uneven one that of its
// busiest port, shaped by how flows share links. The curve's time of the smallest size is latency,
// and LL's flags are in the curve already. Between domains NICs have the document's line rate times
// its efficiency; under these schedules times the share that PortModel::across says of a uniform
// exchange that loads the busiest NIC as much. What such a one takes beyond its links - the start,
// and the part inside that goes before - is added to every rank that crosses; the error bar is that
// one's, in proportion. Under the other schedules links are as the document has them, and the range
// of the efficiency is the error bar.
class ExchangeModel {
 public:
  // Without a profile nothing is calibrated.
  ExchangeModel(std::shared_ptr<const profile::Profile> profile,
                std::shared_ptr<const cluster::Cluster> cluster, ExchangeSettings settings = {});

  // A collective of equal blocks among `members` (GPUs of the cluster), as PortModel::price,
  // and no faster than the switches between them let it (switch_limits.hpp).
  profile::Estimate price(profile::Collective kind, std::span<const int> members, double bytes,
                          Senders senders = Senders::members) const;

  // What price() goes by, for its provenance: "; two-level: curve inside a domain, ring, LL
  // between".
  std::string basis(profile::Collective kind, std::span<const int> members, double bytes) const;

  // Rank r of the matrix sits on members[r]. Throws as topology_of and simulate_exchange.
  ExchangeAnswer exchange(std::span<const int> members, const ByteMatrix& bytes,
                          std::span<const Picoseconds> start,
                          const ExchangeSchedule& schedule) const;

  const ExchangeSettings& settings() const { return settings_; }

 private:
  struct Inside;
  struct Links;
  struct Crossing;
  Inside measured_inside(const Topology& topology, const ByteMatrix& bytes) const;
  Links links(std::span<const int> members, const ByteMatrix& bytes,
              const ExchangeSchedule& schedule, LinkRate rate) const;
  Crossing crossing(const Topology& topology, std::span<const int> members, const ByteMatrix& bytes,
                    const ExchangeSchedule& schedule) const;
  ExchangeAnswer across(const Links& on, std::span<const int> members, const ByteMatrix& bytes,
                        std::span<const Picoseconds> start, const ExchangeSchedule& schedule) const;
  std::string provenance(const Links& links, bool crosses, const ExchangeSchedule& schedule,
                         Method used) const;

  std::shared_ptr<const profile::Profile> profile_;
  std::shared_ptr<const cluster::Cluster> cluster_;
  ExchangeSettings settings_;
  PortModel ports_;
};

}  // namespace moesim::network
