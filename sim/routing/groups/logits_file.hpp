#pragma once

#include <string>

#include "sim/base/npy.hpp"
#include "sim/routing/groups/group_router.hpp"
#include "sim/routing/tokens/losses.hpp"

namespace moesim::routing {

// Logits in, routes out. `logits`: float32 [P, S, E], the logits of one expert-parallel group.
// `out_path`: a structured .npy with fields rank, token, choice, expert, slot (<i4; slot -1 failed,
// -2 IR), weight (<f4) and kind (<U7: primary, fill, ir), one record per route in (rank, token,
// choice) order: all k' choices of every token, and its IR row, if any, as choice k'. Written
// completely or not at all. Returns the written routes. Throws UsageError for a file that is not
// such an array, E % P != 0, k' > E, NaN or +inf logits (naming rank and token); Error when the
// output cannot be written.
RoutedGroup route_logits(const RouterConfig& config, const NpyArray& logits,
                         const std::string& out_path, const RouterContext& context = {});

// The balance losses and the z-loss of such logits, over the tokens of all ranks. Throws as above.
AuxiliaryLosses auxiliary_losses(const RouterConfig& config, const NpyArray& logits);

// Writes the same list of routes to a .npy.
void write_routes(const std::string& path, const RoutedGroup& group);

}  // namespace moesim::routing
