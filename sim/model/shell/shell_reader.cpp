#include "sim/model/shell/shell_reader.hpp"

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <span>
#include <string_view>
#include <utility>

#include "sim/base/text.hpp"

namespace moesim::model {
namespace {

using Kind = ShellCommand::Kind;

constexpr const char* batch_line = "#SBATCH";
constexpr const char* wrap = "--wrap=";  // of sbatch

// Options that say how many GPUs, nodes and processes there are.
struct ShortOption {
  std::string_view letters;
  const char* name;
};
constexpr ShortOption of_slurm[] = {{"-N", "--nodes"}, {"-n", "--ntasks"}, {"-G", "--gpus"}};
constexpr ShortOption of_mpi[] = {{"-np", "--np"}, {"-n", "--np"}};

std::span<const ShortOption> short_options(const std::string& program) {
  if (program == "srun" || program == "sbatch" || program == "salloc") return of_slurm;
  if (program == "mpirun" || program == "mpiexec") return of_mpi;
  return {};
}

bool is_program_word(std::string_view word) {
  for (const std::string_view end : {"python", "python3", "torchrun", "bash", ".py", ".sh"}) {
    if (word.size() >= end.size() && word.substr(word.size() - end.size()) == end) return true;
  }
  return false;
}

class Opened {
 public:
  explicit Opened(ShellFunction& function) : function_(function) { function_.is_open = true; }
  ~Opened() { function_.is_open = false; }
  // It belongs to one reading.
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

