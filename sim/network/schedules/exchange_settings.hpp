#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "sim/base/enum_names.hpp"

namespace moesim::network {

// How the time of an exchange is found: exact max-min flows, the port bound with its certificate,
// or `automatic`: the port bound where its certificate is within a tolerance, else flows.
enum class Method { automatic, flows, fast };
inline constexpr EnumNames<Method, 3> method_names{{
    {Method::automatic, "auto"},
    {Method::flows, "flows"},
    {Method::fast, "fast"},
}};
constexpr const char* name_of(Method method) { return name_in(method_names, method); }

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
  // pxn, deepep: pieces of a message that is forwarded, each as soon as it is there
  int slices = 4;
  // deepep: rows that cross to a domain over rows bound for it, in (0, 1]: 1 without
  // deduplication, distinct_share() under independent routing.
  double distinct_share = 1;
  // Told how many steps of all a simulation message by message has made; bursts are none.
  std::function<void(std::size_t ended, std::size_t steps)> progress;
};

}  // namespace moesim::network
