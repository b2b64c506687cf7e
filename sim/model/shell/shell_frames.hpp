#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/model/shell/shell_truth.hpp"
#include "sim/model/shell/shell_values.hpp"

namespace moesim::model {

// How a command is joined with the next: "A; B", "A | B", "A && B", "A || B".
enum class ShellJoint { none, pipe, both, either };

// A condition that is not known, as it is written.
struct ShellCause {
  std::string text;
  int line = 0;
};

// The turns of a loop, where they are known so far: the loop is read once for each.
struct ShellTurns {
  enum class Kind {
    words,   // "for NAME in WORDS"
    counts,  // "for ((A; B; C))"
    tests,   // "while", "until"
  };

  Kind kind = Kind::words;
  std::string variable = {};
  std::vector<ShellText> words = {};  // its value in each turn
  std::size_t turn = 0;
  std::string condition = {};  // of one that counts
  std::string step = {};
  std::size_t begin = 0;    // behind "do", of one that tests behind "while"
  Truth runs = Truth::yes;  // the next turn
  bool may_end = false;     // by a "break" that may run
};

// A part of a script that is open where it is read: the script itself, "if ... fi", "case ...
// esac", a loop, "( ... )", "{ ... }".
struct ShellFrame {
  enum class Kind { script, condition, choice, loop, brackets, braces };

  Kind kind = Kind::script;
  Truth outer = Truth::yes;  // whether it is reached
  Truth open = Truth::yes;   // none of its branches so far ran
  Truth runs = Truth::yes;   // the branch that is read
  ShellCause cause;          // by which that is not known
  bool was_maybe = false;    // one of its branches
  ShellDoubts doubts = {};   // of the variables in its conditions, and those around it
  // The list of commands that is read, "A && B || C":
  Truth list = Truth::yes;  // what its commands so far are
  ShellJoint joint = ShellJoint::none;
  ShellCause list_cause;
  ShellDoubts list_doubts = {};
  bool is_opposite = false;  // behind "!"
  // A choice ("case"): whether the reader is between two branches; `subject` is its word, with
  // variables put in.
  bool in_patterns = false;
  Truth falls_through = Truth::no;  // behind ";&" the next branch runs with the one before
  std::string subject;
  ShellCause subject_cause;
  bool is_until = false;
  bool is_piped = false;  // the next command is one of "A | B"
  bool repeats = false;   // a loop that may run more than once
  std::optional<ShellTurns> turns = std::nullopt;
  std::shared_ptr<ShellVariables> before = nullptr;  // variables, as a pipe leaves them
  bool is_shell = false;                             // "( ... )", which leaves them so too

  // Whether the command that is read runs, and what that depends on.
  Truth runs_now() const {
    if (joint == ShellJoint::both) return model::both(runs, list);
    if (joint == ShellJoint::either) return model::both(runs, opposite(list));
    return runs;
  }
  ShellDoubts doubts_now() const {
    ShellDoubts all = doubts;
    if (joint != ShellJoint::none) add_doubts(all, list_doubts);
    return all;
  }
  const ShellCause& cause_now() const {
    return joint == ShellJoint::none || list != Truth::maybe ? cause : list_cause;
  }
};

}  // namespace moesim::model
