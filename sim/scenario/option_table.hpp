#pragma once

#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "sim/base/enum_names.hpp"
#include "sim/base/text.hpp"
#include "sim/scenario/document_cache.hpp"
#include "sim/scenario/option.hpp"
#include "sim/scenario/scenario.hpp"

namespace moesim::scenario {

// The field that a member pointer names: of the scenario, of its router or of its conditions.
template <class Holder, class Part, class Value>
auto& field_of(Holder& scenario, Value Part::*member) {
  if constexpr (std::is_base_of_v<Part, Scenario>) {
    return scenario.*member;
  } else if constexpr (std::is_same_v<Part, routing::RouterConfig>) {
    return scenario.router.*member;
  } else {
    return scenario.conditions.*member;
  }
}

// One option under construction: each method sets what its name says (option.hpp).
class Entry {
 public:
  explicit Entry(Option& option) : option_(&option) {}
  Entry help(const char* text) const { return set(&Option::help, text); }
  // The value where nothing is typed: as it would be typed, or in words with the function that
  // sets it.
  Entry by_default(const char* text) const { return set(&Option::default_text, text); }
  Entry by_default(const char* words, void (*value)(Resolution&)) const {
    option_->set_default = value;
    return by_default(words);
  }
  // What a text may be, for its help.
  Entry forms(std::vector<NamedValue> forms) const {
    return set(&Option::values, std::move(forms));
  }
  Entry after(std::vector<std::string> options) const {
    return set(&Option::after, std::move(options));
  }
  // Also decides whether the row of a router run alone has it, unless in_route() says otherwise.
  Entry affects(Affects what) const {
    return set(&Option::affects, what).in_route(what != Affects::step);
  }
  Entry in_route(bool shown) const { return set(&Option::in_route, shown); }
  Entry then(void (*settle)(Resolution&)) const { return set(&Option::then, settle); }
  Entry applies(bool (*to)(const Scenario&)) const { return set(&Option::applies, to); }
  Entry idle(Reason (*why)(const Question&)) const { return set(&Option::idle, why); }
  // Instead of the field, in the column.
  Entry shown_as(std::string (*value)(const Scenario&)) const {
    option_->value = [value](const Scenario& scenario) { return Cell(value(scenario)); };
    return *this;
  }
  Entry checked(void (*check)(const Scenario&, Use)) const { return set(&Option::check, check); }
  Entry contents(std::uint64_t (*digest)(const Scenario&)) const {
    return set(&Option::contents, digest);
  }

 private:
  template <class Member, class Value>
  Entry set(Member Option::*member, Value&& value) const {
    option_->*member = std::forward<Value>(value);
    return *this;
  }
  Option* option_;
};

// Collects the scenario options in grid order, with one method for each way to write a value.
// `member` is the field that receives it: &Training::zero, or a member of RouterConfig or
// Conditions.
class OptionTable {
 public:
  template <class Part, class Number>
  Entry whole(const char* name, const char* placeholder, std::int64_t low, std::int64_t high,
              Number Part::*member) {
    const auto set = [member](std::int64_t value, Resolution& at) {
      field_of(at.scenario, member) = static_cast<Number>(value);
    };
    const auto get = [member](const Scenario& scenario) {
      return static_cast<std::int64_t>(field_of(scenario, member));
    };
    return whole(name, placeholder, low, high, set, get);
  }
  // The same where no single field holds the value.
  Entry whole(const char* name, const char* placeholder, std::int64_t low, std::int64_t high,
              const std::function<void(std::int64_t, Resolution&)>& set,
              const std::function<std::int64_t(const Scenario&)>& get) {
    Option& option = add(name, OptionType::whole, placeholder);
    option.minimum = low;
    option.maximum = high;
    const auto parse = [=, flag = option.flag()](const std::string& text) {
      return parse_whole(flag, text, low, high);
    };
    option.check_text = [=](const std::string& text, DocumentCache&) { parse(text); };
    option.set = [=](const std::string& text, Resolution& at) { set(parse(text), at); };
    option.value = [=](const Scenario& scenario) { return Cell(get(scenario)); };
    return Entry(option);
  }

