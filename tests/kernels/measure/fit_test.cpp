#include "kernels/measure/fit/fit.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "kernels/measure/fit/residual_figures.hpp"
#include "kernels/measure/fit/smooth_grid.hpp"
#include "kernels/measure/suites/attention.hpp"
#include "kernels/measure/suites/suites.hpp"
#include "sim/base/formats/document.hpp"
#include "sim/base/random.hpp"
#include "sim/profile/collective_curve.hpp"
#include "sim/profile/kernels/attention_curve.hpp"
#include "sim/profile/kernels/gemm_curve.hpp"
#include "sim/profile/kernels/memory_curve.hpp"
#include "tests/support/catch.hpp"

namespace measure = moesim::kernels::measure;
using nlohmann::ordered_json;

namespace {

measure::Point point_of(const measure::PointSpec& spec, double time_us) {
  measure::Point point;
  point.op = spec.op;
  point.params = spec.params;
  point.verify = "passed";
  point.cold = measure::Figures{{time_us}, measure::summarise({time_us}), measure::Stop::precise};
  point.hot = point.cold;
  return point;
}

template <typename Law>
std::vector<measure::Point> points_of(const std::string& suite, int gpus, Law law) {
  std::vector<measure::Point> points;
  for (const measure::PointSpec& spec : measure::find_suite(suite).points(gpus)) {
    points.push_back(point_of(spec, law(spec)));
  }
  return points;
}

ordered_json shipped_curve(const std::string& op, const std::string& dtype = "") {
  const auto document =
      moesim::Document::load(std::string(MOESIM_SOURCE_DIR) + "/profiles/hardware/h200-sxm.json");
  const auto root = document.root();
  for (const auto& curve : root.json().at("curves")) {
    if (curve.at("op") == op && curve.value("default", true) &&
        (dtype.empty() || curve.at("params").value("dtype", "") == dtype)) {
      return ordered_json::parse(curve.dump());
    }
  }
  return nullptr;
}

moesim::Document as_document(const ordered_json& curve) {
  return moesim::Document::parse(curve.dump(), "curve");
}

}  // namespace

TEST_CASE("a smooth grid reproduces what is multilinear and carries on where nothing is known") {
  measure::SmoothGrid grid({{0, 1, 2, 3}, {0, 2, 4}});
  std::vector<std::vector<double>> at;
  std::vector<double> values;
  for (double x = 0; x <= 2; x += 0.25) {  // nothing beyond x = 2
    for (double y = 0; y <= 4; y += 0.5) {
      at.push_back({x, y});
      values.push_back(0.05);
    }
  }
  grid.fit(at, values, 0.1);
  CHECK(grid.evaluate({1.3, 2.2}) == Approx(0.05).epsilon(0.01));
  CHECK(grid.evaluate({3, 4}) == Approx(0.05).epsilon(0.05));

  for (std::size_t point = 0; point < at.size(); ++point) {
    values[point] = 0.1 * at[point][0] - 0.02 * at[point][1] * at[point][0];
  }
  grid.fit(at, values, 1e-6);
  CHECK(grid.evaluate({0.7, 1.1}) == Approx(0.1 * 0.7 - 0.02 * 1.1 * 0.7).margin(0.004));
}

