#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/shell/conditions.hpp"
#include "sim/shell/files.hpp"
#include "sim/shell/frames.hpp"
#include "sim/shell/text.hpp"
#include "sim/shell/values.hpp"
#include "sim/shell/words.hpp"

namespace moesim::shell {

struct OpenQuote : UsageError {
  using UsageError::UsageError;
};

struct Function {
  std::vector<Text> bodies;  // several where branches define it
  bool is_called = false;
  bool is_open = false;  // being read: what calls itself is read once
};

// What the commands in "$(...)" write.
struct Output {
  Text text;
  bool is_known = true;
};

// What all readers of a script share.
struct Script {
  Files& files;
  std::set<std::string> exported = {};  // variables that another shell has too
  bool exports_all = false;             // "set -a"
  std::size_t put_in = 0;               // bytes of values and functions so far
  std::size_t put_out = 0;              // of commands whose output is put in
  std::vector<Command> commands = {};
  std::map<std::string, Function> functions = {};
  std::vector<std::string> function_names = {};  // in their order
  std::size_t kept = 0;                          // variables, for what follows a pipe
  std::size_t turns = 0;                         // of its loops so far
  std::size_t read_again = 0;                    // bytes of loops, in later turns
  // The status of the last "$(...)" in the command that is read: that of a command with assignments
  // alone.
  std::optional<Truth> output_status = std::nullopt;
  Doubts used = {};  // of variables that were put in since it was emptied
};

// Reads a script as commands_in says; texts in it have readers of their own.
class Reader {
 public:
  Reader(Script& whole, Text script,
         std::shared_ptr<Variables> variables = std::make_shared<Variables>())
      : whole_(whole), script_(std::move(script)), variables_(std::move(variables)) {}

  // Adds the script's commands.
  void read();
  // Adds the commands of functions that no command calls, too.
  void read_whole();

 private:
  // What stands for a "$..."; as it is written where it is not known.
  struct Expansion {
    std::vector<Text> words;  // one, unless it is an array
    bool is_whole = false;    // not divided at its spaces
    bool is_array = false;
  };

  using NewValues = std::vector<std::pair<std::string, Value>>;
  using OldValues = std::vector<std::pair<std::string, std::optional<Value>>>;

  char here() const { return at_ < script_.size() ? script_.letters[at_] : '\0'; }
  char next() const { return at_ + 1 < script_.size() ? script_.letters[at_ + 1] : '\0'; }
  int line() const { return script_.line_at(at_); }

  // In reader.cpp: commands and their words.

  // The variables, to set some: they are this reader's own from then on.
  Variables& variables();
  // In a text that has its variables put in, a layout's bars are letters, and lists of arguments
  // have lines.
  bool ends_command(char letter) const;
  bool ends_word(char letter) const;
  // The words of the command that is read; a command begins here if none is.
  std::vector<Word>& words();
  // The program of that command; "": it has no word yet, but for reserved ones.
  std::string program() const;
  // Takes a sign that ends a command, at which the reader stands.
  void take_end();
  void end_command(Joint by);
  // Ends the command that is read, and returns its status; in a pipe it has variables of its own.
  Truth finish_in(bool is_pipe);
  // The status of the command that is read, which is done.
  Truth finish();
  // Where the bracket that is open at `from` closes; npos: nowhere near.
  std::size_t closing(std::size_t from, char open, char close) const;
  // Takes a word, an assignment or a function.
  void take_word();
  // Whether the word that is written from there on is as in eval "run ${A[@]}", which an array
  // divides.
  bool is_command_text(std::size_t begin) const;
  void add_field(const Field& field);
  void add_word(const Text& word);

  // In run.cpp: what commands do.

  // What a command does to variables, and the functions that it calls.
  Truth run(const std::string& program, const std::vector<Word>& given);
  // `given`: its words, none where it is not called.
  Truth call(const std::string& name, const Value* given);
  // What a function or a file that is sourced is: it is read where it stands. Its words are those
  // of this reader without `given`.
  Truth read_in_place(const std::vector<Text>& bodies, const Value* given, bool is_function);

