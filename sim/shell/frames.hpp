#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/shell/truth.hpp"
#include "sim/shell/values.hpp"

namespace moesim::shell {

// How a command is joined with the next: "A; B", "A | B", "A && B", "A || B".
enum class Joint { none, pipe, both, either };

// A condition that is not known, as it is written.
struct Cause {
  std::string text;
  int line = 0;
};

// The turns of a loop, where they are known so far: the loop is read once for each.
struct Turns {
  enum class Kind {
    words,   // "for NAME in WORDS"
    counts,  // "for ((A; B; C))"
    tests,   // "while", "until"
  };

  Kind kind = Kind::words;
  std::string variable = {};
  std::vector<Text> words = {};  // its value in each turn
  std::size_t turn = 0;
  std::string condition = {};  // of one that counts
  std::string step = {};
  std::size_t begin = 0;    // behind "do", of one that tests behind "while"
  Truth runs = Truth::yes;  // the next turn
  bool may_end = false;     // by a "break" that may run
};

// A part of a script that is open where it is read: the script itself, "if ... fi", "case ...
// esac", a loop, "( ... )", "{ ... }".
struct Frame {
  enum class Kind { script, condition, choice, loop, brackets, braces };

  Kind kind = Kind::script;
  Truth outer = Truth::yes;  // whether it is reached
  Truth open = Truth::yes;   // none of its branches so far ran
  Truth runs = Truth::yes;   // the branch that is read
  Cause cause;               // by which that is not known
  bool was_maybe = false;    // one of its branches
  Doubts doubts = {};        // of the variables in its conditions, and those around it
  // The list of commands that is read, "A && B || C":
  Truth list = Truth::yes;  // what its commands so far are
  Joint joint = Joint::none;
  Cause list_cause;
  Doubts list_doubts = {};
  bool is_opposite = false;  // behind "!"
  // A choice ("case"): whether the reader is between two branches; `subject` is its word, with
  // variables put in.
  bool in_patterns = false;
  Truth falls_through = Truth::no;  // behind ";&" the next branch runs with the one before
  std::string subject;
  Cause subject_cause;
  bool is_until = false;
  bool is_piped = false;  // the next command is one of "A | B"
  bool repeats = false;   // a loop that may run more than once
  std::optional<Turns> turns = std::nullopt;
  std::shared_ptr<Variables> before = nullptr;  // variables, as a pipe leaves them
  bool is_shell = false;                        // "( ... )", which leaves them so too

  // Whether the command that is read runs, and what that depends on.
  Truth runs_now() const {
    if (joint == Joint::both) return shell::both(runs, list);
    if (joint == Joint::either) return shell::both(runs, opposite(list));
    return runs;
  }
  Doubts doubts_now() const {
    Doubts all = doubts;
    if (joint != Joint::none) add_doubts(all, list_doubts);
    return all;
  }
  const Cause& cause_now() const {
    return joint == Joint::none || list != Truth::maybe ? cause : list_cause;
  }
};

}  // namespace moesim::shell
