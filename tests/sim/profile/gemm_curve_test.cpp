#include "sim/profile/kernels/gemm_curve.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/profile/profile.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using profile::GemmCurve;
using profile::Support;

namespace {

// One kernel of 128 x 128 tiles on 2 SMs: 3 us a step of 64, 5 us a tile, 7 us to launch; memory,
// throttling and corrections too small to see.
nlohmann::json small_curve() {
  return nlohmann::json::parse(R"({
    "physics": {"sms": 2, "step": 64, "launch_us": 7, "dram_bytes_per_us": 1e30,
                "l2_bytes_per_us": 1e30, "l2_bytes": 1, "l2_sharpness": 4, "weight_copies": 6,
                "ramp_us": 1e-30, "overlap_power": 2, "choice_power": 50, "throttle": 1e-30,
                "throttle_us": 1, "throttle_tflops": 1, "reduce_us": 4,
                "reduce_us_per_element": 1e-3, "choice_reduce_us": 4,
                "choice_reduce_us_per_element": 1e-3, "splits": [1]},
    "kernels": {"rows": [128], "columns": [128], "step_us": [3], "tile_us": [5], "overlap": [0],
                "choice_step_us": [3], "choice_tile_us": [5], "choice_overlap": [0]},
    "corrections": {"m_knots": [0, 20], "n_knots": [0, 20], "k_knots": [0, 20],
                    "values": [0, 0, 0, 0, 0, 0, 0, 0], "terms": []},
    "valid": {"m": [1, 8192], "n": [32, 65536], "k": [32, 65536]},
    "origin": "published",
    "residual": {"by": "time_us", "median_abs": 0.05, "p90_abs": 0.1, "method": "made up",
                 "regions": [{"region": "all", "from": 0, "below": null, "n": 100,
                              "median_abs": 0.05, "p90_abs": 0.1, "q05": -0.1, "q95": 0.2}]}})");
}

GemmCurve read(const nlohmann::json& curve) {
  return GemmCurve(Document::parse(curve.dump(), "curve.json").root());
}

double time_us(const nlohmann::json& curve, std::int64_t m, std::int64_t n, std::int64_t k) {
  return read(curve).estimate(m, n, k).time_us;
}

}  // namespace

TEST_CASE("tiles run in whole waves over the SMs") {
  // 2 x 2 tiles on 2 SMs: 2 waves, each 10 steps of k and a tile.
  CHECK(time_us(small_curve(), 256, 256, 640) == Approx(7 + 2 * (10 * 3 + 5)));
  // One row more opens a third row of tiles: 6 tiles, 3 waves; one more element of k an 11th step.
  CHECK(time_us(small_curve(), 257, 256, 640) == Approx(7 + 3 * (10 * 3 + 5)));
  CHECK(time_us(small_curve(), 256, 256, 641) == Approx(7 + 2 * (11 * 3 + 5)));
  // A single tile occupies a whole wave.
  CHECK(time_us(small_curve(), 1, 1, 64) == Approx(7 + 3 + 5));
}

TEST_CASE("overlap turns whole waves into fractional ones, never below one") {
  nlohmann::json curve = small_curve();
  curve["kernels"]["overlap"] = {0.5};
  // 3 tiles on 2 SMs: 1.5 waves; half way between 2 and 1.5.
  CHECK(time_us(curve, 3 * 128, 128, 64) == Approx(7 + 1.75 * (3 + 5)));
  CHECK(time_us(curve, 128, 128, 64) == Approx(7 + 3 + 5));
}

