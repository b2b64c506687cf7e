#include "sim/uncertainty/published/built_options.hpp"

#include <set>
#include <string>
#include <utility>

#include "sim/uncertainty/published/residuals.hpp"
#include "tests/support/catch.hpp"

using namespace moesim::uncertainty;

namespace {

bool any_build(const BuiltOptions&) { return true; }

const BuiltOptions plain = {{"graphs", "none"}, {"gradients", "fp32"}, {"head", "bf16"}};
const BuiltOptions recipe = {{"graphs", "layers"}, {"gradients", "bf16"}, {"head", "low"}};
const BuiltOptions older = {{"graphs", "none"}, {"gradients", "bf16"}, {"head", "bf16"}};

Observation step(const char* software, const char* machine, const char* model, bool low_precision,
                 BuiltOptions build) {
  Observation seen;
  seen.subject = {software, machine, model, low_precision};
  seen.configuration = "one";
  seen.build = std::move(build);
  return seen;
}

}  // namespace

TEST_CASE("the nearest build differs in fewest options, those that were typed first") {
  const Residuals residuals = summarised({step("its", "gpu", "model", false, recipe),
                                          step("its", "gpu", "model", false, recipe),
                                          step("its", "gpu", "model", false, older)});
  CHECK(residuals.groups.front().builds == std::set<BuiltOptions>{recipe, older});
  const Subject asked = {"its", "gpu", "model", false};
  const auto apart = [&](BuiltOptions options, const std::set<std::string>& typed) {
    const auto nearest = nearest_build(residuals, asked, options, typed, any_build);
    REQUIRE(nearest);
    CHECK(nearest->of_model);
    return nearest->differing;
  };
  CHECK(apart(plain, {}) == BuiltOptions{{"gradients", "bf16"}});
  CHECK(apart(recipe, {}).empty());
  BuiltOptions with_graphs = plain;
  with_graphs["graphs"] = "layers";  // two options from either: the one with these graphs
  CHECK(apart(with_graphs, {"graphs"}) == BuiltOptions{{"gradients", "bf16"}, {"head", "low"}});
  CHECK(apart(with_graphs, {"graphs", "head"}) == BuiltOptions{{"gradients", "bf16"}});
  CHECK(apart(plain, {"gradients"}).empty());
  // Not one that the step cannot have, such as graphs that its exchange does not allow.
  const auto without_graphs = [](const BuiltOptions& differing) {
    return !differing.contains("graphs");
  };
  BuiltOptions low_head = recipe;
  low_head["graphs"] = "none";
  CHECK(apart(low_head, {}) == BuiltOptions{{"graphs", "layers"}});
  CHECK(nearest_build(residuals, asked, low_head, {}, without_graphs)->differing ==
        BuiltOptions{{"head", "bf16"}});
  CHECK_FALSE(nearest_build(residuals, asked, plain, {}, [](const auto&) { return false; }));
  BuiltOptions fewer = plain;
  fewer.erase("gradients");  // not asked
  CHECK(apart(fewer, {}).empty());
}

TEST_CASE("builds are those of the software and machine, of its model and precision if known") {
  const Residuals residuals = summarised(
      {step("its", "gpu", "model", false, plain), step("its", "gpu", "model", true, recipe),
       step("its", "gpu", "another", false, older), step("its", "other gpu", "model", false, older),
       step("other", "gpu", "model", false, older), step("silent", "gpu", "model", false, {})});
  const auto of = [&](const Subject& asked) {
    return nearest_build(residuals, asked, plain, {}, any_build);
  };
  CHECK(of({"its", "gpu", "model", false})->differing.empty());
  CHECK(of({"its", "gpu", "model", true})->differing.size() == 3);
  CHECK(of({"its", "gpu", "another", true})->differing == BuiltOptions{{"gradients", "bf16"}});
  const auto unknown = of({"its", "gpu", "unknown", false});
  CHECK_FALSE(unknown->of_model);
  CHECK(unknown->differing.empty());
  CHECK_FALSE(of({"its", "third gpu", "model", false}));
  CHECK_FALSE(of({"silent", "gpu", "model", false}));
  CHECK_FALSE(of({"", "gpu", "model", false}));
}
