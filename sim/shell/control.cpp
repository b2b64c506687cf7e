#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "sim/base/text.hpp"
#include "sim/shell/reader.hpp"

namespace moesim::shell {

using Kind = Frame::Kind;

Frame& Reader::open_frame(Kind kind) {
  constexpr std::size_t most_frames = 500;
  if (frames_.size() == most_frames && is_document_) {  // it may be no script
    frames_.resize(1);
    over_.reset();
  }
  if (frames_.size() == most_frames) {
    throw UsageError(fmt::format("{}: more than {} parts of the script are open",
                                 whole_.files.address(line()), most_frames));
  }
  const Frame& around = frames_.back();
  Frame frame;
  frame.kind = kind;
  frame.outer = runs();
  frame.runs = frame.outer;
  frame.cause = around.cause_now();
  frame.doubts = around.doubts_now();
  frame.repeats = around.repeats;
  whole_.kept += variables_->size();
  if (kind == Kind::brackets || whole_.kept < most) frame.before = variables_;
  frames_.push_back(std::move(frame));
  return frames_.back();
}

void Reader::close_frame() {
  const Frame& frame = frames_.back();
  if (frame.kind != Kind::brackets && frame.kind != Kind::braces) {
    if (frame.was_maybe || frame.kind == Kind::loop) {
      status_ = Truth::maybe;
    } else if (frame.open == Truth::yes) {
      status_ = Truth::yes;
    }
  }
  if (frame.is_shell) variables_ = frame.before;
  if (frame.outer != Truth::no) before_compound_ = frame.before;
  if (over_ && *over_ + 1 == frames_.size()) over_.reset();
  frames_.pop_back();
  is_begun_ = true;
  is_compound_ = true;
}

void Reader::take_keyword(const std::string& word) {
  Frame& frame = frames_.back();
  const Kind kind = frame.kind;
  if (word == "!") {
    frame.is_opposite = !frame.is_opposite;
  } else if (word == "{") {
    open_frame(Kind::braces);
  } else if (word == "if") {
    open_frame(Kind::condition);
  } else if (word == "for" || word == "select") {
    open_frame(Kind::loop);
  } else if (word == "while" || word == "until") {
    open_frame(Kind::loop).is_until = word == "until";
    begin_testing();
  } else if (kind == Kind::condition && word == "then") {
    begin_branch(status_);
  } else if (kind == Kind::condition && word == "elif") {
    frame.runs = both(frame.outer, frame.open);
  } else if (kind == Kind::condition && word == "else") {
    begin_branch(Truth::yes);
  } else if (kind == Kind::loop && word == "do") {
    begin_branch(frame.is_until ? opposite(status_) : status_);
    begin_body();
  } else if ((kind == Kind::condition && word == "fi") || (kind == Kind::loop && word == "done") ||
             (kind == Kind::choice && word == "esac") || (kind == Kind::braces && word == "}")) {
    if (kind == Kind::loop && begin_turn()) return;
    close_frame();
  }
}

void Reader::begin_branch(Truth condition) {
  Frame& frame = frames_.back();
  if (condition == Truth::maybe) frame.cause = status_cause_;
  add_doubts(frame.doubts, status_doubts_);
  frame.runs = both(both(frame.outer, frame.open), condition);
  frame.was_maybe = frame.was_maybe || frame.runs == Truth::maybe;
  frame.open = both(frame.open, opposite(condition));
  frame.joint = Joint::none;
}

void Reader::take_bracket() {
  if (here() == '(') {
    const bool is_shell = begins_command();
    if (!is_begun_) begun_at_ = at_;
    Frame& frame = open_frame(Kind::brackets);
    frame.is_shell = is_shell;
  } else {
    end_command(Joint::none);
    if (frames_.back().kind == Kind::brackets) close_frame();
  }
  ++at_;
}

void Reader::begin_choice() {
  const std::vector<Word>& all = words();
  const std::size_t first = whole_.commands[static_cast<std::size_t>(command_)].program() + 1;
  std::string subject;
  for (std::size_t word = first; word + 1 < all.size(); ++word) {
    if (word > first) subject += ' ';
    subject += all[word].text;
  }
  const Cause cause = written_from(begun_at_);
  status_doubts_ = std::exchange(whole_.used, {});
  add_doubts(status_doubts_, whole_.commands[static_cast<std::size_t>(command_)].doubts);
  if (runs_not()) whole_.commands.pop_back();
  Frame& frame = open_frame(Kind::choice);
  frame.subject = std::move(subject);
  frame.in_patterns = true;
  frame.subject_cause = cause;
  add_doubts(frame.doubts, status_doubts_);
  is_begun_ = false;
  command_ = Command::no_command;
  whole_.output_status.reset();
}

void Reader::take_patterns() {
  Frame& frame = frames_.back();
  if (here() == '\\' && next() == '\n') {
    at_ += 2;
    return;
  }
  if (is_space(here()) || here() == '(') {
    ++at_;
    return;
  }
  if (here() == '#') {
    skip_comment();
    return;
  }
  frame.in_patterns = false;
  constexpr const char* end = "esac";
  if (script_.letters.compare(at_, 4, end) == 0) return;
  Truth found = Truth::no;
  while (at_ < script_.size() && here() != '\n') {
    const ConditionWord pattern = take_pattern(true);
    found = either(found, matches(frame.subject, pattern.pattern));
    while (here() == ' ' || here() == '\t') ++at_;
    if (here() != '|') break;
    ++at_;
    while (here() == ' ' || here() == '\t') ++at_;
  }
  if (here() == ')') ++at_;
  whole_.output_status.reset();
  if (found == Truth::maybe) status_cause_ = frame.subject_cause;
  status_doubts_ = std::exchange(whole_.used, {});
  begin_branch(found);
  frame.runs = either(frame.runs, std::exchange(frame.falls_through, Truth::no));
}

void Reader::stop(bool of_script) {
  if (runs() != Truth::yes) return;
  std::size_t at = frames_.size() - 1;
  while (at > 0 && frames_[at].kind != Kind::brackets) --at;
  over_ = at;
  if (of_script && at == 0) is_exited_ = true;
}

void Reader::end_with(const std::vector<Word>& given) {
  if (runs() != Truth::yes) {
    may_return_ = true;
    return;
  }
  if (given.size() > 1) {
    const auto code = parse_number<int>(given[1].text);
    status_ = !code ? Truth::maybe : *code == 0 ? Truth::yes : Truth::no;
    status_cause_ = written_from(begun_at_);
    status_doubts_.clear();
  }
  stop(given.front().text == "exit");
}

Cause Reader::written_from(std::size_t begin) const {
  constexpr std::size_t longest = 60;
  std::string text;
  for (std::size_t at = begin; at < std::min(at_, script_.size()); ++at) {
    const char letter = script_.letters[at];
    if (!is_space(letter)) {
      text += letter;
    } else if (!text.empty() && text.back() != ' ') {
      text += ' ';
    }
    for (const char* word : {"if ", "elif ", "then ", "else ", "while ", "until ", "do ", "! "}) {
      if (text == word) text.clear();
    }
    if (text.size() > longest) {
      text += "...";
      break;
    }
  }
  while (!text.empty() && (text.back() == ' ' || text.back() == ';')) text.pop_back();
  if (text.rfind("case ", 0) == 0 && text.size() > 3 && text.substr(text.size() - 3) == " in") {
    text.resize(text.size() - 3);
  }
  return {text, script_.line_at(begin)};
}

}  // namespace moesim::shell
