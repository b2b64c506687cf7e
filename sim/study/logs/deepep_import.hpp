#pragma once

#include <string>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/study/logs/link_logs.hpp"

namespace moesim::study {

// What DeepEP's tests ran with; they print neither.
struct DeepEpRun {
  int nodes = 1;
  int experts = 256;  // its tests' own default
};

// The results of test_internode.py or test_intranode.py as measured exchanges of the dispatcher
// "deepep", 8 GPUs on each node as these tests have it (all of a smaller node). Times that a
// version does not print follow from its rates: a row counts for each node that a token goes to, or
// for each GPU inside a node. Throws UsageError naming the file: no "[config]" line, nodes that do
// not go with the test, more than 4 of them (its tokens then go to 4 nodes at most, which no even
// draw does), experts that are not spread evenly or fewer than a token went to, times in which the
// line rates do not carry the tokens.
std::vector<cluster::MeasuredDispatch> deepep_dispatches(const std::string& file,
                                                         const std::vector<DeepEpBest>& results,
                                                         const DeepEpRun& run,
                                                         const cluster::Cluster& cluster);

}  // namespace moesim::study
