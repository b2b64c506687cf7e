// Max-min levels after flows came and went, against filling all links from nothing.
#include "sim/network/flows/max_min.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.hpp"

using namespace moesim::network;

namespace {

using Routes = std::map<std::uint32_t, std::vector<Hop>>;  // [flow]

// Progressive filling as its definition says, a link at a time.
std::map<std::uint32_t, long double> naive_rates(const std::vector<double>& capacity,
                                                 const Routes& routes) {
  std::map<std::uint32_t, long double> rates;
  std::vector<long double> left(capacity.begin(), capacity.end());
  while (rates.size() < routes.size()) {
    std::vector<long double> weights(capacity.size(), 0);
    for (const auto& [flow, route] : routes) {
      if (rates.count(flow) != 0) continue;
      for (const Hop& hop : route) weights[static_cast<std::size_t>(hop.link)] += hop.weight;
    }
    long double least = std::numeric_limits<long double>::infinity();
    int full = -1;
    for (std::size_t link = 0; link < capacity.size(); ++link) {
      if (weights[link] > 0 && left[link] / weights[link] < least) {
        least = left[link] / weights[link];
        full = static_cast<int>(link);
      }
    }
    for (const auto& [flow, route] : routes) {
      if (rates.count(flow) != 0) continue;
      if (std::none_of(route.begin(), route.end(), [&](Hop hop) { return hop.link == full; })) {
        continue;
      }
      rates[flow] = least;
      for (const Hop& hop : route) left[static_cast<std::size_t>(hop.link)] -= hop.weight * least;
    }
  }
  return rates;
}

class Random {
 public:
  explicit Random(unsigned seed) : random_(seed) {}
  int below(int limit) { return static_cast<int>(random_() % static_cast<std::uint64_t>(limit)); }

 private:
  std::mt19937_64 random_;
};

// Links of a fabric of `ports` ports a side, below leafs of `per_leaf` with `spare` times what half
// their ports carry: [up, down, leaf up, leaf down].
struct Leafs {
  int ports, per_leaf;
  std::vector<double> capacity;

  Leafs(int ports_a_side, int ports_per_leaf, double spare, Random& random)
      : ports(ports_a_side), per_leaf(ports_per_leaf) {
    for (int port = 0; port < 2 * ports; ++port) {
      capacity.push_back(0.01 * (1 + random.below(50)));
    }
    for (int leaf = 0; leaf < 2 * leafs(); ++leaf) {
      capacity.push_back(0.005 * spare * per_leaf * (1 + random.below(50)));
    }
  }
  int leafs() const { return (ports + per_leaf - 1) / per_leaf; }
  std::vector<Hop> route(int source, int destination, Random& random, bool weighed) const {
    std::vector<Hop> route{{source, 1}, {ports + destination, 1}};
    const int first = source / per_leaf;
    const int second = destination / per_leaf;
    if (first != second) {
      route.push_back({2 * ports + first, 1});
      route.push_back({2 * ports + leafs() + second, 1});
    }
    for (Hop& hop : route) hop.weight = weighed ? 1 + random.below(4) : 1;
    return route;
  }
};

void check_levels(const MaxMin& shares, const std::vector<double>& capacity, const Routes& routes) {
  std::vector<double> load(capacity.size(), 0);
  const std::map<std::uint32_t, long double> rates = naive_rates(capacity, routes);
  for (const auto& [flow, route] : routes) {
    const int link = shares.bottleneck(flow, -1);
    const double rate = shares.level(link);
    const auto expected = static_cast<double>(rates.at(flow));
    INFO("flow " << flow << " gets " << rate << ", not " << expected);
    REQUIRE(rate == Approx(expected).epsilon(1e-11));
    for (const Hop& hop : route) load[static_cast<std::size_t>(hop.link)] += hop.weight * rate;
  }
  for (std::size_t link = 0; link < capacity.size(); ++link) {
    INFO("link " << link << " carries " << load[link] << " of " << capacity[link]);
    REQUIRE(load[link] <= capacity[link] * (1 + 1e-11));
    if (shares.level(static_cast<int>(link)) == MaxMin::unlimited) continue;
    REQUIRE(load[link] >= capacity[link] * (1 - 1e-11));
  }
}

}  // namespace

// Links that are far from full, and are not looked at as others change, are full later.
TEST_CASE("levels are right after every change, however many links have room", "[flows]") {
  for (unsigned seed = 0; seed < 48; ++seed) {
    Random random(seed);
    const bool weighed = seed % 3 == 0;
    const double spare = seed % 4 == 0 ? 4 : seed % 4 == 1 ? 0.3 : 1;
    const Leafs leafs(9 + random.below(8), 1 + random.below(6), spare, random);
    MaxMin shares(leafs.capacity, 4);
    Routes routes;
    const auto toggle = [&] {
      const int source = random.below(leafs.ports);
      const int destination = random.below(leafs.ports);
      const auto flow = static_cast<std::uint32_t>(source * leafs.ports + destination);
      if (routes.erase(flow) != 0) {
        shares.remove(flow);
        return;
      }
      routes[flow] = leafs.route(source, destination, random, weighed);
      shares.add(flow, routes[flow]);
    };
    for (int flow = 0; flow < leafs.ports * leafs.ports / 3; ++flow) toggle();
    for (int step = 0; step < 60; ++step) {
      shares.settle();
      INFO("seed " << seed << ", step " << step << ", " << routes.size() << " flows");
      check_levels(shares, leafs.capacity, routes);
      for (int change = random.below(4); change >= 0; --change) toggle();
    }
  }
}
