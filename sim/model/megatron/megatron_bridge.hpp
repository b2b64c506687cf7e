#pragma once

#include <optional>
#include <string>

namespace moesim::model {

// "model.seq_length=4096", as Megatron-Bridge's scripts and Hydra's take it, also with one or two
// "+" in front.
struct Override {
  std::string section;  // "model", "" where there is none
  std::string name;     // "seq-length"
  std::string value;
};
// The override that a word is; nothing for another word.
std::optional<Override> override_in(const std::string& word);

// "-tp", and not "-4": an option of some program.
bool is_short_option(const std::string& word);

// Whether a script is one of Megatron-Bridge's scripts/performance, by its name.
bool is_performance_script(const std::string& script);
// What a performance script's "-tp" or "num-gpus" is among Megatron-LM's arguments and a
// launcher's; nothing where it takes no notice of a model, a layout or a launcher.
std::optional<std::string> performance_argument(const std::string& option);

}  // namespace moesim::model
