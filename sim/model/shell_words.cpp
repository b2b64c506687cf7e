#include "sim/model/shell_words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/text.hpp"
#include "sim/model/shell_arithmetic.hpp"
#include "sim/model/shell_text.hpp"

namespace moesim::model {
namespace {

using Kind = ShellCommand::Kind;

constexpr const char* batch_line = "#SBATCH";
constexpr const char* wrap = "--wrap=";  // of sbatch
constexpr const char* all_words = "@";   // the variable that holds a function's words

struct OpenQuote : UsageError {
  using UsageError::UsageError;
};

struct Value {
  std::vector<ShellText> words;  // one of a variable that is no array
  bool is_array = false;
  bool names_another = false;  // declare -n
  bool is_divided = false;     // at its spaces, but for those in quotes

  std::string text() const { return joined().letters; }

  ShellText joined() const {
    ShellText all;
    for (std::size_t word = 0; word < words.size(); ++word) {
      if (word > 0) all.add(' ', all.line_at(all.size()));
      all.add(words[word]);
    }
    return all;
  }

  bool holds_arguments() const {
    return std::any_of(words.begin(), words.end(),
                       [](const ShellText& word) { return is_list(word.letters); });
  }

  bool begins_with(const Value& other) const {
    if (!is_array && !other.is_array) return text().rfind(other.text(), 0) == 0;
    return words.size() >= other.words.size() &&
           std::equal(other.words.begin(), other.words.end(), words.begin(),
                      [](const auto& one, const auto& two) { return one.letters == two.letters; });
  }
};

using Variables = std::map<std::string, Value>;

struct Function {
  std::vector<ShellText> bodies;  // several where branches define it
  bool is_called = false;
  bool is_open = false;  // being read: what calls itself is read once
};

class Opened {
 public:
  explicit Opened(Function& function) : function_(function) { function_.is_open = true; }
  ~Opened() { function_.is_open = false; }
  // It belongs to one reading.
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

 private:
  Function& function_;
};

// What all readers of a script share.
struct Script {
  const std::string& name;
  std::size_t put_in = 0;  // bytes of values and functions so far
  std::vector<ShellCommand> commands = {};
  std::map<std::string, Function> functions = {};
  std::vector<std::string> function_names = {};  // in their order
};

struct Field {
  ShellText text;
  bool begins_quoted = false;
};

// What one word as it is written becomes.
class Fields {
 public:
  void add(char letter, int line) { open().text.add(letter, line); }
  void add(const ShellText& text) { open().text.add(text); }
  // Words of which the first joins what is there; what follows joins the last.
  void add_words(const std::vector<ShellText>& words) {
    for (std::size_t word = 0; word < words.size(); ++word) {
      if (word > 0) end();
      add(words[word]);
    }
  }
  // As add_words; spaces divide it.
  void add_divided(const ShellText& text) {
    if (text.size() == 0) return;
    if (is_space(text.letters.front())) end();
    add_words(words_in(text, is_list(text.letters)));
    if (is_space(text.letters.back())) end();
  }
  void begin_quote() { is_quoted_ = true; }
  void end() {
    if (current_) made_.push_back(std::move(*current_));
    current_.reset();
  }
  Field& open() {
    if (!current_) current_ = Field{{}, is_quoted_};
    return *current_;
  }
  std::vector<Field> finish() {
    end();
    return std::move(made_);
  }
  void end_quote() { is_quoted_ = false; }

 private:
  std::vector<Field> made_;
  std::optional<Field> current_;
  bool is_quoted_ = false;
};

class Reader {
 public:
  Reader(Script& whole, ShellText script,
         std::shared_ptr<Variables> variables = std::make_shared<Variables>())
      : whole_(whole), script_(std::move(script)), variables_(std::move(variables)) {}

  // Adds the script's commands.
  void read() {
    while (at_ < script_.size()) {
      const char letter = here();
      if (letter == '\\' && next() == '\n') {
        at_ += 2;
      } else if (ends_command(letter)) {
        end_command(letter);
        ++at_;
        if (letter == '\n' && !document_end_.empty()) take_document();
      } else if (is_space(letter)) {
        ++at_;
      } else if (!is_text_ && (letter == '(' || letter == ')')) {
        if (letter == ')') end_command(letter);
        ++at_;
      } else if (letter == '#') {
        skip_comment();
      } else if (letter == '<' && next() == '<') {
        begin_document();
      } else {
        take_word();
      }
    }
    end_command('\n');
  }