TEST_CASE("memory bounds a product beside its compute") {
  nlohmann::json curve = small_curve();
  curve["physics"]["dram_bytes_per_us"] = 100;
  curve["physics"]["l2_bytes_per_us"] = 1e30;
  // Everything exceeds the L2 of 1 byte: 2 (128 x 64 + 64 x 128 + 128 x 128) bytes at 100 per us,
  // and the root of squares with the compute of 3 + 5 us.
  const double memory = 2 * (128 * 64 + 64 * 128 + 128 * 128) / 100.0;
  CHECK(time_us(curve, 128, 128, 64) == Approx(7 + std::hypot(8, memory)));
  // All of it in L2, whose rate is unlimited here, but for the copies of the weights (64 x 128 of
  // 6 copies exceed it): only they come from DRAM.
  curve["physics"]["l2_bytes"] = 90000;
  curve["physics"]["l2_sharpness"] = 1000;
  const double weights = 2 * 64 * 128 / 100.0;
  CHECK(time_us(curve, 128, 128, 64) == Approx(7 + std::hypot(8, weights)));
}

TEST_CASE("operands of fewer bits move fewer bytes, and their cast takes its time") {
  nlohmann::json curve = small_curve();
  curve["physics"]["dram_bytes_per_us"] = 100;
  // One byte of A and of B, two of the result, all from memory.
  curve["physics"]["element_bytes"] = 1;
  const double memory = (128 * 64 + 64 * 128 + 2 * 128 * 128) / 100.0;
  CHECK(time_us(curve, 128, 128, 64) == Approx(7 + std::hypot(8, memory)));
  // Before it, each of 128 x 64 elements of A is cast.
  curve["physics"]["input_us_per_element"] = 1e-3;
  CHECK(time_us(curve, 128, 128, 64) == Approx(7 + 128 * 64 * 1e-3 + std::hypot(8, memory)));
  curve["physics"]["input_us_per_element"] = -1;
  CHECK_THROWS_WITH(read(curve), ContainsSubstring("input_us_per_element"));
  curve = small_curve();
  curve["physics"]["element_bytes"] = 0;
  CHECK_THROWS_WITH(read(curve), ContainsSubstring("element_bytes"));
}

TEST_CASE("products shorter than any that was measured are marked") {
  nlohmann::json curve = small_curve();
  const auto known = read(curve).estimate(128, 128, 64);  // 15 us
  CHECK(known.support == Support::interpolated);
  curve["valid"]["time_us"] = {60, 1000};
  const auto shorter = read(curve).estimate(128, 128, 64);
  CHECK(shorter.time_us == known.time_us);
  CHECK(shorter.support == Support::extrapolated);
  // Two octaves below 60 us: the bar of +20 % doubles.
  CHECK(shorter.time_us_p95 == Approx(15 * 1.4));
  CHECK(read(curve).estimate(128, 128, 6400).support == Support::interpolated);
}

TEST_CASE("trees correct what their inputs say, after all else") {
  nlohmann::json curve = small_curve();
  // 257 x 256 x 640: 6 tiles on 2 SMs, 3 waves; 7 + 3 (10 x 3 + 5) = 112 us.
  const double smooth = 112;
  const auto corrected = [&](const nlohmann::json& input, double threshold) {
    curve["corrections"]["trees"] = {
        {"inputs", {input}}, {"split", {0, -1, -1}}, {"figure", {threshold, 0.25, -0.5}}};
    return std::log(time_us(curve, 257, 256, 640) / smooth);
  };
  const std::vector<std::pair<nlohmann::json, double>> inputs = {
      {{{"x", "log2_m"}}, 257},
      {{{"x", "log2_n"}}, 256},
      {{{"x", "log2_k"}}, 640},
      {{{"x", "log2_mn"}}, 257.0 * 256},
      {{{"x", "log2_nk"}}, 256.0 * 640},
      {{{"x", "log2_mk"}}, 257.0 * 640},
      {{{"x", "log2_mnk"}}, 257.0 * 256 * 640},
      {{{"x", "log2_us"}}, smooth},
      {{{"x", "log2_waves"}, {"rows", 128}, {"columns", 128}}, 3},
      {{{"x", "log2_waves"}, {"rows", 256}, {"columns", 64}}, 4},             // 2 x 4 tiles
      {{{"x", "log2_part_wave"}, {"rows", 128}, {"columns", 256}}, 4.0 / 3},  // 1.5 waves take 2
      {{{"x", "log2_row_padding"}, {"rows", 64}}, 320.0 / 257},
      {{{"x", "log2_column_padding"}, {"columns", 192}}, 384.0 / 256}};
  for (const auto& [input, value] : inputs) {
    CAPTURE(input.dump());
    CHECK(corrected(input, std::log2(value) + 1e-6) == Approx(0.25));
    CHECK(corrected(input, std::log2(value) - 1e-6) == Approx(-0.5));
  }
  curve["corrections"]["trees"]["inputs"][0]["x"] = "log2_moon";
  CHECK_THROWS_WITH(read(curve), ContainsSubstring("unknown input 'log2_moon'"));
}

