#include "sim/profile/kernels/expert_ffn_curve.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/profile/profile.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using profile::ExpertFfnCurve;
using profile::Origin;
using profile::Support;

namespace {

// One kernel of 64 x 128 tiles on 2 SMs: 3 us a step of 64, 5 us a tile, 7 us to launch; memory and
// corrections too small to see.
nlohmann::json small_curve() {
  return nlohmann::json::parse(R"({
    "physics": {"sms": 2, "step": 64, "launch_us": 7, "dram_bytes_per_us": 1e30,
                "overlap_power": 2, "choice_power": 10, "row_bytes_per_us": 1e30,
                "expert_us": 1e-30},
    "kernels": {"rows": [64], "columns": [128], "step_us": [3], "tile_us": [5], "overlap": [0]},
    "corrections": [],
    "valid": {"rows_per_expert": [0.25, 4096], "hidden": [64, 8192], "ffn": [16, 16384],
              "experts": [1, 64]},
    "origin": "published", "balanced_origin": "derived",
    "residual": {"by": "time_us", "median_abs": 0.05, "p90_abs": 0.1, "method": "made up",
                 "regions": [{"region": "all", "from": 0, "below": null, "n": 100,
                              "median_abs": 0.05, "p90_abs": 0.1, "q05": -0.1, "q95": 0.2}]}})");
}

ExpertFfnCurve read(const nlohmann::json& curve) {
  return ExpertFfnCurve(Document::parse(curve.dump(), "curve.json").root());
}

}  // namespace

TEST_CASE("each expert's rows are cut into blocks of their own") {
  const ExpertFfnCurve curve = read(small_curve());
  // Hidden 128, ffn 64. Up and gate: 128 columns, one tile a block, 2 steps of 64; down: 128
  // columns, one tile a block, 1 step. Two experts of 64 rows: 2 blocks, one wave of 2 SMs each.
  CHECK(curve.estimate(128, 128, 64, 2).time_us == Approx(7 + (2 * 3 + 5) + (3 + 5)));
  // The same rows as 65 + 63 need 3 blocks: 2 waves.
  const std::array<std::int64_t, 2> uneven = {65, 63};
  CHECK(curve.estimate(uneven, 128, 64).time_us == Approx(7 + 2 * (2 * 3 + 5) + 2 * (3 + 5)));
  // All on one expert: 2 blocks again.
  const std::array<std::int64_t, 2> skewed = {128, 0};
  CHECK(curve.estimate(skewed, 128, 64).time_us == Approx(7 + (2 * 3 + 5) + (3 + 5)));
}

TEST_CASE("trees correct what their inputs say of a load, after all else") {
  nlohmann::json curve = small_curve();
  // 65 + 63 + 0 rows, hidden 128, ffn 96: 3 blocks of 64 rows; up 192 columns, 2 tiles a block, 6
  // tiles in 3 waves of 2 SMs, 2 steps; down one tile a block, 1.5 waves take 2, 2 steps of 96.
  const std::array<std::int64_t, 3> rows = {65, 63, 0};
  const double smooth = 7 + 3 * (2 * 3 + 5) + 2 * (2 * 3 + 5);
  const auto corrected = [&](const char* name, double threshold) {
    curve["trees"] = {{"inputs", {{{"x", name}, {"kernel", 0}}}},
                      {"split", {0, -1, -1}},
                      {"figure", {threshold, 0.25, -0.5}}};
    return std::log(read(curve).estimate(rows, 128, 96).time_us / smooth);
  };
  const std::vector<std::pair<const char*, double>> inputs = {{"log2_rows_per_expert", 128.0 / 3},
                                                              {"log2_rows", 128},
                                                              {"log2_ffn", 96},
                                                              {"log2_hidden", 128},
                                                              {"log2_experts", 3},
                                                              {"log2_active", 2},
                                                              {"log2_work", 128.0 * 96 * 128},
                                                              {"log2_weights", 2.0 * 96 * 128},
                                                              {"log2_us", smooth},
                                                              {"log2_up_waves", 3},
                                                              {"log2_up_part_wave", 1},
                                                              {"log2_down_waves", 1.5},
                                                              {"log2_down_part_wave", 2 / 1.5},
                                                              {"log2_block_padding", 192.0 / 128}};
  for (const auto& [name, value] : inputs) {
    CAPTURE(name);
    CHECK(corrected(name, std::log2(value) + 1e-6) == Approx(0.25));
    CHECK(corrected(name, std::log2(value) - 1e-6) == Approx(-0.5));
  }
  curve["trees"]["inputs"][0]["kernel"] = 1;
  CHECK_THROWS_WITH(read(curve), ContainsSubstring("expected the number of a kernel, below 1"));
  curve["trees"]["inputs"][0]["x"] = "log2_moon";
  CHECK_THROWS_WITH(read(curve), ContainsSubstring("unknown input 'log2_moon'"));
}

