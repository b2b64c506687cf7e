#include "sim/base/shipped.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "sim/base/error.hpp"

namespace moesim {

namespace fs = std::filesystem;

std::string shipped_folder() {
  if (const char* chosen = std::getenv("MOESIM_PROFILES"); chosen != nullptr && *chosen != '\0') {
    return chosen;
  }
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  const fs::path installed = program.parent_path().parent_path() / "share/moesim/profiles";
  if (fs::is_directory(installed / "hardware", ignored)) return installed.string();
  return MOESIM_SOURCE_PROFILES;
}

std::vector<std::string> shipped_names(const std::string& kind) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(fs::path(shipped_folder()) / kind, ignored)) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string find_document(const std::string& kind, const std::string& name_or_path) {
  const bool is_path =
      name_or_path.find('/') != std::string::npos || name_or_path.ends_with(".json");
  if (is_path) return name_or_path;
  const fs::path shipped = fs::path(shipped_folder()) / kind / (name_or_path + ".json");
  std::error_code ignored;
  if (!name_or_path.empty() && fs::is_regular_file(shipped, ignored)) return shipped.string();
  const std::vector<std::string> names = shipped_names(kind);
  const std::string what = kind == "hardware"  ? "profile"
                           : kind == "studies" ? "study"
                                               : kind.substr(0, kind.size() - 1);
  throw UsageError(fmt::format(
      "unknown {} '{}'{}; shipped: {}; or give the path of a JSON file (in {})", what, name_or_path,
      suggestion(name_or_path, names), fmt::join(names, ", "), shipped_folder()));
}

std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : known) {
    // Levenshtein distance, one row at a time.
    std::vector<std::size_t> row(candidate.size() + 1);
    for (std::size_t column = 0; column < row.size(); ++column) row[column] = column;
    for (std::size_t letter = 0; letter < word.size(); ++letter) {
      std::size_t diagonal = row[0];
      row[0] = letter + 1;
      for (std::size_t column = 1; column < row.size(); ++column) {
        const std::size_t changed = diagonal + (word[letter] == candidate[column - 1] ? 0 : 1);
        diagonal = row[column];
        row[column] = std::min({row[column] + 1, row[column - 1] + 1, changed});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

std::string suggestion(const std::string& word, const std::vector<std::string>& known) {
  const std::string found = nearest(word, known);
  return found.empty() ? "" : fmt::format(" (did you mean '{}'?)", found);
}

}  // namespace moesim
