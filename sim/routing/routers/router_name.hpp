#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/routing/rules/router_config.hpp"

namespace moesim::routing {

// A router by its name: the form of its kind (router_forms()), its suffix where it has one, and for
// kinds that can rectify any of +fr and +ir (or +ir@node), in any order. `top_k` is the k typed
// beside the name (0: none), `usual_k` what stands in for it (0: nothing does) where the name has
// no k of its own; "topk" asks for a typed one. Other fields keep their defaults; the capacity
// factor is k. Throws UsageError with a suggestion for an unknown name, suffix or parameter.
RouterConfig parse_router(std::string_view name, int top_k, int usual_k = 0);

// The forms of names, each with its rule in short, for help texts; the same in a line, for
// messages.
std::vector<std::pair<std::string, std::string>> router_forms();
std::string router_names();

}  // namespace moesim::routing
