// dropless: each token goes to its k best experts, and every route is kept (MegaBlocks).
#include "sim/routing/routers/router_reading.hpp"
#include "sim/routing/routers/router_table.hpp"

namespace moesim::routing {

namespace {

void read(const RouterReading& in, RouterConfig& config) {
  in.expect(0, 0, "dropless");
  config.top_k = in.k_beside();
}

std::string name(const RouterConfig& /*config*/) { return "dropless"; }

}  // namespace

constinit const RouterDescriptor dropless_router{
    .head = "dropless",
    .form = "dropless",
    .help = "the same without capacity: every route kept",
    .chooses_top_k = true,
    .takes_best = true,
    .capacity = CapacityRule::none,
    .read = read,
    .name = name,
    .price = top_k_gate};

}  // namespace moesim::routing
