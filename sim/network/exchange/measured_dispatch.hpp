#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/network/exchange/dispatch_place.hpp"
#include "sim/profile/dispatcher.hpp"
#include "sim/profile/moe_exchange_law.hpp"

namespace moesim::network {

// One stage of an exchange by a dispatcher. Its load says how many tokens a GPU has.
struct DispatchQuery {
  profile::DispatcherStage stage = profile::DispatcherStage::dispatch;
  bool fp8 = false;  // dispatched rows; combined ones are bf16
  double row_bytes = 0;
  std::int64_t hidden = 1;
  std::int64_t top_k = 1;
  int sms = 0;
};

// A dispatcher on GPUs of a cluster, as the cluster's own measurements (cluster::MeasuredDispatch)
// on as many GPUs and nodes show it, of GPUs whose figures it shares (DispatchMachine::gpus) or of
// ones that are not stated.
//
// The law's time is scaled by measured over predicted time of what was measured nearest to the
// query. Entries of its row format are taken, of the other one where there are none. Between two
// measured token counts, and at each of them between two measured SM counts, the logarithm of the
// factor is interpolated in that of the count; beyond the outermost it is held. Repeats have the
// geometric mean.
//
// Band: at a measured point the repeats, 6 % either way at least. `d` octaves away that band is
// wider as profile::widening() has it, and the law's own band joins in squares, with a share that
// grows as the variance of a random walk does, min(1, d): from one octave on it is there in full.
// Between two points a and b octaves away d is a b / (a + b), as of a walk tied at both ends.
// Another row format counts as one octave, other hidden sizes and numbers of experts of a token by
// their ratio.
//
// On a number of nodes that was not measured half of the factor carries over from the nearest
// number that was (of two as near the larger), as of NCCL's exchanges (PortModel): kernels, SMs and
// NICs are the same. Between domains alone. The band reaches to the law and to the whole factor,
// has the law's band in full, and counts the factor of two in nodes as octaves, at least one.
class MeasuredDispatcher {
 public:
  // Copies what it takes.
  MeasuredDispatcher(const profile::Dispatcher& dispatcher, const DispatchPlace& place,
                     const cluster::Cluster& cluster);

  // As profile::dispatch_time(), which it throws like.
  profile::Estimate time(const DispatchQuery& query, const profile::DispatchLoad& load,
                         const profile::DispatchRates& rates) const;

  const profile::Dispatcher& dispatcher() const { return dispatcher_; }
  // Whether the cluster has measurements of this stage among as many GPUs.
  bool knows(profile::DispatcherStage stage) const {
    const auto at = static_cast<std::size_t>(stage);
    return !points_[at].empty() && elsewhere_[at] == 0;
  }
  // As dispatch_provenance(); what was measured is named before the figures of the law, on other
  // numbers of nodes as "half of the factor on 2 nodes (measured: ...)".
  std::string provenance(int sms, bool with_notify = false) const;

 private:
  struct Point {
    bool fp8 = false;
    double tokens = 0;  // logarithms to base 2
    double sms = 0;
    double hidden = 0;
    double top_k = 0;
    double factor = 0;  // natural logarithm of measured over predicted time
  };
  struct Correction;

  MeasuredDispatcher(profile::Dispatcher dispatcher, DispatchPlace place);
  // Takes what was measured on as many nodes and GPUs as `place` has.
  void take_same(const cluster::Cluster& cluster, int nodes);
  // Takes those of the nearest other number of nodes for stages that have none.
  void take_others(const cluster::Cluster& cluster, int nodes);
  int sms_of(int stated) const;
  Point point_of(const cluster::MeasuredDispatch& measured, profile::DispatcherStage stage) const;
  Correction correction_at(const DispatchQuery& query, double tokens) const;

  profile::Dispatcher dispatcher_;
  DispatchPlace place_;
  std::vector<Point> points_[2];  // [DispatcherStage]
  double elsewhere_[2] = {0, 0};  // octaves in nodes from where these were measured; 0: here
  std::string origin_;            // of what was measured; "": nothing
};

}  // namespace moesim::network
