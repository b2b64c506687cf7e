#include "sim/network/port_bound.hpp"

#include <cstdio>

#include "sim/base/error.hpp"
#include "sim/base/random.hpp"
#include "tests/sim/network/exchange_shapes.hpp"
#include "tests/sim/network/naive_flows.hpp"
#include "tests/support/catch.hpp"

namespace moesim::network {
namespace {

struct Answer {
  double makespan = 0;
  std::vector<double> rank_finish;
};

Answer exact_answer(const Topology& topology, const ByteMatrix& bytes,
                    const std::vector<Picoseconds>& start) {
  std::vector<Flow> flows;
  for (int source = 0; source < bytes.ranks(); ++source) {
    for (int destination = 0; destination < bytes.ranks(); ++destination) {
      if (bytes.at(source, destination) == 0) continue;
      flows.push_back({source, destination, bytes.at(source, destination),
                       start.empty() ? Picoseconds(0) : start[static_cast<std::size_t>(source)]});
    }
  }
  const std::vector<double> ends = naive_flows(topology, flows);
  Answer answer;
  answer.rank_finish.resize(static_cast<std::size_t>(bytes.ranks()));
  for (std::size_t flow = 0; flow < flows.size(); ++flow) {
    answer.makespan = std::max(answer.makespan, ends[flow]);
    for (const int rank : {flows[flow].source, flows[flow].destination}) {
      double& finish = answer.rank_finish[static_cast<std::size_t>(rank)];
      finish = std::max(finish, ends[flow]);
    }
  }
  return answer;
}

}  // namespace

TEST_CASE("the port bound is exact on the known bursts") {
  // Issue table: burst makespans in us, to 1 ns, of the shapes whose busiest port sees equal sizes.
  struct Known {
    int ranks;
    double switch_uniform, switch_zipf, node_uniform, node_zipf, tree_uniform;
  };
  for (const Known& known : {Known{8, 147.801, 433.107, 17.311, 49.012, 147.801},
                             Known{16, 315.573, 1489.781, 169.772, 796.016, 315.573},
                             Known{32, 651.117, 5126.976, 505.316, 3970.497, 672.089},
                             Known{64, 1322.206, 17825.434, 1176.405, 15845.941, 2014.266}}) {
    const auto check_burst = [&](const Topology& topology, const ByteMatrix& bytes, double us) {
      const PortBound bound = PortBounder(topology).bound(bytes);
      CHECK(bound.exact);
      CHECK(bound.lower.us() == Approx(us).margin(0.0006).epsilon(0));
      CHECK(bound.slack() == 0);
    };
    INFO(known.ranks << " ranks");
    check_burst(ideal_switch(known.ranks), uniform_matrix(known.ranks), known.switch_uniform);
    check_burst(ideal_switch(known.ranks), zipf_matrix(known.ranks), known.switch_zipf);
    check_burst(ideal_node8(known.ranks), uniform_matrix(known.ranks), known.node_uniform);
    check_burst(ideal_node8(known.ranks), zipf_matrix(known.ranks), known.node_zipf);
    check_burst(ideal_tree2(known.ranks), uniform_matrix(known.ranks), known.tree_uniform);
  }
}

TEST_CASE("the port bound brackets cases that need real sharing") {
  ByteMatrix bytes(4);
  const int rows[4][4] = {{0, 5, 3, 4}, {3, 0, 3, 0}, {4, 0, 0, 0}, {6, 0, 8, 0}};
  for (int source = 0; source < 4; ++source) {
    for (int destination = 0; destination < 4; ++destination) {
      bytes.at(source, destination) = rows[source][destination] * mebibyte;
    }
  }
  const Topology topology = ideal_switch(4);
  const PortBound bound = PortBounder(topology).bound(bytes);
  // 14 MiB leave rank 3 and arrive at rank 2: 14 * 1048576 / 50e3 + 1 = 294.601 us.
  CHECK(bound.lower.us() == Approx(294.601).margin(0.0006).epsilon(0));
  CHECK(bound.upper.us() >= 357.516);
  CHECK_FALSE(bound.exact);
  const Answer answer = exact_answer(topology, bytes, {});
  CHECK(answer.makespan * 1e-6 == Approx(357.516).margin(0.0006).epsilon(0));
  std::vector<Picoseconds> start(4);
  start[1] = Picoseconds::from_us(50);
  start[3] = Picoseconds::from_us(100);
  CHECK(exact_answer(topology, bytes, start).makespan * 1e-6 ==
        Approx(413.164).margin(0.0006).epsilon(0));
}

}  // namespace moesim::network
