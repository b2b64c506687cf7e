#pragma once

#include <cstdint>
#include <map>

#include "sim/engine/program.hpp"
#include "sim/network/topology/topology.hpp"
#include "sim/step/step_model.hpp"

namespace moesim::step {

// The links that the all-to-alls of a step share. Those inside a domain, switches too, are scaled
// so that an exchange of equal blocks among its members takes the time of the profile's curve, that
// of the smallest size being latency, as in ExchangeModel; those between domains are the
// document's. The software's multiplier applies to all, slow links to their ports.
//
// The curve bends with the size, and links have one bandwidth: they are set at a reference block,
// and exchanges of other sizes are given the bytes that take the curve's time on them (adjust()).
class ExchangeLinks {
 public:
  // Refers to `model`. `block` is the reference, bytes from each member to each other one.
  ExchangeLinks(const StepModel& model, double block);

  double block() const { return block_; }
  // The links if everything takes `slower` times as long: a replica's error of the curve.
  network::Topology topology(double slower = 1) const;

  // Scales what stays inside domains, so that its busiest port (W bytes in or out, of n members)
  // takes as long as the curve says of the equal blocks that load a port as much: a buffer of
  // W n / (n - 1). `first` is the first GPU of the group that the matrix is of.
  void adjust(int first, ByteMatrix& bytes);

 private:
  struct Curve {
    double time_us = 0;     // of a buffer
    double latency_us = 0;  // of it
  };
  Curve curve(double buffer) const;
  void calibrate_inside();
  double stretch(std::int64_t busiest);

  const StepModel& model_;
  double block_ = 0;
  int inside_ = 1;  // members of a group in one domain, at most
  network::Topology topology_;
  std::map<std::int64_t, double> stretch_;  // by the bytes of the busiest port
};

}  // namespace moesim::step
