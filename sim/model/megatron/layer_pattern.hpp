#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/model/megatron/megatron_arguments.hpp"

namespace moesim::model {

// Layers of two kinds as an argument of Megatron-LM lists them: an expression of Python of lists of
// 0 and 1, sums and multiples, such as "([1]*3+[0]*1)*12" (megatron/training/arguments.py,
// _eval_pattern).
struct LayerPattern {
  std::vector<bool> layers;  // no more than one beyond `most`
  std::int64_t count = 0;    // of all that the text names, up to what 64 bits hold
};

// The pattern of a text; nothing where the text is no such list. What follows it behind a space is
// not of it.
std::optional<LayerPattern> layer_pattern(std::string_view text, std::int64_t most);

// The words of a script behind an argument, or the items of a YAML's list, as one text; "1" without
// the argument.
std::string layer_words(const MegatronArguments& arguments, const char* name);
// 0 or 1 for each layer, of such a text. Throws UsageError where it is no list, or of other layers
// than there are.
std::vector<bool> listed_layers(const MegatronArguments& arguments, const char* name,
                                const std::string& text, std::int64_t layers);

}  // namespace moesim::model
