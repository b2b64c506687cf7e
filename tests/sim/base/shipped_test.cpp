#include "sim/base/shipped.hpp"

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;

TEST_CASE("shipped names are sorted and lead to files") {
  for (const char* kind : {"models", "clusters", "schema"}) {
    CAPTURE(kind);
    const std::vector<std::string> names = shipped_names(kind);
    REQUIRE_FALSE(names.empty());
    CHECK(std::is_sorted(names.begin(), names.end()));
    for (const std::string& name : names) {
      CHECK(std::filesystem::is_regular_file(find_document(kind, name)));
    }
  }
  CHECK(shipped_names("nothing").empty());
}

TEST_CASE("a path is taken as it is") {
  CHECK(find_document("models", "mine.json") == "mine.json");
  CHECK(find_document("models", "./mine") == "./mine");
}

TEST_CASE("an unknown name lists what ships") {
  CHECK_THROWS_WITH(find_document("clusters", "hgx-h10"),
                    ContainsSubstring("unknown cluster 'hgx-h10' (did you mean 'hgx-h100'?)") &&
                        ContainsSubstring("dgx-a100"));
  CHECK_THROWS_WITH(find_document("hardware", "abacus"),
                    ContainsSubstring("unknown profile 'abacus'"));
  CHECK_THROWS_WITH(find_document("hardware", "h800"),
                    ContainsSubstring("--profile h100-sxm --cluster hgx-h800"));
  CHECK_THROWS_AS(find_document("models", ""), UsageError);
}

TEST_CASE("the nearest word is offered only when it is near") {
  const std::vector<std::string> flags = {"--gpus", "--seed", "--capacity-factor"};
  CHECK(nearest("--capacity-facter", flags) == "--capacity-factor");
  CHECK(nearest("--gpu", flags) == "--gpus");
  CHECK(nearest("--timeline", flags).empty());
  CHECK(suggestion("--sede", flags) == " (did you mean '--seed'?)");
  CHECK(suggestion("wholly-different-word", flags).empty());
}
