#include "kernels/measure/points/point.hpp"

#include <fmt/format.h>

#include "sim/base/enum_names.hpp"
#include "sim/base/error.hpp"

namespace moesim::kernels::measure {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr double event_limit_us = 20;  // below, events resolve less than 2.5 %
constexpr EnumNames<Quality, 4> quality_names{{{Quality::good, "good"},
                                               {Quality::unsettled, "unsettled"},
                                               {Quality::throttled, "throttled"},
                                               {Quality::unstable, "unstable"}}};

std::string key_of(const std::string& op, const Params& params) {
  return op + " " + json(params).dump();  // json sorts the keys
}

// Seven digits: a hundredth of a nanosecond in 100 us, and documents half the size.
double rounded(double value) { return std::stod(fmt::format("{:.7g}", value)); }

ordered_json as_json(const Figures& figures, bool samples) {
  const Summary& summary = figures.summary;
  ordered_json out = {{"n", summary.n},
                      {"median", rounded(summary.median)},
                      {"ci95", nullptr},
                      {"mad", rounded(summary.mad)},
                      {"p05", rounded(summary.p05)},
                      {"p95", rounded(summary.p95)},
                      {"least", rounded(summary.least)},
                      {"outliers", summary.outliers},
                      {"dropped", figures.dropped},
                      {"calls", figures.calls},
                      {"stop", name_in(stop_names, figures.stop)}};
  if (summary.ci95) out["ci95"] = rounded(*summary.ci95);
  if (samples) {
    ordered_json list = ordered_json::array();
    for (const double sample : figures.samples) list.push_back(rounded(sample));
    out["samples"] = list;
  }
  return out;
}

ordered_json as_json(const Point& point, bool samples) {
  ordered_json out = {{"op", point.op},          {"suite", point.suite},
                      {"params", point.params},  {"timer", point.timer},
                      {"cold", nullptr},         {"hot", nullptr},
                      {"clock", nullptr},        {"quality", name_of(point.quality)},
                      {"verify", point.verify},  {"synthetic", point.synthetic},
                      {"provenance", "measured"}};
  if (point.cold) out["cold"] = as_json(*point.cold, samples);
  if (point.hot) out["hot"] = as_json(*point.hot, samples);
  if (point.skew) {
    out["skew"] = {{"least", rounded(point.skew->least)}, {"median", rounded(point.skew->median)}};
  }
  if (point.activity) {
    const Activity& activity = *point.activity;
    out["activity"] = {{"launches", activity.launches},
                       {"busy", rounded(activity.busy_us)},
                       {"sum", rounded(activity.sum_us)},
                       {"span", rounded(activity.span_us)}};
  }
  if (!point.activity_trouble.empty()) out["activity_trouble"] = point.activity_trouble;
  if (!point.details.empty()) out["details"] = point.details;
  if (point.clock_mhz > 0) out["clock"] = {{"sm_mhz", rounded(point.clock_mhz)}};
  return out;
}

Figures read_figures(const json& from) {
  Figures figures;
  figures.samples = from.at("samples").get<std::vector<double>>();
  Summary& summary = figures.summary;
  summary.n = from.at("n");
  summary.median = from.at("median");
  if (!from.at("ci95").is_null()) summary.ci95 = from.at("ci95").get<double>();
  summary.mad = from.at("mad");
  summary.p05 = from.at("p05");
  summary.p95 = from.at("p95");
  summary.least = from.at("least");
  summary.outliers = from.at("outliers");
  figures.dropped = from.at("dropped");
  figures.calls = from.at("calls");
  figures.stop = value_in(stop_names, from.at("stop").get<std::string>(), "stop");
  return figures;
}

}  // namespace

const char* name_of(Quality quality) { return name_in(quality_names, quality); }

std::string PointSpec::key() const { return key_of(op, params); }
std::string Point::key() const { return key_of(op, params); }

std::string PointSpec::label() const {
  std::string text = op;
  for (const auto& [name, value] : params.items()) {
    text +=
        fmt::format(" {}={}", name, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return text;
}

std::optional<double> Point::time_us() const {
  if (!valid()) return std::nullopt;
  if (!cold) return hot ? std::optional(hot->summary.median) : std::nullopt;
  if (hot && cold->summary.median < event_limit_us) return hot->summary.median;
  return cold->summary.median;
}

ordered_json to_json(const Point& point) { return as_json(point, false); }
ordered_json to_raw_json(const Point& point) { return as_json(point, true); }

Point point_from_json(const json& from, const std::string& where) {
  try {
    Point point;
    point.op = from.at("op");
    point.suite = from.at("suite");
    point.params = ordered_json::parse(from.at("params").dump());
    point.timer = from.at("timer");
    if (!from.at("cold").is_null()) point.cold = read_figures(from.at("cold"));
    if (!from.at("hot").is_null()) point.hot = read_figures(from.at("hot"));
    if (from.contains("skew")) {
      point.skew = Skew{from.at("skew").at("least"), from.at("skew").at("median")};
    }
    if (from.contains("activity")) {
      const json& activity = from.at("activity");
      point.activity = Activity{activity.at("launches"), activity.at("busy"), activity.at("sum"),
                                activity.at("span")};
    }
    point.activity_trouble = from.value("activity_trouble", std::string());
    if (from.contains("details")) point.details = Params::parse(from.at("details").dump());
    if (!from.at("clock").is_null()) point.clock_mhz = from.at("clock").at("sm_mhz");
    point.quality = value_in(quality_names, from.at("quality").get<std::string>(), where);
    point.verify = from.at("verify");
    point.synthetic = from.at("synthetic");
    return point;
  } catch (const json::exception& error) {
    throw UsageError(
        fmt::format("{}: not a point that moesim profile wrote: {}", where, error.what()));
  }
}

}  // namespace moesim::kernels::measure
