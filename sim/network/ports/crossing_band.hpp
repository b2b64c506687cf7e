#pragma once

#include <vector>

#include "sim/network/ports/node_crossing.hpp"
#include "sim/network/ports/port_model.hpp"

namespace moesim::network {

// The efficiency of NICs, the factor on their start, and the quantiles of both.
struct NicFigures {
  double value = 1;
  double least = 1;
  double most = 1;
  cluster::NicStart start;
};

NicFigures figures_of(const cluster::Cluster& cluster);
// With the error bars at least of links that nobody measured.
NicFigures as_unmeasured(NicFigures nics);

// The part inside the fullest domain: of its buffer, and of the smallest one. Microseconds.
struct PortModel::Inside {
  profile::Estimate time;
  double smallest_us = 0;
  bool pcie = false;  // it shares each GPU's way to its NIC, and both move at the same time

  // As node_crossing.hpp has it, where this part takes `inside_us`.
  double time_with(const CrossingPlan& plan, double inside_us, double stream_us) const;
};

// The law of node_crossing.hpp for one exchange, with its band.
struct PortModel::Law {
  CrossingLoad load;
  Inside part;
  CrossingCosts costs;  // with the expected start
  double nic_rate = 0;  // bytes per microsecond, of a GPU's share of the NICs

  // As the fastest plan carries it out, with both quantiles. Nobody says which algorithm an
  // all-reduce takes: its upper end reaches to one other than the fastest, and to what slow NICs
  // add to that, as far as it takes no longer than NCCL's choice may cost. Both ends rise with
  // bytes, slower NICs, slower links inside and more domains.
  Crossed with_band(const NicFigures& nics) const;

 private:
  double stream_us(const CrossingPlan& plan, double efficiency) const;
  double time_us(const CrossingPlan& plan, double inside_us, double efficiency) const;
  // All plans with this factor on the start, always in the same order.
  std::vector<CrossingPlan> plans(double start, bool switch_reduces) const;
  // Of its estimate the time alone.
  Crossed fastest(const std::vector<CrossingPlan>& of, double efficiency) const;

  // What algorithms other than the fastest add to the upper end of a band.
  struct Others {
    double slower_nics_us = 0;  // where the NICs are slow, what one of them takes longer
    double longer_us = 0;   // where they are as expected, what one takes longer than the fastest
    const char* name = "";  // the one that takes about as long
  };
  Others others(const Crossed& chosen, const NicFigures& nics) const;
};

}  // namespace moesim::network
