#include <algorithm>
#include <limits>
#include <set>

#include "sim/base/error.hpp"
#include "sim/scenario/options.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/other_values.hpp"

using namespace moesim;
using scenario::Affects;
using scenario::Asker;
using scenario::Option;
using scenario::OptionType;
using scenario::OptionValues;
using scenario::Scenario;

namespace {

scenario::DocumentCache& documents() {
  static scenario::DocumentCache cache;
  return cache;
}

}  // namespace

TEST_CASE("every option of the table is complete, and none is there twice") {
  std::set<std::string> names;
  std::set<std::string> columns;
  for (const Option& option : scenario::scenario_options()) {
    CAPTURE(option.name);
    CHECK(names.insert(option.name).second);
    CHECK(columns.insert(option.column).second);
    CHECK_FALSE(option.help.empty());
    CHECK_FALSE(option.default_text.empty());
    CHECK_FALSE(option.placeholder.empty());
    CHECK(option.check_text != nullptr);
    CHECK(option.set != nullptr);
    CHECK(option.value != nullptr);
    if (option.type == OptionType::choice) CHECK(option.values.size() > 1);
    if (option.type == OptionType::whole) {
      CHECK(std::get<std::int64_t>(option.minimum) < std::get<std::int64_t>(option.maximum));
    }
    for (const std::string& earlier : option.after) CHECK_NOTHROW(scenario::option_named(earlier));
  }
  CHECK_THROWS_AS(scenario::option_named("gpu"), Error);
}

TEST_CASE("a default that is a value is one that may be typed") {
  for (const Option& option : scenario::scenario_options()) {
    if (option.set_default != nullptr) continue;
    CAPTURE(option.name, option.default_text);
    CHECK_NOTHROW(scenario::check_value(option.name, option.default_text, documents()));
    const Scenario plain = scenario::resolve({}, documents());
    const Scenario typed = scenario::resolve({{option.name, option.default_text}}, documents());
    CHECK(option.value(typed) == option.value(plain));
  }
}

TEST_CASE("the choices of an option are those that its text may be") {
  for (const Option& option : scenario::scenario_options()) {
    if (option.type != OptionType::choice) continue;
    for (const scenario::NamedValue& value : option.values) {
      CAPTURE(option.name, value.name);
      CHECK_FALSE(value.meaning.empty());
      CHECK_NOTHROW(scenario::check_value(option.name, value.name, documents()));
    }
    CHECK_THROWS_AS(scenario::check_value(option.name, "nonsense", documents()), UsageError);
  }
}

TEST_CASE("whole numbers have the bounds that the table says") {
  for (const Option& option : scenario::scenario_options()) {
    if (option.type != OptionType::whole) continue;
    CAPTURE(option.name);
    const std::int64_t low = std::get<std::int64_t>(option.minimum);
    const std::int64_t high = std::get<std::int64_t>(option.maximum);
    const auto check = [&](std::int64_t value) {
      scenario::check_value(option.name, std::to_string(value), documents());
    };
    CHECK_NOTHROW(check(low));
    CHECK_NOTHROW(check(high));
    CHECK_THROWS_AS(check(low - 1), UsageError);
    if (high < std::numeric_limits<std::int64_t>::max())
      CHECK_THROWS_AS(check(high + 1), UsageError);
  }
}

// Two scenarios whose routing differs must not share it, and those whose routing does not differ
// should.
TEST_CASE("the key of the routing changes with the options that affect the routing, and no other") {
  for (const Option& option : scenario::scenario_options()) {
    OptionValues usual = support::usual_values();
    // Not with rectification: the one drops nothing, the other is of two choices.
    if (option.name == "padding" || option.name == "second-expert") usual["router"] = "top2";
    const Scenario plain = scenario::resolve(usual, documents());
    bool changes = false;
    bool has_effect = false;
    for (const std::string& value : support::other_values(option)) {
      OptionValues values = usual;
      values[option.name] = value;
      CAPTURE(option.name, value);
      if (option.name == "dedup") values["padding"] = "none";  // which no routing depends on
      if (option.name == "tokens-per-gpu") values.erase("micro-batch");  // which it implies
      const Scenario other = scenario::resolve(values, documents());
      changes = changes || other.routing_job().key() != plain.routing_job().key();
      has_effect = has_effect || option.idle == nullptr ||
                   option.idle({other, values, Asker::routing}).empty();
    }
    CAPTURE(option.name);
    if (option.affects != Affects::routing) CHECK_FALSE(changes);
    const bool counts = option.affects == Affects::routing && has_effect;
    if (counts && option.name != "top-k") CHECK(changes);
  }
}