// The machine runs 8 % slower than the prior at small k and 5 % faster at large k, with 1 % noise.
TEST_CASE("matrix products follow a machine that differs from the prior") {
  const ordered_json prior = shipped_curve("gemm");
  const moesim::Document prior_document = as_document(prior);
  const moesim::profile::GemmCurve shipped(prior_document.root());
  moesim::Stream stream({5, moesim::Purpose::test_data});
  const auto truth = [&](std::int64_t m, std::int64_t n, std::int64_t k) {
    const double share = (std::log2(static_cast<double>(k)) - 9) / 5;
    return shipped.estimate(m, n, k).time_us * std::exp(0.08 - 0.13 * share);
  };
  const auto points = points_of("gemm", 1, [&](const measure::PointSpec& spec) {
    return truth(spec.params["m"], spec.params["n"], spec.params["k"]) *
           (1 + 0.01 * stream.normal());
  });
  const auto curve = measure::fit_gemm(points, prior, 132, "moesim profile on a fake");
  REQUIRE(curve);
  const moesim::Document document = as_document(*curve);
  const moesim::profile::GemmCurve fitted(document.root());
  // Shapes that were not measured, inside the range of those that were.
  for (const auto& [m, n, k] :
       {std::array{700, 5120, 5120}, {2500, 8192, 1024}, {5000, 3000, 9000}, {12000, 6144, 4096}}) {
    CAPTURE(m, n, k);
    const auto estimate = fitted.estimate(m, n, k);
    CHECK(estimate.time_us == Approx(truth(m, n, k)).epsilon(0.02));
    CHECK(estimate.origin == moesim::profile::Origin::measured);
  }
  // The held-out error must show the noise that was put in: the median of |N(0, 1 %)| is 0.67 %.
  const double median = (*curve)["residual"]["median_abs"];
  CHECK(median > 0.005);
  CHECK(median < 0.015);
  CHECK_THAT((*curve)["note"].get<std::string>(), ContainsSubstring("300 measured shapes"));
}

// A machine whose FP8 products take 0.55 of the time of bf16's, and have no cast in them.
TEST_CASE("FP8 products follow the machine, by block and by tensor, without the prior's cast") {
  const ordered_json bf16 = shipped_curve("gemm");
  const moesim::Document bf16_document = as_document(bf16);
  const moesim::profile::GemmCurve wide(bf16_document.root());
  moesim::Stream stream({6, moesim::Purpose::test_data});
  const auto truth = [&](std::int64_t m, std::int64_t n, std::int64_t k) {
    return 0.55 * wide.estimate(m, n, k).time_us;
  };
  const auto points = points_of("gemm-fp8", 1, [&](const measure::PointSpec& spec) {
    const double slower = spec.params["dtype"] == "fp8_block" ? 1.1 : 1;
    return slower * truth(spec.params["m"], spec.params["n"], spec.params["k"]) *
           (1 + 0.01 * stream.normal());
  });
  for (const auto& [dtype, slower] : {std::pair{"fp8", 1.0}, {"fp8_block", 1.1}}) {
    const ordered_json prior = shipped_curve("gemm", dtype);
    REQUIRE(prior["physics"].contains("input_us_per_element"));
    const auto curve = measure::fit_gemm_fp8(points, prior, bf16, 132, "moesim profile on a fake");
    REQUIRE(curve);
    CHECK((*curve)["params"]["dtype"] == dtype);
    CHECK((*curve)["origin"] == "measured");
    CHECK_THAT((*curve)["note"].get<std::string>(),
               ContainsSubstring("90 measured shapes") && ContainsSubstring("The product alone"));
    const moesim::Document document = as_document(*curve);
    const moesim::profile::GemmCurve fitted(document.root());
    CHECK(fitted.cast_us(4096, 4096) == 0);
    for (const auto& [m, n, k] :
         {std::array{700, 5120, 5120}, {2500, 8192, 1024}, {5000, 3000, 9000}}) {
      CAPTURE(dtype, m, n, k);
      const auto estimate = fitted.estimate(m, n, k);
      CHECK(estimate.time_us == Approx(slower * truth(m, n, k)).epsilon(0.08));
      CHECK(estimate.support == moesim::profile::Support::interpolated);
    }
    CHECK((*curve)["residual"]["median_abs"].get<double>() < 0.05);
  }
  // Points of bf16 are none of FP8, and the other way round.
  const auto others = points_of("gemm", 1, [](const auto&) { return 5.0; });
  CHECK_FALSE(measure::fit_gemm_fp8(others, shipped_curve("gemm", "fp8"), bf16, 132, "s"));
  CHECK_FALSE(measure::fit_gemm(points, bf16, 132, "s"));
}

