#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/base/formats/npy.hpp"
#include "sim/routing/groups/group_router.hpp"
#include "sim/routing/rules/expert_placement.hpp"
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
// The group whose logits an array [P, S, E] holds, or [S, E] for one rank, in any of the types of
// NpyArray::floating(). Throws UsageError for another array, and for E < P.
GroupOfFile group_of(const NpyArray& array);

// Logits in, routes out. `placement`: of the experts on the ranks (its layer 0), null: in the order
// of their numbers. Throws UsageError for E % P != 0, k' > E, NaN or +inf logits (naming rank and
// token).
RoutedGroup route_logits(const RouterConfig& config, const GroupOfFile& group,
                         const RouterContext& context = {},
                         const std::shared_ptr<const ExpertPlacement>& placement = nullptr);

// A structured .npy with fields rank, token, choice, expert, slot (<i4; slot -1 failed, -2 IR),
// weight (<f4) and kind (<U7: primary, fill, ir), one record per route in (rank, token, choice)
// order: all k' choices of every token, and its IR row, if any, as choice k'. Written completely or
// not at all; Error when it cannot be written.
void write_routes(const std::string& path, const RoutedGroup& group);

// The balance losses and the z-loss of such logits, over the tokens of all ranks; f_e are the
// choices that the router made before it dropped any, `routed`. Precondition: it chooses k experts
// by the scores of each token.
AuxiliaryLosses auxiliary_losses(const RouterConfig& config, const GroupOfFile& group,
                                 const RoutedGroup& routed);

}  // namespace moesim::routing
