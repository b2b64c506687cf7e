#include <algorithm>
#include <map>

#include "kernels/measure/fit/fit.hpp"
#include "kernels/measure/fit/residual_figures.hpp"
#include "kernels/measure/suites/overlap.hpp"
#include "sim/base/statistics.hpp"

namespace moesim::kernels::measure {
namespace {

using nlohmann::ordered_json;

// How many times longer a side takes beside the other, one figure per pair of shapes.
std::vector<double> slowdowns(const std::vector<Point>& points, const std::string& timed) {
  std::map<std::string, std::map<bool, double>> times;  // by pair, then by whether it was alone
  for (const Point& point : points) {
    const std::optional<double> time_us = point.time_us();
    if (point.op != "overlap" || point.synthetic || !time_us) continue;
    if (point.params.at("timed").get<std::string>() != timed) continue;
    Params pair = point.params;
    const bool alone = pair.at("beside").get<std::string>() == overlap_alone;
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
