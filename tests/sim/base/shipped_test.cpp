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

TEST_CASE("an id of Hugging Face is answered with what to give for it") {
  const auto refused = [](const char* id) -> std::string {
    try {
      return "taken as " + find_document("models", id);
    } catch (const UnknownDocument& error) {
      CHECK(error.name() == id);
      return error.what();
    }
  };
  CHECK_THAT(refused("Qwen/Qwen3-30B-A3B"),
             ContainsSubstring("config.json") && ContainsSubstring("the shipped 'qwen3-30b-a3b'"));
  // The longest name that it begins with.
  CHECK_THAT(refused("deepseek-ai/DeepSeek-V2-Lite-Chat"), ContainsSubstring("'deepseek-v2-lite'"));
  CHECK_THAT(refused("deepseek-ai/DeepSeek-V3.1"), ContainsSubstring("'deepseek-v3'"));
  CHECK_THAT(refused("nobody/nothing"), !ContainsSubstring("shipped"));
  CHECK(find_document("models", "no/such/file") == "no/such/file");
  CHECK(find_document("clusters", "mine/one") == "mine/one");
}

TEST_CASE("the nearest word is offered only when it is near") {
  const std::vector<std::string> flags = {"--gpus", "--seed", "--capacity-factor"};
  CHECK(nearest("--capacity-facter", flags) == "--capacity-factor");
  CHECK(nearest("--gpu", flags) == "--gpus");
  CHECK(nearest("--timeline", flags).empty());
  CHECK(nearest("GB200_NVL72", {"gb200-nvl72", "gb300-nvl72"}) == "gb200-nvl72");
  CHECK(nearest("p5", {"aws-p5en", "aws-p5", "hgx-h100"}) == "aws-p5");
  CHECK(nearest("h10", {"hgx-h100"}).empty());
  CHECK(nearest("--graphs", {"--gpus", "--cuda-graphs"}) == "--cuda-graphs");
  CHECK(nearest("--", flags).empty());
  CHECK(suggestion("--sede", flags) == " (did you mean '--seed'?)");
  CHECK(suggestion("wholly-different-word", flags).empty());
  // One letter left out, or two swapped: the latter.
  CHECK(nearest("--modle", {"--mode", "--model"}) == "--model");
  // One letter of two is nothing in common.
  CHECK(nearest("tp", {"op", "id"}).empty());
}