TEST_CASE("the library runs what it believes is fastest") {
  nlohmann::json curve = small_curve();
  auto& kernels = curve["kernels"];
  kernels["rows"] = {128, 128};
  kernels["columns"] = {128, 128};
  kernels["step_us"] = {3, 1};
  kernels["tile_us"] = {5, 5};
  kernels["overlap"] = {0, 0};
  kernels["choice_step_us"] = {3, 30};
  kernels["choice_tile_us"] = {5, 5};
  kernels["choice_overlap"] = {0, 0};
  // The second kernel would take 7 + 1 + 5 us but is believed to take 7 + 30 + 5.
  CHECK(time_us(curve, 128, 128, 64) == Approx(7 + 3 + 5));
  // With no preference between them the answer is the geometric mean.
  kernels["choice_step_us"] = {3, 3};
  CHECK(time_us(curve, 128, 128, 64) == Approx(std::sqrt(15.0 * 13.0)));
}

TEST_CASE("a split of k fills the SMs and pays for the reduction") {
  nlohmann::json curve = small_curve();
  curve["physics"]["splits"] = {1, 2};
  // One tile of 100 steps: unsplit 7 + 300 + 5; in two 7 + 150 + 5 + 4 + 128 x 128 x 2 / 1000.
  const double split = 7 + 150 + 5 + 4 + 128 * 128 * 2 * 1e-3;
  CHECK(time_us(curve, 128, 128, 6400) == Approx(split).epsilon(1e-9));
  // Four tiles fill both SMs already: split, they would take 762 us, which the choice rules out
  // but for a weight of (617 / 762)^50.
  CHECK(time_us(curve, 256, 256, 6400) == Approx(7 + 2 * (300 + 5)).epsilon(1e-5));
}

TEST_CASE("sustained load lengthens a product by the square of the load") {
  nlohmann::json curve = small_curve();
  curve["physics"]["throttle"] = 0.1;
  const double us = 7 + 3 + 5;
  const double load = 2.0 * 128 * 128 * 64 / us / 1e6;
  CHECK(time_us(curve, 128, 128, 64) == Approx(us * std::exp(0.1 * load * load * us / (us + 1))));
}

TEST_CASE("corrections are linear between their knots and constant beyond") {
  nlohmann::json curve = small_curve();
  // Values [m, n, k], k fastest: 0 at k = 2^0, 1 at k = 2^20.
  curve["corrections"]["values"] = {0, 1, 0, 1, 0, 1, 0, 1};
  CHECK(time_us(curve, 128, 128, 64) == Approx((7 + 3 + 5) * std::exp(6.0 / 20)));
  // 3 tiles on 2 SMs: 2 whole waves over 1.5 of work, log2 (4 / 3) idle; log2 1.5 waves.
  curve["corrections"]["values"] = {0, 0, 0, 0, 0, 0, 0, 0};
  curve["corrections"]["terms"] = {{{"rows", 128},
                                    {"columns", 128},
                                    {"x", "log2_idle"},
                                    {"y", "log2_waves"},
                                    {"x_knots", {0, 1}},
                                    {"y_knots", {-1, 1}},
                                    {"values", {0, 0, 2, 2}}}};
  CHECK(time_us(curve, 384, 128, 64) ==
        Approx((7 + 2 * (3 + 5)) * std::exp(2 * std::log2(4.0 / 3))));
}

