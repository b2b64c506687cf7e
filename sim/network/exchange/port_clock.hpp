#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/base/byte_matrix.hpp"
#include "sim/base/units.hpp"
#include "sim/network/exchange/exchange_clock.hpp"
#include "sim/network/exchange/port_clock_kernels.hpp"
#include "sim/network/topology/topology.hpp"

namespace moesim::network {

// The fast clock: every port works without a gap on the messages that are there, and shares itself
// among them evenly. Messages between members of one domain use the inner ports, others the outer
// ones, both at the same time.
//
// A port whose messages come from members that arrive one after another is done no earlier than
//     E = max over sets of its messages of (the least of (arrival + latency) + their bytes / rate),
// where the sets are all messages from members that arrive at some time or later; latency is that
// of the whole way. With equal latencies it is the exact end of any schedule that never lets the
// port idle while a message waits. The latest E of all ports is a lower bound of the exact end of
// the whole exchange. Of the n messages of a port, one of b bytes that starts at a is through by
// min(E, a + latency + n b / rate), if the port is what holds it back; the later of the answers of
// its two ports is taken. A member is done with its last message: no earlier than its ports, no
// later than the last port of the exchange. port_bounder.hpp has bounds that are certain, on either
// side.
class PortClock final : public ExchangeClock {
 public:
  // `topology` holds all ranks that members are numbers of. Throws Error as check(topology) does,
  // NoAnswer for shapes that ports alone do not describe: ports shared by ranks, tiers of switches
  // that carry less than the ports below them.
  explicit PortClock(const Topology& topology);

  void finish(std::span<const int> members, const ByteMatrix& bytes,
              std::span<const Picoseconds> arrival, std::span<Picoseconds> finish) override;
  std::vector<std::int64_t> equivalence_key(std::span<const int> members) const override;

 private:
  struct Port {
    double ps_per_byte = 0;
    double latency = 0;  // ps
  };
  // What it takes to pass the switches of a tier.
  struct Passage {
    std::vector<int> switch_of;    // [rank]
    std::vector<double> up, down;  // [switch], ps
  };
  struct PlanePorts {
    std::vector<Port> up, down;     // [rank]; of no cost where the rank has none
    std::vector<Passage> passages;  // lowest first; empty if none of the tiers takes time
    std::vector<int> switches_of;   // [rank]: number of its list of switches, one per tier
    int switch_lists = 1;
    bool even = true;  // the way takes equally long between any two ranks
    double passing(std::size_t source, std::size_t destination) const;  // switches, ps
  };
  // Members next to each other that share a domain.
  struct Run {
    std::size_t begin = 0, end = 0;
    int domain = 0;
  };
  // One member's ports out, in one plane.
  struct Outbound {
    std::int64_t bytes = 0;
    double messages = 0;
    double start = 0;    // ps: past the port's latency
    double latency = 0;  // from there on, the least of those it sends to, ps
    double per_byte = 0;
    double end = 0;
  };
  // The ports into the members, in one plane.
  struct Inbound {
    std::vector<std::int64_t> bytes;  // [member]: of messages that start at the time or later
    std::vector<double> messages;
    std::vector<double> per_byte;
    // [list of switches, member]: what the way takes past the sender's port, for senders below the
    // same switches.
    std::vector<double> latency;
    std::vector<std::size_t> row_begin;  // [member]: where the entries of its switches begin
    std::vector<double> shortest;        // [member]: the least of these latencies
    std::vector<double> earliest;        // ps: the least of arrival and latency, of those messages
    std::vector<double> through;         // scratch of settle()
    std::vector<double> done;            // ps from the first arrival; 0: nothing yet
    std::vector<int> row_of_switches;    // scratch of reset()
    std::vector<int> seen;               // the members that the ways above are of
    bool even = true;
    void reset(const PlanePorts& ports, std::span<const int> members);
    // Messages of `row` to the members [begin, last) enter; they add up at the sender too.
    void enter(Outbound& from, std::size_t source, const std::int64_t* row, std::size_t begin,
               std::size_t last);
    // The last of those messages to be through, by these ports and by the sender's; each is noted
    // at its receiver too.
    double settle(const Outbound& from, std::size_t source, const std::int64_t* row,
                  std::size_t begin, std::size_t last, double* end);
  };
  static PlanePorts ports_of(const Topology& topology, const Plane& plane, const char* name);
  static void read_passages(const Topology& topology, const Plane& plane, PlanePorts& ports);
  template <class Stretch>
  void visit(std::size_t source, std::size_t members, Stretch stretch) const;
  void send(std::size_t source, const std::int64_t* row, std::size_t members, double time);
  void settle(std::size_t source, const std::int64_t* row, std::size_t members);
  void plan(std::span<const int> members, std::span<const Picoseconds> arrival);

  PlanePorts inner_, outer_;
  std::vector<int> domain_of_;
  std::vector<Run> runs_;
  std::vector<int> domain_of_member_;
  std::vector<std::size_t> latest_first_;  // members
  Inbound into_inner_, into_outer_;
  std::vector<Outbound> from_inner_, from_outer_;  // [member]
  std::vector<double> end_;                        // [member]
};

}  // namespace moesim::network
