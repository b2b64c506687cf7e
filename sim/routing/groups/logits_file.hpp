#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/base/npy.hpp"
#include "sim/routing/groups/group_router.hpp"
#include "sim/routing/tokens/losses.hpp"

namespace moesim::routing {

// The logits of one expert-parallel group.
struct GroupOfFile {
  std::string name;           // the file, for messages
  std::int64_t ranks = 1;     // P
  std::int64_t tokens = 0;    // S, of a rank
  std::int64_t experts = 1;   // E
  std::vector<float> logits;  // [P, S, E]
};
// Of an array [P, S, E], or [S, E] of one rank, in any of the types of NpyArray::floating(). Throws
// UsageError for another one, and for E < P.
GroupOfFile group_of(const NpyArray& array);

// Logits in, routes out. Throws UsageError for E % P != 0, k' > E, NaN or +inf logits (naming rank
// and token).
RoutedGroup route_logits(const RouterConfig& config, const GroupOfFile& group,
                         const RouterContext& context = {});

// The same, written to `out_path`: a structured .npy with fields rank, token, choice, expert, slot
// (<i4; slot -1 failed, -2 IR), weight (<f4) and kind (<U7: primary, fill, ir), one record per
// route in (rank, token, choice) order: all k' choices of every token, and its IR row, if any, as
// choice k'. Written completely or not at all; Error when it cannot be written.
RoutedGroup route_logits(const RouterConfig& config, const NpyArray& logits,
                         const std::string& out_path, const RouterContext& context = {});

// The balance losses and the z-loss of such logits, over the tokens of all ranks. Throws as above.
AuxiliaryLosses auxiliary_losses(const RouterConfig& config, const GroupOfFile& group);

// Writes the same list of routes to a .npy.
void write_routes(const std::string& path, const RoutedGroup& group);

}  // namespace moesim::routing
