// The answers of the Python implementation (tools/fit/evaluate.py) to random queries, committed
// beside the profiles they were computed from.
#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "sim/base/formats/document.hpp"
#include "sim/profile/predict.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;

namespace {

std::map<std::string, std::string> read_params(const Node& query) {
  std::map<std::string, std::string> params;
  const Node given = query.at("params");
  for (const auto& [name, value] : given.json().items()) {
    params[name] = value.is_string() ? value.get<std::string>() : value.dump();
  }
  return params;
}

}  // namespace

TEST_CASE("both implementations of the curves agree") {
  int compared = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(MOESIM_SOURCE_DIR "/tests/golden/profile")) {
    const std::string name = file.path().stem();
    const Document golden = Document::load(file.path());
    const auto profile = profile::Profile::load(
        fmt::format("{}/profiles/hardware/{}.json", MOESIM_SOURCE_DIR, name));
    const auto queries = golden.root().items("queries");
    CHECK(queries.size() >= 200);
    for (const Node& query : queries) {
      INFO(name << " " << query.json().dump());
      const auto estimate = profile::predict(profile, query.text("op"), read_params(query));
      CHECK(estimate.time_us == Approx(query.number("time_us")).epsilon(1e-9));
    }
    ++compared;
  }
  CHECK(compared >= 7);
}
