// Exchanges as max-min flows on one core, every flow's end computed: a burst on crossbar(N, 50e9
// B/s, 500 ns) of the bytes "uniform" (1 MiB a pair), "zipf1" (a share of 1 / (destination + 1)) or
// "routed" (every pair another size, 0.5 to 1.5 MiB), or "tree2", zipf1 on leafs of 16 with half as
// much bandwidth up as down. `run_flows` runs this; one case by hand:
//     bench_flows KIND N folded|plain TOLERANCE_PS ROUNDS
// prints median, least and most CPU seconds, peak memory (MiB), mean flow finish and makespan (us),
// classes, events and the largest correction (ps) as one line of JSON. `print` in place of
// folded|plain writes the flows as input of the SimGrid peer.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "sim/network/flows/flow_times.hpp"
#include "tests/support/run_exchange.hpp"
#include "tests/support/topologies.hpp"

namespace {

using namespace moesim;
using namespace moesim::network;

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double peak_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

double mean_finish_us(const FlowTimes& times, int ranks) {
  double sum = 0;
  for (int pair = 0; pair < ranks * ranks; ++pair) {
    if (pair / ranks != pair % ranks) sum += times.finish[static_cast<std::size_t>(pair)].us();
  }
  return sum / ranks / (ranks - 1);
}

void print_flows(const ByteMatrix& bytes) {
  const int ranks = bytes.ranks();
  fmt::print("{} 50e9 500e-9 {}\n", ranks, ranks * (ranks - 1));
  for (int source = 0; source < ranks; ++source) {
    for (int destination = 0; destination < ranks; ++destination) {
      if (source == destination) continue;
      fmt::print("{} {} {} 0\n", source, destination, bytes.at(source, destination));
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 4) {
    std::fputs("usage: bench_flows uniform|zipf1|routed|tree2 N folded|plain|print [PS] [ROUNDS]\n",
               stderr);
    return 2;
  }
  const std::string kind = arguments[1];
  const int ranks = std::atoi(arguments[2]);
  const std::string how = arguments[3];
  const bool is_tree = kind == "tree2";
  const ByteMatrix bytes = kind == "uniform"            ? support::uniform(ranks)
                           : kind == "zipf1" || is_tree ? support::zipf1(ranks)
                                                        : support::routed(ranks);
  if (how == "print") {
    print_flows(bytes);
    return 0;
  }
  const Topology topology = is_tree ? support::tree2(ranks) : support::switch_of(ranks);
  FlowOptions options;
  options.fold = how == "folded";
  if (count > 4) options.tolerance = Picoseconds(std::atoll(arguments[4]));
  const int rounds = count > 5 ? std::atoi(arguments[5]) : 5;
  std::vector<double> seconds;
  FlowTimes times;
  for (int round = 0; round < rounds; ++round) {
    times = {};
    const double begin = cpu_seconds();
    times = run_exchange(topology, bytes, {}, options);
    seconds.push_back(cpu_seconds() - begin);
  }
  std::sort(seconds.begin(), seconds.end());
  fmt::print(
      "{{\"seconds\": {:.6f}, \"least\": {:.6f}, \"most\": {:.6f}, \"mib\": {:.1f}, "
      "\"mean_us\": {:.6f}, \"makespan_us\": {:.6f}, \"classes\": {}, \"events\": {}, "
      "\"dense\": {}, \"correction_ps\": {}}}\n",
      seconds[seconds.size() / 2], seconds.front(), seconds.back(), peak_mib(),
      mean_finish_us(times, ranks), times.makespan.us(), times.counts.classes, times.counts.events,
      times.counts.dense, times.counts.correction.count);
}
