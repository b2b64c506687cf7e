#include "sim/model/megatron/megatron_commands.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include "sim/model/megatron/megatron_words.hpp"

namespace moesim::model {
namespace {

using Kind = shell::Command::Kind;

// "TP is 2 (line 3) or 4 (line 5), as `[ $1 = large ]` (line 4) is not known: 4 is taken"
std::string told(const shell::Doubt& doubt, const shell::Files& files) {
  std::vector<std::string> values;
  for (const auto& each : doubt.values) {
    values.push_back(fmt::format("{} ({})", shortened(each.text), files.place(each.line)));
  }
  const bool has_several = values.size() > 1;
  if (!has_several) values.emplace_back(doubt.adds ? "not" : "not set");
  const std::string why =
      fmt::format("as `{}` ({}) is not known", shortened(doubt.condition), files.place(doubt.line));
  if (doubt.adds) {
    return fmt::format("{} has {}, {}: {} taken", doubt.name,
                       fmt::join(values, has_several ? " and " : " or "), why,
                       has_several ? "all are" : "it is");
  }
  return fmt::format("{} is {}, {}: {} is taken", doubt.name, fmt::join(values, " or "), why,
                     shortened(doubt.taken));
}

// Chooses the command that trains among those of a script, and what runs it.
class Choice {
 public:
  Choice(const std::vector<shell::Command>& commands, const shell::Files& files)
      : commands_(commands), files_(files) {
    made_.taken.assign(commands.size(), false);
    for (const shell::Command& each : commands) arguments_.push_back(arguments_of(each));
  }

  TrainingCommands made() {
    choose();
    keep_last();
    find_unused();
    std::size_t found = 0;
    bool hides = false;
    for (std::size_t each = 0; each < commands_.size(); ++each) {
      if (!made_.taken[each]) continue;
      found += arguments_[each];
      hides = hides || hides_arguments(commands_[each]);
      is_program_ = is_program_ || trains(commands_[each]);
    }
    constexpr std::size_t few = 3;  // a command that trains has more
    const bool is_other = !is_program_ && found < few;
    if (found == 0 || (found < unused_count_ && (hides || is_other))) {
      made_.takes_lists = unused_count_ > 0;
      made_.taken.assign(commands_.size(), true);
      made_.notes.clear();
      note_doubts();
      return std::move(made_);
    }
    take_launchers();
    note_left_out();
    note_doubts();
    return std::move(made_);
  }

 private:
  // The commands that train themselves: those of functions that no command calls only where there
  // is no other.
  void choose() {
    for (const bool called : {true, false}) {
      const bool has_one = take_if(called, [](const shell::Command& command) {
        return is_named_for_training(command) && !is_output(command);
      });
      if (has_one) return;
    }
    for (const bool of_outputs : {false, true}) {
      for (const bool called : {true, false}) {
        const std::size_t best = largest(called, of_outputs);
        if (best == commands_.size()) continue;
        const std::string script = script_of(commands_[best]);
        take_if(called,
                [&](const shell::Command& command) { return script_of(command) == script; });
        return;
      }
    }
  }

  bool is_candidate(std::size_t each, bool called) const {
    const shell::Command& command = commands_[each];
    return command.kind == Kind::command && arguments_[each] > 0 && command.is_called == called;
  }

  template <typename IsOne>
  bool take_if(bool called, const IsOne& is_one) {
    bool has_one = false;
    for (std::size_t each = 0; each < commands_.size(); ++each) {
      if (!is_candidate(each, called) || !is_one(commands_[each])) continue;
      made_.taken[each] = true;
      has_one = true;
    }
    return has_one;
  }

  // The command with most arguments; commands_.size(): there is none.
  std::size_t largest(bool called, bool of_outputs) const {
    std::size_t best = commands_.size();
    for (std::size_t each = 0; each < commands_.size(); ++each) {
      const bool is_one = is_candidate(each, called) && is_output(commands_[each]) == of_outputs;
      if (is_one && (best == commands_.size() || arguments_[each] > arguments_[best])) best = each;
    }
    return best;
  }

  bool runs(std::size_t outer, std::size_t inner) const {
    int at = commands_[inner].outer;
    while (at >= 0 && at != static_cast<int>(outer)) {
      at = commands_[static_cast<std::size_t>(at)].outer;
    }
    return at >= 0;
  }

  // Keeps the last of several commands that train: the others often prepare for it, such as a trial
  // with few steps. A command with few arguments, such as an evaluation, does not count as one that
  // trains.
  void keep_last() {
    std::vector<std::size_t> all;
    std::size_t largest = 0;
    bool has_program = false;
    for (std::size_t each = 0; each < commands_.size(); ++each) {
      if (!made_.taken[each]) continue;
      all.push_back(each);
      largest = std::max(largest, arguments_[each]);
      has_program = has_program || trains(commands_[each]);
    }
    if (all.size() < 2) return;
    std::size_t last = all.back();
    for (const std::size_t each : all) {
      const bool is_one = trains(commands_[each]) || !has_program;
      if (is_one && 2 * arguments_[each] >= largest) last = each;
    }
    std::vector<int> lines;
    const auto line_of = [&](std::size_t each) {
      return commands_[outermost(each)].words.front().line;
    };
    std::size_t count = 0;
    for (const std::size_t each : all) {
      const bool is_other = each != last && !runs(each, last) && !runs(last, each);
      if (each != last && !runs(each, last)) made_.taken[each] = false;
      if ((!is_other || is_same(each, last)) && each != last) continue;
      ++count;
      if (lines.empty() || lines.back() != line_of(each)) lines.push_back(line_of(each));
    }
    if (lines.size() > 1) {
      made_.notes.push_back(fmt::format("{} commands train ({}): that of {} is taken", count,
                                        places(lines), files_.place(line_of(last))));
    } else if (count > 1) {
      made_.notes.push_back(fmt::format("the command of {} trains {} times: the last is taken",
                                        files_.place(line_of(last)), count));
    }
  }