  // Those of functions that no command calls, too.
  void read_whole() {
    read();
    for (std::size_t each = 0; each < whole_.function_names.size(); ++each) {
      const Function& function = whole_.functions[whole_.function_names[each]];
      if (!function.is_called) call(whole_.function_names[each], nullptr);
    }
  }

 private:
  char here() const { return at_ < script_.size() ? script_.letters[at_] : '\0'; }
  char next() const { return at_ + 1 < script_.size() ? script_.letters[at_ + 1] : '\0'; }
  int line() const { return script_.line_at(at_); }

  Variables& variables() {
    if (variables_.use_count() > 1) variables_ = std::make_shared<Variables>(*variables_);
    return *variables_;
  }

  // In a text that has its variables put in, a layout's bars are letters, and lists of arguments
  // have lines.
  bool ends_command(char letter) const {
    if (letter == '\n') {
      const auto word = script_.letters.find_first_not_of(" \t\n", at_);
      return !is_text_ || word == std::string::npos || script_.letters[word] != '-';
    }
    if (letter != ';' && letter != '&' && letter != '|') return false;
    return !is_text_ || is_space(next()) || next() == letter || at_ + 1 >= script_.size();
  }

  bool ends_word(char letter) const {
    if (is_space(letter)) return true;
    if (in_array_) return letter == ')';
    if (is_text_) return letter == ';' && ends_command(letter);
    if (letter == '&') {  // "2>&1", "&>"
      const char before = at_ > 0 ? script_.letters[at_ - 1] : '\0';
      return before != '>' && before != '<' && next() != '>';
    }
    return letter == ';' || letter == '|' || letter == '(' || letter == ')';
  }

  std::vector<ShellWord>& words() {
    is_begun_ = true;
    if (command_ == ShellCommand::no_command) {
      command_ = static_cast<int>(whole_.commands.size());
      whole_.commands.push_back({is_batch_ ? Kind::batch : Kind::command, {}, "", outer_});
    }
    return whole_.commands[static_cast<std::size_t>(command_)].words;
  }

  void end_command(char by) {
    if (command_ != ShellCommand::no_command) {
      const ShellCommand& command = whole_.commands[static_cast<std::size_t>(command_)];
      const std::size_t at = command.program();
      const std::string program = at < command.words.size() ? command.words[at].text : "";
      if (is_batch_ || program == "srun" || program == "sbatch") spell_out_short_options();
      if (is_batch_) set_batch_variables();
      if (is_document_ && program.rfind("--", 0) == 0) {
        whole_.commands[static_cast<std::size_t>(command_)].kind = Kind::list;
      }
      run(program, {command.words.begin() + static_cast<std::ptrdiff_t>(at), command.words.end()});
    }
    is_batch_ = false;
    is_list_of_names_ = false;
    // "A && B", "A || B": B is a branch, on a line of its own too.
    const bool goes_on = by == '&' || by == '|' ? next() == by || is_conditional_
                                                : by == '\n' && !is_begun_ && is_conditional_;
    is_conditional_ = goes_on;
    is_begun_ = false;
    command_ = ShellCommand::no_command;
  }

  // What a command does to variables, and the functions that it calls.
  void run(const std::string& program, const std::vector<ShellWord>& given) {
    const auto text = [&](std::size_t from) {
      Value value{{}, true};
      for (std::size_t word = from; word < given.size(); ++word) {
        value.words.emplace_back(given[word].text, given[word].line);
      }
      return value;
    };
    if (program == "eval") {
      words().clear();
      add_text(text(1).joined());
    } else if (program == "set" && given.size() > 1 && given[1].text == "--") {
      variables()[all_words] = text(2);
    } else if (program == "shift" && variables_->contains(all_words)) {
      std::vector<ShellText>& all = variables()[all_words].words;
      const auto count =
          given.size() > 1 ? parse_number<std::size_t>(given[1].text).value_or(1) : 1;
      all.erase(all.begin(),
                all.begin() + static_cast<std::ptrdiff_t>(std::min(count, all.size())));
    } else if (program == "unset") {
      for (std::size_t word = 1; word < given.size(); ++word) variables().erase(given[word].text);
    } else if (whole_.functions.contains(program)) {
      const Value all = text(1);
      call(program, &all);
    }
  }

