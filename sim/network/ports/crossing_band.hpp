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

  // As the fastest plan carries it out, with both quantiles. The upper end of an all-reduce reaches
  // to another algorithm only as long as NCCL may choose it, so that it would fall where slower
  // NICs or more domains make that one ever slower, though the fastest is none the faster: it is
  // never earlier than that of the same exchange with NICs up to four times as fast, or among fewer
  // domains.
  Crossed with_band(const NicFigures& nics) const;

 private:
  double stream_us(const CrossingPlan& plan, double efficiency) const;
  // With this time inside, efficiency and factor on the start; of its estimate the time alone.
  Crossed fastest(double inside_us, double efficiency, double start) const;
  // What `crossed` takes longer with these.
  double later_us(const Crossed& crossed, double inside_us, double efficiency, double start) const;

  struct Others;
  Others others(const Crossed& chosen, const NicFigures& nics, double slower_nics_us) const;
  // As expected, with its upper end alone and what that reaches to.
  Crossed with_upper_end(const NicFigures& nics) const;

  // The same with faster NICs, and among fewer domains.
  std::vector<Law> easier() const;
  CrossingLoad among(int domains) const;

  // Whether an algorithm other than the fastest may run.
  bool has_choice() const;
};

}  // namespace moesim::network
