#pragma once

#include "sim/routing/rules/router_descriptor.hpp"

namespace moesim::routing {

// Each is defined in the file of its kind, with its rule, implementation and price. top_k_router,
// the default of a RouterConfig, is declared in router_descriptor.hpp.
extern const RouterDescriptor dense_router;
extern const RouterDescriptor dropless_router;
extern const RouterDescriptor expert_choice_router;
extern const RouterDescriptor base_router;
extern const RouterDescriptor random_router;
extern const RouterDescriptor hash_router;
extern const RouterDescriptor soft_router;
extern const RouterDescriptor scomoe_router;
extern const RouterDescriptor gating_dropout_router;
extern const RouterDescriptor group_limited_router;
extern const RouterDescriptor bias_balanced_router;
extern const RouterDescriptor sinkhorn_router;

// All kinds of routers, in the order of help texts: this list registers a kind.
inline constexpr const RouterDescriptor* router_table[] = {
    &dense_router,   &top_k_router,          &dropless_router,      &expert_choice_router,
    &base_router,    &random_router,         &hash_router,          &soft_router,
    &scomoe_router,  &gating_dropout_router, &group_limited_router, &bias_balanced_router,
    &sinkhorn_router};

}  // namespace moesim::routing
