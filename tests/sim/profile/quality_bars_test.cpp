// Every shipped curve carries its cross-validated error; the bars the project sets hold.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/base/formats/document.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;

namespace {

Document load(const std::string& name) {
  return Document::load(std::string(MOESIM_SOURCE_DIR) + "/profiles/hardware/" + name + ".json");
}

struct Bar {
  std::string op;
  std::string what;
  double median;
  double p90;  // 0: none
};

// The bars, restated here so that a refit cannot loosen them with the document.
const std::map<std::string, std::vector<Bar>> bars = {
    {"a100-sxm-80gb",
     {{"gemm", "all shapes", 0.03, 0.12},
      {"gemm", "above 100 us", 0.025, 0.10},
      {"attention", "all head sizes", 0.02, 0.07},
      {"all-to-all", "all NCCL versions, above 1 MiB", 0.04, 0},
      {"all-to-all", "all NCCL versions, up to 1 MiB", 0.07, 0}}},
    {"h100-sxm",
     {{"gemm", "all shapes", 0.03, 0.12},
      {"attention", "all head sizes", 0.03, 0.10},
      {"all-to-all", "all NCCL versions, above 1 MiB", 0.025, 0},
      {"all-to-all", "all NCCL versions, up to 1 MiB", 0.07, 0}}},
    {"h200-sxm", {{"gemm", "all shapes", 0.03, 0.12}, {"attention", "all head sizes", 0.03, 0.10}}},
    {"b200-sxm", {}},
    {"b300-sxm", {}},
    {"gb200", {}},
    {"gb300", {}}};

// The check of that name among the curves of one operation; a curve without one has none.
const Node* find_check(const std::vector<Node>& curves, const Bar& bar, std::vector<Node>& holder) {
  for (const Node& curve : curves) {
    if (curve.text("op") != bar.op || !curve.at("residual").has("checks")) continue;
    for (const Node& check : curve.at("residual").items("checks")) {
      if (check.text("what") != bar.what) continue;
      holder.push_back(check);
      return &holder.back();
    }
  }
  return nullptr;
}

}  // namespace

TEST_CASE("held-out errors stay within the bars") {
  for (const auto& [name, of_profile] : bars) {
    const Document document = load(name);
    const std::vector<Node> curves = document.root().items("curves");
    for (const Bar& bar : of_profile) {
      INFO(name << " " << bar.op << " " << bar.what);
      std::vector<Node> holder;
      const Node* check = find_check(curves, bar, holder);
      REQUIRE(check != nullptr);
      CHECK(check->integer("n") >= 50);
      CHECK(check->number("median_abs") <= bar.median);
      if (bar.p90 > 0) CHECK(check->number("p90_abs") <= bar.p90);
    }
  }
}

TEST_CASE("where a bar is missed, the measurements' own noise is what is left") {
  // H100 and H200 miss the bars above 100 us (profiles/HARDWARE.md says why): the median stays
  // within half a point of the roughness of the sweeps.
  for (const std::string name : {"h100-sxm", "h200-sxm"}) {
    INFO(name);
    const Document document = load(name);
    const std::vector<Node> curves = document.root().items("curves");
    std::vector<Node> holder;
    const Node* check = find_check(curves, {"gemm", "above 100 us", 0, 0}, holder);
    REQUIRE(check != nullptr);
    const auto gemm = std::find_if(curves.begin(), curves.end(),
                                   [](const Node& curve) { return curve.text("op") == "gemm"; });
    const Node noise = gemm->at("noise").at("above_100_us");
    CHECK(noise.number("median_abs") > 0.025);
    CHECK(noise.number("rank_correlation_h100_h200") < 0.1);
    CHECK(check->number("median_abs") < noise.number("median_abs") + 0.005);
  }
}

TEST_CASE("every shipped curve says where it comes from and how far it is off, and stays small") {
  for (const auto& [name, of_profile] : bars) {
    const Document document = load(name);
    for (const Node& curve : document.root().items("curves")) {
      INFO(name << " " << curve.path() << " " << curve.text("op"));
      CHECK(curve.text("source").size() > 10);
      CHECK(!curve.at("residual").items("regions").empty());
      CHECK(curve.at("residual").text("method").size() > 5);
      // A model, not a table: numbers in the whole object, and of trees a value for at least ten
      // points of the sweep.
      std::size_t numbers = 0;
      const nlohmann::json flat = curve.json().flatten();
      for (const auto& [path, value] : flat.items()) {
        if (value.is_number() && path.find("/residual") == std::string::npos &&
            path.find("/trees/") == std::string::npos) {
          ++numbers;
        }
      }
      CHECK(numbers < 800);
      const Node holder = curve.text("op") == "gemm" ? curve.at("corrections") : curve;
      if (holder.has("trees")) {
        const auto split = holder.at("trees").numbers("split");
        CHECK(10 * std::count(split.begin(), split.end(), -1) <= curve.at("residual").number("n"));
      }
      const std::string origin = curve.text("origin");
      if (origin == "derived" || origin == "assumed") CHECK(curve.text("note").size() > 20);
    }
  }
}