TEST_CASE("too few, void or synthetic points make no curve") {
  auto points = points_of("gemm", 1, [](const auto& spec) { return 3 + spec.flops / 700e6; });
  const ordered_json prior = shipped_curve("gemm");
  points.resize(measure::fewest_gemm_points);
  CHECK(measure::fit_gemm(points, prior, 132, "s"));
  auto without = points;
  without[3].verify = "wrong";
  CHECK_FALSE(measure::fit_gemm(without, prior, 132, "s"));
  without = points;
  without[3].synthetic = true;
  CHECK_FALSE(measure::fit_gemm(without, prior, 132, "s"));
  CHECK_FALSE(measure::fit_memory(points, "streaming", "s"));
}

TEST_CASE("memory-bound kernels come back as latency and bandwidth") {
  const auto points = points_of("memory", 1, [](const measure::PointSpec& spec) {
    return 2.5 + spec.bytes / 4e6;  // 4 TB/s
  });
  const auto json = measure::fit_memory(points, "normalization", "s");
  REQUIRE(json);
  CHECK((*json)["achieved_bytes_per_second"].get<double>() == Approx(4e12).epsilon(1e-3));
  // An affine law loses nothing by leaving a size out.
  CHECK((*json)["residual"]["p90_abs"].get<double>() < 1e-4);
  const moesim::Document document = as_document(*json);
  const moesim::profile::MemoryCurve curve(document.root());
  CHECK(curve.estimate(3e7).time_us == Approx(2.5 + 3e7 / 4e6).epsilon(1e-4));
  CHECK(curve.estimate(6e9).time_us == Approx(2.5 + 6e9 / 4e6).epsilon(1e-3));
  CHECK(curve.estimate(100).time_us == Approx(2.5).epsilon(0.01));
}

TEST_CASE("times that fall with size by noise are pooled into a curve that never falls") {
  auto points = points_of("memory", 1, [](const auto& spec) { return 2.5 + spec.bytes / 4e6; });
  double last = 0;
  for (measure::Point& point : points) {
    if (point.params["kernel"] != "streaming") continue;
    last = std::max(last, point.params["bytes"].get<double>());
  }
  for (measure::Point& point : points) {  // the largest size came out faster than the one before
    if (point.params["bytes"] == last) *point.cold = {{1}, measure::summarise({1})};
  }
  const auto json = measure::fit_memory(points, "streaming", "s");
  REQUIRE(json);
  const std::vector<double> times = (*json)["time_us"];
  CHECK(std::is_sorted(times.begin(), times.end()));
  CHECK(times.back() > times[times.size() - 2]);
}

TEST_CASE("a measured exchange joins the published branches of other GPU counts") {
  const ordered_json prior = shipped_curve("all-to-all");
  const auto points = points_of("collectives", 4, [](const measure::PointSpec& spec) {
    return 12 + spec.sent_bytes / 0.38e6;
  });
  const auto json = measure::fit_collective(points, "all-to-all", "2.28.3", prior, "s");
  REQUIRE(json);
  std::map<int, std::string> origins;
  for (const auto& branch : (*json)["branches"]) {
    origins[branch["gpus"]] = branch["origin"];
    if (branch["gpus"] != 4) continue;
    // 4 KiB to 1 GiB; the uneven exchange is no point of this curve.
    CHECK(branch["bytes"].size() == 19);
    CHECK(branch["time_us"].back().get<double>() ==
          Approx(12 + 0.75 * (1 << 30) / 0.38e6).epsilon(1e-6));
  }
  CHECK(origins[4] == "measured");
  CHECK(origins[2] == prior["branches"][0]["origin"].get<std::string>());
  CHECK((*json)["params"]["nccl"] == "2.28.3");
}

