#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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
//   pairwise      N - 1 messages of each rank in fixed order: in round s rank r sends to r + s, and
//                 goes on when that is sent
//   nccl          grouped send / recv in NCCL's order of peers, so many of them at a time, small
//                 messages with NCCL's LL protocol
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

// NCCL's way with point-to-point messages (src/init.cc, src/enqueue.cc, src/include/channel.h of
// NCCL 2.19 to 2.28). A group of sends and receives is cut into rounds: the domains in the order of
// x (x + 1) / 2 modulo a power of two, inside each the ranks of its group by distance. Inside one
// domain every round has a channel of its own; across domains up to `batch` rounds to one group
// share one. A channel's batches follow one another.
struct NcclSettings {
  int channels = 32;  // p2pnChannels; assumed: what NVSwitch nodes get
  int batch = 8;      // NCCL_MAX_DEV_WORK_P2P_PER_BATCH
  int parts = 4;      // p2pnChannelsPerPeer, over which a message is cut; assumed
  std::int64_t low_latency_bytes = 16384;  // per part, up to which LL: NCCL_P2P_LL_THRESHOLD; not
                                           // through NICs, as NCCL_ALLOC_P2P_NET_LL_BUFFERS is 0
  double low_latency_overhead = 2;         // LL sends a flag of 4 bytes with every 4 bytes
};

struct ExchangeSettings {
  Method method = Method::automatic;
  double tolerance = 0.01;  // of `automatic`: upper / lower - 1
  NcclSettings nccl;
  // pairwise: a rank also waits for what it receives in the round, as MPI_Sendrecv does.
  bool pairwise_waits_for_receives = false;
  int slices =
      4;  // pxn, deepep: pieces of a message that is forwarded, each as soon as it is there
  // deepep: rows that cross to a domain over rows bound for it, in (0, 1]: 1 without
  // deduplication, distinct_share() under independent routing.
  double distinct_share = 1;
  // Told how many steps of all a simulation message by message has made; bursts are none.
  std::function<void(std::size_t ended, std::size_t steps)> progress;
};

// When an exchange is over. Times count from the origin of the start times.
struct ExchangeTimes {
  Picoseconds makespan;  // when the last byte arrives; 0 if there is none
  // The later of a rank's last byte sent and received; its own start if it has neither.
  std::vector<Picoseconds> rank_finish;
  Method used = Method::flows;  // flows or fast
  Picoseconds lower, upper;     // the makespan is certain to lie here; equal under flows
  Picoseconds tolerance{0};     // of flows: see flow_tolerance(); 0 for those told apart exactly
};

// What the flows of a burst of so many ranks, of a size each, may be off by before their rates are
// fitted again (FlowOptions::tolerance): 1 ps, 1 ns from 256 ranks and 20 ns from 512 ranks on. The
// makespan is off by no more than a few times that.
Picoseconds flow_tolerance(int ranks);

// `start` is when each rank begins to send: one per rank, or empty for all at 0. The diagonal of
// the matrix is not sent. Throws UsageError for sizes that do not match, bytes below 0, settings
// out of range; Error for a topology that does not connect the ranks.
ExchangeTimes simulate_exchange(const Topology& topology, const ByteMatrix& bytes,
                                std::span<const Picoseconds> start, Schedule schedule,
                                const ExchangeSettings& settings = {});

// The peers that a rank sends to in NCCL's order, from itself in round 0 on. In round r it
// receives from the rank that sends to it in round r.
std::vector<int> nccl_peers(const Topology& topology, int rank);

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
// domains, a chain inside each, in pipelined slices. Of a domain's latency a hop pays no more than
// NCCL reckons with, 3.4 us in rings and 4 us in trees; the rest is the start, paid once. Throws
// UsageError for an algorithm that the collective does not have.
ExchangeTimes simulate_collective(const Topology& topology, profile::Collective kind,
                                  std::int64_t bytes, std::span<const Picoseconds> start,
                                  CollectiveAlgorithm algorithm = CollectiveAlgorithm::ring);

}  // namespace moesim::network
