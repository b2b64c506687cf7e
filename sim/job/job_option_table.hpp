#pragma once

#include <fmt/format.h>

#include <string>
#include <type_traits>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/text.hpp"
#include "sim/job/job_option.hpp"

namespace moesim::job {

// One option under construction: each method sets what its name says (job_option.hpp).
class Entry {
 public:
  explicit Entry(JobOption& option) : option_(&option) {}
  Entry help(const std::string& text) const { return set(&JobOption::help, text); }
  Entry by_default(const char* text) const { return set(&JobOption::default_text, text); }
  // In words, with what sets the field; nullptr: as TrainingJob has it.
  Entry by_default(const char* words, void (*value)(Resolution&)) const {
    return by_default(words)
        .set(&JobOption::default_in_words, true)
        .set(&JobOption::set_default, value);
  }
  Entry in_layout(const char* layout_default = "") const {
    return set(&JobOption::in_layout, true).set(&JobOption::layout_default, layout_default);
  }
  // What a text is, besides whole() and number().
  Entry of_numbers() const { return set(&JobOption::is_number, true); }
  Entry rare() const { return set(&JobOption::rare, true); }
  Entry built_in() const { return set(&JobOption::built_in, true); }
  Entry searched() const { return set(&JobOption::in_search, InSearch::searched); }
  Entry not_searched() const { return set(&JobOption::in_search, InSearch::refused); }
  Entry megatron(const char* argument, const char* value = "") const {
    option_->megatron.push_back({argument, value});
    return *this;
  }
  // Instead of the field, in the column.
  template <class Value>
  Entry shown_as(Value value) const {
    return set(&JobOption::value, std::move(value));
  }
  Entry checked(void (*check)(const training::TrainingJob&)) const {
    return set(&JobOption::check, check);
  }
  // Where it is typed, its default included, this flag of the job is false.
  template <class Field>
  Entry assumed_by(Field flag) const {
    return set(&JobOption::set, [flag, name = option_->name, set_value = option_->set](
                                    const std::string& text, Resolution& at) {
      set_value(text, at);
      flag(at.job) = !at.has(name);
    });
  }
  Entry idle(std::string (*why)(const training::TrainingJob&)) const {
    return set(&JobOption::idle, why);
  }

 private:
  template <class Member, class Value>
  Entry set(Member JobOption::*member, Value&& value) const {
    option_->*member = std::forward<Value>(value);
    return *this;
  }
  JobOption* option_;
};

// What receives a value: members one inside the other, field(&TrainingJob::states,
// &model::StateRules::zero). Called with a job it gives the reference.
template <class... Members>
auto field(Members... members) {
  return [=](auto& job) -> auto& { return (job.*....*members); };
}
template <class Member>
auto in_states(Member model::StateRules::*member) {
  return field(&training::TrainingJob::states, member);
}

// Collects the options of a job, with one method for each way to write a value. `field` is as
// field() makes it.
class JobOptionTable {
 public:
  // The options declared next stand under that heading.
  void begin(Section section) { section_ = section; }

  template <class Field>
  Entry whole(const char* name, std::int64_t low, std::int64_t high, Field field) {
    JobOption& option = add(name, "N");
    option.is_number = true;
    option.set = [=, flag = option.flag()](const std::string& text, Resolution& at) {
      using Number = std::remove_reference_t<decltype(field(at.job))>;
      field(at.job) = static_cast<Number>(parse_whole(flag, text, low, high));
    };
    option.value = [=](const training::TrainingJob& job) {
      return Cell(static_cast<std::int64_t>(field(job)));
    };
    return Entry(option);
  }

  // A number from 0 on, kept as `scale` times what is typed.
  template <class Field>
  Entry number(const char* name, const char* placeholder, double most, Field field,
               double scale = 1) {
    JobOption& option = add(name, placeholder);
    option.is_number = true;
    option.set = [=, flag = option.flag()](const std::string& text, Resolution& at) {
      const auto value = parse_number<double>(text);
      if (!value || !(*value >= 0 && *value <= most)) {  // NaN too
        throw UsageError(fmt::format("{}: '{}' is not a number from 0 to {:g}, without a unit",
                                     flag, text, most));
      }
      field(at.job) = scale * *value;
    };
    option.value = [=](const training::TrainingJob& job) {
      return figure_cell(field(job) / scale);
    };
    return Entry(option);
  }

  // One of the values of an enumeration; their meanings are the help.
  template <class Value, std::size_t count, class Field>
  Entry choice(const char* name, const EnumNames<Value, count>& names, Field field,
               const char* placeholder = "NAME") {
    const auto parse = [&names](const std::string& text, const std::string& flag) {
      return value_in(names, text, flag);
    };
    const auto print = [&names](const Value& value) { return name_in(names, value); };
    const Entry entry = text(name, placeholder, parse, print, field);
    forms(names);
    return entry;
  }

  // A text that `parse(text, flag)` reads and `print(value)` writes.
  template <class Parse, class Print, class Field>
  Entry text(const char* name, const char* placeholder, Parse parse, Print print, Field field) {
    JobOption& option = add(name, placeholder);
    option.set = [=, flag = option.flag()](const std::string& text, Resolution& at) {
      field(at.job) = parse(text, flag);
    };
    option.value = [=](const training::TrainingJob& job) {
      return Cell(std::string(print(field(job))));
    };
    return Entry(option);
  }

  // The same where no single field holds the value.
  Entry text(const char* name, const char* placeholder,
             std::function<void(const std::string&, Resolution&)> set) {
    JobOption& option = add(name, placeholder);
    option.set = std::move(set);
    return Entry(option);
  }
  // A shipped document or a file.
  Entry document(const char* name, std::function<void(const std::string&, Resolution&)> set) {
    const Entry entry = text(name, "NAME|FILE", std::move(set));
    options_.back().is_document = true;
    return entry;
  }

  // An option that drawn_routing() takes.
  void routing(JobOption option) {
    option.section = Section::routing;
    options_.push_back(std::move(option));
  }

  // What the text declared last may be; names without a meaning are those of its placeholder.
  template <class Value, std::size_t count>
  void forms(const EnumNames<Value, count>& names) {
    for (const EnumName<Value>& known : names) {
      if (*known.meaning != '\0') options_.back().values.push_back({known.name, known.meaning});
    }
  }

  std::vector<JobOption> take() { return std::move(options_); }

 private:
  JobOption& add(const char* name, const char* placeholder) {
    JobOption& option = options_.emplace_back();
    option.name = name;
    option.placeholder = placeholder;
    option.section = section_;
    return option;
  }

  Section section_ = Section::job;
  std::vector<JobOption> options_;
};

}  // namespace moesim::job
