#pragma once

#include <cstddef>
#include <memory>

#include "sim/model/model.hpp"
#include "tools/moesim/base/command.hpp"
#include "tools/moesim/megatron/megatron_input.hpp"

namespace moesim::tool {

// Throws UsageError where the arguments have neither a size of a model nor anything of a layout, as
// those of other software.
void check_is_of_training(const model::MegatronArguments& given, const CommandLine& line);

// The one model that is typed; null: none is, or several. Throws UsageError as
// model::Model::load().
std::shared_ptr<const model::Model> typed_model(const CommandLine& line);

// --model of the file, unless it is typed. Returns how many arguments are left to a typed one.
// Throws UsageError as model::megatron_model(), and for a file that --model cannot name.
std::size_t take_model(MegatronInput& input);

// Notes, for a line without --megatron, which arguments of the scripts that --model names are left
// out, since the model alone is taken from them, and which command takes these too.
void note_model_alone(const Command& command, const CommandLine& line);

}  // namespace moesim::tool
