#include "sim/shell/reader.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

namespace moesim::shell {
namespace {

using Kind = Command::Kind;

constexpr const char* wrap = "--wrap=";  // of sbatch

}  // namespace

void Reader::read() {
  while (at_ < script_.size()) {
    const char letter = here();
    const bool is_twice = next() == letter;
    if (frames_.back().in_patterns) {
      take_patterns();
    } else if (letter == '\\' && next() == '\n') {
      at_ += 2;
    } else if (ends_command(letter)) {
      take_end();
    } else if (is_space(letter)) {
      ++at_;
    } else if (letter == '[' && is_twice && begins_command()) {
      take_double_brackets();
    } else if (const std::size_t end = letter == '(' && is_twice ? arithmetic_end() : 0; end > 0) {
      take_arithmetic(end);
    } else if (!is_text_ && (letter == '(' || letter == ')')) {
      take_bracket();
    } else if (letter == '#') {
      skip_comment();
    } else if (letter == '<' && next() == '<') {
      begin_document();
    } else {
      take_word();
    }
  }
  end_command(Joint::none);
}

void Reader::read_whole() {
  read();
  frames_.assign(1, {});
  over_.reset();
  is_called_ = false;
  for (std::size_t each = 0; each < whole_.function_names.size(); ++each) {
    const Function& function = whole_.functions[whole_.function_names[each]];
    if (!function.is_called) call(whole_.function_names[each], nullptr);
  }
}

Variables& Reader::variables() {
  if (variables_.use_count() > 1) variables_ = std::make_shared<Variables>(*variables_);
  return *variables_;
}

bool Reader::ends_command(char letter) const {
  if (letter == '\n') {
    const auto word = script_.letters.find_first_not_of(" \t\n", at_);
    return !is_text_ || word == std::string::npos || script_.letters[word] != '-';
  }
  if (letter != ';' && letter != '&' && letter != '|') return false;
  return !is_text_ || is_space(next()) || next() == letter || at_ + 1 >= script_.size();
}

bool Reader::ends_word(char letter) const {
  if (is_space(letter)) return true;
  if (in_array_) return letter == ')';
  if (is_text_) return letter == ';' && ends_command(letter);
  if (letter == '&') {  // "2>&1", "&>"
    const char before = at_ > 0 ? script_.letters[at_ - 1] : '\0';
    return before != '>' && before != '<' && next() != '>';
  }
  return letter == ';' || letter == '|' || letter == '(' || letter == ')';
}

std::vector<Word>& Reader::words() {
  is_begun_ = true;
  if (command_ == Command::no_command) {
    command_ = static_cast<int>(whole_.commands.size());
    Command command{is_batch_ ? Kind::batch : Kind::command, {}, "", outer_};
    command.is_called = is_called_;
    whole_.commands.push_back(std::move(command));
  }
  return whole_.commands[static_cast<std::size_t>(command_)].words;
}

std::string Reader::program() const {
  if (command_ == Command::no_command) return "";
  const Command& command = whole_.commands[static_cast<std::size_t>(command_)];
  const std::size_t at = command.program();
  return at < command.words.size() ? command.words[at].text : "";
}

void Reader::take_end() {
  const char letter = here();
  const bool is_twice = next() == letter;
  Frame& frame = frames_.back();
  if (letter == ';' && (is_twice || next() == '&') && frame.kind == Frame::Kind::choice) {
    end_command(Joint::none);
    at_ += 2;
    if (!is_twice) frame.falls_through = frame.runs;
    if (is_twice && here() == '&') {  // ";;&": other patterns are tried too
      frame.open = Truth::yes;
      ++at_;
    }
    frame.in_patterns = true;
    return;
  }
  if ((letter == '&' || letter == '|') && is_twice) {
    end_command(letter == '&' ? Joint::both : Joint::either);
    at_ += 2;
    return;
  }
  if (letter == '&') frame.is_piped = true;  // it has variables of its own too
  end_command(letter == '|' ? Joint::pipe : Joint::none);
  ++at_;
  if (letter == '|' && here() == '&') ++at_;
  if (letter == '\n' && !document_end_.empty()) take_document();
}

void Reader::end_command(Joint by) {
  if (is_begun_ && !is_batch_) is_header_ = false;
  // "A &&" may have its B on a line of its own.
  if (is_begun_) {
    Doubts doubts = std::exchange(whole_.used, {});
    if (command_ != Command::no_command) {
      add_doubts(doubts, whole_.commands[static_cast<std::size_t>(command_)].doubts);
    }
    Truth status = finish_in(by == Joint::pipe || frames_.back().is_piped);
    Frame& frame = frames_.back();
    frame.is_piped = by == Joint::pipe;
    if (frame.is_piped && output_ != nullptr) output_->is_known = false;
    if (frame.joint == Joint::none) frame.list_doubts.clear();
    add_doubts(frame.list_doubts, doubts);
    if (by != Joint::pipe) {
      if (frame.is_opposite) status = opposite(status);
      const Joint joint = frame.joint;
      if (joint == Joint::both) status = both(frame.list, status);
      if (joint == Joint::either) status = either(frame.list, status);
      frame.list = status;
      if (status == Truth::maybe) frame.list_cause = written_from(begun_at_);
      frame.is_opposite = false;
      frame.joint = by;
    }
    if (frame.runs != Truth::no && !over_) {
      status_ = status;
      status_cause_ = frame.list_cause;
      status_doubts_ = frame.list_doubts;
    }
  }
  is_batch_ = false;
  is_list_of_names_ = false;
  is_begun_ = false;
  is_compound_ = false;
  before_compound_.reset();
  pending_.reset();
  whole_.output_status.reset();
  before_.clear();
  for_command_.clear();
  command_ = Command::no_command;
}

Truth Reader::finish_in(bool is_pipe) {
  const bool has_own = is_pipe && (is_compound_ ? before_compound_ != nullptr : !runs_not());
  if (!has_own) return finish();
  const std::shared_ptr<Variables> before = is_compound_ ? before_compound_ : variables_;
  const Truth status = finish();
  variables_ = before;
  over_.reset();  // "exit" ends what it stands in alone
  return status;
}

Truth Reader::finish() {
  const Truth of_output = whole_.output_status.value_or(Truth::yes);
  const Truth before = is_compound_ ? status_ : pending_.value_or(of_output);
  if (command_ == Command::no_command) return before;
  const auto place = static_cast<std::size_t>(command_);
  if (runs_not()) {
    if (place + 1 == whole_.commands.size()) {
      whole_.commands.pop_back();
    } else {
      whole_.commands[place].words.clear();
    }
    return is_compound_ ? before : Truth::maybe;
  }
  const Command& command = whole_.commands[place];
  const std::size_t at = command.program();
  const std::string name = at < command.words.size() ? command.words[at].text : "";
  spell_out_short_options();
  if (is_batch_) set_batch_variables();
  if (is_document_ && !is_batch_ && name.rfind("--", 0) == 0)
    whole_.commands[place].kind = Kind::list;
  const auto begin = command.words.begin();
  const auto first = begin + static_cast<std::ptrdiff_t>(at);
  // "exec > log" goes on.
  const bool is_last =
      name.find_first_of("<>") == std::string::npos && !name.empty() &&
      std::any_of(begin, first, [](const auto& word) { return word.text == "exec"; });
  const std::vector<Word> given(first, command.words.end());
  const Truth status = is_compound_ || pending_ || name.empty() ? before : run(name, given);
  if (is_last) stop(true);
  return status;
}

std::size_t Reader::closing(std::size_t from, char open, char close) const {
  constexpr std::size_t longest = 4096;
  int depth = 1;
  for (std::size_t at = from; at < std::min(script_.size(), from + longest); ++at) {
    if (script_.letters[at] == open) ++depth;
    if (script_.letters[at] == close && --depth == 0) return at;
  }
  return std::string::npos;
}

void Reader::take_word() {
  const std::string before = program();
  const bool may_assign = before.empty() || is_list_of_names_;
  if ((may_assign && take_assignment()) || take_function()) return;
  if (before.empty()) hide_assignments();
  const std::size_t begin = at_;
  if (!is_begun_) begun_at_ = at_;
  std::vector<Field> fields = take_fields(true);
  if (fields.size() > 1 && is_command_text(begin)) {
    fields = {{joined(fields), fields.front().begins_quoted}};
  }
  const Doubts used = std::exchange(whole_.used, {});
  const bool is_condition =
      before == "[" || before == "test" || before == "case" || before == "for";
  const std::string written = script_.letters.substr(begin, at_ - begin);
  for (const Field& field : fields) {
    if (is_list_of_names_ && take_expanded(field.text, used, written)) continue;
    is_condition ? add_word(field.text) : add_field(field);
  }
  if (command_ != Command::no_command) {
    Doubts& doubts = whole_.commands[static_cast<std::size_t>(command_)].doubts;
    add_doubts(doubts, used);
    add_doubts(doubts, frames_.back().doubts_now());
  }
  if (at_ == begin) ++at_;  // a sign that begins no word
}

bool Reader::is_command_text(std::size_t begin) const {
  const std::string_view written = std::string_view(script_.letters).substr(begin, at_ - begin);
  const bool has_space = std::any_of(written.begin(), written.end(), is_space);
  return has_space && (written.front() == '"' || written.rfind(wrap, 0) == 0);
}

void Reader::add_field(const Field& field) {
  const std::string& text = field.text.letters;
  // Not within "$(...)", of which nothing is known.
  const bool has_more = has_argument_behind_space(text) && words_in(field.text, false).size() > 1;
  if (has_more && text.rfind("--", 0) != 0) {
    const std::string last = words().empty() ? "" : words().back().text;
    const bool is_option = last.size() > 1 && last[0] == '-' && last[1] != '-';
    add_text(field.text, (is_option && last.back() == 'c') || last == "--wrap");
  } else if (has_more && text.rfind(wrap, 0) == 0) {
    words();
    add_text(field.text.part(std::string_view(wrap).size(), field.text.size()), true);
  } else if (has_more && field.begins_quoted) {
    for (const Text& word : words_in(field.text, true)) add_word(word);
  } else {
    add_word(field.text);
  }
}

void Reader::add_word(const Text& word) {
  words().push_back({word.letters, word.line_at(0)});
  const Command& command = whole_.commands[static_cast<std::size_t>(command_)];
  const std::string& text = word.letters;
  const std::size_t first = command.program();
  const std::string& name = first < command.words.size() ? command.words[first].text : text;
  if (name == "case" && text == "in" && first + 2 <= command.words.size()) {
    begin_choice();
    return;
  }
  if (first + 1 < command.words.size()) {
    if (name == "local" && is_function_ && !runs_not()) set_local(text);
    if (is_list_of_names_) note_export(text);
    const std::string& before = command.words[command.words.size() - 2].text;
    if (is_list_of_names_ && (before == "-a" || before == "-A")) skip_assignment(text);
    if (name == "env" && text.rfind('-', 0) != 0) is_list_of_names_ = false;
    return;
  }
  take_keyword(text);
  is_list_of_names_ = text == "declare" || text == "local" || text == "typeset" ||
                      text == "export" || text == "readonly" || text == "env";
}

}  // namespace moesim::shell
