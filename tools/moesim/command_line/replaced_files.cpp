#include "tools/moesim/command_line/replaced_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "sim/base/contains.hpp"
#include "sim/base/text.hpp"

namespace moesim::tool {
namespace {

namespace fs = std::filesystem;

// Options that name a file to write; --chart of plot is a kind of chart.
bool is_written(const Command& command, const std::string& flag) {
  constexpr std::array<std::string_view, 5> written{"out", "timeline", "all", "law-out",
                                                    "residuals"};
  return contains(written, flag) || (flag == "chart" && command.name == "recommend");
}

// Options that name files to read. The rows of --baseline, --from and --in stay: as columns of what
// is written, or as FILE.old.
constexpr std::array<std::string_view, 10> measured{
    "config",      "megatron",   "routing", "expert-bias", "expert-placement",
    "expert-load", "fit-scores", "logits",  "start",       "measured"};
// Documents, which these commands write anew with more in them.
constexpr std::array<std::string_view, 5> documents{"base", "profile", "cluster", "model",
                                                    "software"};
constexpr std::array<std::string_view, 3> writers_of_documents{"import", "calibrate", "profile"};

bool is_read(const Command& command, const std::string& flag) {
  return contains(measured, flag) ||
         (contains(documents, flag) && !contains(writers_of_documents, command.name));
}

bool is_regular(const fs::path& path) {
  std::error_code none;
  return fs::is_regular_file(path, none);
}

bool are_same(const fs::path& one, const fs::path& other) {
  std::error_code none;
  return fs::equivalent(one, other, none);
}

fs::path whole_path(const fs::path& path) {
  std::error_code none;
  return fs::weakly_canonical(fs::absolute(path, none), none);
}

// The files that a value may name: "trace:FILE", "FILE:ROW" and lists of these.
std::vector<std::string> files_in(const std::string& value) {
  std::vector<std::string> files{value};
  for (const std::string_view part : split(value, ',')) {
    files.emplace_back(part);
    if (const std::size_t colon = part.find(':'); colon != std::string_view::npos) {
      files.emplace_back(part.substr(colon + 1));
    }
    if (const std::size_t colon = part.rfind(':'); colon != std::string_view::npos) {
      files.emplace_back(part.substr(0, colon));
    }
  }
  std::error_code none;
  std::erase_if(files, [&](const std::string& file) { return !fs::exists(file, none); });
  return files;
}

// Whether `out` is a file of the recorded routing in a folder.
bool is_of_trace(const fs::path& out, const std::string& folder) {
  std::error_code none;
  return fs::exists(fs::path(folder) / "trace.json", none) &&
         are_same(folder, out.has_parent_path() ? out.parent_path() : ".") &&
         (out.filename() == "trace.json" || out.extension() == ".npy");
}

// Whether `import` into a folder would write a file of that name over this one.
bool is_imported_over(const fs::path& folder, const fs::path& file) {
  constexpr std::array<std::string_view, 9> names{
      "trace.json",      "logits.npy",        "choices.npy",
      "counts.npy",      "probabilities.npy", "logits.new.npy",
      "choices.new.npy", "counts.new.npy",    "probabilities.new.npy"};
  return contains(names, file.filename().string()) &&
         are_same(folder, file.has_parent_path() ? file.parent_path() : ".");
}

void check_read(const std::string& flag, const fs::path& out, const std::string& value,
                const std::string& reader) {
  for (const std::string& file : files_in(value)) {
    if (!are_same(file, out) && !is_of_trace(out, file) && !is_imported_over(out, file)) {
      continue;
    }
    throw UsageError(fmt::format("--{} {}: would replace what {} reads: name another file", flag,
                                 out.string(), reader));
  }
}

}  // namespace

void check_replaced_files(const Command& command, const CommandLine& line) {
  std::vector<std::pair<std::string, fs::path>> outputs;
  for (const auto& [flag, value] : line.values) {
    if (!is_written(command, flag) || value.empty()) continue;
    const auto twin =
        std::find_if(outputs.begin(), outputs.end(), [&, &file = value](const auto& o) {
          std::error_code none;
          return whole_path(o.second) == whole_path(file);
        });
    std::error_code none;
    const bool is_special = fs::exists(value, none) && !is_regular(value);
    if (twin != outputs.end() && !is_special) {
      throw UsageError(fmt::format("--{} {}: --{} writes the same file: name another", flag, value,
                                   twin->first));
    }
    outputs.emplace_back(flag, value);
  }
  for (const auto& [flag, out] : outputs) {
    std::error_code none;
    if (!is_regular(out) && !fs::is_directory(out, none)) continue;
    for (const auto& [reader, value] : line.values) {
      if (!is_read(command, reader)) continue;
      check_read(flag, out, value, "--" + reader);
    }
    if (command.usage.find("FILE") == std::string::npos) continue;  // its words are no files
    for (const std::string& file : line.positionals) check_read(flag, out, file, "the command");
  }
}

}  // namespace moesim::tool
