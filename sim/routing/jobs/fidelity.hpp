#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "sim/base/enum_names.hpp"

namespace moesim::routing {

struct RoutingJob;

// The level of detail of routing. tokens: the logits of every token are drawn (layer_router.hpp).
// counts: only the number of tokens of each GPU that choose each expert is drawn
// (count_router.hpp). automatic: tokens where that is possible and affordable, or where counts are
// not supported; else counts.
enum class Fidelity { automatic, tokens, counts };

inline constexpr EnumNames<Fidelity, 3> fidelity_names{
    {{Fidelity::automatic, "auto"}, {Fidelity::tokens, "tokens"}, {Fidelity::counts, "counts"}}};
std::string name_of(Fidelity value);
// Throws a UsageError that names `where` and the choices.
Fidelity parse_fidelity(std::string_view text, const std::string& where);

// Logits that a replica draws at token level: tokens of all GPUs, experts, layers.
double token_logits(const RoutingJob& job);
// Up to this number `automatic` draws all logits: some seconds on one core.
inline constexpr double affordable_logits = 1e9;

// The largest number of tokens of an expert-parallel group: limited by 32-bit route numbers (k'
// choices per token), or 32-bit counts.
std::int64_t most_tokens(Fidelity fidelity);

// Whether the counts of a job are drawn from a sample of its tokens (counts/sampled_counts.hpp),
// not from the popularity of each expert: where tokens choose by another rule than the k best, and
// a capacity, if there is one, is of each source and is not followed by a rectification; and where
// no route is dropped and tokens are counted per destination, differ in number between GPUs, or
// have types.
bool is_sampled(const RoutingJob& job);

// Why counts cannot replace the tokens of a job; empty if they can.
std::string counts_refusal(const RoutingJob& job);

// What `wanted` resolves to: never automatic.
Fidelity choose_fidelity(Fidelity wanted, const RoutingJob& job);

}  // namespace moesim::routing