  // `given`: its words, none where it is not called.
  void call(const std::string& name, const Value* given) {
    Function& function = whole_.functions[name];
    function.is_called = true;
    const std::vector<ShellText> bodies = function.bodies;
    for (const ShellText& body : bodies) whole_.put_in += body.size() + 1;
    if (function.is_open || nesting_ == deepest || whole_.put_in > most) return;
    const Opened opened(function);
    const auto before = variables_->find(all_words);
    const std::optional<Value> saved =
        before == variables_->end() ? std::nullopt : std::optional(before->second);
    if (given != nullptr) variables()[all_words] = *given;
    for (const ShellText& body : bodies) {
      Reader inner(whole_, body, std::move(variables_));
      inner.nesting_ = nesting_ + 1;
      inner.outer_ = command_ == ShellCommand::no_command ? outer_ : command_;
      inner.branches_ = branches_ + (is_conditional_ ? 1 : 0);
      inner.read();
      variables_ = std::move(inner.variables_);
    }
    if (saved) {
      variables()[all_words] = *saved;
    } else if (given != nullptr) {
      variables().erase(all_words);
    }
  }

  // Slurm's "-N 16" as "--nodes 16", "-N16" as "--nodes=16", "-n" as "--ntasks".
  void spell_out_short_options() {
    for (ShellWord& each : words()) {
      std::string& word = each.text;
      if (word.rfind("-N", 0) != 0 && word.rfind("-n", 0) != 0) continue;
      const std::string value = word.substr(2);
      word = word[1] == 'N' ? "--nodes" : "--ntasks";
      if (!value.empty()) word.append("=").append(value);
    }
  }

  // The value of one of the job's own options, "": it is not there.
  std::string batch_value(const std::string& option) {
    const std::vector<ShellWord>& all = words();
    for (std::size_t at = 0; at < all.size(); ++at) {
      const std::string& word = all[at].text;
      if (word.rfind(option + "=", 0) == 0) return word.substr(option.size() + 1);
      if (word == option && at + 1 < all.size()) return all[at + 1].text;
    }
    return "";
  }

  // What Slurm sets in a job from its #SBATCH lines.
  void set_batch_variables() {
    const auto set = [&](const std::string& value, std::initializer_list<const char*> names) {
      if (value.empty()) return;
      for (const char* name : names) variables()[name] = {{ShellText(value, line())}};
    };
    const auto number = [](const std::string& text) { return text.substr(text.rfind(':') + 1); };
    set(batch_value("--nodes"), {"SLURM_NNODES", "SLURM_JOB_NUM_NODES"});
    set(batch_value("--ntasks"), {"SLURM_NTASKS", "SLURM_NPROCS"});
    set(batch_value("--ntasks-per-node"), {"SLURM_NTASKS_PER_NODE"});
    set(number(batch_value("--gres")), {"SLURM_GPUS_ON_NODE"});
    set(number(batch_value("--gpus-per-node")), {"SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"});
  }

  void skip_comment() {
    const std::string batch = batch_line;
    if (script_.letters.compare(at_, batch.size(), batch) == 0) {
      at_ += batch.size();
      is_batch_ = true;
      return;
    }
    while (at_ < script_.size() && here() != '\n') ++at_;
  }

  // "<<EOF", "<<-'EOF'": a text begins on the next line. "<<<" is a word.
  void begin_document() {
    at_ += 2;
    if (here() == '<') {
      ++at_;
      return;
    }
    if (here() == '-') ++at_;
    while (here() == ' ' || here() == '\t') ++at_;
    document_is_quoted_ = false;
    document_outer_ = command_ == ShellCommand::no_command ? outer_ : command_;
    while (is_name(here()) || here() == '"' || here() == '\'' || here() == '\\') {
      if (is_name(here())) {
        document_end_ += here();
      } else {
        document_is_quoted_ = true;
      }
      ++at_;
    }
  }

  // Up to the line that ends it.
  ShellText document_text() {
    const std::string end = std::exchange(document_end_, "");
    const std::size_t first = at_;
    while (at_ < script_.size()) {
      const std::size_t begin = at_;
      const std::size_t stop = std::min(script_.letters.find('\n', at_), script_.size());
      const auto text = script_.letters.find_first_not_of('\t', at_);
      at_ = std::min(stop + 1, script_.size());
      const bool is_end = text < stop && script_.letters.compare(text, stop - text, end) == 0;
      if (is_end) return script_.part(first, begin);
    }
    return script_.part(first, script_.size());
  }

  // Its commands: often it is the script of a job. A text for people may have apostrophes: then its
  // quotes are letters. Without those of texts deep in texts, each of which is read anew.
  void take_document() {
    ShellText body = document_text();
    if (nesting_ == deepest) return;
    if (!document_is_quoted_) body = without_backslashes(body);
    const auto prepare = [&](Reader& inner) {
      inner.outer_ = document_outer_;
      inner.is_document_ = true;
      inner.fills_quotes_ = !document_is_quoted_;
    };
    read_inner(body, prepare);
  }