TEST_CASE("branches of an exchange that were not measured keep their errors and sizes") {
  const ordered_json prior = shipped_curve("all-to-all");
  const std::string version = prior["params"]["nccl"];
  const auto branch_of = [](const ordered_json& curve, int gpus) {
    for (const auto& branch : curve["branches"]) {
      if (branch["gpus"] == gpus) return branch;
    }
    return ordered_json();
  };
  const auto of_count = [](int gpus) {
    return points_of("collectives", gpus,
                     [](const measure::PointSpec& spec) { return 12 + spec.sent_bytes / 0.38e6; });
  };
  const auto first = measure::fit_collective(of_count(4), "all-to-all", "2.99", prior, "first");
  REQUIRE(first);
  CHECK((*first)["valid"]["gpus"] == ordered_json({4, 4}));
  CHECK(branch_of(*first, 4)["measured_bytes"].size() == 19);
  CHECK_FALSE(branch_of(*first, 4).contains("from_curve"));
  const ordered_json kept = branch_of(*first, 2);
  CHECK(kept["measured_bytes"] == prior["measured_bytes"]);
  CHECK(kept["from_curve"]["nccl"] == version);
  for (const char* key : {"source", "residual", "residual_at_measured", "scatter", "tail"}) {
    CHECK(kept["from_curve"][key] == prior[key]);
  }
  // Read, it answers as the prior does where the version is not said.
  const auto before_document = as_document(prior), after_document = as_document(*first);
  const moesim::profile::CollectiveCurve before(before_document.root());
  const moesim::profile::CollectiveCurve after(after_document.root());
  for (const double bytes : {100.0, 4096.0, 3e6, 2e9}) {
    const auto was = before.estimate(2, bytes), is = after.estimate(2, bytes);
    CHECK(is.time_us_p05 == was.time_us_p05);
    CHECK(is.time_us_p95 == was.time_us_p95);
    CHECK(moesim::profile::describe(is) == moesim::profile::describe(was));
    // The low end of the law for eight is that of the four that were measured.
    CHECK(after.estimate(8, bytes).time_us_p95 == before.estimate(8, bytes).time_us_p95);
  }
  // Measured once more, among two: four GPUs keep what they were measured with the first time.
  const auto second = measure::fit_collective(of_count(2), "all-to-all", "3.0", *first, "second");
  REQUIRE(second);
  CHECK(branch_of(*second, 4)["from_curve"]["nccl"] == "2.99");
  CHECK(branch_of(*second, 4)["from_curve"]["source"] == "first");
  CHECK(branch_of(*second, 8)["from_curve"]["nccl"] == version);
}

TEST_CASE("row moves come back as their share of the streaming bandwidth") {
  const auto stream = measure::fit_memory(
      points_of("memory", 1, [](const auto& spec) { return 2.5 + spec.bytes / 4e6; }), "streaming",
      "s");
  std::vector<measure::Point> points;
  for (double bytes = 1 << 20; bytes < 1e9; bytes *= 2) {
    measure::PointSpec spec;
    spec.op = "permute";
    spec.params = {{"bytes", bytes}};
    points.push_back(point_of(spec, 2.5 + bytes / (0.8 * 4e6)));
  }
  const auto curve = measure::fit_row_moves(points, "permute", *stream, "s");
  REQUIRE(curve);
  CHECK((*curve)["efficiency"].get<double>() == Approx(0.8).epsilon(0.01));
  CHECK((*curve)["residual"]["median_abs"].get<double>() < 0.01);
  CHECK_FALSE(measure::fit_row_moves(points, "combine", *stream, "s"));
}

