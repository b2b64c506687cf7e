#include "sim/base/launcher_prefix.hpp"

#include <algorithm>
#include <cstddef>

namespace moesim {
namespace {

constexpr const char* decimal_digits = "0123456789";

// The length of a tag such as "[1,0]<stdout>:" or "[1,0]:" before a line; 0: there is none.
std::size_t tag_length(std::string_view line) {
  std::size_t at = 1;
  for (const char end : {',', ']'}) {
    const std::size_t stop = line.find_first_not_of(decimal_digits, at);
    if (stop == at || stop == std::string_view::npos || line[stop] != end) return 0;
    at = stop + 1;
  }
  const std::string_view stream = line.substr(at, std::string_view("<stdout>").size());
  if (stream == "<stdout>" || stream == "<stderr>") at += stream.size();
  return line.substr(at).starts_with(':') ? at + 1 : 0;
}

// The length of a label such as "0: ", with the spaces before it.
std::size_t label_length(std::string_view line) {
  const std::size_t from = std::min(line.find_first_not_of(" \t\v\f\r"), line.size());
  const std::size_t end = std::min(line.find_first_not_of(decimal_digits, from), line.size());
  return end > from && line.substr(end).starts_with(": ") ? end + 2 : 0;
}

}  // namespace

std::string without_launcher_prefix(std::string_view line) {
  constexpr std::size_t longest = 40;
  const std::string_view head = line.substr(0, longest);
  return std::string(line.substr(head.starts_with('[') ? tag_length(head) : label_length(head)));
}

}  // namespace moesim
