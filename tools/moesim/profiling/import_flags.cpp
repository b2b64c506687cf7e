#include "tools/moesim/profiling/import_flags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <filesystem>

#include "sim/base/error.hpp"
#include "sim/base/text.hpp"
#include "sim/base/units.hpp"

namespace moesim::tool {

std::string needed_value(const CommandLine& line, const std::string& flag, const std::string& why) {
  if (line.has(flag)) return line.get(flag);
  throw UsageError(fmt::format("--{} is missing: {}", flag, why));
}

int needed_whole(const CommandLine& line, const std::string& flag, int high,
                 const std::string& why) {
  return static_cast<int>(parse_whole("--" + flag, needed_value(line, flag, why), 1, high));
}

int needed_top_k(const CommandLine& line) {
  return needed_whole(line, "top-k", 63, "how many experts each token was sent to");
}

void refuse_other_flags(const CommandLine& line, const std::string& kind,
                        const std::vector<std::string>& allowed) {
  for (const char* flag : {"where",     "experts",       "array",
                           "axes",      "dtype",         "tokens",
                           "steps",     "layers",        "exchanges-per-layer",
                           "backward",  "process-group", "row-values",
                           "op",        "nccl",          "base",
                           "other-gpu", "cluster",       "nodes",
                           "top-k",     "model",         "source",
                           "licence",   "origin"}) {
    if (!line.has(flag) || std::find(allowed.begin(), allowed.end(), flag) != allowed.end()) {
      continue;
    }
    throw UsageError(fmt::format("--{}: means nothing for {}: leave it out", flag, kind));
  }
}

std::vector<std::string> with_trace_flags(std::vector<std::string> flags) {
  flags.insert(flags.end(), {"top-k", "model", "source", "licence", "origin"});
  return flags;
}

bool all_end_with(const CommandLine& line, std::initializer_list<const char*> ends) {
  return std::all_of(line.positionals.begin(), line.positionals.end(), [&](const auto& file) {
    return std::any_of(ends.begin(), ends.end(),
                       [&](const char* end) { return file.ends_with(end); });
  });
}

std::string size_to_try(const std::vector<double>& bytes) {
  double chosen = bytes.front();
  for (const double size : bytes) {
    if (size <= 64 * bytes_per_mib) chosen = std::max(chosen, size);
  }
  return std::fmod(chosen, bytes_per_mib) == 0 ? fmt::format("{:.0f}MiB", chosen / bytes_per_mib)
                                               : fmt::format("{:.0f}", chosen);
}

std::string document_name(const CommandLine& line, const std::string& out) {
  if (line.has("name")) return line.get("name");
  std::string name = std::filesystem::path(out).stem().string();
  for (char& letter : name) {
    const auto code = static_cast<unsigned char>(letter);
    if (code >= 128 || (std::isalnum(code) == 0 && letter != '.' && letter != '_')) letter = '-';
  }
  const std::size_t first = name.find_first_not_of("-._");
  return first == std::string::npos ? "imported" : name.substr(first);
}

}  // namespace moesim::tool
