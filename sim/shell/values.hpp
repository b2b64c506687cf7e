#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/shell/text.hpp"

namespace moesim::shell {

constexpr const char* all_words = "@";       // the variable that holds a function's words
constexpr const char* working_folder = "/";  // that which holds where "cd" went

// A variable that a command sets which may run or not.
struct Doubt {
  struct Value {
    std::string text;
    int line = 0;
  };
  std::string name;
  std::vector<Value> values;  // those that it may have, in the order of the script
  std::string taken;          // that of these which is taken
  bool adds = false;          // all are taken, behind what it has
  std::string condition;      // by which the last of them is set, as it is written
  int line = 0;               // of the condition
};
using Doubts = std::vector<std::shared_ptr<const Doubt>>;

// The doubts that are not there yet; of very many not all.
void add_doubts(Doubts& to, const Doubts& more);

struct Value {
  std::vector<Text> words;  // one of a variable that is no array
  bool is_array = false;
  bool names_another = false;  // declare -n
  bool is_divided = false;     // at its spaces, but for those in quotes
  bool is_unset = false;       // by "unset": it is known that there is none
  bool is_lost = false;        // it is set, and what to is not known; it has no words
  Doubts doubts = {};          // its own, and those of the variables that are in it
  std::shared_ptr<const Doubt> own = nullptr;

  std::string text() const { return joined().letters; }
  Text joined() const;
  bool holds_arguments() const;
  bool begins_with(const Value& other) const;
};

// "NAME+=MORE": words to an array, letters to another.
void append(Value& to, const Value& more);

using Variables = std::map<std::string, Value>;

// The value of "A * B"; nothing where it is not known.
using Number = std::function<std::optional<std::int64_t>(const std::string& expression)>;

// The part of a value that "OFFSET" or "OFFSET:LENGTH" names: letters, or words of an array. Below
// 0 they count from the end.
std::optional<Value> part_of(const Value& whole, const std::string& range, const Number& number);

// The value of "[KEY]=VALUE" in an array; another word as it is.
Text without_key(const Text& element);
// "[KEY]=" of it.
Text key_of(const Text& element);
// "${!NAME[@]}": the keys of an array, which are numbers where its words have none.
Value keys_of(const Value& array);

struct Field {
  Text text;
  bool begins_quoted = false;
};

// What one word as it is written becomes.
class Fields {
 public:
  void add(char letter, int line) { open().text.add(letter, line); }
  void add(const Text& text) { open().text.add(text); }
  // Words of which the first joins what is there; what follows joins the last.
  void add_words(const std::vector<Text>& words);
  // As add_words; spaces divide it.
  void add_divided(const Text& text);
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

// The fields with spaces between them.
Text joined(const std::vector<Field>& fields);

}  // namespace moesim::shell
