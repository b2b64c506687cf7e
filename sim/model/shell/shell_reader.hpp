#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/model/shell/shell_text.hpp"
#include "sim/model/shell/shell_values.hpp"
#include "sim/model/shell/shell_words.hpp"

namespace moesim::model {

struct OpenQuote : UsageError {
  using UsageError::UsageError;
};

struct ShellFunction {
  std::vector<ShellText> bodies;  // several where branches define it
  bool is_called = false;
  bool is_open = false;  // being read: what calls itself is read once
};

// What all readers of a script share.
struct ShellScript {
  const std::string& name;
  std::size_t put_in = 0;  // bytes of values and functions so far
  std::vector<ShellCommand> commands = {};
  std::map<std::string, ShellFunction> functions = {};
  std::vector<std::string> function_names = {};  // in their order
};

// Reads a script as shell_commands says; texts in it have readers of their own.
class ShellReader {
 public:
  ShellReader(ShellScript& whole, ShellText script,
              std::shared_ptr<ShellVariables> variables = std::make_shared<ShellVariables>())
      : whole_(whole), script_(std::move(script)), variables_(std::move(variables)) {}

  // Adds the script's commands.
  void read();
  // Those of functions that no command calls, too.
  void read_whole();

 private:
  // What stands for a "$..."; as it is written where it is not known.
  struct Expansion {
    std::vector<ShellText> words;  // one, unless it is an array
    bool is_whole = false;         // not divided at its spaces
    bool is_array = false;
  };

  char here() const { return at_ < script_.size() ? script_.letters[at_] : '\0'; }
  char next() const { return at_ + 1 < script_.size() ? script_.letters[at_ + 1] : '\0'; }
  int line() const { return script_.line_at(at_); }

  // In shell_reader.cpp: commands, here-documents and texts.

  // To set some: this reader's own from then on.
  ShellVariables& variables();
  // In a text that has its variables put in, a layout's bars are letters, and lists of arguments
  // have lines.
  bool ends_command(char letter) const;
  bool ends_word(char letter) const;
  // Of the command that is read: it begins here if it has none.
  std::vector<ShellWord>& words();
  void end_command(char by);
  // What a command does to variables, and the functions that it calls.
  void run(const std::string& program, const std::vector<ShellWord>& given);
  // `given`: its words, none where it is not called.
  void call(const std::string& name, const ShellValue* given);
  // Slurm's "-N 16" as "--nodes 16", "-N16" as "--nodes=16", "-n" as "--ntasks", "-G" as "--gpus";
  // "-np" and "-n" of mpirun as "--np".
  void spell_out_short_options(const std::string& program);
  // The value of one of the job's own options, "": it is not there.
  std::string batch_value(const std::string& option);
  // What Slurm sets in a job from its #SBATCH lines.
  void set_batch_variables();
  void skip_comment();
  // "<<EOF", "<<-'EOF'": a text begins on the next line. "<<<" is a word.
  void begin_document();
  // Up to the line that ends it.
  ShellText document_text();
  // Its commands: often it is the script of a job. A text for people may have apostrophes: then its
  // quotes are letters. Without those of texts deep in texts, each of which is read anew.
  void take_document();
  // The commands of a text, by a reader that is prepared for it. Without its quotes where one of
  // them has no end.
  void read_inner(const ShellText& text, const std::function<void(ShellReader&)>& prepare);
  // Where the bracket that is open at `from` closes; npos: nowhere near.
  std::size_t closing(std::size_t from, char open, char close) const;
  // A word, an assignment or a function.
  void take_word();
  // "NAME=VALUE" behind a Python script is an argument of its own.
  bool is_behind_script() const;
  // Whether the word that is written from there on is as in eval "run ${A[@]}", which an array
  // divides.
  bool is_command_text(std::size_t begin) const;
  void add_field(const ShellField& field);
  void add_word(const ShellText& word);
  // The commands of a text with arguments, such as that of "bash -c".
  void add_text(const ShellText& text);

  // In shell_assignments.cpp: what sets variables and functions.

  // "NAME=VALUE", "NAME+=VALUE", "NAME[KEY]=VALUE", "NAME=(WORDS)".
  bool take_assignment();
  // Up to the bracket, or to the end of a text without one.
  ShellValue array_words(bool has_bracket);
  // Of branches all are read: what one sets is added to a list that is set above.
  void set(const std::string& name, ShellValue value, bool adds);
  void add_list(const std::string& name, const ShellValue& value);
  // "NAME() {", "function NAME {" and the lines up to its "}".
  bool take_function();

  // In shell_expansion.cpp: words, with quotes taken off and variables put in.

  // One word as it is written. `divides`: expansions without quotes are divided at their spaces.
  std::vector<ShellField> take_fields(bool divides);
  void take_quoted(char quote, ShellFields& fields);
  static void add_expansion(const Expansion& found, bool divides, ShellFields& fields);
  Expansion unknown(std::size_t begin) const { return {{script_.part(begin, at_)}, true}; }
  Expansion dollar(bool is_quoted);
  // "$(cat <<EOF ... EOF)" is the text of the document, of other commands nothing is known.
  Expansion output_of_command(std::size_t begin);
  // With its variables put in.
  ShellText filled(const ShellText& text);
  // ${!NAME}: of the variable whose name is the value of another.
  std::optional<ShellValue> named_by(const std::string& name, const std::string& operation);
  // The value of "${NAME OPERATION}"; nothing where it or the operation is not known.
  std::optional<ShellValue> operated(const std::string& name, ShellText operation, bool is_quoted);
  // ${NAME[KEY]}. An array that is not set is empty; nothing for a key that is not there.
  std::optional<ShellValue> element_of(const std::optional<ShellValue>& array,
                                       const ShellText& key);
  // Of a text in a script, which is no command: quotes taken off, variables put in.
  ShellText inner_text(const ShellText& text);
  // The same; its words where it stands without quotes.
  ShellValue inner_value(const ShellText& text, bool is_quoted);
  // Of a variable, or a function's word.
  std::optional<ShellValue> value_of(const std::string& name);
  std::optional<ShellValue> word_of_function(const std::string& name) const;

  static constexpr int deepest = 20;
  static constexpr std::size_t most = 1 << 22;

  ShellScript& whole_;
  ShellText script_;
  std::size_t at_ = 0;
  int command_ = ShellCommand::no_command;  // the one that is read
  int outer_ = ShellCommand::no_command;
  int nesting_ = 0;                // of texts in texts
  int branches_ = 0;               // of "if" and "case" that are open
  bool is_conditional_ = false;    // behind "&&" or "||"
  bool is_begun_ = false;          // behind the first word or assignment of a command
  bool is_batch_ = false;          // the command is a line of #SBATCH
  bool is_list_of_names_ = false;  // behind "declare"
  bool is_document_ = false;
  bool is_text_ = false;  // of which variables were put in
  bool in_array_ = false;
  std::string document_end_;  // the word that ends the text which begins on the next line
  int document_outer_ = ShellCommand::no_command;
  bool document_is_quoted_ = false;  // no variables are put in, but by the shell that reads it
  bool fills_quotes_ = false;        // variables are put in single quotes too
  std::shared_ptr<ShellVariables> variables_;  // shared with texts in texts until one sets some
};

}  // namespace moesim::model