  template <class Prepare>
  void read_inner(const ShellText& text, const Prepare& prepare) {
    const std::size_t before = whole_.commands.size();
    const auto read = [&](const ShellText& script) {
      Reader inner(whole_, script, variables_);
      inner.nesting_ = nesting_ + 1;
      prepare(inner);
      inner.read();
    };
    try {
      read(text);
    } catch (const OpenQuote&) {
      whole_.commands.resize(before);
      ShellText without;
      for (std::size_t at = 0; at < text.size(); ++at) {
        const char letter = text.letters[at];
        if (letter != '"' && letter != '\'') without.add(letter, text.lines[at]);
      }
      read(without);
    }
  }

  // Those that keep a "$" from the shell that puts variables into the document.
  static ShellText without_backslashes(const ShellText& body) {
    ShellText made;
    for (std::size_t from = 0; from < body.size(); ++from) {
      const char after = from + 1 < body.size() ? body.letters[from + 1] : '\0';
      const bool is_sign = after == '$' || after == '`' || after == '\\';
      if (body.letters[from] == '\\' && is_sign) ++from;
      made.add(body.letters[from], body.lines[from]);
    }
    return made;
  }

  // Where the bracket that is open at `from` closes; npos: nowhere near.
  std::size_t closing(std::size_t from, char open, char close) const {
    constexpr std::size_t longest = 4096;
    int depth = 1;
    for (std::size_t at = from; at < std::min(script_.size(), from + longest); ++at) {
      if (script_.letters[at] == open) ++depth;
      if (script_.letters[at] == close && --depth == 0) return at;
    }
    return std::string::npos;
  }

  // A word, an assignment or a function.
  void take_word() {
    if (take_assignment() || take_function()) return;
    const std::size_t begin = at_;
    std::vector<Field> fields = take_fields(true);
    if (fields.size() > 1 && is_command_text(begin)) {
      fields = {{joined(fields), fields.front().begins_quoted}};
    }
    for (const Field& field : fields) add_field(field);
    if (at_ == begin) ++at_;  // a sign that begins no word
  }

  // Whether the word that is written from there on is as in eval "run ${A[@]}", which an array
  // divides.
  bool is_command_text(std::size_t begin) const {
    const std::string_view written = std::string_view(script_.letters).substr(begin, at_ - begin);
    const bool has_space = std::any_of(written.begin(), written.end(), is_space);
    return has_space && (written.front() == '"' || written.rfind(wrap, 0) == 0);
  }

  void add_field(const Field& field) {
    const std::string& text = field.text.letters;
    const bool has_more = has_argument_behind_space(text);
    if (has_more && text.rfind("--", 0) != 0) {
      words();
      add_text(field.text);
    } else if (has_more && text.rfind(wrap, 0) == 0) {
      words();
      add_text(field.text.part(std::string_view(wrap).size(), field.text.size()));
    } else if (has_more && field.begins_quoted) {
      for (const ShellText& word : words_in(field.text, true)) add_word(word);
    } else {
      add_word(field.text);
    }
  }

  void add_word(const ShellText& word) {
    words().push_back({word.letters, word.line_at(0)});
    const ShellCommand& command = whole_.commands[static_cast<std::size_t>(command_)];
    if (command.program() + 1 < command.words.size()) return;
    const std::string& text = word.letters;
    if (text == "if" || text == "case") ++branches_;
    if ((text == "fi" || text == "esac") && branches_ > 0) --branches_;
    is_list_of_names_ = text == "declare" || text == "local" || text == "typeset";
  }

  // The commands of a text with arguments, such as that of "bash -c".
  void add_text(const ShellText& text) {
    if (nesting_ == deepest) return;
    const auto prepare = [&](Reader& inner) {
      inner.outer_ = command_;
      inner.is_text_ = true;
    };
    read_inner(text, prepare);
  }

  // "NAME=VALUE", "NAME+=VALUE", "NAME[KEY]=VALUE", "NAME=(WORDS)".
  bool take_assignment() {
    std::size_t at = at_;
    while (at < script_.size() && is_name(script_.letters[at])) ++at;
    const std::string name = script_.letters.substr(at_, at - at_);
    if (name.empty()) return false;
    std::string key;
    if (at < script_.size() && script_.letters[at] == '[') {
      const std::size_t end = closing(at + 1, '[', ']');
      if (end == std::string::npos) return false;
      key = script_.letters.substr(at, end + 1 - at);
      at = end + 1;
    }
    const bool adds = script_.letters.compare(at, 2, "+=") == 0;
    if (!adds && (at >= script_.size() || script_.letters[at] != '=')) return false;
    at_ = at + (adds ? 2 : 1);
    is_begun_ = true;
    Value value;
    if (here() == '(' && key.empty()) {
      value = array_words(true);
    } else {
      value.words = {joined(take_fields(false))};
    }
    if (!key.empty()) {
      ShellText element(inner_text(ShellText(key, line())).letters + "=", line());
      element.add(value.words.front());
      value = {{element}, true};
    }
    set(name, std::move(value), adds || !key.empty());
    return true;
  }

