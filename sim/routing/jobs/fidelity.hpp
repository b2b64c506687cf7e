#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "sim/base/enum_names.hpp"

namespace moesim::routing {

struct RoutingJob;

// How finely a job is routed. tokens: every token's logits are drawn (layer_router.hpp). counts:
// only how many tokens of each GPU choose each expert (count_router.hpp). automatic: tokens where
// that is possible and affordable, or nothing else is offered.
enum class Fidelity { automatic, tokens, counts };

inline constexpr EnumNames<Fidelity, 3> fidelity_names{
    {{Fidelity::automatic, "auto"}, {Fidelity::tokens, "tokens"}, {Fidelity::counts, "counts"}}};
std::string name_of(Fidelity value);
// Throws UsageError naming `where` and the choices.
Fidelity parse_fidelity(std::string_view text, const std::string& where);

// Logits that a replica draws at token level: tokens of all GPUs, experts, layers.
double token_logits(const RoutingJob& job);
// Up to here `automatic` draws them all: some seconds of one core.
inline constexpr double affordable_logits = 1e9;

// Tokens that an expert-parallel group may hold: what 32 bits number, k' choices each, or count.
std::int64_t most_tokens(Fidelity fidelity);

// Why counts cannot stand for the tokens of a job; empty where they can.
std::string counts_refusal(const RoutingJob& job);

// What `wanted` resolves to: never automatic.
Fidelity choose_fidelity(Fidelity wanted, const RoutingJob& job);

}  // namespace moesim::routing
