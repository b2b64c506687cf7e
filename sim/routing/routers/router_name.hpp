#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/routing/rules/router_config.hpp"

namespace moesim::routing {

// Parses the name of a router: the form of its kind (router_forms()), its suffix if any, and for
// kinds with rectification any of +fr and +ir (or +ir@node), in any order. `top_k` is the value of
// --top-k (0: not given), `usual_k` the default (0: none) where the name does not contain k; "topk"
// needs a given one. Other fields keep their defaults; the capacity factor is k. Throws UsageError
// with a suggestion for an unknown name, suffix or parameter.
RouterConfig parse_router(std::string_view name, int top_k, int usual_k = 0);

// The forms of names, each with a short description, for help texts: of the kinds that are `taken`
// (null: all). The same in one line, of all kinds, for messages.
std::vector<std::pair<std::string, std::string>> router_forms(
    bool (*taken)(const RouterDescriptor& kind) = nullptr);
std::string router_names();

}  // namespace moesim::routing
