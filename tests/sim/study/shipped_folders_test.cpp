#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>

#include "sim/base/file.hpp"
#include "sim/base/shipped.hpp"
#include "sim/scenario/options.hpp"
#include "sim/study/logs/link_fit.hpp"
#include "sim/study/sweep/step_band.hpp"
#include "sim/uncertainty/published/shipped_errors.hpp"
#include "tests/support/catch.hpp"

namespace fs = std::filesystem;
using namespace moesim;

namespace {

// $MOESIM_PROFILES and the current folder as they were, when it ends.
class Places {
 public:
  Places() {
    if (const char* const chosen = std::getenv(variable)) before_ = chosen;
  }
  ~Places() {
    fs::current_path(folder_);
    if (before_.empty()) {
      unsetenv(variable);
    } else {
      setenv(variable, before_.c_str(), 1);
    }
  }
  static void choose(const std::string& profiles) { setenv(variable, profiles.c_str(), 1); }

 private:
  static constexpr const char* variable = "MOESIM_PROFILES";
  std::string before_;
  fs::path folder_ = fs::current_path();
};

// profiles/ in that folder: what ships, with that deviation of kinds of software in residuals, and
// `hardware` alone of the GPUs.
void make_profiles(const fs::path& folder, const std::string& software,
                   const std::string& hardware) {
  fs::remove_all(folder);
  fs::create_directories(folder / "profiles/residuals");
  fs::create_directories(folder / "profiles/hardware");
  const fs::path shipped = fs::absolute(shipped_folder());
  for (const char* kind : {"schema", "clusters"}) {
    fs::create_directory_symlink(shipped / kind, folder / "profiles" / kind);
  }
  const fs::path gpu = fs::path("hardware") / (hardware + ".json");
  fs::create_symlink(shipped / gpu, folder / "profiles" / gpu);
  for (const std::string name : {"steps", "training"}) {
    const double known = uncertainty::Residuals::load(name).components.software;
    std::string text = read_file((shipped / "residuals" / (name + ".json")).string());
    const std::string key = "\"software\": ";
    const auto at = text.find(key) + key.size();
    REQUIRE(std::stod(text.substr(at)) == known);
    text.replace(at, text.find(',', at) - at, software);
    write_file_atomically((folder / "profiles/residuals" / (name + ".json")).string(), text);
  }
}

}  // namespace

TEST_CASE("bands are of the folder of documents that is chosen, whatever was before") {
  scenario::DocumentCache documents;
  const scenario::Scenario scenario = scenario::resolve({{"gpus", "8"}}, documents);
  const Places before;
  const fs::path place = fs::temp_directory_path() / fmt::format("moesim-shipped-{}", getpid());
  make_profiles(place / "a", "0.25", "h100-sxm");
  make_profiles(place / "b", "0.75", "b200-sxm");
  const auto deviation = [&] { return study::software_error(scenario, {}).deviation; };
  const auto of_training = [] {
    return uncertainty::shipped_errors("training").residuals().components.software;
  };
  Places::choose((place / "a/profiles").string());
  const double of_a = deviation();
  CHECK(of_training() == 0.25);
  CHECK(study::profile_of_gpu("H100"));
  Places::choose((place / "b/profiles").string());
  const double of_b = deviation();
  CHECK(of_training() == 0.75);
  CHECK_FALSE(study::profile_of_gpu("H100"));
  CHECK(study::profile_of_gpu("B200"));
  // The software was never measured: all of its variance is in that of the step, and the measured
  // steps of others say the less of what all have in common.
  CHECK(of_b * of_b - of_a * of_a > 0.75 * 0.75 - 0.25 * 0.25);
  // By a path that both folders have, and again.
  Places::choose("profiles");
  for (const auto& [folder, expected] : {std::pair{"a", of_a}, {"b", of_b}, {"a", of_a}}) {
    fs::current_path(place / folder);
    CHECK(deviation() == expected);
  }
  fs::current_path("/");
  fs::remove_all(place);
}
