// The same flows in SimGrid. Reads from stdin
//     ranks, then bandwidth (B/s) and latency (s) of a link, then flows
//     and per flow: source destination bytes start (s)
// over a full-duplex link per rank on an ideal crossbar, and prints each flow's end in seconds,
// then on stderr the wall time of the simulation. CM02 without cross traffic is max-min fairness;
// SimGrid weighs flows by their latency, which is the same for all here. network/optim:Full, since
// the lazy mode is not max-min on sparse matrices.
#include <chrono>
#include <cstdio>
#include <iostream>
#include <simgrid/s4u.hpp>
#include <string>
#include <vector>

namespace sg4 = simgrid::s4u;

namespace {

struct Message {
  int source = 0;
  int destination = 0;
  double bytes = 0;
  double start = 0;
  double end = 0;
};

std::vector<sg4::Host*> build(int ranks, double bandwidth, double latency) {
  sg4::NetZone* zone = sg4::create_full_zone("crossbar");
  std::vector<sg4::Host*> hosts;
  std::vector<sg4::Link*> up, down;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string name = std::to_string(rank);
    hosts.push_back(zone->create_host(name, 1e9)->seal());
    up.push_back(zone->create_link("up" + name, bandwidth)->set_latency(latency)->seal());
    down.push_back(zone->create_link("down" + name, bandwidth)->set_latency(latency)->seal());
  }
  for (int source = 0; source < ranks; ++source) {
    for (int destination = 0; destination < ranks; ++destination) {
      if (source == destination) continue;
      const auto from = static_cast<std::size_t>(source);
      const auto to = static_cast<std::size_t>(destination);
      zone->add_route(hosts[from]->get_netpoint(), hosts[to]->get_netpoint(), nullptr, nullptr,
                      {sg4::LinkInRoute(up[from]), sg4::LinkInRoute(down[to])}, false);
    }
  }
  zone->seal();
  return hosts;
}

}  // namespace

int main(int argc, char** argv) {
  sg4::Engine engine(&argc, argv);
  sg4::Engine::set_config("network/model:CM02");
  sg4::Engine::set_config("network/crosstraffic:0");
  sg4::Engine::set_config("network/optim:Full");
  int ranks = 0;
  double bandwidth = 0;
  double latency = 0;
  std::size_t count = 0;
  std::cin >> ranks >> bandwidth >> latency >> count;
  std::vector<Message> messages(count);
  for (Message& one : messages) std::cin >> one.source >> one.destination >> one.bytes >> one.start;
  if (!std::cin) {
    std::fprintf(stderr, "simgrid_flows: malformed input\n");
    return 1;
  }
  const std::vector<sg4::Host*> hosts = build(ranks, bandwidth, latency);
  for (Message& one : messages) {
    sg4::Actor::create("flow", hosts[0], [&one, &hosts] {
      if (one.start > 0) sg4::this_actor::sleep_for(one.start);
      sg4::Comm::sendto(hosts[static_cast<std::size_t>(one.source)],
                        hosts[static_cast<std::size_t>(one.destination)],
                        static_cast<std::uint64_t>(one.bytes));
      one.end = sg4::Engine::get_clock();
    });
  }
  const auto begin = std::chrono::steady_clock::now();
  engine.run();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  for (const Message& one : messages) std::printf("%.15g\n", one.end);
  std::fprintf(stderr, "%.6f\n", wall.count());
}
