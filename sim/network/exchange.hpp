#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sim/base/byte_matrix.hpp"
#include "sim/base/units.hpp"
#include "sim/network/topology.hpp"
#include "sim/profile/collective.hpp"

namespace moesim::network {

// In which order the messages of an exchange travel.
//   burst         all at once
//   pairwise      N - 1 rounds; in round s rank r sends to r + s and receives from r - s, and goes
//                 on when both are done
//   nccl          grouped send / recv in NCCL's order of peers, a window of peers at a time,
//                 small messages with NCCL's LL protocol
//   hierarchical  first inside the domain, so that each GPU holds what goes to its own rail, then
//                 between domains among GPUs of one local index: fewer, larger messages
//   pxn           over NVLink to the own domain's GPU on the destination's rail, then its NIC; each
//                 message goes on as soon as it is there
//   deepep        to the GPU of one's own local index in each domain, once for all experts there
//                 that one token goes to, then over NVLink
enum class Schedule { burst, pairwise, nccl, hierarchical, pxn, deepep };
const char* name_of(Schedule schedule);
// Throws UsageError that lists the schedules.
Schedule parse_schedule(const std::string& name);
const std::vector<Schedule>& all_schedules();

// How the time of an exchange is found: exact max-min flows, the port bound with its certificate,
// or `automatic`: the port bound where its certificate is within a tolerance, else flows.
enum class Method { automatic, flows, fast };
const char* name_of(Method method);  // "auto", "flows", "fast"
Method parse_method(const std::string& name);

// NCCL's way with point-to-point messages (src/enqueue.cc and src/include/device.h of NCCL 2.22 to
// 2.28; the environment variables that change them are named).
struct NcclSettings {
  int window = 8;  // peers served at once: NCCL_MAX_DEV_WORK_P2P_PER_BATCH
  int channels = 4;  // a message is cut over: p2pnChannelsPerPeer, assumed
  std::int64_t low_latency_bytes = 16384;  // per channel, up to which LL: NCCL_P2P_LL_THRESHOLD
  double low_latency_overhead = 2;  // LL sends a 4-byte flag with every 4 bytes
  Picoseconds message_latency;      // from the end of one message to the next on a slot
};

struct ExchangeSettings {
  Method method = Method::automatic;
  double tolerance = 0.01;  // of `automatic`: upper / lower - 1
  NcclSettings nccl;
  // deepep: rows that cross to a domain over rows bound for it, in (0, 1]: 1 without
  // deduplication, distinct_share() under independent routing.
  double distinct_share = 1;
};

// When an exchange is over. Times count from the origin of the start times.
struct ExchangeTimes {
  Picoseconds makespan;
  std::vector<Picoseconds> rank_finish;  // the later of a rank's last byte sent and received
  Method used = Method::flows;           // flows or fast
  Picoseconds lower, upper;              // the makespan is certain to lie here; equal under flows
};

// `start` is when each rank begins to send: one per rank, or empty for all at 0. The diagonal of
// the matrix is not sent. Throws UsageError for sizes that do not match, bytes below 0, settings
// out of range; Error for a topology that does not connect the ranks.
ExchangeTimes simulate_exchange(const Topology& topology, const ByteMatrix& bytes,
                                std::span<const Picoseconds> start, Schedule schedule,
                                const ExchangeSettings& settings = {});

// Expected rows that cross to a domain over rows bound for it, when each token chooses `choices`
// different experts of `experts` uniformly and independently, experts being spread evenly over
// `domains`: distinct domains over choices. Precondition: 1 <= choices <= experts,
// domains divides experts.
double distinct_share(int experts, int domains, int choices);

// How a reduction or a gather travels.
enum class CollectiveAlgorithm { ring, tree };

// All-reduce, all-gather or reduce-scatter of nccl-tests' per-rank buffer of `bytes` among all
// ranks of the topology; an all-to-all is the uniform byte matrix under `burst`. Rings pass every
// rank of a domain before the next domain; N - 1 rounds (2 (N - 1) for an all-reduce) of
// bytes / N each. Trees (all-reduce only) reduce to a root and broadcast down a binary tree over
// domains, a chain inside each, in pipelined slices. Throws UsageError for an algorithm that the
// collective does not have.
ExchangeTimes simulate_collective(const Topology& topology, profile::Collective kind,
                                  std::int64_t bytes, std::span<const Picoseconds> start,
                                  CollectiveAlgorithm algorithm = CollectiveAlgorithm::ring);

}  // namespace moesim::network
