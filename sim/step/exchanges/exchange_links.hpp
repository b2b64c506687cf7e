#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "sim/engine/program.hpp"
#include "sim/network/topology/calibrate_links.hpp"
#include "sim/network/topology/topology.hpp"
#include "sim/step/step_model.hpp"

namespace moesim::step {

// The links that the all-to-alls of a step share. Links inside a domain, switches included, are
// scaled so that an exchange of equal blocks among its members takes the time of the profile's
// curve; NICs so that one that leaves its domain takes the time of the law between nodes
// (PortModel::across), the part inside included, the farthest group's where groups are placed
// differently; switches above the NICs keep their bandwidth. The latency is the time of the
// smallest size. The software's multiplier applies to all links, slow links to their ports.
//
// The bandwidth of curve and law depends on the size, but a link has a single bandwidth: it is set
// at a reference block, and exchanges of other sizes get the number of bytes that takes their time
// on the links (adjust()).
class ExchangeLinks {
 public:
  // Refers to `model`. `block` is the reference block: the bytes from each member to each other
  // member.
  ExchangeLinks(const StepModel& model, double block);

  double block() const { return block_; }
  // The links where everything takes `slower` times as long: the error of the curve in a replica.
  network::Topology topology(double slower = 1) const;

  // Scales the traffic inside domains, and that between them, so that its busiest port (W bytes in
  // or out) takes the time that curve or law gives for equal blocks with the same load per port: W
  // / (n - 1) each among the n members of a domain, W over the members of other domains between
  // them. `first` is the first GPU of the group that exchanges the matrix.
  void adjust(int first, ByteMatrix& bytes);

 private:
  // Exchanges of `members` on the links inside a domain, or between them.
  struct Side {
    std::function<double(double buffer)> time_us;  // `buffer`: bytes of a member
    int members = 0;
    int peers = 0;  // that a member reaches on these links; 0: none
    double reference_buffer = 0;
    network::MeasuredTime reference;           // its time
    std::map<std::int64_t, double> stretched;  // the factor by the bytes of the busiest port
  };
  void calibrate_inside();
  void calibrate_between();
  static double stretch(std::int64_t busiest, Side& side);

  const StepModel& model_;
  double block_ = 0;
  network::Topology topology_;
  Side inside_, between_;
};

}  // namespace moesim::step