  // "lines 3, 5"
  std::string places(const std::vector<int>& lines) const {
    std::vector<std::string> all;
    for (const int line : lines) all.push_back(files_.place(line));
    constexpr std::string_view word = "line ";
    for (std::size_t each = 1; each < all.size(); ++each) all[each].erase(0, word.size());
    all.front().insert(word.size() - 1, "s");
    return fmt::format("{}", fmt::join(all, ", "));
  }

  static std::vector<shell::Word> words_from_program(const shell::Command& command) {
    const auto first = static_cast<std::ptrdiff_t>(command.program());
    return {command.words.begin() + first, command.words.end()};
  }

  // Whether two commands are the same but for the number of the node that each starts.
  bool is_same(std::size_t one, std::size_t other) const {
    // The words of both without "do", which the first turn of a loop alone may have.
    const std::vector<shell::Word> left = words_from_program(commands_[one]);
    const std::vector<shell::Word> right = words_from_program(commands_[other]);
    const auto is_rank = [&](std::size_t at) {
      const auto has_rank = [&](const std::string& word) {
        const std::string name = argument_name(word.substr(0, word.find('=')));
        return name == "node-rank" || name == "machine-rank";
      };
      return has_rank(left[at].text) || (at > 0 && has_rank(left[at - 1].text));
    };
    if (left.size() != right.size()) return false;
    for (std::size_t at = 0; at < left.size(); ++at) {
      if (left[at].text != right[at].text && !is_rank(at)) return false;
    }
    return true;
  }

  // The outermost command that holds a command, such as the call of a function.
  std::size_t outermost(std::size_t inner) const {
    std::size_t found = inner;
    for (int at = commands_[inner].outer; at >= 0;
         at = commands_[static_cast<std::size_t>(at)].outer) {
      if (!commands_[static_cast<std::size_t>(at)].words.empty())
        found = static_cast<std::size_t>(at);
    }
    return found;
  }

  // One note for each variable that is in the commands.
  void note_doubts() {
    std::map<std::string, std::string> notes;
    for (std::size_t each = 0; each < commands_.size(); ++each) {
      if (!made_.taken[each]) continue;
      for (const auto& doubt : commands_[each].doubts) notes[doubt->name] = told(*doubt, files_);
    }
    for (auto& [name, note] : notes) made_.notes.push_back(std::move(note));
  }

  // Takes what runs the commands that are taken: launchers, batch jobs, functions.
  void take_launchers() {
    bool has_gpus = false;
    for (std::size_t each = commands_.size(); each-- > 0;) {
      const shell::Command& command = commands_[each];
      const std::string program = program_of(command);
      if (command.kind == Kind::batch || program == "sbatch" || program == "salloc") {
        made_.taken[each] = true;
      }
      if (!made_.taken[each]) continue;
      has_gpus = has_gpus || says_gpus(command);
      // A text, a here-document and a function stand behind what runs them.
      if (command.outer >= 0) made_.taken[static_cast<std::size_t>(command.outer)] = true;
    }
    if (has_gpus) return;
    for (std::size_t each = 0; each < commands_.size(); ++each) {
      if (commands_[each].kind == Kind::command && says_gpus(commands_[each]) &&
          arguments_[each] == 0) {
        made_.taken[each] = true;
      }
    }
  }

  using Words = std::set<std::pair<int, std::string>>;

  // Finds lists that no command uses, by the lines of their arguments.
  void find_unused() {
    Words used;
    for (const shell::Command& each : commands_) {
      if (each.kind == Kind::list) continue;
      for (const shell::Word& word : each.words) used.insert({word.line, word.text});
    }
    for (std::size_t each = 0; each < commands_.size(); ++each) {
      if (commands_[each].kind != Kind::list || arguments_[each] == 0) continue;
      for (const shell::Word& word : commands_[each].words) {
        const std::pair<int, std::string> place(word.line, word.text);
        if (!is_argument(word.text) || used.contains(place)) continue;
        if (unused_[commands_[each].variable].insert(place).second) ++unused_count_;
      }
    }
  }

  void note_left_out() {
    for (std::size_t each = 0; each < commands_.size(); ++each) {
      const shell::Command& command = commands_[each];
      if (made_.taken[each] || command.kind != Kind::command || arguments_[each] == 0) continue;
      if (is_output(command)) continue;
      const auto count =
          std::count_if(command.words.begin(), command.words.end(),
                        [](const shell::Word& word) { return is_argument(word.text); });
      made_.left_out.push_back(fmt::format(
          "{} of {} ({}){}", count, script_of(command), files_.place(command.words.front().line),
          command.is_called ? "" : ", in a function that no command calls"));
    }
    for (const auto& [variable, words] : unused_) {
      made_.left_out.push_back(fmt::format("{} of {} ({}), which no command uses", words.size(),
                                           variable.empty() ? "a here-document" : variable,
                                           files_.place(words.begin()->first)));
    }
  }

  const std::vector<shell::Command>& commands_;
  const shell::Files& files_;
  std::vector<std::size_t> arguments_;   // of Megatron-LM, of each
  std::map<std::string, Words> unused_;  // by variable
  std::size_t unused_count_ = 0;
  bool is_program_ = false;  // named for training, and no script that may use variables
  TrainingCommands made_;
};

}  // namespace

TrainingCommands training_commands(const std::vector<shell::Command>& commands,
                                   const shell::Files& files) {
  return Choice(commands, files).made();
}

}  // namespace moesim::model