  // In documents.cpp: #SBATCH, here-documents and texts.

  // Slurm's "-N 16" as "--nodes 16", "-N16" as "--nodes=16", "-n" as "--ntasks", "-G" as "--gpus";
  // "-np" and "-n" of mpirun as "--np".
  void spell_out_short_options();
  // The value of one of the job's own options, "": it is not there.
  std::string batch_value(const std::string& option);
  // What Slurm sets in a job from its #SBATCH lines.
  void set_batch_variables();
  void skip_comment();
  // "<<EOF", "<<-'EOF'": a text begins on the next line. "<<<" is a word.
  void begin_document();
  // No command reads the text that begins here.
  bool is_comment_document() const;
  // The text up to the line that ends it.
  Text document_text();
  // Adds the commands of such a text: often it is the script of a job. A text for people may have
  // apostrophes: then its quotes are letters. Left out are texts deep in texts, each of which is
  // read anew, and ": <<EOF", which is a comment.
  void take_document();
  // Adds the commands of a text, read by a reader that is prepared for it; without its quotes where
  // one of them has no end.
  void read_inner(const Text& text, const std::function<void(Reader&)>& prepare);
  // Adds the commands of a text with arguments. The text of "bash -c" and "sbatch --wrap" is read
  // by another shell.
  void add_text(const Text& text, bool is_of_other);
  // The variables that another shell has.
  Variables exported() const;
  void note_export(const std::string& name);
  // Runs the text of "eval": what it sets stays.
  void evaluate(const Text& text);

  // In control.cpp: which commands run.

  Truth runs() const { return over_ ? Truth::no : frames_.back().runs_now(); }
  bool runs_not() const { return runs() == Truth::no; }
  Frame& open_frame(Frame::Kind kind);
  void close_frame();
  // "if", "then", "do", "}" and so on, at the beginning of a command.
  void take_keyword(const std::string& word);
  void begin_branch(Truth condition);
  // "(" and ")".
  void take_bracket();
  // Begins a choice, behind "case WORD in".
  void begin_choice();
  // Takes the patterns there and behind ";;", up to the ")" of the next branch.
  void take_patterns();
  // The commands behind "exit" and "return" do not run.
  void stop(bool of_script);
  // "exit" or "return" with the status behind it.
  void end_with(const std::vector<Word>& given);
  // What is read from `begin` on, without reserved words, in short.
  Cause written_from(std::size_t begin) const;

  // In sources.cpp: files that the script sources.

  Truth source(const std::vector<Word>& given);
  void change_folder(const std::vector<Word>& given);
  // The text of the file that a word names in the command on that line.
  std::optional<Text> text_of(const Word& name, int line);
  // resolved_path() of a word.
  std::optional<std::string> path_of(const std::string& text, int line);

  // In loops.cpp: loops, which are read again for each turn that is known.

  // "for NAME in WORDS": whether it has a word.
  Truth begin_loop(const std::vector<Word>& given);
  // "for ((A; B; C))"
  void begin_counting(const std::string& text);
  // "while", "until"
  void begin_testing();
  // Begins the body of a loop, at "do".
  void begin_body();
  // Whether there is one; the variable of the loop is set.
  Truth begins_turn();
  // Begins the next turn of a loop, at "done"; false where none follows.
  bool begin_turn();
  void read_again();
  // Notes that the turns that follow are not known: the loop is read once more as one of which none
  // are.
  void lose_turns();
  // Behind "break" and "continue" the commands of a loop do not run.
  void leave_turn(const std::vector<Word>& given);

  // In output.cpp: what commands write.