TEST_CASE("a term of the tiles counts as far as memory does not explain the time") {
  nlohmann::json curve = small_curve();
  curve["physics"]["dram_bytes_per_us"] = 10000;
  nlohmann::json term = {{"rows", 128},
                         {"columns", 128},
                         {"x", "log2_waves"},
                         {"y", "log2_k"},
                         {"x_knots", {-20, 20}},
                         {"y_knots", {0, 20}},
                         {"values", {0.5, 0.5, 0.5, 0.5}}};
  const double memory = 2 * (128 * 64 + 64 * 128 + 128 * 128) / 10000.0;
  const double us = 7 + std::hypot(8, memory);
  curve["corrections"]["terms"] = {term};
  CHECK(time_us(curve, 128, 128, 64) == Approx(us * std::exp(0.5)));
  term["weight"] = "compute_share";
  curve["corrections"]["terms"] = {term};
  CHECK(time_us(curve, 128, 128, 64) == Approx(us * std::exp(0.5 * (1 - memory / us))));
  // Nothing is left of the term for a product that waits for memory alone.
  curve["physics"]["launch_us"] = 1e-9;
  curve["physics"]["dram_bytes_per_us"] = 1;
  CHECK(time_us(curve, 128, 128, 64) == Approx(1e4 * memory).epsilon(1e-4));
  term["weight"] = "moon";
  curve["corrections"]["terms"] = {term};
  CHECK_THROWS_WITH(read(curve), ContainsSubstring("unknown weight 'moon'"));
}

TEST_CASE("beyond the measured sizes a product is flagged, its bar widened, and at last refused") {
  const GemmCurve curve = read(small_curve());
  const auto inside = curve.estimate(8192, 4096, 4096);
  CHECK(inside.support == Support::interpolated);
  CHECK(inside.time_us_p05 == Approx(inside.time_us * 0.9));
  CHECK(inside.time_us_p95 == Approx(inside.time_us * 1.2));
  const auto beyond = curve.estimate(32768, 4096, 4096);
  CHECK(beyond.support == Support::extrapolated);
  CHECK(beyond.time_us_p95 / beyond.time_us > 1.3);
  CHECK(beyond.time_us_p05 / beyond.time_us < 0.85);
  // Efficiency stays what it was, in whole waves: four times the rows, four times the waves.
  CHECK(beyond.time_us - 7 == Approx(4 * (inside.time_us - 7)));
  CHECK(curve.estimate(16384, 8, 4096).support == Support::extrapolated);
  CHECK_THROWS_WITH(curve.estimate(4096, 1 << 22, 4096), ContainsSubstring("smaller products"));
  // Rows go on for ever: 2^20 are 8 times 2^17, 16 times the most measured; the bar grows on.
  const auto most = curve.estimate(1 << 17, 4096, 4096);
  const auto more = curve.estimate(1 << 20, 4096, 4096);
  CHECK(more.time_us == Approx(8 * most.time_us));
  CHECK(more.time_us_p95 / more.time_us > most.time_us_p95 / most.time_us);
  CHECK_THROWS_AS(curve.estimate(0, 4096, 4096), UsageError);
  CHECK_THROWS_WITH(curve.estimate(16, -1, 4096), ContainsSubstring("at least 1"));
}

