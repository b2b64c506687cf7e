#include "sim/routing/routers/router_reading.hpp"

#include <fmt/format.h>

#include "sim/base/error.hpp"
#include "sim/base/text.hpp"
#include "sim/routing/routers/router_name.hpp"

namespace moesim::routing {

void RouterReading::refuse(const std::string& reason) const {
  throw UsageError(fmt::format("--router '{}': {}", name, reason));
}

void RouterReading::refuse_unknown() const {
  refuse(fmt::format("'{}' is not a router; choose from {}", parts[0], router_names()));
}

void RouterReading::expect(std::size_t least, std::size_t most, const char* form) const {
  const std::size_t given = parts.size() - 1;
  if (given < least || given > most) refuse(fmt::format("write it as {}", form));
}

bool RouterReading::has_word(std::string_view word, const char* form) const {
  expect(0, 1, form);
  if (parts.size() == 1) return false;
  if (parts[1] != word) expect(0, 0, form);
  return true;
}

int RouterReading::k_beside() const {
  const int k = top_k > 0 ? top_k : usual_k;
  if (k < 1) refuse("it needs --top-k, the number of experts per token");
  return k;
}

int RouterReading::k_of_one() const {
  if (top_k > 1) {
    refuse(fmt::format("a token has one expert, --top-k says {}: leave it out", top_k));
  }
  return 1;
}

Decimal RouterReading::number(std::string_view text) const {
  return Decimal::parse(text, fmt::format("--router '{}'", name));
}

int RouterReading::count(std::string_view text, const char* what) const {
  const auto value = parse_number<int>(text);
  if (!value || *value < 1 || *value > 65536) {
    refuse(fmt::format("'{}' is no number of {}: give a whole number from 1 to 65536", text, what));
  }
  return *value;
}

void RouterReading::read_groups(std::span<const std::string_view> groups_and_kept,
                                RouterConfig& config) const {
  config.groups = count(groups_and_kept[0], "groups");
  config.kept_groups = count(groups_and_kept[1], "groups");
  if (config.kept_groups <= config.groups) return;
  refuse(
      fmt::format("it keeps {} of {} groups: keep at most all", config.kept_groups, config.groups));
}

}  // namespace moesim::routing
