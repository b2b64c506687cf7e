#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/base/byte_matrix.hpp"
#include "sim/base/units.hpp"
#include "sim/network/topology.hpp"

namespace moesim::network {

// When the members of an exchange are done with it, if no other exchange uses its links.
class ExchangeClock {
 public:
  virtual ~ExchangeClock() = default;

  // `bytes` (below 2^52 in all) and `arrival` by member: a member's messages start when it arrives. Writes when each
  // member has arrived, sent and received everything; one with nothing to do is done on arrival.
  virtual void finish(std::span<const int> members, const ByteMatrix& bytes,
                      std::span<const Picoseconds> arrival, std::span<Picoseconds> finish) = 0;
};

// The fast clock: every port works without a gap on the messages that are there. Messages between
// members of one domain use the inner ports, others the outer ones, both at the same time. A port
// whose messages come from members that arrive one after another is done no earlier than
//     max over arrivals a of (a + latency + bytes of all messages that start at a or later / rate),
// which is the exact end of any schedule that never lets the port idle while a message waits. A
// member is done with the last of its ports: a lower bound of the exact answer, at most a factor of
// 2 below it for a burst between ports (port_bound.hpp derives both and says when they meet).
class PortClock final : public ExchangeClock {
 public:
  // `topology` holds all ranks that members are numbers of. Throws Error as check(topology) does,
  // and for shapes that ports alone do not describe: ports shared by ranks, tiers of switches that
  // carry less than the ports below them.
  explicit PortClock(const Topology& topology);

  void finish(std::span<const int> members, const ByteMatrix& bytes,
              std::span<const Picoseconds> arrival, std::span<Picoseconds> finish) override;

 private:
  struct Port {
    double ps_per_byte = 0;
    double latency = 0;  // ps
  };
  struct PlanePorts {
    std::vector<Port> up, down;  // [rank]; empty where the plane is
  };
  // Members next to each other that share a domain.
  struct Run {
    std::size_t begin = 0, end = 0;
    int domain = 0;
  };
  // The ports into the members, in one plane.
  struct Inbound {
    std::vector<std::int64_t> bytes;  // [member]: of messages that start at the time or later
    std::vector<double> per_byte, latency;
    std::vector<double> done;  // ps from the first arrival; 0: nothing yet
    void reset(const std::vector<Port>& down, std::span<const int> members);
    // Messages of `row` to the members [begin, end) enter at `time`; returns their sum.
    std::int64_t enter(double time, const std::int64_t* row, std::size_t begin, std::size_t last);
  };
  static PlanePorts ports_of(const Topology& topology, const Plane& plane, const char* name);
  void plan(std::span<const int> members, std::span<const Picoseconds> arrival);

  PlanePorts inner_, outer_;
  std::vector<int> domain_of_;
  std::vector<Run> runs_;
  std::vector<std::size_t> latest_first_;  // members
  Inbound into_inner_, into_outer_;
  std::vector<double> sent_;  // [member]: when its own ports are done
};

}  // namespace moesim::network
