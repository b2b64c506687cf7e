#include "sim/base/shipped.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "sim/base/error.hpp"
#include "sim/base/no_answer.hpp"

namespace moesim {

namespace fs = std::filesystem;

namespace {

std::string lower(std::string text) {
  for (char& letter : text) {
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  return text;
}

std::string chosen_profiles() {
  const char* chosen = std::getenv("MOESIM_PROFILES");
  return chosen == nullptr ? "" : chosen;
}

}  // namespace

std::vector<std::string> shipped_places() {
  std::vector<std::string> places;
  if (const std::string chosen = chosen_profiles(); !chosen.empty()) {
    places.push_back(fs::path(chosen + "/..").lexically_normal().string());
  }
  std::error_code failure;
  const fs::path program = fs::read_symlink("/proc/self/exe", failure);
  if (!failure) places.push_back(program.parent_path().parent_path() / "share/moesim");
  places.emplace_back(MOESIM_SOURCE_FOLDER);
  places.emplace_back(MOESIM_INSTALLED_FOLDER);
  return places;
}

std::optional<std::string> find_shipped(const std::string& name) {
  std::error_code ignored;
  for (const fs::path place : shipped_places()) {
    for (const fs::path& candidate : {place / name, place / "tools" / name}) {
      if (fs::exists(candidate, ignored)) return candidate.string();
    }
  }
  return std::nullopt;
}

std::string shipped_folder() {
  if (std::string chosen = chosen_profiles(); !chosen.empty()) return chosen;
  const std::optional<std::string> hardware = find_shipped("profiles/hardware");
  return hardware ? fs::path(*hardware).parent_path().string() : "";
}

std::vector<std::string> shipped_names(const std::string& kind) {
  std::vector<std::string> names;
  const fs::path folder = shipped_folder();
  if (folder.empty()) return names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder / kind, ignored)) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string searched_places(const std::string& kind) {
  const std::string chosen = chosen_profiles();
  return chosen.empty()
             ? fmt::format("{}", fmt::join(shipped_places(), ", "))
             : fmt::format("{}, as MOESIM_PROFILES says", (fs::path(chosen) / kind).string());
}

namespace {

// Whether a file is there that cannot be a JSON document: a log, a CSV.
bool is_other_file(const std::string& path) {
  std::error_code ignored;
  if (path.empty() || !fs::is_regular_file(path, ignored)) return false;
  std::ifstream file(path);
  char first = '{';
  return !(file >> first) || first != '{';
}

// What to give for a machine that has the kernels of a shipped one, on other links.
std::string like_shipped(const std::string& kind, const std::string& name) {
  const bool is_h800 = name.starts_with("h800") || name.starts_with("H800");
  if (kind != "hardware" || !is_h800) return "";
  return ": an H800 has the kernels of an H100: give --profile h100-sxm --cluster hgx-h800";
}

// "Qwen/Qwen3-30B-A3B"
bool is_hugging_face_id(const std::string& name) {
  const auto slash = name.find('/');
  if (slash == std::string::npos || slash == 0 || slash != name.rfind('/')) return false;
  if (name.front() == '.' || name.front() == '~' || name.ends_with(".json")) return false;
  std::error_code ignored;
  return slash + 1 < name.size() && !fs::exists(name.substr(0, slash), ignored);
}

// The shipped model that the name begins with, as "Mixtral-8x7B-v0.1" does, else the nearest.
std::string shipped_model_like(const std::string& name, const std::vector<std::string>& shipped) {
  const std::string small = lower(name);
  std::string found;
  for (const std::string& each : shipped) {
    const bool begins = small.starts_with(each) &&
                        (small.size() == each.size() ||
                         std::string("-._").find(small[each.size()]) != std::string::npos);
    if (begins && each.size() > found.size()) found = each;
  }
  return found.empty() ? nearest(small, shipped) : found;
}

// The document of a model in a checkpoint's folder; nothing if the name is that of no folder.
std::optional<std::string> in_checkpoint(const std::string& kind, const std::string& folder) {
  std::error_code ignored;
  if (kind != "models" || folder.empty() || !fs::is_directory(folder, ignored)) return std::nullopt;
  const fs::path config = fs::path(folder) / "config.json";
  if (fs::exists(config, ignored)) return config.string();
  throw BrokenDocument(fmt::format(
      "'{}' is a folder without a config.json: give that of a Hugging Face checkpoint, or the path "
      "of a document",
      folder));
}

[[noreturn]] void refuse_hugging_face_id(const std::string& id) {
  const std::string like = shipped_model_like(id.substr(id.find('/') + 1), shipped_names("models"));
  throw UnknownDocument(
      id, fmt::format("unknown model '{}': there is no such file, and nothing is fetched from "
                      "Hugging Face: download config.json of the repository and give its path{}",
                      id, like.empty() ? "" : fmt::format(", or take the shipped '{}'", like)));
}

}  // namespace

std::string find_document(const std::string& kind, const std::string& name_or_path) {
  const bool is_path =
      name_or_path.find('/') != std::string::npos || name_or_path.ends_with(".json");
  const fs::path folder = shipped_folder();
  const fs::path shipped = folder / kind / (name_or_path + ".json");
  std::error_code ignored;
  const bool is_shipped =
      !folder.empty() && !is_path && !name_or_path.empty() && fs::is_regular_file(shipped, ignored);
  if (is_shipped) return shipped.string();
  if (!name_or_path.ends_with(".json") && is_other_file(name_or_path)) {
    const char* const remedy =
        kind == "hardware"   ? "'moesim import' makes one of measured logs (nccl-tests: --op, "
                               "--nccl, --base NAME, --out mine.json)"
        : kind == "clusters" ? "'moesim import' makes one of measured logs (--cluster NAME, --out "
                               "mine.json)"
        : kind == "models" ? "give one, or a config.json of Hugging Face, whose name ends in .json"
                           : "give one whose name ends in .json";
    throw BrokenDocument(
        fmt::format("'{}' is a file, but no JSON document: {}", name_or_path, remedy));
  }
  if (is_path) {
    if (const auto config = in_checkpoint(kind, name_or_path)) return *config;
    if (kind == "models" && is_hugging_face_id(name_or_path)) refuse_hugging_face_id(name_or_path);
    return name_or_path;
  }
  if (folder.empty()) {
    throw Error(fmt::format(
        "'{}': the documents of moesim are in none of {}: set MOESIM_PROFILES to its folder "
        "'profiles' (in its sources, or in share/moesim where it is installed), or give the path "
        "of a JSON file",
        name_or_path, fmt::join(shipped_places(), ", ")));
  }
  if (const auto config = in_checkpoint(kind, name_or_path)) return *config;
  const std::vector<std::string> names = shipped_names(kind);
  std::vector<std::string> meant = names;
  std::string others;
  if (kind == "dispatchers") {  // what steps take where there is none
    meant.emplace_back("all-to-all");
    meant.emplace_back("allgather");
    others = "; of a step also all-to-all, NCCL's, of a training step allgather";
  }
  const std::string what = kind == "hardware"  ? "profile"
                           : kind == "studies" ? "study"
                           : kind == "schema"  ? kind
                                               : kind.substr(0, kind.size() - 1);
  if (names.empty()) {
    throw UnknownDocument(
        name_or_path,
        fmt::format("unknown {} '{}': there is none at all in {}: set MOESIM_PROFILES to the "
                    "folder 'profiles' of moesim, unset it, or give the path of a JSON file",
                    what, name_or_path, searched_places(kind)));
  }
  const std::string like = like_shipped(kind, name_or_path);
  throw UnknownDocument(
      name_or_path,
      fmt::format("unknown {} '{}'{}; shipped: {}{}; or give the path of a JSON file (in {})", what,
                  name_or_path, like.empty() ? suggestion(name_or_path, meant) : like,
                  fmt::join(names, ", "), others, folder.string()));
}

std::string find_trace(const std::string& name_or_path) {
  std::error_code ignored;
  const bool is_path = name_or_path.empty() || name_or_path.find('/') != std::string::npos;
  if (is_path || fs::exists(name_or_path, ignored)) return name_or_path;
  return find_shipped("traces/" + name_or_path).value_or(name_or_path);
}

namespace {

// How many letters are changed, added, left out or swapped with their neighbour (optimal string
// alignment), three rows at a time.
std::size_t distance(const std::string& one, const std::string& other) {
  std::vector<std::size_t> before;
  std::vector<std::size_t> last;
  std::vector<std::size_t> row(other.size() + 1);
  for (std::size_t column = 0; column < row.size(); ++column) row[column] = column;
  for (std::size_t letter = 0; letter < one.size(); ++letter) {
    before = std::move(last);
    last = row;
    row[0] = letter + 1;
    for (std::size_t column = 1; column < row.size(); ++column) {
      const bool same = one[letter] == other[column - 1];
      row[column] =
          std::min({last[column] + 1, row[column - 1] + 1, last[column - 1] + (same ? 0 : 1)});
      const bool swapped = letter > 0 && column > 1 && one[letter] == other[column - 2] &&
                           one[letter - 1] == other[column - 1];
      if (swapped) row[column] = std::min(row[column], before[column - 2] + 1);
    }
  }
  return row.back();
}

std::size_t apart(std::size_t one, std::size_t other) {
  return one > other ? one - other : other - one;
}

}  // namespace

std::string nearest(const std::string& typed, const std::vector<std::string>& known) {
  const std::string word = lower(typed);
  std::string best;
  // Any two words of two letters would be alike.
  std::size_t best_distance = word.size() <= 2 ? 1 : std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : known) {
    const std::size_t found = distance(word, lower(candidate));
    // Letters are more often swapped than left out.
    const bool is_as_long = found == best_distance && !best.empty() &&
                            apart(candidate.size(), word.size()) < apart(best.size(), word.size());
    if (found < best_distance || is_as_long) {
      best_distance = found;
      best = candidate;
    }
  }
  if (best_distance <= 1 && !best.empty()) return best;
  // "H200" is short for "h200-sxm", however many letters are missing.
  constexpr std::size_t shortest_beginning = 3;
  for (const std::string& candidate : known) {
    if (word.size() >= shortest_beginning && lower(candidate).starts_with(word)) {
      return candidate;
    }
  }
  if (!best.empty()) return best;
  // "h100" is a part of "hgx-h100", "--graphs" of "--cuda-graphs".
  const std::string part = word.substr(std::min(word.find_first_not_of('-'), word.size()));
  const auto has_part = [&](const std::string& candidate) {
    return !part.empty() &&
           ("-" + lower(candidate) + "-").find("-" + part + "-") != std::string::npos;
  };
  const auto found = std::find_if(known.begin(), known.end(), has_part);
  return found == known.end() ? "" : *found;
}

std::string suggestion(const std::string& word, const std::vector<std::string>& known) {
  const std::string found = nearest(word, known);
  return found.empty() ? "" : fmt::format(" (did you mean '{}'?)", found);
}

}  // namespace moesim
