#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/cell.hpp"

namespace moesim::scenario {

class DocumentCache;
struct Scenario;

// The options of one scenario as typed: name without dashes -> text. What is absent has its
// default.
using OptionValues = std::map<std::string, std::string>;

// What a scenario is for: routing alone does not require that tokens make whole sequences.
enum class Use { step, routing };

// A scenario while its options are resolved: those that an option comes after are in `scenario`.
struct Resolution {
  const OptionValues& typed;
  DocumentCache& documents;
  Use use;
  Scenario& scenario;

  const std::string* find(const std::string& option) const {  // null: not typed
    const auto found = typed.find(option);
    return found == typed.end() ? nullptr : &found->second;
  }
};

// What asks whether an option has an effect: a step, the routing of a scenario, or the routing of
// given logits.
enum class Asker { step, routing, logits };

struct Question {
  const Scenario& scenario;
  const OptionValues& typed;
  Asker asker;
  bool has(const char* option) const { return typed.count(option) != 0; }
};
// Why an option has no effect; empty where it has one.
using Reason = std::string_view;

enum class OptionType { whole, decimal, choice, text, document };

struct NamedValue {
  std::string name;
  std::string meaning;
};

// What depends on an option. routing: the losses and the traffic, and with them the step. step: the
// time or the memory of a step alone. written_routes: only the routes that 'route --logits' writes.
enum class Affects { routing, step, written_routes };

// One scenario option: all that parsing, help, defaults, checks, notes, result columns and the
// sweep need to know of it. OptionTable has a method to fill each member.
struct Option {
  std::string name;    // without the dashes
  std::string column;  // of results
  OptionType type = OptionType::text;
  std::string placeholder;         // what stands for the value in a help text
  Cell minimum, maximum;           // of numbers, where there are such
  std::vector<NamedValue> values;  // of a choice all there are; of a text its forms
  std::string default_text;        // as a help text says it
  std::string help;
  Affects affects = Affects::step;
  bool in_route = false;           // the row of a router run alone has it too
  std::vector<std::string> after;  // options that are resolved before this one

  // Throws UsageError if the text makes no sense whatever the other options are.
  std::function<void(const std::string& text, DocumentCache&)> check_text;
  // Sets the scenario's field.
  std::function<void(const std::string& text, Resolution&)> set;
  // The same where nothing was typed; null: `default_text` is the value.
  std::function<void(Resolution&)> set_default;
  // Called after either, may be null: what follows from the value. Throws UsageError.
  void (*then)(Resolution&) = nullptr;
  // The value as its column has it; typed again it gives the same scenario.
  std::function<Cell(const Scenario&)> value;
  bool (*applies)(const Scenario&) = nullptr;  // null: to every scenario. Otherwise no cell
  // Why a typed value changes no result; null: it always may.
  Reason (*idle)(const Question&) = nullptr;
  // Whether it goes together with the other options, once all are resolved; may be null. Throws
  // UsageError that names the flags to change.
  void (*check)(const Scenario&, Use) = nullptr;
  // What the files behind the value hold, as a digest; null: it has none.
  std::uint64_t (*contents)(const Scenario&) = nullptr;

  bool is_number() const { return type == OptionType::whole || type == OptionType::decimal; }
  std::string flag() const { return "--" + name; }
  Cell cell(const Scenario& scenario) const;    // absent where it does not apply
  Cell cell_of(const std::string& text) const;  // of a value as typed that check_text() accepts
};

// The same pairs.
std::vector<NamedValue> named_values(const std::vector<std::pair<std::string, std::string>>& forms);

}  // namespace moesim::scenario