  // Up to the bracket, or to the end of a text without one.
  Value array_words(bool has_bracket) {
    Value value{{}, true};
    in_array_ = true;
    if (has_bracket) ++at_;
    while (at_ < script_.size() && !(has_bracket && here() == ')')) {
      const std::size_t begin = at_;
      if (here() == '\\' && next() == '\n') {
        at_ += 2;
      } else if (here() == '#' && has_bracket) {
        while (at_ < script_.size() && here() != '\n') ++at_;
      } else {
        for (Field& field : take_fields(true)) value.words.push_back(std::move(field.text));
        if (at_ == begin) ++at_;  // a space
      }
    }
    in_array_ = false;
    if (at_ < script_.size()) ++at_;
    return value;
  }

  // Of branches all are read: what one sets is added to a list that is set above.
  void set(const std::string& name, Value value, bool adds) {
    if (value.holds_arguments()) add_list(name, value);
    if (is_list_of_names_ && !words().empty()) {
      const std::vector<ShellWord>& all = words();
      value.names_another = std::any_of(all.begin(), all.end(),
                                        [](const ShellWord& word) { return word.text == "-n"; });
    }
    Value& old = variables()[name];
    const bool is_branch = branches_ > 0 || is_conditional_;
    if (!adds && is_branch && old.holds_arguments() && !value.begins_with(old)) {
      if (!old.is_array) old.words.front().add(' ', line());
      adds = true;
    }
    if (!adds || old.words.empty()) {
      old = std::move(value);
    } else if (old.is_array || value.is_array) {
      if (!old.is_array) old.words = words_in(old.words.front(), true);
      old.is_array = true;
      old.words.insert(old.words.end(), value.words.begin(), value.words.end());
    } else {
      old.words.front().add(value.words.front());
    }
  }

  void add_list(const std::string& name, const Value& value) {
    ShellCommand list{Kind::list, {}, name, outer_};
    for (const ShellText& each : value.words) {
      const bool divides = !value.is_array;
      for (const ShellText& word :
           divides ? words_in(each, true) : std::vector<ShellText>{without_key(each)}) {
        list.words.push_back({word.letters, word.line_at(0)});
      }
    }
    whole_.commands.push_back(std::move(list));
  }

  // "[KEY]=VALUE" in an array.
  static ShellText without_key(const ShellText& element) {
    const auto end = element.letters.find("]=");
    if (element.letters.rfind('[', 0) != 0 || end == std::string::npos) return element;
    return element.part(end + 2, element.size());
  }

  // "NAME() {", "function NAME {" and the lines up to its "}".
  bool take_function() {
    const std::string& text = script_.letters;
    std::size_t at = at_;
    const auto skip = [&](const char* letters) {
      at = std::min(text.find_first_not_of(letters, at), text.size());
    };
    const bool has_word = text.compare(at, 9, "function ") == 0;
    if (has_word) at += 9;
    skip(" ");
    const std::size_t begin = at;
    while (at < text.size() && (is_name(text[at]) || text[at] == '-' || text[at] == ':')) ++at;
    const std::string name = text.substr(begin, at - begin);
    skip(" \t");
    const bool has_brackets = text.compare(at, 2, "()") == 0;
    if (has_brackets) at += 2;
    if (is_text_ || name.empty() || (!has_word && !has_brackets)) return false;
    skip(" \t\n");
    if (at == text.size() || text[at] != '{') return false;
    const std::size_t end = body_end(text, at_, at + 1);
    if (end == std::string::npos) return false;
    Function& function = whole_.functions[name];
    if (function.bodies.empty()) whole_.function_names.push_back(name);
    if (branches_ == 0) function.bodies.clear();
    function.bodies.push_back(script_.part(at + 1, end));
    function.is_called = false;
    at_ = end + 1;
    return true;
  }

