#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

#include "sim/base/text.hpp"
#include "sim/shell/reader.hpp"

namespace moesim::shell {
namespace {

constexpr std::size_t most_output = 1 << 16;  // bytes of a command, and of what it writes

Text joined(const std::vector<Word>& words, std::size_t from) {
  Text all;
  for (std::size_t word = from; word < words.size(); ++word) {
    if (word > from) all.add(' ', words[word].line);
    all.add(Text(words[word].text, words[word].line));
  }
  return all;
}

// "seq LAST", "seq FIRST LAST", "seq FIRST STEP LAST"
std::optional<Text> sequence(const std::vector<Word>& given) {
  constexpr std::int64_t most = 1000;
  std::vector<std::int64_t> numbers;
  for (std::size_t word = 1; word < given.size(); ++word) {
    const auto number = parse_number<std::int32_t>(given[word].text);
    if (!number) return std::nullopt;
    numbers.push_back(*number);
  }
  if (numbers.empty() || numbers.size() > 3) return std::nullopt;
  const std::int64_t first = numbers.size() == 1 ? 1 : numbers.front();
  const std::int64_t step = numbers.size() == 3 ? numbers[1] : 1;
  const std::int64_t last = numbers.back();
  if (step == 0 || (last - first) / step > most) return std::nullopt;
  Text all;
  for (std::int64_t each = first; step > 0 ? each <= last : each >= last; each += step) {
    all.add(Text(fmt::format("{}\n", each), given.front().line));
  }
  return all;
}

// "printf FORMAT WORDS" with "%s", "%d" and "\n" in the format.
std::optional<Text> formatted(const std::vector<Word>& given) {
  if (given.size() < 2 || given[1].text.rfind('-', 0) == 0) return std::nullopt;
  const auto& [format, line] = given[1];
  Text all;
  std::size_t word = 2;
  do {
    const std::size_t before = word;
    for (std::size_t at = 0; at < format.size(); ++at) {
      const char letter = format[at];
      const char next = at + 1 < format.size() ? format[at + 1] : '\0';
      if (letter == '%' && (next == 's' || next == 'd')) {
        if (word < given.size()) all.add(Text(given[word].text, given[word].line));
        ++word;
        ++at;
      } else if (letter == '\\' && next == 'n') {
        all.add('\n', line);
        ++at;
      } else if (letter == '%' || letter == '\\') {
        return std::nullopt;
      } else {
        all.add(letter, line);
      }
    }
    if (word == before) break;
  } while (word < given.size());
  return all;
}

}  // namespace

std::optional<Text> Reader::output_of_document(const Text& command) {
  const auto document = command.letters.find("<<");
  const auto first = command.letters.find_first_not_of(" \t\n");
  if (first == std::string::npos || command.letters.compare(first, 4, "cat ") != 0 ||
      document != command.letters.find_first_not_of(" \t", first + 4)) {
    return std::nullopt;
  }
  Reader inner(whole_, command, variables_);
  inner.nesting_ = nesting_ + 1;
  inner.at_ = document;
  inner.begin_document();
  inner.at_ = std::min(command.letters.find('\n', inner.at_), command.size() - 1) + 1;
  const Text text = inner.document_text();
  return inner.document_is_quoted_ ? text : filled(without_backslashes(text));
}

Reader::Expansion Reader::output_of(const Text& command, std::size_t begin) {
  whole_.output_status = Truth::maybe;
  if (nesting_ == deepest) return unknown(begin);
  if (std::optional<Text> text = output_of_document(command)) {
    whole_.output_status = Truth::yes;
    return {{std::move(*text)}};
  }
  whole_.put_out += command.size();
  if (command.size() > most_output || whole_.put_out > most) return unknown(begin);
  const std::size_t commands = whole_.commands.size();
  Output output;
  Reader inner(whole_, command, variables_);
  inner.nesting_ = nesting_ + 1;
  inner.is_function_ = is_function_;
  inner.is_called_ = is_called_;
  inner.repeats_ = repeats_ || frames_.back().repeats;
  inner.output_ = &output;
  Truth status = Truth::maybe;
  try {
    inner.read();
    if (!inner.may_return_) status = inner.status_;
  } catch (const UsageError&) {  // of quotes that it does not close, for one
    output.is_known = false;
  }
  whole_.output_status = status;
  whole_.commands.resize(commands);
  if (!output.is_known || !is_known(output.text.letters)) return unknown(begin);
  std::size_t end = output.text.size();
  while (end > 0 && output.text.letters[end - 1] == '\n') --end;
  return {{output.text.part(0, end)}};
}

void Reader::put_out(const std::string& program, const std::vector<Word>& given) {
  static const std::set<std::string> silent = {
      ":",       "true",     "false",    "cd",  "eval",  "export", "local",
      "declare", "readonly", "typeset",  "[",   "test",  "for",    "exit",
      "return",  "break",    "continue", "set", "shift", "unset",  "let"};
  if (silent.contains(program) || whole_.functions.contains(program)) return;
  std::vector<Word> words;
  bool is_redirected = false;
  for (const Word& word : given) {
    if (word.text == ">&2" || word.text == "1>&2") return;  // it writes errors
    if (word.text == "2>/dev/null") continue;
    words.push_back(word);
    is_redirected = is_redirected || word.text.find_first_of("<>") != std::string::npos;
  }
  std::optional<Text> text;
  if (program.size() > 1 && program.front() == '<') {  // "$(<FILE)"
    words = {{"<", words.front().line}, {program.substr(1), words.front().line}};
  }
  if (program == "echo") {
    const bool has_line = words.size() < 2 || words[1].text != "-n";
    const bool has_option = words.size() > 1 && (words[1].text == "-e" || words[1].text == "-E");
    text = joined(words, has_line && !has_option ? 1 : 2);
    if (has_option && text->letters.find('\\') != std::string::npos) text = std::nullopt;
    if (text && has_line) text->add('\n', words.front().line);
  } else if (program == "printf") {
    text = formatted(words);
  } else if (program == "seq") {
    text = sequence(words);
  } else if (program == "expr") {
    const auto value = number(joined(words, 1));
    if (value) text = Text(fmt::format("{}\n", *value), words.front().line);
  } else if ((program == "cat" || program.front() == '<') && words.size() == 2) {
    text = text_of(words[1], words.front().line);
  }
  if (is_redirected && program.front() != '<') text = std::nullopt;
  output_->is_known =
      output_->is_known && text && runs() == Truth::yes && output_->text.size() < most_output;
  if (output_->is_known) output_->text.add(*text);
}

}  // namespace moesim::shell
