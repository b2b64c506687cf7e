#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/decimal.hpp"
#include "sim/routing/rules/router_config.hpp"

namespace moesim::routing {

// The name of a router while it is being read. All refusals are UsageErrors that quote the name.
struct RouterReading {
  std::string_view name;  // all of it
  std::vector<std::string_view>
      parts;        // between the colons, without suffixes; the first is the head
  int top_k = 0;    // typed beside it; 0: none
  int usual_k = 0;  // what stands in for it; 0: nothing does

  [[noreturn]] void refuse(const std::string& reason) const;
  [[noreturn]] void refuse_unknown() const;  // no kind has this head
  // There are from `least` to `most` parameters behind the head, or the form is shown.
  void expect(std::size_t least, std::size_t most, const char* form) const;
  // Whether the one parameter that there may be, `word`, is there.
  bool has_word(std::string_view word, const char* form) const;
  // k from beside the name, for kinds whose name has none.
  int k_beside() const;
  // k of kinds in which a token has one expert.
  int k_of_one() const;
  Decimal number(std::string_view text) const;
  int count(std::string_view text, const char* what) const;  // 1 to 65536
  // "GROUPS:KEPT" into config.groups and config.kept_groups.
  void read_groups(std::span<const std::string_view> groups_and_kept, RouterConfig& config) const;
};

}  // namespace moesim::routing