  // One word as it is written. `divides`: expansions without quotes are divided at their spaces.
  std::vector<Field> take_fields(bool divides) {
    Fields fields;
    int depth = 0;  // of brackets in an array
    while (at_ < script_.size()) {
      const char letter = here();
      if (letter == '"' || letter == '\'') {
        take_quoted(letter, fields);
      } else if (letter == '$') {
        add_expansion(dollar(false), divides, fields);
      } else if (letter == '\\' && at_ + 1 < script_.size()) {
        if (next() == '\n') break;
        fields.add(next(), line());
        at_ += 2;
      } else if (ends_word(letter) && (letter != ')' || depth == 0)) {
        break;
      } else {
        if (letter == '(') ++depth;
        if (letter == ')') --depth;
        fields.add(letter, line());
        ++at_;
      }
    }
    return fields.finish();
  }

  void take_quoted(char quote, Fields& fields) {
    const int begin = line();
    bool has_words = true;  // "${A[@]}" may have none
    fields.begin_quote();
    for (++at_; at_ < script_.size() && here() != quote;) {
      if ((quote == '"' || fills_quotes_) && here() == '$') {
        const Expansion found = dollar(true);
        if (found.is_array) {
          fields.add_words(found.words);
          has_words = false;
        } else {
          fields.add(found.words.front());
        }
        continue;
      }
      if (quote == '"' && here() == '\\' && at_ + 1 < script_.size()) {
        ++at_;
        if (here() == '\n') {
          fields.add(' ', line());
          ++at_;
          continue;
        }
      }
      fields.add(here(), line());
      ++at_;
    }
    if (at_ == script_.size()) {
      throw OpenQuote(fmt::format("{}:{}: the quote {} has no end", whole_.name, begin, quote));
    }
    ++at_;
    if (has_words) fields.open();
    fields.end_quote();
  }

  // What stands for a "$..."; as it is written where it is not known.
  struct Expansion {
    std::vector<ShellText> words;  // one, unless it is an array
    bool is_whole = false;         // not divided at its spaces
    bool is_array = false;
  };

  static void add_expansion(const Expansion& found, bool divides, Fields& fields) {
    for (std::size_t word = 0; word < found.words.size(); ++word) {
      if (word > 0 && divides) fields.end();
      if (word > 0 && !divides) fields.add(' ', found.words[word].line_at(0));
      if (divides && !found.is_whole) {
        fields.add_divided(found.words[word]);
      } else {
        fields.add(found.words[word]);
      }
    }
  }

  Expansion unknown(std::size_t begin) const { return {{script_.part(begin, at_)}, true}; }

  Expansion dollar(bool is_quoted) {
    const std::size_t begin = at_++;
    if (script_.letters.compare(at_, 2, "((") == 0) {
      const auto end = closing(at_ + 2, '(', ')');
      if (end == std::string::npos) return unknown(begin);
      const std::string expression = script_.letters.substr(at_ + 2, end - at_ - 2);
      at_ = std::min(end + 2, script_.size());
      const auto value = number_of(expression);
      return value ? Expansion{{ShellText(fmt::format("{}", *value), script_.line_at(begin))}}
                   : unknown(begin);
    }
    if (here() == '(') return output_of_command(begin);
    const bool is_braced = here() == '{';
    if (is_braced) ++at_;
    const bool names_another = is_braced && here() == '!';
    if (names_another) ++at_;
    const std::size_t name_begin = at_;
    while (is_name(here())) ++at_;
    if (at_ == name_begin && (here() == '@' || here() == '*')) ++at_;
    std::string name = script_.letters.substr(name_begin, at_ - name_begin);
    bool joins = name == "*";
    if (joins) name = all_words;
    ShellText operation;
    if (is_braced) {
      const auto end = closing(at_, '{', '}');
      if (end == std::string::npos) return unknown(begin);
      operation = script_.part(at_, end);
      at_ = end + 1;
    }
    joins = joins || operation.letters.rfind("[*]", 0) == 0;
    std::optional<Value> value =
        names_another ? named_by(name, operation.letters) : operated(name, operation, is_quoted);
    if (!value) return unknown(begin);
    if (value->is_array && !(joins && is_quoted))
      return {std::move(value->words), value->is_divided, true};
    return {{value->joined()}};
  }

