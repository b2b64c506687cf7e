#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <utility>

#include "sim/base/text.hpp"
#include "sim/shell/reader.hpp"

namespace moesim::shell {
namespace {

using Kind = Turns::Kind;

constexpr std::size_t most_turns = 1000;     // of all loops of a script
constexpr std::size_t most_again = 1 << 20;  // bytes that they read again

// "1" to "15" of "{1..15}", "0" and "4" of "{0..7..4}", "a" and "b" of "{a,b}"; the word itself of
// another one.
std::vector<Text> words_of_braces(const Word& word) {
  const std::string& text = word.text;
  std::vector<Text> words;
  const auto add = [&](std::string_view each) { words.emplace_back(std::string(each), word.line); };
  const bool has_braces = text.size() > 2 && text.front() == '{' && text.back() == '}' &&
                          text.find_first_of("{}", 1) == text.size() - 1;
  const std::string inner = has_braces ? text.substr(1, text.size() - 2) : "";
  const auto dots = inner.find("..");
  if (dots != std::string::npos) {
    const auto by = std::min(inner.find("..", dots + 2), inner.size());
    const auto first = parse_number<std::int32_t>(inner.substr(0, dots));
    const auto last = parse_number<std::int32_t>(inner.substr(dots + 2, by - dots - 2));
    const auto step = by == inner.size() ? 1 : parse_number<std::int32_t>(inner.substr(by + 2));
    constexpr std::int64_t most = most_turns;
    if (first && last && step && *step > 0 && std::abs(std::int64_t{*first} - *last) < most) {
      const bool grows = *first <= *last;
      for (std::int64_t each = *first; grows ? each <= *last : each >= *last;
           each += grows ? *step : -*step) {
        add(fmt::format("{}", each));
      }
      return words;
    }
  } else if (inner.find(',') != std::string::npos) {
    for (const std::string_view each : split(inner, ',')) add(each);
    return words;
  }
  add(text);
  return words;
}

}  // namespace

Truth Reader::begin_loop(const std::vector<Word>& given) {
  constexpr std::size_t before = 3;  // "for NAME in"
  Frame& frame = frames_.back();
  if (frame.turns) return begins_turn();
  frame.repeats = true;
  if (given.size() < 2) return Truth::maybe;
  std::vector<Text> all;
  for (std::size_t word = before; word < given.size(); ++word) {
    for (Text& each : words_of_braces(given[word])) all.push_back(std::move(each));
  }
  const bool knows =
      given.size() >= before && given[2].text == "in" &&
      std::all_of(all.begin(), all.end(), [](const Text& word) {
        return is_known(word.letters) && word.letters.find_first_of("*?[{") == std::string::npos;
      });
  if (!knows || whole_.turns + all.size() > most_turns) {
    forget(given[1].text);
    return knows ? Truth::yes : Truth::maybe;
  }
  frame.repeats = frames_.size() > 1 && frames_[frames_.size() - 2].repeats;
  frame.turns = Turns{Kind::words, given[1].text, std::move(all)};
  return begins_turn();
}

void Reader::begin_counting(const std::string& text) {
  const std::vector<std::string_view> parts = split(text, ';');
  Turns turns{Kind::counts};
  if (parts.size() == 3) {
    changed(std::string(parts[0]));
    turns.condition = parts[1];
    turns.step = parts[2];
  }
  if (whole_.turns < most_turns && number(Text(turns.condition, line()))) {
    frames_.back().turns = std::move(turns);
  } else {
    forget_changed(text);
  }
}

void Reader::begin_testing() {
  Frame& frame = frames_.back();
  const auto word = std::min(script_.letters.find_first_not_of(" \t", at_), script_.size());
  // It ends by a "break", mostly of a condition.
  const bool is_always =
      script_.letters.compare(word, 4, "true") == 0 || script_.letters.compare(word, 1, ":") == 0;
  frame.repeats = frame.repeats || is_always || whole_.turns >= most_turns;
  if (frame.repeats) return;
  frame.turns = Turns{Kind::tests};
  frame.turns->begin = at_;
}

void Reader::begin_body() {
  Frame& frame = frames_.back();
  if (!frame.turns) return;
  const bool is_test = frame.turns->kind == Kind::tests;
  if (is_test && status_ == Truth::maybe) return lose_turns();
  if (!is_test) frame.turns->begin = at_;
  frame.turns->runs = frame.runs;
}

Truth Reader::begins_turn() {
  Turns& turns = *frames_.back().turns;
  if (turns.kind == Kind::counts) {
    const auto value = number(Text(turns.condition, line()));
    return value ? truth_of(*value != 0) : Truth::maybe;
  }
  if (turns.kind == Kind::words) {
    if (turns.turn == turns.words.size()) return Truth::no;
    replace(turns.variable, {{turns.words[turns.turn]}});
  }
  return Truth::yes;
}

bool Reader::begin_turn() {
  Frame& frame = frames_.back();
  if (!frame.turns || frame.turns->runs == Truth::no || over_) return false;
  Turns& turns = *frame.turns;
  frame.runs = frame.outer = turns.runs;
  ++turns.turn;
  if (turns.kind == Kind::counts) changed(turns.step);
  Truth runs = begins_turn();
  if (runs == Truth::no) return false;
  whole_.read_again += at_ - turns.begin;
  if (turns.kind == Kind::tests && turns.may_end) runs = Truth::maybe;
  if (whole_.read_again > most_again) whole_.turns = most_turns;
  if (++whole_.turns > most_turns) runs = Truth::maybe;
  if (runs == Truth::yes) {
    read_again();
  } else {
    lose_turns();
  }
  return true;
}

void Reader::read_again() {
  Frame& frame = frames_.back();
  is_compound_ = true;
  end_command(Joint::none);
  at_ = frame.turns->begin;
  if (frame.turns->kind == Kind::tests) {
    frame.runs = frame.outer;
    frame.open = Truth::yes;
  }
}

void Reader::lose_turns() {
  Frame& frame = frames_.back();
  frame.repeats = true;
  ++whole_.turns;
  read_again();
  const Turns turns = *std::exchange(frame.turns, std::nullopt);
  if (turns.kind == Kind::words) forget(turns.variable);
  forget_changed(turns.condition + ";" + turns.step);
}

void Reader::leave_turn(const std::vector<Word>& given) {
  const Truth reached = runs();
  if (reached == Truth::no) return;
  std::size_t levels = given.size() > 1 ? parse_number<std::size_t>(given[1].text).value_or(1) : 1;
  std::size_t at = frames_.size();
  while (at > 1 && levels > 0) {
    --at;
    const bool is_loop = frames_[at].kind == Frame::Kind::loop;
    if (is_loop) --levels;
    // The loops inside the one that goes on end, too.
    const bool ends = is_loop && (given.front().text == "break" || levels > 0);
    if (ends && frames_[at].turns) {
      frames_[at].turns->runs = both(frames_[at].turns->runs, opposite(reached));
      frames_[at].turns->may_end = true;
    }
  }
  if (levels > 0) return;  // in no loop
  const Cause cause = frames_.back().cause_now();
  for (; at < frames_.size(); ++at) {
    Frame& frame = frames_[at];
    frame.runs = both(frame.runs, opposite(reached));
    frame.outer = both(frame.outer, opposite(reached));
    if (reached == Truth::maybe) frame.cause = cause;
  }
}

}  // namespace moesim::shell
