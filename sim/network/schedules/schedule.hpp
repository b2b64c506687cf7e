#pragma once

#include <span>
#include <vector>

#include "sim/base/byte_matrix.hpp"
#include "sim/base/units.hpp"
#include "sim/network/schedules/exchange_settings.hpp"
#include "sim/network/schedules/message_plan.hpp"
#include "sim/network/topology/topology.hpp"

namespace moesim::network {

// Who shares a domain with whom. The local index of a rank is its place among the ranks of its
// domain; ranks of one local index form a rail.
struct Domains {
  explicit Domains(const Topology& topology);
  std::vector<std::vector<int>> ranks;  // [domain]
  std::vector<int> domain_of;           // [rank], numbered from 0
  std::vector<int> local_of;            // [rank]
  // The rank of a domain on `other`'s rail; of smaller domains, the index modulo their size.
  int on_rail(int domain, int other) const;
};

// What a schedule is written from. `start` has one time per rank.
struct ExchangeRequest {
  const Topology& topology;
  const ByteMatrix& bytes;
  std::span<const Picoseconds> start;
  const ExchangeSettings& settings;
};

// The messages of each schedule, as Schedule describes them.
MessagePlan plan_burst(const ExchangeRequest& request);
MessagePlan plan_pairwise(const ExchangeRequest& request);
MessagePlan plan_nccl(const ExchangeRequest& request);
MessagePlan plan_hierarchical(const ExchangeRequest& request);
MessagePlan plan_pxn(const ExchangeRequest& request);
MessagePlan plan_deepep(const ExchangeRequest& request);

// Whether all batches of an exchange have a channel of their own, so that ranks that start together
// send all at once; and the bytes that its messages are on the wire, LL's flags with them.
bool nccl_is_a_burst(const Topology& topology, const NcclSettings& settings);
ByteMatrix nccl_wire_bytes(const ExchangeRequest& request);

// What each pair of ranks exchanges in all messages of a schedule.
ByteMatrix bytes_on_links(Schedule schedule, const ExchangeRequest& request);

// The two bursts that a hierarchical exchange is made of, joined at each rank: first `inside`, then
// `across`.
struct TwoLevels {
  ByteMatrix inside;
  ByteMatrix across;
};
TwoLevels two_levels(const Domains& domains, const ByteMatrix& bytes);

}  // namespace moesim::network
