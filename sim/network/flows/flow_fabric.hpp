#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "sim/network/flows/flow_solver.hpp"
#include "sim/network/topology/fabric.hpp"

namespace moesim::network {

// Exchanges by matrix as exact flows: the messages of all that are under way share the links of one
// topology under max-min, so that an exchange that begins delays those it meets. Collectives of
// equal blocks take their time alone, as measured, and use no links.
class FlowFabric final : public Fabric {
 public:
  // `topology` holds all ranks and must outlive the fabric. Throws Error as check(topology) does.
  explicit FlowFabric(const Topology& topology) : solver_(topology) {}

  void begin(int exchange, Picoseconds now, Picoseconds alone) override;
  void announce(int exchange, std::span<const int> members, ByteMatrix bytes) override;
  void arrive(int exchange, int member, Picoseconds now) override;
  std::optional<Completion> next() override;
  void take() override;

 private:
  struct Exchange {
    std::vector<int> members;  // ranks
    ByteMatrix bytes;
    std::vector<int> left;  // [member]: own arrival, messages to send and to receive
    int members_left = 0;
  };
  struct Message {
    int exchange = 0;
    int source = 0, destination = 0;  // members
  };
  // One thing less for a member to wait for.
  void settle(Picoseconds now, int exchange, int member);

  FlowSolver solver_;
  IdleFabric even_;
  std::map<int, Exchange> under_way_;
  std::vector<Message> messages_;  // [flow - first_flow_]
  int first_flow_ = 0;
  std::deque<Completion> done_;  // members done at one time, in the order found
};

}  // namespace moesim::network
