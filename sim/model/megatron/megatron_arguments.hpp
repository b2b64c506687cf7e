#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/model/megatron/megatron_bridge.hpp"
#include "sim/shell/files.hpp"

namespace moesim::shell {
struct Command;
struct Word;
}  // namespace moesim::shell

namespace moesim::model {

struct KeyValue;
struct ScriptCall;

// The arguments of a Megatron-LM training job (megatron/training/arguments.py), as a launch script
// or a YAML file gives them; names as on Megatron's command line, without dashes.
//
// Script: every word of the command that trains, of what runs it and of lines of #SBATCH
// (training_commands) that begins with two dashes, with the words behind it; "a.b=VALUE" is the key
// b of a YAML, short options are those of Megatron-Bridge's performance scripts. Variables and
// arrays that the script sets are put in where they are used,
// ${NAME:-DEFAULT}, ${NAME:+WORDS}, ${NAME:0:2} and $((A * B)) too, other operations are not done;
// nothing is run, files that it sources are read, and of branches whose condition is not known all
// are read. Where the command that trains is not in it, as in a script that another reads, the
// arguments of all variables are taken. YAML: the keys of all levels but those in capitals and
// those of another model (yaml_keys); of two in Megatron-Bridge's file that of mixed_precision is
// taken, then that of model; "true", "yes" and "on" are a flag alone, "false", "no", "off", "null",
// "~" and "None" are none (YAML 1.1; "TRUE" and "True" are "true").
class MegatronArguments {
 public:
  // Of a path, or of the call of a script: "TP=2 EP=8 run.sh large" (script_call). Throws
  // UsageError naming the file, and the line of what cannot be read.
  static MegatronArguments load(const std::string& call);
  // The same where the variable `variable` is set to `value`, too.
  static MegatronArguments load_with(const std::string& call, const std::string& variable,
                                     const std::string& value);
  // `read` gives the files that a script sources.
  static MegatronArguments parse(const std::string& text, const std::string& name,
                                 shell::Files::Read read = nullptr);
  // Whether a text is such a path or call: .sh, .bash, .slurm, .sbatch, .yaml, .yml.
  static bool is_path(const std::string& call);
  // The file of a path or call.
  static std::string file_of(const std::string& call);

  const std::string& name() const { return name_; }      // the path
  const std::string& source() const { return source_; }  // what load() was given
  bool has(std::string_view argument) const;
  // Its first value, where it is given last; nothing if the argument is not there. Throws
  // UsageError naming file, line and argument where it has no value, or none that is a whole number
  // from 1 (count: 0) to 2^31 - 1.
  std::optional<std::string> text(std::string_view argument) const;
  // The same; nothing too where it has no value, or one with a variable that is not set.
  std::optional<std::string> known_text(std::string_view argument) const;
  std::vector<std::string> texts(std::string_view argument) const;
  std::optional<std::int64_t> size(std::string_view argument) const;
  std::optional<std::int64_t> count(std::string_view argument) const;
  [[noreturn]] void fail(std::string_view argument, const std::string& why) const;

  // Another value counts than that of this argument: where it is not known, the functions above
  // answer as if it were not there (has() but so).
  void spare(std::string_view argument);
  // From now on all arguments whose value is not known are answered so, and remembered.
  void collect_unknown() { collects_ = true; }
  // What is to be said of those that were asked for; "" where there is none. One error for all.
  std::string refusal_of_unknown() const;
  bool has_unknown() const;  // some argument's value is not known

  // What else is to be said of the file, without its name.
  std::vector<std::string> notes() const;
  // What has arguments that were not taken, such as "2 of tools/server.py (line 3)".
  const std::vector<std::string>& left_out() const { return left_out_; }

  // What is taken of variables that a script takes from the shell that runs it, if they are there.
  const std::map<std::string, std::string>& fallbacks() const { return files_.fallbacks(); }

  // Its command is one of Megatron-Bridge's performance scripts, or names a recipe of it.
  bool is_of_bridge() const { return names_recipe_; }

  // Its experts drop by DeepSpeed's rules, not by Megatron-Core's.
  bool drops_as_deepspeed() const { return is_deepspeed_; }

  // Of the arguments that one of the functions above was asked for those that are other ones in
  // `other`, and all that are only there.
  std::vector<std::string> taken_otherwise(const MegatronArguments& other) const;

  // Arguments that none of the functions above was asked for, sorted; other options as they are
  // written, such as "-x".
  std::vector<std::string> not_asked() const;

 private:
  struct Argument {
    std::vector<std::string> values;
    int line = 0;  // 0: of none
    int rank = 0;
    bool is_set = true;
    std::string other;           // the value that it was given before, and where
    mutable bool asked = false;  // for it
    bool is_spared = false;
    mutable bool is_missed = false;  // it was asked for, and its value is not known
  };
  struct Place {
    int line = 0;
    int rank = 0;              // of two values the one of the higher rank is taken
    bool is_override = false;  // of two of one rank the last, without a note, also "none"
  };
  // Megatron-Bridge's mixed_precision sets what its model, optimizer and gradients have too, and
  // its model has another vocabulary than a tokenizer of its own.
  static constexpr int rank_of_precision = 2;
  static int rank_of(const std::string& section);

  static MegatronArguments parse_call(const std::string& text, const ScriptCall& call,
                                      const std::string& source, shell::Files::Read read);
  void read_script(const std::string& text);
  void take(const shell::Command& command);
  void take_overrides();
  void take_counterparts();
  void take_deepspeed();
  // Puts an argument that scripts usually have, unless this one has it.
  void put_usual(const char* argument, std::vector<std::string> values);
  void put(const KeyValue& value, const Place& place);
  void put_key(const std::string& key, const std::string& value,
               const std::vector<std::string>& items, const Place& place);
  void note_unknown(const std::vector<shell::Word>& words);
  void read_yaml(const std::string& text, const ScriptCall& call);
  // In megatron_performance.cpp.
  void put_besides_performance_options();
  void put_compute_type(const std::string& type, int line);
  void put_performance_option(const std::string& option, const std::vector<std::string>& values,
                              int line);

  const Argument* find(std::string_view argument) const;
  // Whether its value is not known and is not asked for. Throws UsageError where it is needed.
  bool is_left(std::string_view argument, const Argument& found) const;
  std::optional<std::int64_t> whole(std::string_view argument, std::int64_t least) const;

  std::string name_;
  std::string source_;
  shell::Files files_;
  std::vector<std::string> notes_;
  std::vector<std::string> left_out_;
  std::map<std::string, Argument, std::less<>> arguments_;
  std::vector<std::pair<Override, int>> overrides_;  // and their lines
  bool names_recipe_ = false;
  bool collects_ = false;
  bool is_deepspeed_ = false;
};

}  // namespace moesim::model