TEST_CASE("regions of a residual hold enough points each and adjoin") {
  std::vector<measure::HeldOut> held;
  for (int point = 0; point < 30; ++point) held.push_back({1.01 * 50, 50, 50.0});
  for (int point = 0; point < 3; ++point) held.push_back({1.2 * 5, 5, 5.0});
  for (int point = 0; point < 2; ++point) held.push_back({0.9 * 5000, 5000, 5000.0});
  const ordered_json residual = measure::residual_figures(held, "time_us", "a test");
  REQUIRE(residual["regions"].size() == 1);  // 3 and 2 points are too few for regions of their own
  CHECK(residual["regions"][0]["n"] == 35);
  CHECK(residual["regions"][0]["below"].is_null());
  CHECK(residual["median_abs"].get<double>() == Approx(0.01));

  for (int point = 0; point < 10; ++point) held.push_back({1.1 * 500, 500, 500.0});
  const ordered_json two = measure::residual_figures(held, "time_us", "a test");
  REQUIRE(two["regions"].size() == 2);
  CHECK(two["regions"][0]["region"] == "<100us");
  CHECK(two["regions"][1]["region"] == ">100us");
  CHECK(two["regions"][1]["n"] == 12);
  CHECK(two["regions"][1]["q05"].get<double>() == Approx(-0.1));
}

// A kernel that is 20 % faster than the prior's on short sequences and 10 % slower on long ones,
// with 1 % noise. Shapes between the measured ones follow within 3 %, and what was not measured
// stays.
TEST_CASE("attention follows a kernel that differs from the prior's") {
  const ordered_json prior = shipped_curve("attention");  // of head size 64
  const bool cached = GENERATE(true, false);              // cuDNN's forward writes no cache
  ordered_json kernel = prior;
  if (!cached) {
    for (auto& cost : kernel["physics"]["cache_log_us_per_token"]) cost = -40;
  }
  const auto prior_document = as_document(kernel);
  const moesim::profile::AttentionCurve before(prior_document.root());
  REQUIRE(before.head_dim() == 64);
  const auto ratio = [](std::int64_t sequence) {
    // From 0.8 at 128 tokens to 1.1 at 16,384, straight in log2.
    return 0.8 + 0.3 * (std::log2(static_cast<double>(sequence)) - 7) / 7;
  };
  moesim::Stream noise({1, moesim::Purpose::measurement, 0});
  const auto points = points_of("attention", 1, [&](const measure::PointSpec& spec) {
    const auto shape = measure::attention_shape(spec.params);
    const double us =
        before.estimate({shape.batch, shape.sequence, shape.heads, shape.kv_heads, 64}, false)
            .time_us;
    return us * ratio(shape.sequence) * (1 + 0.02 * (noise.uniform() - 0.5));
  });
  const auto curve = measure::fit_attention(points, prior, 132, "a test");
  REQUIRE(curve.has_value());
  CHECK(curve->at("origin") == "measured");
  CHECK(curve->at("valid").at("sequence") == ordered_json({128, 16384}));
  CHECK(curve->at("residual").at("n") == 38);  // two widths of head size 64, 19 shapes each
  CHECK(curve->at("residual").at("median_abs").get<double>() < 0.02);
  const auto document = as_document(*curve);
  const moesim::profile::AttentionCurve after(document.root());
  for (const std::int64_t sequence : {300, 1500, 6000}) {
    const moesim::profile::AttentionShape between{3, sequence, 32, 8, 64};
    INFO("sequence " << sequence);
    CHECK(after.estimate(between, false).time_us ==
          Approx(before.estimate(between, false).time_us * ratio(sequence)).epsilon(0.03));
  }
}

TEST_CASE("attention of another head size, too few points and void ones make no curve") {
  const ordered_json prior = shipped_curve("attention");
  auto points = points_of("attention", 1, [](const measure::PointSpec&) { return 10.0; });
  auto other = points;
  std::erase_if(other, [](const measure::Point& each) { return each.params.at("head_dim") == 64; });
  CHECK_FALSE(measure::fit_attention(other, prior, 132, "a test").has_value());
  for (measure::Point& each : points) each.verify = "wrong";
  CHECK_FALSE(measure::fit_attention(points, prior, 132, "a test").has_value());
}
