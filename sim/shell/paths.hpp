#pragma once

#include <functional>
#include <optional>
#include <string>

namespace moesim::shell {

// How the path of a file in the folder of a script begins: "@/conf/a.sh".
constexpr const char* folder_of_script = "@";

// What the text of a path may name.
struct PathNames {
  std::string script;                  // "$0", as resolved_path() gives it
  std::string source;                  // "${BASH_SOURCE[0]}"
  std::optional<std::string> working;  // "$PWD", "." where the script is started
  // The text of a variable.
  std::function<std::optional<std::string>(const std::string& name)> value;
};

// The path that a script writes as "conf/a.sh", "$PWD/a.sh", "$(dirname "$0")/a.sh", "${0%/*}/a.sh"
// or "$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/a.sh": it begins with "@" where it is
// relative to the script's folder, with another letter than "/" where it is relative to where the
// script is started. Nothing where it depends on something else.
std::optional<std::string> resolved_path(const std::string& text, const PathNames& names);

}  // namespace moesim::shell
