#pragma once

#include <cstdint>

#include "sim/profile/dispatcher.hpp"
#include "sim/profile/estimate.hpp"
#include "sim/profile/size_curve.hpp"

namespace moesim::profile {

// Exchanges of MoE layers by kernels of their own (DeepEP, HybridEP, TensorRT-LLM).
// profiles/DISPATCHERS.md quotes the errors on machines and node counts that were left out.

// Where an exchange sends: each token goes to the `top_k` of `experts` that it chose.
struct MoeTraffic {
  std::int64_t experts = 0;
  std::int64_t top_k = 0;
  // A token's experts lie in `kept_groups` of so many equal groups of neighbours, those whose best
  // experts score highest (group-limited routing, as DeepSeek-V2's and V3's).
  int groups = 1;
  int kept_groups = 1;
  // Ranks that share an expert, neighbours in one domain (expert-tensor parallelism): a row goes to
  // all of them.
  int slices = 1;
};

// How many of `places` (ranks, or nodes) that hold as many neighbouring experts each a token
// reaches on average, when its experts are drawn evenly without repetition:
//   places (1 - C(E - E / places, k) / C(E, k))
// Where it keeps g of G groups, these are drawn evenly; each has one of its experts, for which it
// was kept, and the other k - g are any of theirs; a place is met no more often than without
// groups. Against scores drawn at random, with the groups of DeepSeek-V2 and V3, within 1.5 %; with
// most groups kept up to 4 %.
double distinct_places(const MoeTraffic& traffic, int places);

// The GPUs of an exchange: `gpus` of them, `per_domain` in each NVLink domain (one domain: all).
struct DispatchGroup {
  int gpus = 8;
  int per_domain = 8;
  int domains() const { return (gpus + per_domain - 1) / per_domain; }
  bool crosses() const { return gpus > per_domain; }
};

// What the busiest of its GPUs, ports and experts has to do, in rows.
struct DispatchLoad {
  double tokens = 0;       // of one GPU
  double copies = 0;       // of rows, by the SMs of one GPU
  double link_rows = 0;    // through the NVLink port of one GPU, one direction
  double nic_rows = 0;     // through its share of the NICs, one direction
  double expert_rows = 0;  // that one expert receives
};

// The load where all GPUs have as much: `tokens` per GPU, experts drawn evenly. r: ranks that a
// token meets, d: domains.
//   per node    copies r inside one domain; across, each row is staged for d domains and forwarded
//               to r ranks on dispatch, copied to the forwarding rank and into its sum, 2 r, on
//               combine. NVLink r (n - 1) / n, NIC d (N - 1) / N, as one rank of n is at hand
//   per gpu     copies r, NVLink r (n - 1) / n
//   per expert  copies k, NVLink those to the domain's other ranks, NIC those to other domains
// r and k count each slice of an expert.
// Throws NoAnswer for experts that are not spread evenly over the GPUs.
DispatchLoad balanced_load(SentOnce sent, DispatcherStage stage, const MoeTraffic& traffic,
                           const DispatchGroup& group, double tokens);

// What carries the rows, line rates per GPU and direction.
struct DispatchRates {
  double link_bytes_per_us = 0;
  double nic_bytes_per_us = 0;
  Transport transport = Transport::gpu;
  bool transport_known = true;  // else the band also covers the other one
  bool in_training = false;     // among the exchanges of a training step: Dispatcher::nic_of()
  // The share of a NIC's line rate that a single stream reaches, likely and at most: a dispatcher
  // reaches no more.
  double nic_share = 1;
  double nic_share_high = 1;
};

// One stage of a dispatcher among the GPUs of `group`, of one kind of device. `row_bytes` as
// dispatched_row_bytes(); `sms` is ignored where the dispatcher leaves no choice.
struct DispatchCall {
  std::string device;  // "NVIDIA H100"
  DispatcherStage stage = DispatcherStage::dispatch;
  DispatchGroup group;
  DispatchLoad load;
  double row_bytes = 0;
  DispatchRates rates;
  int sms = 0;
};

// Microseconds of a stage, notify phases apart:
//   fixed + fill T / (T + 64) + |(copying, NVLink, NIC, fullest expert)|_6
//   copying  (T token_ns + copies (copy_ns + row / SM rate)) / SMs, or what slow_sms counts them as
//   NVLink, NIC: rows x row bytes at the line rate times the efficiency; a proxied NIC at least its
//   time per message
// The four work at once: the slowest decides, in a norm of order 6, chosen where curves bend.
// Quantiles: what NVLink's and the NIC's own quantiles make of the time and the stage's factor err
// independently of each other, so that the squares of their logs add up. Of a number of SMs that
// was not measured two more: errors grow with the distance from the nearest measured one, and it
// may copy as slowly as the slowest of `slow_sms` does. The lower end as no_faster_than_wire() has
// it. Throws NoAnswer for what the dispatcher does not do: other nodes, a transport.
Estimate dispatch_time(const Dispatcher& dispatcher, const DispatchCall& call);

// Whatever the software, the bytes pass NVLink and the NICs: raises the lower end to what they take
// at NVLink's line rate and at the most that a NIC reaches (DispatchRates::nic_share_high), but not
// above the time.
void no_faster_than_wire(const DispatchCall& call, Estimate& estimate);

// What is asked, beside what the dispatcher was measured at.
struct DispatchShape {
  double tokens = 1;  // of a GPU
  double hidden = 1;  // values of a row
  int sms = 0;
};

// How a law's errors grow with the distance from what was measured: the half width of its 90 % band
// in logs, per square root of a factor of two, to either side. Half widths add in squares.
// `moesim validate exchanges` fits them by leaving values out: the root tells them best, as of
// errors that each factor of two adds to independently.
struct ErrorGrowth {
  static constexpr double hidden = 0.23;
  static constexpr double sms = 0.04;
  static constexpr double gpus = 0.23;  // assumed: no error grows in what was left out
};

// Outside of what the dispatcher was measured at: support `extrapolated` (also of SMs), and the
// band of dispatch_time() wider: of tokens as residual.hpp's widening() has it, to either side in
// proportion, of values of a row and of GPUs by ErrorGrowth. Tokens widen the part of the time that
// grows with them alone, so not the start, and the ends of both parts add up. Rows shorter than any
// measured end no later than longer ones, and longer ones no earlier than shorter ones. So an end
// falls with no number of tokens or values. The lower end as no_faster_than_wire() has it.
// `hidden`: values of a row.
void widen_beyond_measured(const Dispatcher& dispatcher, const DispatchCall& call, double hidden,
                           Estimate& estimate);
// What that was, behind other words: "; extrapolated from 1 to 2048 tokens of a GPU, 8 GPUs", and
// "; 10 SMs were not measured (4, 8, 12 were)". Empty inside, or where the document does not say.
std::string extrapolation(const Dispatcher& dispatcher, const DispatchGroup& group,
                          const DispatchShape& shape);

// What moves the rows of a stage: line rates times the shares of them that are reached.
struct StageTransfer {
  double row_bytes = 0;
  double link_bytes_per_us = 0;
  double nic_bytes_per_us = 0;
  double message_us = 0;  // of a proxied NIC
  int sms = 0;
};
// The time of dispatch_time() for one figure of each rate, without the stage's factor.
double stage_us(const StageCost& cost, const DispatchGroup& group, const DispatchLoad& load,
                const StageTransfer& transfer);

// An MoE all-to-all inside one NVLink domain among `ranks`, from curves of `few` < `many` <
// `ranks`: a fixed part that any number of ranks takes and the copies that leave a rank, softly the
// slower of the two (T^3 = fixed^3 + copies^3); the floor grows by each doubling of the ranks as it
// did between the two. `balanced`: each token's experts are spread evenly over the ranks, so that
// it meets min(k, ranks) of them. Curves are time against tokens per rank: a SizeCurve whose
// "bytes" are tokens.
SizeCurve among_more_ranks(const SizeCurve& at_few, int few, const SizeCurve& at_many, int many,
                           int ranks, std::int64_t top_k);

}  // namespace moesim::profile
