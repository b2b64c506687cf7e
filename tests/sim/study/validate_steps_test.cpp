#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/study/validation/training/validate_steps.hpp"
#include "tests/support/catch.hpp"

namespace moesim::study {
namespace {

namespace fs = std::filesystem;

const char* const header =
    "system,gate,capacity_factor,median_ms,pp,smart_sched,topk,seq,mbs,gbs\n";

// A folder that is gone with its owner.
class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("moesim-steps-" + std::to_string(getpid()))) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;  // owns the files
  Folder& operator=(const Folder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// What validating logs of the given rows says, or throws.
Validation validate_rows(const std::string& rows) {
  const Folder folder;
  std::ofstream(folder.path() / "smartmoe_gpt_step_times.csv") << header << rows;
  scenario::DocumentCache documents;
  routing::RoutingCache cache;
  return validate_steps(folder.path().string(), documents, cache);
}

}  // namespace

TEST_CASE("a log that is not a number is an error with its place") {
  CHECK_THROWS_WITH(
      validate_rows("deepspeed,gshard,1.2,fast,1,OFF,2,1024,8,128\n"),
      ContainsSubstring(
          "smartmoe_gpt_step_times.csv, line 2, column median_ms: 'fast' is not a number"));
  CHECK_THROWS_AS(validate_rows("deepspeed,gshard,1.2,-3,1,OFF,2,1024,8,128\n"), Error);
}

TEST_CASE("logs none of which can be simulated are an error, not an empty mean") {
  CHECK_THROWS_WITH(validate_rows("smartmoe,gshard,1.2,1769,2,ON,2,1024,8,128\n"),
                    ContainsSubstring("no row can be simulated"));
}

TEST_CASE("a log is predicted and its error is against the measured time") {
  const Validation validation = validate_rows(
      "fastmoe,gshard,1.2,1000,1,OFF,2,1024,8,128\n"
      "smartmoe,gshard,1.2,1769,2,ON,2,1024,8,128\n");
  REQUIRE(validation.rows.size() == 1);
  const ValidationRow& row = validation.rows.front();
  CHECK(row.measured == 1000);
  CHECK(row.predicted > 0);
  CHECK(*row.error == Approx(row.predicted / 1000 - 1));
  CHECK(validation.passed());
}

TEST_CASE("factors fitted to a software's steps predict the step that is left out") {
  const std::string batch = ",1,OFF,1,1024,2,256\n";
  const std::vector<std::string> factors{"1.2", "2.4", "4.8"};
  // Padded to capacity a step hardly depends on its routing: three times what is simulated.
  std::string plain;
  for (const std::string& factor : factors)
    plain += fmt::format("deepspeed,gshard,{},1000{}", factor, batch);
  const Validation unfitted = validate_rows(plain);
  std::string rows;
  for (std::size_t row = 0; row < factors.size(); ++row) {
    rows += fmt::format("deepspeed,gshard,{},{}{}", factors[row],
                        3 * unfitted.rows.at(row).predicted, batch);
  }
  const Validation fitted = validate_rows(rows);
  REQUIRE(fitted.rows.size() == 6);  // each step unfitted, then fitted
  for (std::size_t row = 3; row < 6; ++row) {
    CHECK(fitted.rows[row].role == "fit");
    CHECK(*fitted.rows[row].error == Approx(0).margin(0.02));
    CHECK(*fitted.rows[row].left_out_error == Approx(0).margin(0.03));
  }
}

}  // namespace moesim::study