  // What "$(...)" puts out; where that is not known, the text as it is written, from `begin` on.
  Expansion output_of(const Text& command, std::size_t begin);
  // "$(cat <<EOF ... EOF)" is the text of the document.
  std::optional<Text> output_of_document(const Text& command);
  // Adds what a command in "$(...)" that runs puts out.
  void put_out(const std::string& program, const std::vector<Word>& given);

  // In tests.cpp: "[ ... ]", "[[ ... ]]", "((...))".

  bool begins_command() const;
  ConditionRules rules(bool is_double);
  Truth tested(const std::vector<Word>& given);
  void take_double_brackets();
  // A word with its quotes known; of "case" it ends at "|" and ")".
  ConditionWord take_pattern(bool of_case);
  // The place of the "))" of a command that begins with "(("; 0: there is none.
  std::size_t arithmetic_end() const;
  void take_arithmetic(std::size_t end);
  // What the parts of "((...))" set; the value of the last.
  Truth changed(const std::string& text);
  // The value of "A * B", also with "$N" and "${N}" in it.
  std::optional<std::int64_t> number(const Text& expression);

  // In assignments.cpp: what sets variables and functions.

  // "NAME=VALUE", "NAME+=VALUE", "NAME[KEY]=VALUE", "NAME=(WORDS)" in front of a command or behind
  // "export" and the like.
  bool take_assignment();
  // The same behind "export" and the like where it is one only with quotes taken off and variables
  // put in: "NAME=VALUE", $(cat FILE). `written`: how it stands in the script.
  bool take_expanded(const Text& word, const Doubts& doubts, const std::string& written);
  // A variable that "local" and the like set has its old value behind the function.
  void note_local(const std::string& name);
  // Hides the assignments in front of a command: they are known to it alone, and its own words are
  // without them.
  void hide_assignments();
  std::optional<Value> found(const std::string& name) const;
  // No command follows.
  bool ends_here() const;
  OldValues assign(const NewValues& values);
  void restore(const OldValues& values);
  // The words of an array up to the bracket, or to the end of a text without one.
  Value array_words(bool has_bracket);
  // What a command sets that may run or not is added to a list that is set above.
  void set(const std::string& name, Value value, bool adds);
  void set_element(const std::string& name, const Text& key, Value value, bool adds);
  // The word of an array; their number without it.
  std::size_t place_of(const Value& array, const Text& key);
  void set_perhaps(const std::string& name, Value value, bool adds);
  // Sets a variable without the rule of lists.
  void replace(const std::string& name, Value value);
  // Notes an assignment that does not run: it is a variable of the script's own, which is empty
  // where nothing else sets it. If that depends on a value in doubt, so does the variable.
  void skip_assignment(const std::string& name);
  // Forgets a variable: from then on it is not known, nor whether it is empty.
  void forget(const std::string& name);
  bool is_lost(const std::string& name) const;
  void forget_changed(const std::string& expression);  // what "A = 1", "A += 1", "A++" in it set
  // Whether it depends on itself, in a loop whose turns are not known.
  bool accumulates(const std::string& name, const std::string& text) const;
  // What the other turns of such a loop add to a list, which depends on variables, is not known.
  void add_turns(const std::string& name, const std::string& written, Value& value) const;
  // "unset NAME", "unset NAME[KEY]".
  void unset(const std::string& name);
  // Makes a variable local to the function: it has its old value at the end.
  void set_local(const std::string& name);
  void add_list(const std::string& name, const Value& value);
  // "NAME() {", "function NAME {" and the lines up to its "}".
  bool take_function();

  // In expansion.cpp: words, with quotes taken off and variables put in.

