#include "sim/study/validation/training/deepseek_profile.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

namespace moesim::study {
namespace {

namespace fs = std::filesystem;

struct Folder {
  fs::path path = fs::temp_directory_path() / fmt::format("deepseek_profile_{}", ::getpid());
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  void write(const std::string& rows) const {
    std::ofstream(path / "deepseek_train_kernels.csv") << "start_us,dur_us,stream,kernel\n" << rows;
  }
};

}  // namespace

TEST_CASE("DeepSeek's pair of chunks lasts from its first kernel to the end of the last") {
  const Folder folder;
  CHECK_FALSE(deepseek_pair(folder.path).has_value());
  folder.write("94,1008,27,cached_notify\n0,52,7,cast\n128876,136,7,gemm\n");
  const auto pair = deepseek_pair(folder.path);
  REQUIRE(pair.has_value());
  CHECK(pair->measured_ms == Approx(129.012));
  // The exchange takes 20 of 132 SMs while it runs, which is part of the time.
  CHECK(pair->predicted_ms > pair->apart_ms);
  CHECK(pair->predicted_ms < pair->apart_ms * 132 / 112);
  // What README.md of sim/training says of it; its FP8 products set the price of such products.
  CHECK(pair->predicted_ms == Approx(122.8).epsilon(0.005));
}

TEST_CASE("a profile without kernels is named") {
  const Folder folder;
  folder.write("");
  CHECK_THROWS_WITH(deepseek_pair(folder.path), ContainsSubstring("deepseek_train_kernels.csv"));
  folder.write("5,x,7,cast\n");
  CHECK_THROWS_WITH(deepseek_pair(folder.path), ContainsSubstring("dur_us"));
}

}  // namespace moesim::study
