#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "sim/base/file.hpp"
#include "sim/base/random.hpp"
#include "tests/support/catch.hpp"

// The fuzzing targets without libFuzzer: their seeds, and some changes of each. `tools/fuzz` builds
// them with libFuzzer and looks further.

namespace fs = std::filesystem;

#define MOESIM_FUZZ_TARGET(name) \
  extern "C" int fuzz_##name(const std::uint8_t* data, std::size_t size);
#include "tests/fuzz/targets.inc"
#undef MOESIM_FUZZ_TARGET

namespace {

struct Target {
  const char* name;
  int (*run)(const std::uint8_t* data, std::size_t size);
};

#define MOESIM_FUZZ_TARGET(name) Target{#name, fuzz_##name},
constexpr std::array targets{
#include "tests/fuzz/targets.inc"
};
#undef MOESIM_FUZZ_TARGET

bool matches(const std::string& name, const std::string& pattern) {
  const std::size_t star = pattern.find('*');
  if (star == std::string::npos) return name == pattern;
  const std::string head = pattern.substr(0, star), tail = pattern.substr(star + 1);
  return name.size() >= head.size() + tail.size() && name.starts_with(head) && name.ends_with(tail);
}

// The files of `pattern`, "folder/*/a*.json", below `place`.
void find(const fs::path& place, const std::string& pattern, std::vector<fs::path>& found) {
  const std::size_t slash = pattern.find('/');
  const std::string part = pattern.substr(0, slash);
  for (const auto& entry : fs::directory_iterator(place)) {
    if (!matches(entry.path().filename().string(), part)) continue;
    if (slash == std::string::npos) {
      if (entry.is_regular_file()) found.push_back(entry.path());
    } else if (entry.is_directory()) {
      find(entry.path(), pattern.substr(slash + 1), found);
    }
  }
}

std::vector<std::string> seeds_of(const std::string& target) {
  const fs::path source = MOESIM_SOURCE_DIR;
  std::vector<fs::path> files;
  std::istringstream list(moesim::read_file((source / "tests/fuzz/seeds.txt").string()));
  for (std::string line; std::getline(list, line);) {
    if (line.starts_with(target + " ")) find(source, line.substr(target.size() + 1), files);
  }
  const std::string own = "tests/fuzz/seeds/" + target;
  if (fs::exists(source / own)) find(source, own + "/*", files);
  std::vector<std::string> seeds;
  for (const fs::path& file : files) seeds.push_back(moesim::read_file(file.string()));
  return seeds;
}

// One of the changes that break readers: a byte, a cut, a piece twice, a number far too large.
std::string changed(std::string text, moesim::Stream& stream) {
  if (text.empty()) return "x";
  const auto below = [&](std::size_t most) {
    return std::min(most - 1,
                    static_cast<std::size_t>(stream.uniform() * static_cast<double>(most)));
  };
  const std::size_t at = below(text.size());
  switch (below(5)) {
    case 0:
      text[at] = static_cast<char>(below(256));
      return text;
    case 1:
      return text.substr(0, at);
    case 2:
      return text.substr(0, at) + text.substr(below(text.size()));
    case 3: {
      const std::array<const char*, 8> words{"-1", "1e400", "NaN", "99999999999999999999",
                                             "0",  "\"\"",  "[",   "\x1b[2J"};
      return text.replace(at, std::min<std::size_t>(below(8), text.size() - at),
                          words.at(below(words.size())));
    }
    default:
      return text.erase(at, std::min<std::size_t>(1 + below(16), text.size() - at));
  }
}

}  // namespace

TEST_CASE("readers of foreign input answer whatever they are given") {
  // More of them: MOESIM_FUZZ_CHANGES; of one target: MOESIM_FUZZ_TARGET.
  const char* const wanted = std::getenv("MOESIM_FUZZ_CHANGES");
  const char* const only = std::getenv("MOESIM_FUZZ_TARGET");
  const int changes = wanted == nullptr ? 200 : std::atoi(wanted);
  for (const Target& target : targets) {
    if (only != nullptr && std::string(only) != target.name) continue;
    const std::vector<std::string> seeds = seeds_of(target.name);
    INFO(target.name);
    REQUIRE_FALSE(seeds.empty());
    const auto run = [&](const std::string& input) {
      // A finding ends the test by an exception or a signal: its input then lies here.
      UNSCOPED_INFO("input of " << input.size() << " bytes: " << input.substr(0, 2000));
      CHECK(target.run(reinterpret_cast<const std::uint8_t*>(input.data()), input.size()) == 0);
    };
    for (const std::string& seed : seeds) run(seed);
    moesim::StreamKey key;
    moesim::Stream stream(key);
    for (int change = 0; change < changes; ++change) {
      const auto pick = static_cast<std::size_t>(change) % seeds.size();
      run(changed(changed(seeds[pick], stream), stream));
    }
  }
}