TEST_CASE("trees may ask whether the engine has tuned tiles for the experts and the FFN size") {
  nlohmann::json curve = small_curve();
  curve["trees"] = {
      {"inputs", {{{"x", "tuned"}}}}, {"split", {0, -1, -1}}, {"figure", {0.5, 0.25, -0.5}}};
  const auto corrected = [&](std::int64_t experts, std::int64_t ffn) {
    return std::log(read(curve).estimate(64, 128, ffn, experts).time_us /
                    read(small_curve()).estimate(64, 128, ffn, experts).time_us);
  };
  CHECK(corrected(2, 64) == Approx(0.25));  // none is known to be tuned
  curve["tuned_sizes"] = {{"experts", {2, 4}}, {"ffn", {64, 32}}};
  CHECK(corrected(2, 64) == Approx(-0.5));
  CHECK(corrected(4, 32) == Approx(-0.5));
  CHECK(corrected(2, 32) == Approx(0.25));
  CHECK(corrected(4, 64) == Approx(0.25));
  curve["tuned_sizes"]["ffn"] = {64};
  CHECK_THROWS_WITH(read(curve), ContainsSubstring("tuned_sizes") && ContainsSubstring("ffn"));
}

TEST_CASE("weights of experts without rows are not read") {
  nlohmann::json curve = small_curve();
  curve["physics"]["dram_bytes_per_us"] = 1000;
  curve["kernels"]["step_us"] = {0};
  curve["kernels"]["tile_us"] = {0};
  const auto bytes = [](double active, double rows) {
    return 2 * active * 3 * 128 * 64 + 2 * rows * ((128 + 128) + (64 + 128));
  };
  const std::array<std::int64_t, 4> skewed = {4, 0, 0, 0};
  CHECK(read(curve).estimate(skewed, 128, 64).time_us == Approx(7 + bytes(1, 4) / 1000));
  CHECK(read(curve).estimate(4, 128, 64, 4).time_us == Approx(7 + bytes(4, 4) / 1000));
  // One byte of a weight and of what enters a product; what leaves it has two.
  curve["physics"]["weight_bytes"] = 1;
  curve["physics"]["input_bytes"] = 1;
  const double small = 1 * 3 * 128 * 64 + 4 * ((2 * 128 + 128) + (2 * 128 + 64));
  CHECK(read(curve).estimate(skewed, 128, 64).time_us == Approx(7 + small / 1000));
  curve["physics"]["weight_bytes"] = 0;
  CHECK_THROWS_WITH(read(curve), ContainsSubstring("weight_bytes"));
}

TEST_CASE("even and uneven calls agree where the load is the same") {
  const auto machine =
      profile::Profile::load(fmt::format("{}/profiles/hardware/h100-sxm.json", MOESIM_SOURCE_DIR));
  const std::vector<std::int64_t> counts = {101, 101, 100, 100, 100, 100, 100, 100};
  CHECK(machine.expert_ffn(802, 4096, 14336, 8).time_us ==
        Approx(machine.expert_ffn(counts, 4096, 14336).time_us).epsilon(1e-12));
}

TEST_CASE("a balanced load may rest on less than a skewed one") {
  const ExpertFfnCurve curve = read(small_curve());
  const std::array<std::int64_t, 2> skewed = {128, 0};
  const std::array<std::int64_t, 2> even = {64, 63};
  CHECK(curve.estimate(skewed, 128, 64).origin == Origin::published);
  CHECK(curve.estimate(even, 128, 64).origin == Origin::derived);
  CHECK(curve.estimate(128, 128, 64, 2).origin == Origin::derived);
}

