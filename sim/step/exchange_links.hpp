#pragma once

#include <cstdint>
#include <map>

#include "sim/engine/program.hpp"
#include "sim/network/topology/calibrate_links.hpp"
#include "sim/network/topology/topology.hpp"
#include "sim/step/step_model.hpp"

namespace moesim::step {

// The links that the all-to-alls of a step share. Links inside a domain, switches included, are
// scaled so that an exchange of equal blocks among its members takes the time of the profile's
// curve, of which the time of the smallest size is latency, as in ExchangeModel; links between
// domains are set so that an exchange takes the time of the law between nodes (PortModel::across).
// The software's multiplier applies to all links, slow links to their ports.
//
// The bandwidth of the curve depends on the size, but a link has a single bandwidth: it is set at a
// reference block, and exchanges of other sizes get the number of bytes that takes the curve's time
// on the links (adjust()).
class ExchangeLinks {
 public:
  // Refers to `model`. `block` is the reference block: the bytes from each member to each other
  // member.
  ExchangeLinks(const StepModel& model, double block);

  double block() const { return block_; }
  // The links where everything takes `slower` times as long: the error of the curve in a replica.
  network::Topology topology(double slower = 1) const;

  // Scales the traffic inside domains so that its busiest port (W bytes in or out, of n members)
  // takes the time that the curve gives for equal blocks with the same load per port: a buffer of W
  // n / (n - 1). `first` is the first GPU of the group that exchanges the matrix.
  void adjust(int first, ByteMatrix& bytes);

 private:
  network::MeasuredTime curve(double buffer) const;
  void calibrate_inside();
  void calibrate_between();
  double stretch(std::int64_t busiest);

  const StepModel& model_;
  double block_ = 0;
  int inside_ = 1;  // largest number of members of a group in one domain
  network::Topology topology_;
  std::map<std::int64_t, double> stretch_;  // by the bytes of the busiest port
};

}  // namespace moesim::step
