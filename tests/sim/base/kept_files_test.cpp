#include "sim/base/kept_files.hpp"

#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "sim/base/parallel.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;

TEST_CASE("what is made of a file is made once, whoever asks") {
  KeptFiles<std::string> kept;
  int made = 0;
  std::vector<const std::string*> found(64);
  parallel_for(found.size(), 4, [&](std::size_t at) {
    const std::string file = at % 2 == 0 ? "/even" : "/odd";
    found[at] = &kept.get(file, [&] {
      ++made;
      return "of " + file;
    });
  });
  CHECK(made == 2);
  CHECK(*found[0] == "of /even");
  CHECK(*found[1] == "of /odd");
  for (std::size_t at = 2; at < found.size(); ++at) CHECK(found[at] == found[at % 2]);
}

TEST_CASE("a relative path is of the current folder, and what failed is tried again") {
  KeptFiles<int> kept;
  const std::filesystem::path here = std::filesystem::current_path();
  const int first = kept.get("file", [] { return 1; });
  std::filesystem::current_path("/");
  const int second = kept.get("file", [] { return 2; });
  std::filesystem::current_path(here);
  CHECK(first == 1);
  CHECK(second == 2);
  CHECK(kept.get("file", [] { return 3; }) == 1);
  CHECK_THROWS_AS(kept.get("other", []() -> int { throw std::runtime_error("no such file"); }),
                  std::runtime_error);
  CHECK(kept.get("other", [] { return 4; }) == 4);
}
