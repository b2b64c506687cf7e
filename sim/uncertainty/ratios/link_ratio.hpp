#pragma once

#include <vector>

#include "sim/uncertainty/published/step_errors.hpp"
#include "sim/uncertainty/ratios/capacity_ratio.hpp"

namespace moesim::uncertainty {

// One of two training steps on GPUs of one kind, in two clusters.
struct LinkedStep {
  std::vector<double> parts;  // part_times()
  StepExchanges exchanges;
};

// The standard deviation of log(measured / predicted ratio) of two such steps by what their
// clusters do to it. Kernels, the software and the machine are in both, so their errors cancel as
// far as either step has the same share of them: of each class of work (WorkClass, the host by
// host_deviation) the difference of the shares counts. The law of exchanges through NICs is off in
// each cluster by itself: both shares count, each with systematic_error() of its cluster. So do
// exchanges inside a domain where `other_domains`: the domains have other links too.
double link_deviation(const LinkedStep& one, const LinkedStep& other, bool other_domains);

// The levels, as of usual_levels(), of the ratio of two steps that differ in their cluster alone:
// link_deviation() and the noise of two runs. Normal.
std::vector<BandLevel> link_ratio_levels(double link_deviation);

// `levels` around 0 with a normal term of that deviation more, added in squares.
void widen_levels(double deviation, std::vector<BandLevel>& levels);

}  // namespace moesim::uncertainty
