#include <fmt/format.h>

#include <array>
#include <cmath>
#include <utility>

#include "kernels/measure/fit/fit.hpp"
#include "kernels/measure/fit/residual_figures.hpp"
#include "kernels/measure/fit/smooth_grid.hpp"
#include "sim/base/formats/document.hpp"
#include "sim/base/statistics.hpp"
#include "sim/profile/kernels/gemm_curve.hpp"
#include "sim/profile/profile.hpp"

namespace moesim::kernels::measure {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t fold_count = 5;
constexpr std::uint64_t fold_seed = 20240612;
// How stiff the correction may be; the one that predicts held-out points best is taken.
constexpr std::array stiffness{0.003, 0.03, 0.3, 3.0};

struct Shape {
  std::vector<double> log2_mnk;
  double time_us = 0;
  double prior_us = 0;
  double log_error() const { return std::log(time_us / prior_us); }
};

std::string data_type(const nlohmann::ordered_json& params) {
  return params.value("dtype", profile::default_data_type);
}

// Those of the prior's data type.
std::vector<Shape> read_shapes(const std::vector<Point>& points, const ordered_json& prior) {
  const Document document = Document::parse(prior.dump(), "prior");
  const profile::GemmCurve curve(document.root());
  const std::string type = data_type(prior.at("params"));
  std::vector<Shape> shapes;
  for (const Point& point : points) {
    const auto time_us = point.time_us();
    if (point.op != "gemm" || point.synthetic || !time_us) continue;
    if (data_type(point.params) != type) continue;
    const std::int64_t m = point.params.at("m"), n = point.params.at("n"), k = point.params.at("k");
    Shape shape;
    for (const std::int64_t size : {m, n, k}) {
      shape.log2_mnk.push_back(std::log2(static_cast<double>(size)));
    }
    shape.time_us = *time_us;
    shape.prior_us = curve.estimate(m, n, k).time_us;
    shapes.push_back(std::move(shape));
  }
  return shapes;
}

SmoothGrid fitted(const std::vector<Shape>& shapes, const std::vector<std::size_t>& fold,
                  std::size_t left_out, const std::vector<std::vector<double>>& axes,
                  double smoothness) {
  std::vector<std::vector<double>> at;
  std::vector<double> errors;
  for (std::size_t index = 0; index < shapes.size(); ++index) {
    if (fold[index] == left_out) continue;
    at.push_back(shapes[index].log2_mnk);
    errors.push_back(shapes[index].log_error());
  }
  SmoothGrid grid(axes);
  grid.fit(at, errors, smoothness);
  return grid;
}

std::vector<HeldOut> held_out(const std::vector<Shape>& shapes,
                              const std::vector<std::vector<double>>& axes, double smoothness) {
  const std::vector<std::size_t> fold = folds(shapes.size(), fold_count, fold_seed);
  std::vector<HeldOut> result(shapes.size());
  for (std::size_t each = 0; each < fold_count; ++each) {
    const SmoothGrid grid = fitted(shapes, fold, each, axes, smoothness);
    for (std::size_t index = 0; index < shapes.size(); ++index) {
      if (fold[index] != each) continue;
      const double predicted =
          shapes[index].prior_us * std::exp(grid.evaluate(shapes[index].log2_mnk));
      result[index] = {shapes[index].time_us, predicted, predicted};
    }
  }
  return result;
}

double mean_error(const std::vector<HeldOut>& held) {
  std::vector<double> errors;
  for (const HeldOut& each : held) {
    errors.push_back(std::abs(std::log(each.measured_us / each.predicted_us)));
  }
  return mean(errors);
}

struct Corrected {
  ordered_json curve;
  double error = 0;  // of held-out points, in log time
};

// What is left to write of a curve that follows `prior`.
Corrected corrected(ordered_json curve, const std::vector<Shape>& shapes,
                    const std::string& source) {
  ordered_json& corrections = curve["corrections"];
  const std::vector<std::vector<double>> axes = {corrections["m_knots"], corrections["n_knots"],
                                                 corrections["k_knots"]};
  double smoothness = stiffness.front();
  std::vector<HeldOut> best;
  for (const double each : stiffness) {
    std::vector<HeldOut> held = held_out(shapes, axes, each);
    if (best.empty() || mean_error(held) < mean_error(best)) {
      best = std::move(held);
      smoothness = each;
    }
  }
  const SmoothGrid grid =
      fitted(shapes, std::vector<std::size_t>(shapes.size(), 0), fold_count, axes, smoothness);
  std::vector<double> values = corrections["values"];
  for (std::size_t knot = 0; knot < values.size(); ++knot) {
    values[knot] = significant(values[knot] + grid.values()[knot], 6);
  }
  corrections["values"] = values;
  curve["residual"] = residual_figures(
      best, "time_us", fmt::format("{} seeded folds of the measured shapes", fold_count));
  curve["origin"] = "measured";
  curve["note"] = fmt::format(
      "Corrected to {} measured shapes in log time; the tile kernels are those of the prior: {}",
      shapes.size(), curve.at("source").get<std::string>());
  curve["source"] = source;
  curve.erase("noise");
  return {std::move(curve), mean_error(best)};
}

// The product of a call that casts A first, without the cast.
ordered_json product_alone(ordered_json curve) {
  curve["physics"].erase("input_us_per_element");
  curve["valid"].erase("time_us");
  return curve;
}

// The tile kernels of bf16 for a type of half its size, which `narrow` is a curve of: a step of
// twice as many elements takes as long, and as much power.
ordered_json halved(const ordered_json& wide, const ordered_json& narrow) {
  ordered_json curve = wide;
  curve["params"] = narrow.at("params");
  ordered_json& physics = curve["physics"];
  physics["step"] = 2 * physics.at("step").get<double>();
  physics["throttle_tflops"] = 2 * physics.at("throttle_tflops").get<double>();
  physics["element_bytes"] = narrow.at("physics").value("element_bytes", 1.0);
  return curve;
}

}  // namespace

std::optional<ordered_json> fit_gemm(const std::vector<Point>& points, const ordered_json& prior,
                                     std::int64_t sms, const std::string& source) {
  ordered_json curve = prior;
  if (sms > 0) curve["physics"]["sms"] = sms;
  const std::vector<Shape> shapes = read_shapes(points, curve);
  if (shapes.size() < fewest_gemm_points) return std::nullopt;
  return corrected(std::move(curve), shapes, source).curve;
}

std::optional<ordered_json> fit_gemm_fp8(const std::vector<Point>& points,
                                         const ordered_json& prior, const ordered_json& bf16,
                                         std::int64_t sms, const std::string& source) {
  std::optional<Corrected> best;
  for (ordered_json start : {product_alone(prior), halved(bf16, prior)}) {
    if (sms > 0) start["physics"]["sms"] = sms;
    const std::vector<Shape> shapes = read_shapes(points, start);
    if (shapes.size() < fewest_gemm_points) return std::nullopt;
    Corrected each = corrected(std::move(start), shapes, source);
    if (!best || each.error < best->error) best = std::move(each);
  }
  best->curve["note"] = fmt::format("The product alone: A is in FP8 already. {}",
                                    best->curve.at("note").get<std::string>());
  return std::move(best->curve);
}

}  // namespace moesim::kernels::measure