  // "$(cat <<EOF ... EOF)" is the text of the document, of other commands nothing is known.
  Expansion output_of_command(std::size_t begin) {
    for (int open = 0; at_ < script_.size();) {
      const char letter = script_.letters[at_++];
      if (letter == '(') ++open;
      if (letter == ')' && --open == 0) break;
    }
    const ShellText command = script_.part(begin + 2, at_ - 1);
    const auto document = command.letters.find("<<");
    const auto first = command.letters.find_first_not_of(" \t\n");
    if (first == std::string::npos || command.letters.compare(first, 4, "cat ") != 0 ||
        document != command.letters.find_first_not_of(" \t", first + 4) || nesting_ == deepest) {
      return unknown(begin);
    }
    Reader inner(whole_, command, variables_);
    inner.nesting_ = nesting_ + 1;
    inner.at_ = document;
    inner.begin_document();
    inner.at_ = std::min(command.letters.find('\n', inner.at_), command.size() - 1) + 1;
    const ShellText text = inner.document_text();
    return {{inner.document_is_quoted_ ? text : filled(without_backslashes(text))}};
  }

  // With its variables put in.
  ShellText filled(const ShellText& text) {
    Reader inner(whole_, text, variables_);
    inner.nesting_ = nesting_ + 1;
    Fields fields;
    while (inner.at_ < text.size()) {
      if (inner.here() == '$') {
        add_expansion(inner.dollar(true), false, fields);
      } else {
        fields.add(inner.here(), inner.line());
        ++inner.at_;
      }
    }
    return joined(fields.finish());
  }

  std::optional<std::int64_t> number_of(const std::string& text) const {
    return shell_arithmetic(text, [&](const std::string& name) -> std::optional<std::string> {
      const auto known = variables_->find(name);
      return known == variables_->end() ? std::nullopt : std::optional(known->second.text());
    });
  }

  // ${!NAME}: of the variable whose name is the value of another.
  std::optional<Value> named_by(const std::string& name, const std::string& operation) {
    const std::optional<Value> named = value_of(name);
    if (!named || !operation.empty()) return std::nullopt;
    const std::string text = named->text();
    return value_of(text.substr(0, text.find('[')));
  }

  // The value of "${NAME OPERATION}"; nothing where it or the operation is not known.
  std::optional<Value> operated(const std::string& name, ShellText operation, bool is_quoted) {
    std::optional<Value> value = value_of(name);
    if (name == all_words || operation.letters.rfind('[', 0) == 0) {
      if (name != all_words) {
        const auto end = operation.letters.find(']');
        if (end == std::string::npos) return std::nullopt;
        value = element_of(value, operation.part(1, end));
        operation = operation.part(end + 1, operation.size());
      } else if (!value) {
        value = Value{{}, true};
      }
    }
    const std::string& signs = operation.letters;
    if (signs.empty()) return value;
    const std::size_t sign = signs.front() == ':' ? 1 : 0;
    const bool is_empty = value && (value->is_array ? value->words.empty() : value->text().empty());
    const bool is_set = value && !(is_empty && (sign == 1 || value->is_array));
    const ShellText text = operation.part(std::min(sign + 1, signs.size()), signs.size());
    switch (sign < signs.size() ? signs[sign] : '\0') {
      case '?':
        return value;
      case '-':
        return is_set ? value : inner_value(text, is_quoted);
      case '+':
        if (!is_set) return value && value->is_array ? Value{{}, true} : Value{{ShellText()}};
        return inner_value(text, is_quoted);
      case '=':
        if (is_set) return value;
        return variables()[name] = {{inner_text(text)}};
      default:
        if (sign == 0 || !value) return std::nullopt;
        if (name == all_words) value->words.insert(value->words.begin(), ShellText());  // $0
        return part_of(*value, signs.substr(1));
    }
  }

  // ${NAME[KEY]}. An array that is not set is empty; nothing for a key that is not there.
  std::optional<Value> element_of(const std::optional<Value>& array, const ShellText& key) {
    if (key.letters == "@" || key.letters == "*") {
      Value all{{}, true};
      if (!array) return all;
      for (const ShellText& word : array->words) all.words.push_back(without_key(word));
      return all;
    }
    if (!array) return std::nullopt;
    const std::string name = inner_text(key).letters;
    const std::string prefix = "[" + name + "]=";
    for (auto word = array->words.rbegin(); word != array->words.rend(); ++word) {
      if (word->letters.rfind(prefix, 0) == 0) return Value{{without_key(*word)}};
    }
    const auto number = number_of(name);
    if (!number || *number < 0 || *number >= static_cast<std::int64_t>(array->words.size())) {
      return std::nullopt;
    }
    return Value{{array->words[static_cast<std::size_t>(*number)]}};
  }

