#pragma once

#include <span>
#include <string>
#include <vector>

#include "sim/scenario/document_cache.hpp"
#include "sim/scenario/option.hpp"
#include "sim/scenario/scenario.hpp"

namespace moesim::scenario {

// All options in the order of the documentation, which is also the grid order: the first option
// varies slowest.
const std::vector<Option>& scenario_options();
// Throws Error for a name that is none of theirs.
const Option& option_named(const std::string& name);

// Throws UsageError naming flag, value, reason and what to try, if the value makes no sense
// whatever the other options are.
void check_value(const std::string& option, const std::string& text, DocumentCache& documents);

// The scenario with every default filled in. Throws UsageError for one that cannot be.
Scenario resolve(const OptionValues& values, DocumentCache& documents, Use use = Use::step);

// The same without check(): a refused scenario can still be shown in full.
Scenario fill_in(const OptionValues& values, DocumentCache& documents, Use use);

// A typed option that changes no result, and why.
struct IdleOption {
  std::string option;  // without the dashes
  std::string why;

  bool operator==(const IdleOption&) const = default;
};
// The options of `typed` that none of the scenarios has a use for: `--fill-order` where no router
// fills in, say. In the order of the documentation.
std::vector<IdleOption> idle_options(const OptionValues& typed,
                                     std::span<const Scenario* const> scenarios, Asker asker);

}  // namespace moesim::scenario
