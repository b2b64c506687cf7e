#include "sim/base/flag_errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/text.hpp"

namespace moesim {
namespace {

bool is_of_flag(char letter) {
  return (letter >= 'a' && letter <= 'z') || (letter >= '0' && letter <= '9') || letter == '-';
}

// "--FLAG: " of the flag whose value, or a part of a list of values, the predicate accepts; "" of
// several flags, or of none.
template <class Accepts>
std::string prefix_of(const TypedFlags& flags, Accepts accepts) {
  std::vector<std::string> found;
  for (const auto& [flag, value] : flags) {
    const std::vector<std::string_view> parts = split(value, ',');
    const bool in_list = std::any_of(parts.begin(), parts.end(), accepts);
    if (in_list || accepts(std::string_view(value))) found.push_back(flag);
  }
  return found.size() == 1 ? fmt::format("--{}: ", found.front()) : "";
}

// Of the flag that asked for the document or file `name`.
std::string prefix_of_name(const TypedFlags& flags, const std::string& name) {
  return prefix_of(flags, [&](std::string_view value) { return value == name; });
}

// Of the flag of the file that an error is about, which its message starts with: "cluster.json:
// line 3: ...", "'cluster.csv' is a file, ...".
std::string prefix_of_file(const TypedFlags& flags, std::string_view message) {
  return prefix_of(flags, [message](std::string_view value) {
    if (value.empty()) return false;
    return message.starts_with(fmt::format("{}: ", value)) ||
           message.starts_with(fmt::format("'{}' is a file", value));
  });
}

}  // namespace

bool names_flag(std::string_view text, std::string_view flag) {
  const std::string wanted = fmt::format("--{}", flag);
  for (auto at = text.find(wanted); at != std::string_view::npos; at = text.find(wanted, at + 1)) {
    const std::size_t end = at + wanted.size();
    const bool begins = at == 0 || !is_of_flag(text[at - 1]);
    const bool ends = end == text.size() || !is_of_flag(text[end]);
    if (begins && ends) return true;
  }
  return false;
}

void with_flag_of_errors(const TypedFlags& flags, const std::function<void()>& run) {
  try {
    run();
  } catch (const UnknownDocument& error) {
    const std::string prefix = prefix_of_name(flags, error.name());
    if (prefix.empty()) throw;
    throw UnknownDocument(error.name(), prefix + error.what());
  } catch (const UnreadableFile& error) {
    const std::string prefix = prefix_of_name(flags, error.path());
    if (prefix.empty()) throw;
    throw UnreadableFile(error.path(), prefix + error.what());
  } catch (const UsageError& error) {
    const std::string prefix = prefix_of_file(flags, error.what());
    if (prefix.empty()) throw;
    throw UsageError(prefix + error.what());
  } catch (const Error& error) {
    const std::string prefix = prefix_of_file(flags, error.what());
    if (prefix.empty()) throw;
    throw Error(prefix + error.what(), error.code());
  }
}

}  // namespace moesim