  // One word as it is written. `divides`: expansions without quotes are divided at their spaces.
  std::vector<Field> take_fields(bool divides);
  void take_quoted(char quote, Fields& fields);
  static void add_expansion(const Expansion& found, bool divides, Fields& fields);
  Expansion unknown(std::size_t begin) const { return {{script_.part(begin, at_)}, true}; }
  Expansion dollar(bool is_quoted);
  Expansion arithmetic(std::size_t begin);
  // "$#", "${#NAME}", "${#NAME[@]}".
  Expansion length(std::size_t begin);
  Expansion output_of_command(std::size_t begin);
  Expansion backticks(std::size_t end);
  // The text with its variables put in.
  Text filled(const Text& text);
  // ${!NAME}: of the variable whose name is the value of another. ${!NAME[@]}: the keys.
  std::optional<Value> named_by(const std::string& name, const std::string& operation);
  // The value of "${NAME OPERATION}"; nothing where it or the operation is not known.
  std::optional<Value> operated(const std::string& name, Text operation, bool is_quoted);
  // Notes that `text` is taken for a variable that is not set here.
  void note_fallback(const std::string& name, const Text& text);
  // ${NAME/TEXT/OTHER}, ${NAME//TEXT/OTHER}, without signs of patterns.
  std::optional<Value> replaced(const Value& value, const Text& operation);
  // ${NAME[KEY]}; nothing for an array or a key that is not there.
  std::optional<Value> element_of(const std::optional<Value>& array, const Text& key);
  // Whether the key is known, so that an element which is not there is known not to be.
  bool knows_element(const Value& array, const Text& key);
  // A text in a script that is no command, with quotes taken off and variables put in.
  Text inner_text(const Text& text);
  // The same; its words where it stands without quotes.
  Value inner_value(const Text& text, bool is_quoted);
  // The value of a variable, or of a function's word.
  std::optional<Value> value_of(const std::string& name);
  std::optional<Value> word_of_function(const std::string& name) const;

  static constexpr int deepest = 20;
  static constexpr std::size_t most = 1 << 22;

  Script& whole_;
  Text script_;
  std::size_t at_ = 0;
  int command_ = Command::no_command;  // the one that is read
  int outer_ = Command::no_command;
  int nesting_ = 0;  // of texts in texts
  std::vector<Frame> frames_ = std::vector<Frame>(1);
  std::optional<std::size_t> over_;  // the frame that "exit" ended
  bool is_exited_ = false;
  bool may_return_ = false;    // "return" stands where it is not known whether it runs
  Truth status_ = Truth::yes;  // of the command or list before
  Cause status_cause_;
  Doubts status_doubts_;
  std::shared_ptr<Variables> before_compound_;  // variables before "{ ... }" that was reached
  std::size_t begun_at_ = 0;                    // the command that is read
  bool is_compound_ = false;      // it is "fi", "done" and so on, with the status before
  std::optional<Truth> pending_;  // the status of "[[ ... ]]" or "((...))"
  Output* output_ = nullptr;      // of the "$(...)" that is read
  bool is_function_ = false;
  bool returns_ = false;  // "return" ends it: a function, or a file that is sourced
  bool is_called_ = true;
  bool repeats_ = false;  // in a loop that may run more than once
  // Variables before an assignment in front of a command, and those of the command.
  OldValues before_;
  NewValues for_command_;
  NewValues for_document_;
  OldValues locals_;
  bool is_begun_ = false;          // behind the first word or assignment of a command
  bool is_batch_ = false;          // the command is a line of #SBATCH
  bool is_list_of_names_ = false;  // behind "declare", "export" and the like
  bool is_header_ = true;          // before the first command, behind which Slurm reads no #SBATCH
  bool is_document_ = false;
  bool keeps_variables_ = false;  // for the reader whose text it is
  bool is_text_ = false;          // of which variables were put in
  bool in_array_ = false;
  std::string document_end_;  // the word that ends the text which begins on the next line
  int document_outer_ = Command::no_command;
  bool document_is_comment_ = false;
  bool document_is_quoted_ = false;       // no variables are put in, but by the shell that reads it
  bool fills_quotes_ = false;             // variables are put in single quotes too
  std::shared_ptr<Variables> variables_;  // shared with texts in texts until one sets some
};

}  // namespace moesim::shell
