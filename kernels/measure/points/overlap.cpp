#include "kernels/measure/points/overlap.hpp"

#include <algorithm>
#include <array>
#include <map>

#include "kernels/measure/points/residual_figures.hpp"
#include "kernels/measure/points/suite_points.hpp"
#include "sim/base/statistics.hpp"

namespace moesim::kernels::measure {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t copied_columns = 4096;  // of the copy that stands for an exchange
constexpr const char* nothing = "nothing";

// How many times longer a side takes beside the other, one figure per pair of shapes.
std::vector<double> slowdowns(const std::vector<Point>& points, const std::string& timed) {
  std::map<std::string, std::map<bool, double>> times;  // by pair, then by whether it was alone
  for (const Point& point : points) {
    const std::optional<double> time_us = point.time_us();
    if (point.op != "overlap" || point.synthetic || !time_us) continue;
    if (point.params.at("timed") != timed) continue;
    Params pair = point.params;
    const bool alone = pair.at("beside") == nothing;
    pair.erase("beside");
    times[pair.dump()][alone] = *time_us;
  }
  std::vector<double> factors;
  for (const auto& [pair, each] : times) {
    if (each.size() == 2) factors.push_back(each.at(false) / each.at(true));
  }
  return factors;
}

}  // namespace

OverlapParts overlap_parts(const PointSpec& spec) {
  const Params& params = spec.params;
  OverlapParts parts;
  parts.product = gemm_point(params.at("m"), params.at("n"), params.at("k"));
  const std::int64_t bytes = params.at("bytes");
  parts.exchange = params.at("exchange") == "all-to-all"
                       ? exchange_point("all-to-all", "equal", params.at("gpus"), bytes)
                       : memory_point("streaming", bytes / (2 * copied_columns), 1);
  parts.timed = params.at("timed");
  parts.beside = params.at("beside");
  if (parts.beside == nothing) parts.beside.clear();
  return parts;
}

std::vector<PointSpec> overlap_points(Ranks ranks) {
  struct Product {
    std::int64_t m, n, k;
  };
  // Experts' products of some hundred and some thousand rows.
  constexpr std::array products{Product{1024, 4096, 4096}, Product{4096, 14336, 4096}};
  const char* exchange = ranks.gpus > 1 ? "all-to-all" : "device-copy";
  std::vector<PointSpec> points;
  for (const Product& product : products) {
    for (const std::int64_t size : {std::int64_t{16} << 20, std::int64_t{128} << 20}) {
      const std::int64_t unit = std::int64_t{8192} * ranks.gpus;
      const std::int64_t bytes = size / unit * unit;
      for (const auto& [timed, other] :
           {std::pair{"gemm", "exchange"}, std::pair{"exchange", "gemm"}}) {
        for (const char* beside : {nothing, other}) {
          PointSpec spec;
          spec.op = "overlap";
          spec.params = {{"timed", timed},     {"beside", beside}, {"exchange", exchange},
                         {"gpus", ranks.gpus}, {"dtype", "bf16"},  {"m", product.m},
                         {"n", product.n},     {"k", product.k},   {"bytes", bytes}};
          const OverlapParts parts = overlap_parts(spec);
          spec.flops = parts.product.flops;
          spec.bytes = parts.product.bytes + parts.exchange.bytes;
          spec.sent_bytes = parts.exchange.sent_bytes;
          spec.held_bytes = parts.product.held_bytes + parts.exchange.held_bytes;
          spec.collective = ranks.gpus > 1;
          points.push_back(spec);
        }
      }
    }
  }
  return points;
}

std::optional<ordered_json> fit_overlap(const std::vector<Point>& points,
                                        const std::string& source) {
  const std::vector<double> compute = slowdowns(points, "gemm");
  const std::vector<double> exchange = slowdowns(points, "exchange");
  if (std::min(compute.size(), exchange.size()) < fewest_overlap_pairs) return std::nullopt;
  const auto figure = [](const std::vector<double>& factors) {
    const auto [least, most] = std::minmax_element(factors.begin(), factors.end());
    return ordered_json{{"slowdown", std::max(1.0, significant(median(factors), 4))},
                        {"range", {significant(*least, 4), significant(*most, 4)}},
                        {"pairs", factors.size()}};
  };
  return ordered_json{{"compute", figure(compute)},
                      {"exchange", figure(exchange)},
                      {"origin", "measured"},
                      {"source", source}};
}

}  // namespace moesim::kernels::measure