TEST_CASE("a malformed product curve is refused by file and key") {
  nlohmann::json curve = small_curve();
  curve["kernels"]["overlap"] = {1.5};
  CHECK_THROWS_WITH(read(curve), ContainsSubstring("curve.json") && ContainsSubstring("overlap"));
  curve = small_curve();
  curve["kernels"]["tile_us"] = {1, 2};
  CHECK_THROWS_WITH(read(curve), ContainsSubstring("tile_us"));
  curve = small_curve();
  curve["physics"].erase("l2_bytes");
  CHECK_THROWS_WITH(read(curve), ContainsSubstring("l2_bytes"));
  curve = small_curve();
  curve["corrections"]["values"] = {0, 0};
  CHECK_THROWS_WITH(read(curve), ContainsSubstring("values"));
  curve = small_curve();
  curve["valid"]["m"] = {8192, 1};
  CHECK_THROWS_WITH(read(curve), ContainsSubstring("/valid/m"));
  curve = small_curve();
  curve["corrections"]["m_knots"] = {3, 3};
  CHECK_THROWS_WITH(read(curve), ContainsSubstring("ascend"));
}

// Large products that a step runs: no data type of one machine runs above its tensor cores' rate
// (NVIDIA's datasheets: FP8 twice, NVFP4 four times the dense bf16 rate), and each longer product
// takes longer.
TEST_CASE("shipped products of every data type stay below what the tensor cores can do") {
  const std::map<std::string, double> faster{
      {"bf16", 1}, {"fp8", 2}, {"fp8_block", 2}, {"nvfp4", 4}};
  for (const std::string name :
       {"h100-sxm", "h200-sxm", "b200-sxm", "b300-sxm", "gb200", "gb300"}) {
    const auto machine = profile::Profile::load(
        fmt::format("{}/profiles/hardware/{}.json", MOESIM_SOURCE_DIR, name));
    const std::vector<std::string> types = machine.data_types("gemm");
    CHECK(types.size() >= 3);
    for (const std::string& type : types) {
      for (const auto& [n, k] :
           {std::pair{7168, 2048}, {18432, 7168}, {7168, 18432}, {24576, 1536}}) {
        double previous_us = 0;
        for (std::int64_t m = 2048; m <= 65536; m *= 2) {
          INFO(name << " " << type << " " << m << " x " << n << " x " << k);
          const auto estimate = machine.gemm(m, n, k, type);
          const double rate = 2e-6 * static_cast<double>(m) * n * k / estimate.time_us;
          CHECK(rate < 1e-12 * machine.device().peak_bf16_flops * faster.at(type));
          CHECK(rate > 0.15e-12 * machine.device().peak_bf16_flops);
          CHECK(estimate.time_us > 1.2 * previous_us);
          CHECK(estimate.time_us_p05 < estimate.time_us);
          CHECK(estimate.time_us_p95 > estimate.time_us);
          previous_us = estimate.time_us;
        }
      }
    }
  }
}

// Few rows and weights that no cache holds (600 MB and more): what is read takes its time. Drawn
// from all sizes, not from the sweeps' own, on whose grid a curve may be right by its corrections.
TEST_CASE("no shipped product reads its weights faster than the memory can") {
  const std::map<std::string, double> element{
      {"bf16", 2}, {"fp8", 1}, {"fp8_block", 1}, {"nvfp4", 0.5625}};
  std::mt19937 random(7);
  const auto drawn = [&](double low, double high) {
    std::uniform_real_distribution<double> log2(std::log2(low), std::log2(high));
    return 8 * static_cast<std::int64_t>(std::exp2(log2(random)) / 8);
  };
  for (const std::string name :
       {"a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200-sxm", "b300-sxm", "gb200", "gb300"}) {
    const auto machine = profile::Profile::load(
        fmt::format("{}/profiles/hardware/{}.json", MOESIM_SOURCE_DIR, name));
    for (const std::string& type : machine.data_types("gemm")) {
      for (int draw = 0; draw < 200; ++draw) {
        const std::int64_t m = drawn(8, 128);
        const double least = 6e8 / element.at(type);  // elements
        const std::int64_t k = drawn(std::max(4096.0, least / 65536), 51200);
        const std::int64_t n =
            drawn(std::clamp(least / static_cast<double>(k), 8192.0, 65536.0), 65536);
        INFO(name << " " << type << " " << m << " x " << n << " x " << k);
        const double weights = element.at(type) * static_cast<double>(n) * static_cast<double>(k);
        CHECK(weights / (1e-6 * machine.gemm(m, n, k, type).time_us) <
              machine.device().hbm_bandwidth.bytes_per_second);
      }
    }
  }
}