  // Of "OFFSET" and "OFFSET:LENGTH": letters, or words of an array. Below 0 they count from the
  // end.
  std::optional<Value> part_of(const Value& whole, const std::string& range) const {
    // With a 0 before a sign, which arithmetic has between operands alone.
    const auto number = [&](const std::string& text) {
      const auto first = text.find_first_not_of(' ');
      const bool is_signed = first != std::string::npos && text[first] == '-';
      return number_of(is_signed ? "0" + text.substr(first) : text);
    };
    const ShellText text = whole.joined();
    const auto size = static_cast<std::int64_t>(whole.is_array ? whole.words.size() : text.size());
    const auto colon = range.find(':');
    const auto offset = number(range.substr(0, colon));
    if (!offset) return std::nullopt;
    const std::int64_t begin = *offset < 0 ? size + *offset : *offset;
    if (begin < 0 || begin > size) return Value{{ShellText()}};
    std::int64_t end = size;
    if (colon != std::string::npos) {
      const auto length = number(range.substr(colon + 1));
      if (!length) return std::nullopt;
      end = *length < 0 ? size + *length : std::min(size, begin + std::min(size, *length));
    }
    if (end < begin) return std::nullopt;
    if (!whole.is_array) {
      return Value{{text.part(static_cast<std::size_t>(begin), static_cast<std::size_t>(end))}};
    }
    return Value{{whole.words.begin() + begin, whole.words.begin() + end}, true};
  }

  // Of a text in a script, which is no command: quotes taken off, variables put in.
  ShellText inner_text(const ShellText& text) {
    if (nesting_ >= deepest) return text;
    Reader inner(whole_, text, variables_);
    inner.nesting_ = nesting_ + 1;
    ShellText made;
    while (inner.at_ < text.size()) {
      if (is_space(inner.here())) {
        made.add(inner.here(), inner.line());
        ++inner.at_;
        continue;
      }
      const std::size_t begin = inner.at_;
      made.add(joined(inner.take_fields(false)));
      if (inner.at_ > begin) continue;
      made.add(inner.here(), inner.line());
      ++inner.at_;
    }
    return made;
  }

  // The same; its words where it stands without quotes.
  Value inner_value(const ShellText& text, bool is_quoted) {
    if (is_quoted || nesting_ >= deepest) return {{inner_text(text)}};
    Reader inner(whole_, text, variables_);
    inner.nesting_ = nesting_ + 1;
    Value value = inner.array_words(false);
    value.is_divided = true;
    return value;
  }

  static ShellText joined(const std::vector<Field>& fields) {
    Value all{{}, true};
    for (const Field& field : fields) all.words.push_back(field.text);
    return all.joined();
  }

  // Of a variable, or a function's word.
  std::optional<Value> value_of(const std::string& name) {
    auto known = variables_->find(name);
    constexpr int longest = 10;  // names of names
    for (int steps = 0; known != variables_->end() && known->second.names_another; ++steps) {
      if (steps == longest) return std::nullopt;
      known = variables_->find(known->second.text());
    }
    if (known == variables_->end()) return word_of_function(name);
    // Each line A=$A$A makes A twice as long.
    for (const ShellText& word : known->second.words) whole_.put_in += word.size();
    if (known->second.is_array) whole_.put_in += known->second.words.size();
    if (whole_.put_in > most) {
      throw UsageError(fmt::format("{}:{}: variables have more than {} MiB where they are used",
                                   whole_.name, line(), most >> 20));
    }
    return known->second;
  }

  std::optional<Value> word_of_function(const std::string& name) const {
    const auto number = parse_number<std::size_t>(name);
    const auto all = variables_->find(all_words);
    if (!number || *number == 0 || all == variables_->end()) return std::nullopt;
    if (*number > all->second.words.size()) return Value{{ShellText()}};
    return Value{{all->second.words[*number - 1]}};
  }

  static constexpr int deepest = 20;
  static constexpr std::size_t most = 1 << 22;

  Script& whole_;
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
  bool document_is_quoted_ = false;       // no variables are put in, but by the shell that reads it
  bool fills_quotes_ = false;             // variables are put in single quotes too
  std::shared_ptr<Variables> variables_;  // shared with texts in texts until one sets some
};

}  // namespace

std::size_t ShellCommand::program() const {
  static const std::set<std::string> reserved = {"if", "then", "else", "elif", "while", "until",
                                                 "do", "!",    "{",    "time", "exec",  "nohup"};
  std::size_t at = 0;
  while (at < words.size() && reserved.contains(words[at].text)) ++at;
  return at;
}

std::vector<ShellCommand> shell_commands(const std::string& script, const std::string& name) {
  Script whole{name};
  Reader(whole, ShellText::of_script(script)).read_whole();
  return std::move(whole.commands);
}

}  // namespace moesim::model
