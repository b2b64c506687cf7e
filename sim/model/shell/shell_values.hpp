#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/model/shell/shell_text.hpp"

namespace moesim::model {

constexpr const char* all_words = "@";       // the variable that holds a function's words
constexpr const char* working_folder = "/";  // that which holds where "cd" went

// A variable that a command sets which may run or not.
struct ShellDoubt {
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
using ShellDoubts = std::vector<std::shared_ptr<const ShellDoubt>>;

// The doubts that are not there yet; of very many not all.
void add_doubts(ShellDoubts& to, const ShellDoubts& more);

struct ShellValue {
  std::vector<ShellText> words;  // one of a variable that is no array
  bool is_array = false;
  bool names_another = false;  // declare -n
  bool is_divided = false;     // at its spaces, but for those in quotes
  bool is_unset = false;       // by "unset": it is known that there is none
  bool is_lost = false;        // it is set, and what to is not known; it has no words
  ShellDoubts doubts = {};     // its own, and those of the variables that are in it
  std::shared_ptr<const ShellDoubt> own = nullptr;

  std::string text() const { return joined().letters; }
  ShellText joined() const;
  bool holds_arguments() const;
  bool begins_with(const ShellValue& other) const;
};

// "NAME+=MORE": words to an array, letters to another.
void append(ShellValue& to, const ShellValue& more);

using ShellVariables = std::map<std::string, ShellValue>;

// The value of "A * B"; nothing where it is not known.
using ShellNumber = std::function<std::optional<std::int64_t>(const std::string& expression)>;

// The part of a value that "OFFSET" or "OFFSET:LENGTH" names: letters, or words of an array. Below
// 0 they count from the end.
std::optional<ShellValue> part_of(const ShellValue& whole, const std::string& range,
                                  const ShellNumber& number);

// The value of "[KEY]=VALUE" in an array; another word as it is.
ShellText without_key(const ShellText& element);
// "[KEY]=" of it.
ShellText key_of(const ShellText& element);
// "${!NAME[@]}": the keys of an array, which are numbers where its words have none.
ShellValue keys_of(const ShellValue& array);

struct ShellField {
  ShellText text;
  bool begins_quoted = false;
};

// What one word as it is written becomes.
class ShellFields {
 public:
  void add(char letter, int line) { open().text.add(letter, line); }
  void add(const ShellText& text) { open().text.add(text); }
  // Words of which the first joins what is there; what follows joins the last.
  void add_words(const std::vector<ShellText>& words);
  // As add_words; spaces divide it.
  void add_divided(const ShellText& text);
  void begin_quote() { is_quoted_ = true; }
  void end() {
    if (current_) made_.push_back(std::move(*current_));
    current_.reset();
  }
  ShellField& open() {
    if (!current_) current_ = ShellField{{}, is_quoted_};
    return *current_;
  }
  std::vector<ShellField> finish() {
    end();
    return std::move(made_);
  }
  void end_quote() { is_quoted_ = false; }

 private:
  std::vector<ShellField> made_;
  std::optional<ShellField> current_;
  bool is_quoted_ = false;
};

// The fields with spaces between them.
ShellText joined(const std::vector<ShellField>& fields);

}  // namespace moesim::model
