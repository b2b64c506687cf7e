#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/measure/fit/fit.hpp"
#include "kernels/measure/fit/residual_figures.hpp"
#include "kernels/measure/fit/smooth_grid.hpp"
#include "kernels/measure/suites/attention.hpp"
#include "sim/base/formats/document.hpp"
#include "sim/profile/kernels/attention_curve.hpp"

namespace moesim::kernels::measure {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t fold_count = 5;
constexpr std::uint64_t fold_seed = 20240612;
// How stiff the correction is; points are few, and neighbours in length and size behave similarly.
constexpr double stiffness = 0.03;
const std::vector<double> sequence_knots{0, 7, 9, 10, 11, 12, 13, 14};
const std::vector<double> footprint_knots{-7, -5, -3, -1, 0, 1, 3, 5};

struct Measured {
  profile::AttentionShape shape;
  std::vector<double> at;  // log2 of the sequence, log2 of the footprint against the L2
  double time_us = 0;
  double prior_us = 0;
};

// cuDNN's forward writes no cache of keys and values, what serving engines measure does.
ordered_json without_cache(ordered_json curve) {
  constexpr double nothing = -40;  // log microseconds of a token
  for (auto& cost : curve["physics"]["cache_log_us_per_token"]) cost = nothing;
  return curve;
}

std::vector<Measured> read_points(const std::vector<Point>& points, const ordered_json& prior) {
  const Document document = Document::parse(prior.dump(), "prior");
  const profile::AttentionCurve curve(document.root());
  const double l2_bytes = prior.at("physics").at("l2_bytes");
  std::vector<Measured> all;
  for (const Point& point : points) {
    const auto time_us = point.time_us();
    if (point.op != "attention" || point.synthetic || !time_us) continue;
    const profile::AttentionShape shape = attention_shape(point.params);
    if (shape.head_dim != curve.head_dim()) continue;
    // As the curve counts it (sim/profile/kernels/attention_curve.cpp).
    const double footprint = 2.0 * static_cast<double>(shape.head_dim) *
                             static_cast<double>(shape.batch * shape.sequence) *
                             static_cast<double>(2 * shape.heads + 4 * shape.kv_heads);
    all.push_back(
        {shape,
         {std::log2(static_cast<double>(shape.sequence)), std::log2(footprint / l2_bytes)},
         *time_us,
         curve.estimate(shape, false).time_us});
  }
  return all;
}

SmoothGrid fitted(const std::vector<Measured>& points, const std::vector<std::size_t>& fold,
                  std::size_t left_out) {
  std::vector<std::vector<double>> at;
  std::vector<double> errors;
  for (std::size_t index = 0; index < points.size(); ++index) {
    if (fold[index] == left_out) continue;
    at.push_back(points[index].at);
    errors.push_back(std::log(points[index].time_us / points[index].prior_us));
  }
  SmoothGrid grid({sequence_knots, footprint_knots});
  grid.fit(at, errors, stiffness);
  return grid;
}

std::vector<HeldOut> held_out(const std::vector<Measured>& points) {
  const std::vector<std::size_t> fold = folds(points.size(), fold_count, fold_seed);
  std::vector<HeldOut> result(points.size());
  for (std::size_t each = 0; each < fold_count; ++each) {
    const SmoothGrid grid = fitted(points, fold, each);
    for (std::size_t index = 0; index < points.size(); ++index) {
      if (fold[index] != each) continue;
      const double predicted = points[index].prior_us * std::exp(grid.evaluate(points[index].at));
      result[index] = {points[index].time_us, predicted, predicted};
    }
  }
  return result;
}

ordered_json valid_range(const std::vector<Measured>& points) {
  std::int64_t shortest = points.front().shape.sequence, sequence = 1, heads = 1, kv_heads = 1;
  for (const Measured& point : points) {
    shortest = std::min(shortest, point.shape.sequence);
    sequence = std::max(sequence, point.shape.sequence);
    heads = std::max(heads, point.shape.batch * point.shape.heads);
    kv_heads = std::max(kv_heads, point.shape.kv_heads);
  }
  return {
      {"sequence", {shortest, sequence}}, {"batch_heads", {1, heads}}, {"kv_heads", {1, kv_heads}}};
}

std::optional<ordered_json> corrected(const std::vector<Point>& points, const ordered_json& prior,
                                      const std::string& source, const char* cache) {
  ordered_json curve = prior;
  const std::vector<Measured> own = read_points(points, curve);
  if (own.size() < fewest_attention_points) return std::nullopt;
  const SmoothGrid grid = fitted(own, std::vector<std::size_t>(own.size(), 0), fold_count);
  std::vector<double> values;
  for (const double value : grid.values()) values.push_back(significant(value, 6));
  curve["corrections"].push_back({{"x", "log2_sequence"},
                                  {"y", "log2_footprint"},
                                  {"x_knots", sequence_knots},
                                  {"y_knots", footprint_knots},
                                  {"values", values}});
  curve["valid"] = valid_range(own);
  curve["residual"] = residual_figures(
      held_out(own), "time_us", fmt::format("{} seeded folds of the measured shapes", fold_count));
  curve["origin"] = "measured";
  curve["note"] = fmt::format(
      "cuDNN's forward, corrected to {} measured shapes in log time; the tiles are those of the "
      "prior, {} its cost of a cache, which cuDNN does not write: {}. Backward = 2.5 x forward by "
      "FLOPs (assumed).",
      own.size(), cache, prior.at("source").get<std::string>());
  curve["source"] = source;
  return curve;
}

}  // namespace

std::optional<ordered_json> fit_attention(const std::vector<Point>& points,
                                          const ordered_json& prior, std::int64_t sms,
                                          const std::string& source) {
  ordered_json as_is = prior;
  if (sms > 0) as_is["physics"]["sms"] = sms;
  // The prior's cost of the cache stands for other things too: it goes where shapes that were left
  // out are clearly predicted better for it.
  std::optional<ordered_json> with = corrected(points, as_is, source, "with");
  std::optional<ordered_json> without = corrected(points, without_cache(as_is), source, "without");
  const auto error = [](const ordered_json& curve) {
    return curve.at("residual").at("p90_abs").get<double>();
  };
  constexpr double clearly = 0.9;
  if (with && without && error(*without) < clearly * error(*with)) return without;
  return with;
}

}  // namespace moesim::kernels::measure
