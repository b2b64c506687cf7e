// SimGrid as the oracle of max-min flows: tests/peers/simgrid_flows.cpp in a process of its own.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "sim/network/flows/flow_times.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/topologies.hpp"

using namespace moesim;
using namespace moesim::network;
using namespace moesim::support;

#ifdef MOESIM_SIMGRID_FLOWS
namespace {

std::vector<double> simgrid_ends(int ranks, const std::vector<Flow>& flows) {
  const std::string input = std::string(MOESIM_SIMGRID_FLOWS) + ".input";
  std::ofstream file(input);
  file << ranks << " 50e9 500e-9 " << flows.size() << '\n';
  for (const Flow& flow : flows) {
    file << flow.source << ' ' << flow.destination << ' ' << flow.bytes << ' ' << flow.start.count
         << "e-12\n";
  }
  file.close();
  const std::string command = std::string(MOESIM_SIMGRID_FLOWS) + " < " + input + " 2> /dev/null";
  std::FILE* output = popen(command.c_str(), "r");  // NOLINT(bugprone-command-processor)
  REQUIRE(output != nullptr);
  std::vector<double> ends;
  double seconds = 0;
  while (std::fscanf(output, "%lf", &seconds) == 1) ends.push_back(seconds);
  REQUIRE(pclose(output) == 0);
  return ends;
}

}  // namespace
#endif

// Sparse matrices, where the port bound is mostly wrong, half of the cases with start times.
TEST_CASE("SimGrid gives the same ends") {
#ifndef MOESIM_SIMGRID_FLOWS
  MOESIM_SKIP("SimGrid was not found when this was built (libsimgrid-dev)");
#else
  std::mt19937 random(7);  // its bits are the standard's
  for (int round = 0; round < 40; ++round) {
    const auto below = [&](int limit) {
      return static_cast<int>(random() % static_cast<unsigned>(limit));
    };
    const int ranks = 2 + below(11);
    const bool late = round % 2 == 1;
    std::vector<Flow> flows;
    for (int count = 1 + below(40); count > 0; --count) {
      const int source = below(ranks);
      const int destination = (source + 1 + below(ranks - 1)) % ranks;
      flows.push_back({source, destination, 1000 + below(4000000),
                       Picoseconds(late ? ps_per_us * below(200) : 0)});
    }
    const std::vector<double> theirs = simgrid_ends(ranks, flows);
    REQUIRE(theirs.size() == flows.size());
    const FlowTimes ours = run_flows(switch_of(ranks), flows);
    for (std::size_t flow = 0; flow < flows.size(); ++flow) {
      INFO("round " << round << " flow " << flow << ": " << ours.finish[flow].seconds() << " s, "
                    << theirs[flow] << " s");
      // SimGrid takes what differs by less than 1e-9 s for one time (surf/precision).
      CHECK(std::abs(ours.finish[flow].seconds() - theirs[flow]) < 3e-9);
    }
  }
#endif
}
