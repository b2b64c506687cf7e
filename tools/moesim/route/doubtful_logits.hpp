#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace moesim::tool {

// Warnings of values that logits are not likely to be: axes that seem swapped, whole numbers as of
// counts, rows that add up to 1 as behind a softmax. `values`: [tokens, experts], experts last.
// `name`: of the file or trace. `tokens`: of a rank, where several ranks' are given.
void warn_of_logits(const std::string& name, std::span<const float> values, std::int64_t tokens,
                    std::int64_t experts);

}  // namespace moesim::tool
