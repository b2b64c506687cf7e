#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/decimal.hpp"
#include "sim/routing/rules/router_config.hpp"

namespace moesim::routing {

// The name of a router during parsing. All errors are UsageErrors that quote the name.
struct RouterReading {
  std::string_view name;  // all of it
  std::vector<std::string_view>
      parts;        // between the colons, without suffixes; the first is the head
  int top_k = 0;    // from --top-k; 0: not given
  int usual_k = 0;  // its default; 0: none

  [[noreturn]] void refuse(const std::string& reason) const;
  [[noreturn]] void refuse_unknown() const;  // no kind has this head
  // Throws and shows the form unless there are from `least` to `most` parameters after the head.
  void expect(std::size_t least, std::size_t most, const char* form) const;
  // Whether the only possible parameter, `word`, is given.
  bool has_word(std::string_view word, const char* form) const;
  // k from --top-k or its default, for kinds whose name has no k.
  int k_beside() const;
  // k for kinds with one expert per token.
  int k_of_one() const;
  Decimal number(std::string_view text) const;
  int count(std::string_view text, const char* what) const;  // 1 to 65536
  // "GROUPS:KEPT" into config.groups and config.kept_groups.
  void read_groups(std::span<const std::string_view> groups_and_kept, RouterConfig& config) const;
};

}  // namespace moesim::routing
