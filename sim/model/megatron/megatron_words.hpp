#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "sim/shell/words.hpp"

namespace moesim::model {

bool is_argument(const std::string& word);    // "--seq-length", "--seq_length=4096"
std::string argument_name(std::string text);  // "seq-length" of each

std::string shortened(const std::string& text);  // for a note

// How many arguments of a Megatron-LM training a command has.
std::size_t arguments_of(const shell::Command& command);
std::string program_of(const shell::Command& command);
// What it runs, such as pretrain_gpt.py of "torchrun pretrain_gpt.py"; its program without one.
std::string script_of(const shell::Command& command);
bool is_named_for_training(const shell::Command& command);
// It is named so and is no shell script, which may run something else.
bool trains(const shell::Command& command);
// It shows a command.
bool is_output(const shell::Command& command);
bool says_gpus(const shell::Command& command);
// A variable that is not known stands where it may be a list of arguments.
bool hides_arguments(const shell::Command& command);
// The command without variables behind a complete argument that are not known, such as that in
// "--seq-length 4096 $MORE"; `unknown` gets them, and other words there that are not known.
shell::Command without_unknown(const shell::Command& command, std::vector<shell::Word>& unknown);

}  // namespace moesim::model