TEST_CASE("no rows cost the launches; what no law covers is refused") {
  const ExpertFfnCurve curve = read(small_curve());
  CHECK(curve.estimate(0, 128, 64, 2).time_us == Approx(7));
  CHECK(curve.estimate(2 * 8192, 128, 64, 2).support == Support::extrapolated);
  CHECK_THROWS_WITH(curve.estimate(128, 128, 40, 2), ContainsSubstring("multiples of 16"));
  CHECK_THROWS_WITH(curve.estimate(1 << 24, 128, 64, 2), ContainsSubstring("use GEMMs"));
  CHECK_THROWS_AS(curve.estimate(-1, 128, 64, 2), UsageError);
  CHECK_THROWS_AS(curve.estimate(128, 128, 64, 0), UsageError);
  const std::array<std::int64_t, 2> negative = {128, -1};
  CHECK_THROWS_AS(curve.estimate(negative, 128, 64), UsageError);
  CHECK_THROWS_AS(curve.estimate(std::span<const std::int64_t>{}, 128, 64), UsageError);
}

TEST_CASE("sizes that were not measured have errors of their own") {
  nlohmann::json curve = small_curve();
  nlohmann::json wide = curve["residual"];
  wide["regions"][0]["q95"] = 0.6;
  curve["new_sizes"] = {{"hidden", {128, 256}}, {"ffn", {64, 32}}, {"residual", wide}};
  const ExpertFfnCurve read_curve = read(curve);
  const auto highest = [&](std::int64_t hidden, std::int64_t ffn) {
    const auto estimate = read_curve.estimate(128, hidden, ffn, 2);
    return estimate.time_us_p95 / estimate.time_us;
  };
  CHECK(highest(128, 64) == Approx(1.2));
  CHECK(highest(256, 32) == Approx(1.2));
  CHECK(highest(128, 32) == Approx(1.6));
  CHECK(highest(256, 64) == Approx(1.6));
  CHECK(read_curve.estimate(128, 128, 32, 2).time_us ==
        read(small_curve()).estimate(128, 128, 32, 2).time_us);
  curve["new_sizes"]["ffn"] = {64};
  CHECK_THROWS_WITH(read(curve), ContainsSubstring("new_sizes") && ContainsSubstring("ffn"));
}

TEST_CASE("a malformed expert curve is refused by file and key") {
  nlohmann::json curve = small_curve();
  curve["kernels"]["columns"] = {128, 64};
  CHECK_THROWS_WITH(read(curve), ContainsSubstring("curve.json") && ContainsSubstring("columns"));
  curve = small_curve();
  curve["kernels"]["overlap"] = {-0.5};
  CHECK_THROWS_WITH(read(curve), ContainsSubstring("overlap"));
  curve = small_curve();
  curve["valid"].erase("ffn");
  CHECK_THROWS_WITH(read(curve), ContainsSubstring("ffn"));
  curve = small_curve();
  curve["corrections"] = {{{"x", "log2_sequence"},
                           {"y", "log2_ffn"},
                           {"x_knots", {0, 1}},
                           {"y_knots", {0, 1}},
                           {"values", {0, 0, 0, 0}}}};
  CHECK_THROWS_WITH(read(curve), ContainsSubstring("log2_sequence"));
}

TEST_CASE("shipped expert curves are physical") {
  for (const std::string name : {"a100-sxm-80gb", "h100-sxm", "h200-sxm"}) {
    const auto machine = profile::Profile::load(
        fmt::format("{}/profiles/hardware/{}.json", MOESIM_SOURCE_DIR, name));
    for (std::int64_t rows = 4096; rows <= 65536; rows *= 2) {
      INFO(name << " " << rows);
      const auto even = machine.expert_ffn(rows, 4096, 14336, 8);
      const double share = 6.0 * 4096 * 14336 * static_cast<double>(rows) / (even.time_us * 1e-6) /
                           machine.device().peak_bf16_flops;
      CHECK(share > 0.2);
      CHECK(share < 0.9);
      // As many rows on one expert of eight leave seven experts' weights unread and need no more
      // blocks: not slower than even by more than a wave.
      const std::vector<std::int64_t> skewed = {rows, 0, 0, 0, 0, 0, 0, 0};
      CHECK(machine.expert_ffn(skewed, 4096, 14336).time_us < 1.1 * even.time_us);
      CHECK(even.time_us_p05 < even.time_us);
      CHECK(even.time_us_p95 > even.time_us);
    }
    const auto published = name == "h100-sxm" ? Origin::published : Origin::derived;
    CHECK(machine.expert_ffn(16384, 4096, 14336, 8).origin == published);
  }
}
