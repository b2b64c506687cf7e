// dense: one FFN instead of experts.
#include "sim/routing/routers/router_reading.hpp"
#include "sim/routing/routers/router_table.hpp"

namespace moesim::routing {

namespace {

void read(const RouterReading& in, RouterConfig& config) {
  in.expect(0, 0, "dense");
  config.top_k = 1;
}

std::string name(const RouterConfig& /*config*/) { return "dense"; }

}  // namespace

constinit const RouterDescriptor dense_router{.head = "dense",
                                              .form = "dense",
                                              .help = "one FFN instead of experts",
                                              .moe = false,
                                              .gate = false,
                                              .read = read,
                                              .name = name};

}  // namespace moesim::routing
