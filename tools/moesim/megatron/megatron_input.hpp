#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "sim/model/megatron/megatron_arguments.hpp"
#include "sim/model/model.hpp"
#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// What --megatron FILE gives, and what was typed beside it, which wins.
struct MegatronInput {
  const model::MegatronArguments& given;
  const CommandLine& line;
  std::shared_ptr<const model::Model> model;        // of --model; null: the file's, or several
  std::map<std::string, std::string> options = {};  // the file's

  bool typed(const std::string& option) const { return line.has(option); }
  // The whole number of an option, typed or of the file; `usual` where neither has it, nothing
  // where several are typed.
  std::optional<std::int64_t> whole(const std::string& option, std::int64_t usual) const;
};

// Sets an option to what `known` has for the text of an argument, `usual` where it is not there;
// leaves one that was typed. Throws UsageError naming file, line and argument for other texts.
void take_choice(MegatronInput& input, const char* option, const char* argument, const char* usual,
                 const std::map<std::string, std::string>& known);

}  // namespace moesim::tool
