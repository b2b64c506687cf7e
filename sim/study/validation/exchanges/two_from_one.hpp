#pragma once

#include "sim/profile/dispatcher.hpp"
#include "sim/profile/estimate.hpp"
#include "sim/study/validation/exchanges/dispatch_samples.hpp"

namespace moesim::study {

// What is not known of kernels across before they were measured there.
struct AcrossUnknown {
  double latency_us = 0;            // of a write to another node and its notice
  double chunk_tokens[2] = {0, 0};  // [DispatcherStage]: tokens that a channel sends as one
  double copies = 1;                // the factor that copies between nodes may differ by
  double start = 1;                 // and the one of the smallest exchange
  bool is_one_kernel = false;       // both stages do the same: errors of either may be of both
};
// DeepEP's Config for 16 ranks sends chunks of 20 dispatched and 12 combined rows to other nodes;
// copies: assumed.
inline constexpr AcrossUnknown normal_across{0, {20, 12}, 1.4, 1, false};
// A write: assumed. The two nodes ran another release than most of the others: on one node of H100
// a token of 7,168 values takes 16.3 us to dispatch with it, 13.2 with that of the others. Both
// stages write each row by itself into its place.
inline constexpr AcrossUnknown latency_across{6, {0, 0}, 1, 16.3 / 13.2, true};

// The law of two nodes from what one node shows. The start across is a write's latency, and where
// rows go in chunks the time in which a channel, a pair of SMs, fills one.
class TwoFromOne {
 public:
  // `inside`: as fitted to one node, its factor too.
  TwoFromOne(const profile::Dispatcher& dispatcher, const profile::StageCost& inside,
             const AcrossUnknown& unknown)
      : dispatcher_(dispatcher), inside_(inside), unknown_(unknown) {}

  // The band has, in squares, the errors of one node, the ranges of NVLink and the NIC, either
  // factor of `unknown`, and none or twice of the start across: a chunk may leave before it is
  // full, and another wait for it behind the NIC.
  profile::Estimate predict(const DispatchSample& sample) const;

 private:
  struct Variation {
    double across = 1;  // multiples of the start across,
    double copies = 1;  // of the time of copies,
    double start = 1;   // of the start inside
  };
  profile::Estimate with(const DispatchSample& sample, const Variation& by) const;

  profile::Dispatcher dispatcher_;
  profile::StageCost inside_;
  AcrossUnknown unknown_;
};

}  // namespace moesim::study