TEST_CASE("shipped products are physical where no point was measured") {
  for (const std::string name : {"a100-sxm-80gb", "h100-sxm", "h200-sxm"}) {
    const auto machine = profile::Profile::load(
        fmt::format("{}/profiles/hardware/{}.json", MOESIM_SOURCE_DIR, name));
    const double peak = machine.device().peak_bf16_flops;
    for (const auto& [n, k] : {std::pair{22016, 4096},
                               {11008, 4096},
                               {4096, 11008},
                               {32000, 4096},
                               {28672, 4096},
                               {4096, 14336},
                               {12288, 4096},
                               {14336, 4096}}) {
      double previous_us = 0;
      for (std::int64_t m = 2048; m <= 65536; m *= 2) {
        INFO(name << " " << m << " x " << n << " x " << k);
        const auto estimate = machine.gemm(m, n, k);
        const double share =
            2.0 * static_cast<double>(m) * n * k / (estimate.time_us * 1e-6) / peak;
        CHECK(share > 0.6);
        CHECK(share < 0.95);
        CHECK(estimate.time_us > 1.6 * previous_us);
        CHECK(estimate.time_us_p05 < estimate.time_us);
        CHECK(estimate.time_us_p95 > estimate.time_us);
        previous_us = estimate.time_us;
      }
      // The law beyond the largest m measured: efficiency stays, up to waves and clock.
      const double ratio = machine.gemm(131072, n, k).time_us / machine.gemm(65536, n, k).time_us;
      CHECK(ratio == Approx(2).epsilon(0.03));
    }
  }
}

TEST_CASE("nothing is faster than its machine, where no point was measured either") {
  const std::string path = std::string(MOESIM_SOURCE_DIR) + "/profiles/hardware/";
  const auto b300 = profile::Profile::load(path + "b300-sxm.json");
  // Causal attention of one head of 256 over 65,536 tokens: 2 x 65,536^2 x 256 FLOPs.
  const auto attention = b300.attention({1, 65536, 1, 1, 256}, false);
  const double least_us = 2.0 * 65536 * 65536 * 256 / b300.device().peak_bf16_flops * 1e6;
  CHECK(attention.time_us >= least_us);
  CHECK(attention.time_us_p05 >= least_us);
  CHECK(attention.time_us_p95 > 1.1 * least_us);
  std::mt19937 random(3);
  std::uniform_int_distribution<std::int64_t> size(8, 4096);
  for (const std::string name : {"a100-sxm-80gb", "h100-sxm", "h200-sxm", "gb200"}) {
    const auto machine = profile::Profile::load(path + name + ".json");
    for (int draw = 0; draw < 300; ++draw) {
      const std::int64_t m = 8 * size(random);
      const std::int64_t n = 8 * size(random);
      const std::int64_t k = 8 * size(random);
      INFO(name << " " << m << " x " << n << " x " << k);
      const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n * k);
      const double least = flops / machine.device().peak_bf16_flops * 1e6 * (1 - 1e-12);
      CHECK(machine.gemm(m, n, k).time_us_p05 >= least);
      const auto ffn = machine.expert_ffn(m, 4096, 2048, 8);
      CHECK(ffn.time_us_p05 >= 6.0 * static_cast<double>(m) * 4096 * 2048 /
                                   machine.device().peak_bf16_flops * 1e6 * (1 - 1e-12));
    }
  }
}