  template <class Part, class Number>
  Entry decimal(const char* name, const char* placeholder, Decimal low, Decimal high,
                Number Part::*member) {
    const auto parse = [=, flag = "--" + std::string(name)](const std::string& text) {
      return parse_decimal(flag, text, low, high);
    };
    const Entry entry = decimal(name, placeholder, parse, member);
    options_.back().minimum = low;
    options_.back().maximum = high;
    return entry;
  }
  // The same where bounds do not say it all: `parse(text)` throws UsageError.
  template <class Part, class Number, class Parse>
  Entry decimal(const char* name, const char* placeholder, Parse parse, Number Part::*member) {
    Option& option = add(name, OptionType::decimal, placeholder);
    option.check_text = [=](const std::string& text, DocumentCache&) { parse(text); };
    option.set = [=](const std::string& text, Resolution& at) {
      if constexpr (std::is_same_v<Number, Decimal>) {
        field_of(at.scenario, member) = parse(text);
      } else {
        field_of(at.scenario, member) = parse(text).to_double();
      }
    };
    option.value = [=](const Scenario& scenario) { return Cell(field_of(scenario, member)); };
    return Entry(option);
  }

  // One of the values of an enumeration; their meanings are the help.
  template <class Part, class Value, std::size_t count>
  Entry choice(const char* name, const EnumNames<Value, count>& names, Value Part::*member) {
    std::vector<NamedValue> values;
    for (const EnumName<Value>& known : names) values.push_back({known.name, known.meaning});
    const auto parse = [&names](const std::string& text, const std::string& flag) {
      return value_in(names, text, flag);
    };
    return choice(
        name, std::move(values), parse, [&names](Value value) { return name_in(names, value); },
        member);
  }
  // The same with names that another room has.
  template <class Part, class Value, class Parse, class Print>
  Entry choice(const char* name, std::vector<NamedValue> values, Parse parse, Print print,
               Value Part::*member) {
    return kept_text(OptionType::choice, name, "NAME", parse, print, member)
        .forms(std::move(values));
  }

  // A text that `parse(text, flag)` reads and `print(value)` writes.
  template <class Part, class Value, class Parse, class Print>
  Entry text(const char* name, const char* placeholder, Parse parse, Print print,
             Value Part::*member) {
    return kept_text(OptionType::text, name, placeholder, parse, print, member);
  }
  // The same where no single field holds the value.
  Entry text(const char* name, const char* placeholder,
             std::function<void(const std::string&, DocumentCache&)> check,
             std::function<void(const std::string&, Resolution&)> set,
             const std::function<std::string(const Scenario&)>& print) {
    Option& option = add(name, OptionType::text, placeholder);
    option.check_text = std::move(check);
    option.set = std::move(set);
    option.value = [=](const Scenario& scenario) { return Cell(print(scenario)); };
    return Entry(option);
  }

  // A shipped document or a file: read by `load`, kept under its name as typed.
  template <class Part, class Document>
  Entry document(const char* name, Document (DocumentCache::*load)(const std::string&),
                 Document Part::*document, std::string Part::*typed_name) {
    Option& option = add(name, OptionType::document, "NAME|FILE");
    option.check_text = [=](const std::string& text, DocumentCache& documents) {
      (documents.*load)(text);
    };
    option.set = [=](const std::string& text, Resolution& at) {
      field_of(at.scenario, typed_name) = text;
      field_of(at.scenario, document) = (at.documents.*load)(text);
    };
    option.value = [=](const Scenario& scenario) { return Cell(field_of(scenario, typed_name)); };
    return Entry(option);
  }

  std::vector<Option> take() { return std::move(options_); }

 private:
  static Decimal parse_decimal(const std::string& flag, const std::string& text, const Decimal& low,
                               const Decimal& high);
  Option& add(const char* name, OptionType type, const char* placeholder);

  template <class Part, class Value, class Parse, class Print>
  Entry kept_text(OptionType type, const char* name, const char* placeholder, Parse parse,
                  Print print, Value Part::*member) {
    Option& option = add(name, type, placeholder);
    const std::string flag = option.flag();
    option.check_text = [=](const std::string& text, DocumentCache&) { parse(text, flag); };
    option.set = [=](const std::string& text, Resolution& at) {
      field_of(at.scenario, member) = parse(text, flag);
    };
    option.value = [=](const Scenario& scenario) {
      return Cell(std::string(print(field_of(scenario, member))));
    };
    return Entry(option);
  }

  std::vector<Option> options_;
};

}  // namespace moesim::scenario
