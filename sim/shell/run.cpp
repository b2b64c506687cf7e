#include <algorithm>
#include <set>
#include <utility>

#include "sim/base/text.hpp"
#include "sim/shell/reader.hpp"

namespace moesim::shell {
namespace {

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

}  // namespace

Truth Reader::run(const std::string& program, const std::vector<Word>& given) {
  const auto text = [&](std::size_t from) {
    Value value{{}, true};
    for (std::size_t word = from; word < given.size(); ++word) {
      value.words.emplace_back(given[word].text, given[word].line);
    }
    return value;
  };
  static const std::set<std::string> quiet = {":",     "true",    "echo",     "export",
                                              "local", "declare", "readonly", "typeset"};
  if (output_ != nullptr) put_out(program, given);
  if (whole_.functions.contains(program)) {
    const Value all = text(1);
    return call(program, &all);
  }
  if (quiet.contains(program)) return Truth::yes;
  if (program == "false") return Truth::no;
  if (program == "[" || program == "test") return tested(given);
  if (program == "for") return begin_loop(given);
  if (program == "exit" || program == "return") {
    if (program == "exit" || returns_) end_with(given);
  } else if (program == "source" || program == ".") {
    return source(given);
  } else if (program == "cd" || program == "pushd" || program == "popd") {
    change_folder(given);
  } else if (program == "eval") {
    words().clear();
    evaluate(text(1).joined());
  } else if (program == "break" || program == "continue") {
    leave_turn(given);
  } else if (program == "read" || program == "mapfile" || program == "readarray" ||
             program == "getopts" || program == "printf") {
    for (std::size_t word = 1; word < given.size(); ++word) {
      const std::string& before = given[word - 1].text;
      const bool is_file = before.find('<') != std::string::npos;
      if (!is_file && (program != "printf" || before == "-v")) forget(given[word].text);
    }
  } else if (program == "set" && given.size() > 1) {
    const std::string& option = given[1].text;
    if (option == "--") set(all_words, text(2), false);
    const bool is_all = option == "-a" || (given.size() > 2 && given[2].text == "allexport");
    if (is_all || option == "+a") whole_.exports_all = option.front() == '-';
  } else if (program == "shift" && variables_->contains(all_words)) {
    std::vector<Text>& all = variables()[all_words].words;
    const auto count = given.size() > 1 ? parse_number<std::size_t>(given[1].text).value_or(1) : 1;
    all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min(count, all.size())));
  } else if (program == "unset") {
    for (std::size_t word = 1; word < given.size(); ++word) unset(given[word].text);
    return Truth::yes;
  } else if (program == "let") {
    Truth status = Truth::maybe;
    for (std::size_t word = 1; word < given.size(); ++word) status = changed(given[word].text);
    return status;
  }
  return Truth::maybe;
}

Truth Reader::call(const std::string& name, const Value* given) {
  Function& function = whole_.functions[name];
  function.is_called = true;
  const std::vector<Text> bodies = function.bodies;
  if (function.is_open) return Truth::maybe;
  const Opened opened(function);
  const OldValues hidden = assign(for_command_);
  const Truth status = read_in_place(bodies, given, true);
  restore(hidden);
  return status;
}

Truth Reader::read_in_place(const std::vector<Text>& bodies, const Value* given, bool is_function) {
  for (const Text& body : bodies) whole_.put_in += body.size() + 1;
  if (nesting_ == deepest || whole_.put_in > most) return Truth::maybe;
  const std::optional<Value> saved = found(all_words);
  if (given != nullptr) variables()[all_words] = *given;
  const Cause cause = frames_.back().cause_now();
  const Truth reached = runs();
  Truth status = Truth::maybe;
  bool is_exited = false;
  for (const Text& body : bodies) {
    Reader inner(whole_, body, std::move(variables_));
    inner.nesting_ = nesting_ + 1;
    inner.outer_ = command_ == Command::no_command ? outer_ : command_;
    inner.frames_.front().runs = reached;
    inner.frames_.front().cause = cause;
    inner.is_function_ = is_function || is_function_;
    inner.returns_ = true;
    inner.output_ = output_;
    inner.is_called_ = is_called_;
    inner.repeats_ = repeats_ || frames_.back().repeats;
    inner.read();
    inner.restore(inner.locals_);
    if (bodies.size() == 1) status = inner.may_return_ ? Truth::maybe : inner.status_;
    is_exited = is_exited || inner.is_exited_;
    variables_ = std::move(inner.variables_);
  }
  if (saved) {
    variables()[all_words] = *saved;
  } else if (given != nullptr) {
    variables().erase(all_words);
  }
  if (is_exited) stop(true);
  return status;
}

}  // namespace moesim::shell