 private:
  ShellFunction& function_;
};

}  // namespace

void ShellReader::read() {
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

void ShellReader::read_whole() {
  read();
  for (std::size_t each = 0; each < whole_.function_names.size(); ++each) {
    const ShellFunction& function = whole_.functions[whole_.function_names[each]];
    if (!function.is_called) call(whole_.function_names[each], nullptr);
  }
}

ShellVariables& ShellReader::variables() {
  if (variables_.use_count() > 1) variables_ = std::make_shared<ShellVariables>(*variables_);
  return *variables_;
}

bool ShellReader::ends_command(char letter) const {
  if (letter == '\n') {
    const auto word = script_.letters.find_first_not_of(" \t\n", at_);
    return !is_text_ || word == std::string::npos || script_.letters[word] != '-';
  }
  if (letter != ';' && letter != '&' && letter != '|') return false;
  return !is_text_ || is_space(next()) || next() == letter || at_ + 1 >= script_.size();
}

bool ShellReader::ends_word(char letter) const {
  if (is_space(letter)) return true;
  if (in_array_) return letter == ')';
  if (is_text_) return letter == ';' && ends_command(letter);
  if (letter == '&') {  // "2>&1", "&>"
    const char before = at_ > 0 ? script_.letters[at_ - 1] : '\0';
    return before != '>' && before != '<' && next() != '>';
  }
  return letter == ';' || letter == '|' || letter == '(' || letter == ')';
}

std::vector<ShellWord>& ShellReader::words() {
  is_begun_ = true;
  if (command_ == ShellCommand::no_command) {
    command_ = static_cast<int>(whole_.commands.size());
    whole_.commands.push_back({is_batch_ ? Kind::batch : Kind::command, {}, "", outer_});
  }
  return whole_.commands[static_cast<std::size_t>(command_)].words;
}

void ShellReader::end_command(char by) {
  if (command_ != ShellCommand::no_command) {
    const ShellCommand& command = whole_.commands[static_cast<std::size_t>(command_)];
    const std::size_t at = command.program();
    const std::string program = at < command.words.size() ? command.words[at].text : "";
    spell_out_short_options(is_batch_ ? "sbatch" : program);
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

void ShellReader::run(const std::string& program, const std::vector<ShellWord>& given) {
  const auto text = [&](std::size_t from) {
    ShellValue value{{}, true};
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
    const auto count = given.size() > 1 ? parse_number<std::size_t>(given[1].text).value_or(1) : 1;
    all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min(count, all.size())));
  } else if (program == "unset") {
    for (std::size_t word = 1; word < given.size(); ++word) variables().erase(given[word].text);
  } else if (whole_.functions.contains(program)) {
    const ShellValue all = text(1);
    call(program, &all);
  }
}

void ShellReader::call(const std::string& name, const ShellValue* given) {
  ShellFunction& function = whole_.functions[name];
  function.is_called = true;
  const std::vector<ShellText> bodies = function.bodies;
  for (const ShellText& body : bodies) whole_.put_in += body.size() + 1;
  if (function.is_open || nesting_ == deepest || whole_.put_in > most) return;
  const Opened opened(function);
  const auto before = variables_->find(all_words);
  const std::optional<ShellValue> saved =
      before == variables_->end() ? std::nullopt : std::optional(before->second);
  if (given != nullptr) variables()[all_words] = *given;
  for (const ShellText& body : bodies) {
    ShellReader inner(whole_, body, std::move(variables_));
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

void ShellReader::spell_out_short_options(const std::string& program) {
  const std::span<const ShortOption> known = short_options(program);
  if (known.empty()) return;
  for (ShellWord& each : words()) {
    std::string& word = each.text;
    if (is_program_word(word)) return;  // options behind it are its own
    for (const ShortOption& option : known) {
      if (word.rfind(option.letters, 0) != 0) continue;
      const std::string value = word.substr(option.letters.size());
      if (!value.empty() && std::isdigit(static_cast<unsigned char>(value.front())) == 0) continue;
      word = option.name;
      if (!value.empty()) word.append("=").append(value);
      break;
    }
  }
}

std::string ShellReader::batch_value(const std::string& option) {
  const std::vector<ShellWord>& all = words();
  for (std::size_t at = 0; at < all.size(); ++at) {
    const std::string& word = all[at].text;
    if (word.rfind(option + "=", 0) == 0) return word.substr(option.size() + 1);
    if (word == option && at + 1 < all.size()) return all[at + 1].text;
  }
  return "";
}

void ShellReader::set_batch_variables() {
  const auto set = [&](const std::string& value, std::initializer_list<const char*> names) {
    if (value.empty()) return;
    for (const char* name : names) variables()[name] = {{ShellText(value, line())}};
  };
  const auto number = [](std::string text) {  // 8 of "gpu:h100:8,nvme:1"
    const auto gpus = text.find("gpu");
    if (gpus != std::string::npos) text.erase(0, gpus);
    text = text.substr(0, text.find(','));
    return text.substr(text.rfind(':') + 1);
  };
  set(batch_value("--nodes"), {"SLURM_NNODES", "SLURM_JOB_NUM_NODES"});
  set(batch_value("--ntasks"), {"SLURM_NTASKS", "SLURM_NPROCS"});
  set(batch_value("--ntasks-per-node"), {"SLURM_NTASKS_PER_NODE"});
  set(number(batch_value("--gres")), {"SLURM_GPUS_ON_NODE"});
  set(number(batch_value("--gpus-per-node")), {"SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"});
}

void ShellReader::skip_comment() {
  const std::string batch = batch_line;
  if (script_.letters.compare(at_, batch.size(), batch) == 0) {
    at_ += batch.size();
    is_batch_ = true;
    return;
  }
  while (at_ < script_.size() && here() != '\n') ++at_;
}

void ShellReader::begin_document() {
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

ShellText ShellReader::document_text() {
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

void ShellReader::take_document() {
  ShellText body = document_text();
  if (nesting_ == deepest) return;
  if (!document_is_quoted_) body = without_backslashes(body);
  const auto prepare = [&](ShellReader& inner) {
    inner.outer_ = document_outer_;
    inner.is_document_ = true;
    inner.fills_quotes_ = !document_is_quoted_;
  };
  read_inner(body, prepare);
}

void ShellReader::read_inner(const ShellText& text,
                             const std::function<void(ShellReader&)>& prepare) {
  const std::size_t before = whole_.commands.size();
  const auto read = [&](const ShellText& script) {
    ShellReader inner(whole_, script, variables_);
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

std::size_t ShellReader::closing(std::size_t from, char open, char close) const {
  constexpr std::size_t longest = 4096;
  int depth = 1;
  for (std::size_t at = from; at < std::min(script_.size(), from + longest); ++at) {
    if (script_.letters[at] == open) ++depth;
    if (script_.letters[at] == close && --depth == 0) return at;
  }
  return std::string::npos;
}

void ShellReader::take_word() {
  if ((!is_behind_script() && take_assignment()) || take_function()) return;
  const std::size_t begin = at_;
  std::vector<ShellField> fields = take_fields(true);
  if (fields.size() > 1 && is_command_text(begin)) {
    fields = {{joined(fields), fields.front().begins_quoted}};
  }
  for (const ShellField& field : fields) add_field(field);
  if (at_ == begin) ++at_;  // a sign that begins no word
}

bool ShellReader::is_behind_script() const {
  if (command_ == ShellCommand::no_command) return false;
  const std::vector<ShellWord>& words = whole_.commands[static_cast<std::size_t>(command_)].words;
  return std::any_of(words.begin(), words.end(), [](const ShellWord& word) {
    return word.text.size() > 3 && word.text.compare(word.text.size() - 3, 3, ".py") == 0;
  });
}

bool ShellReader::is_command_text(std::size_t begin) const {
  const std::string_view written = std::string_view(script_.letters).substr(begin, at_ - begin);
  const bool has_space = std::any_of(written.begin(), written.end(), is_space);
  return has_space && (written.front() == '"' || written.rfind(wrap, 0) == 0);
}

void ShellReader::add_field(const ShellField& field) {
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

void ShellReader::add_word(const ShellText& word) {
  words().push_back({word.letters, word.line_at(0)});
  const ShellCommand& command = whole_.commands[static_cast<std::size_t>(command_)];
  if (command.program() + 1 < command.words.size()) return;
  const std::string& text = word.letters;
  if (text == "if" || text == "case") ++branches_;
  if ((text == "fi" || text == "esac") && branches_ > 0) --branches_;
  is_list_of_names_ = text == "declare" || text == "local" || text == "typeset";
}

void ShellReader::add_text(const ShellText& text) {
  if (nesting_ == deepest) return;
  const auto prepare = [&](ShellReader& inner) {
    inner.outer_ = command_;
    inner.is_text_ = true;
  };
  read_inner(text, prepare);
}

}  // namespace moesim::model
