#include "sim/cluster/measured_exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "sim/cluster/measured_dispatch.hpp"

namespace moesim::cluster {
namespace {

struct Point {
  double x = 0, y = 0;
};

double straight(double x, Point left, Point right) {
  return left.y + (right.y - left.y) * (x - left.x) / (right.x - left.x);
}

// The power law, which is straight in logarithms.
double curved(double x, Point left, Point right) {
  return left.y * std::pow(right.y / left.y, std::log(x / left.x) / std::log(right.x / left.x));
}

std::vector<double> read_times(const Node& node, const std::string& key, std::size_t sizes) {
  std::vector<double> times = node.numbers(key);
  if (times.size() != sizes) {
    node.fail(fmt::format("{} times of {} sizes", times.size(), sizes), key);
  }
  for (const double time : times) {
    if (!(std::isfinite(time) && time > 0)) {
      node.fail(fmt::format("{} us: a time is above 0", time), key);
    }
  }
  return times;
}

void read_curve(const Node& node, MeasuredExchange& exchange) {
  exchange.bytes = node.numbers("bytes");
  const std::vector<double>& bytes = exchange.bytes;
  if (bytes.size() < 2) node.fail("a curve has at least two sizes", "bytes");
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    if (!(std::isfinite(bytes[size]) && bytes[size] > (size == 0 ? 0 : bytes[size - 1]))) {
      node.fail(fmt::format("{} bytes: sizes are above 0 and ascend", bytes[size]), "bytes");
    }
  }
  exchange.time_us = read_times(node, "time_us", bytes.size());
  if (node.has("time_us_p05") != node.has("time_us_p95")) {
    node.fail("give both time_us_p05 and time_us_p95, or neither");
  }
  if (!node.has("time_us_p05")) return;
  exchange.p05_us = read_times(node, "time_us_p05", bytes.size());
  exchange.p95_us = read_times(node, "time_us_p95", bytes.size());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const double time_us = exchange.time_us[size];
    if (exchange.p05_us[size] > time_us || exchange.p95_us[size] < time_us) {
      node.fail(
          fmt::format("{} bytes: time_us_p05 and time_us_p95 must enclose time_us", bytes[size]));
    }
  }
}

MeasuredExchange read_exchange(const Node& node, int gpus_per_node, int nodes) {
  MeasuredExchange exchange;
  exchange.operation =
      value_in(measured_operation_names, node.text("op"), node.file() + ": " + node.path() + "/op");
  exchange.nodes = node.count("nodes");
  exchange.gpus = node.count("gpus");
  check_measured_place(node, exchange.nodes, exchange.gpus, gpus_per_node, nodes);
  exchange.library = node.text_or("library", "");
  exchange.origin = node.text("origin");
  read_curve(node, exchange);
  return exchange;
}

}  // namespace

MeasuredExchange::Time MeasuredExchange::at(double size_bytes) const {
  const bool spread = !p05_us.empty();
  const std::size_t last = bytes.size() - 1;
  const auto known = [&](std::size_t at, double factor, double beyond) {
    const double time = time_us[at] * factor;
    return Time{time,
                spread ? p05_us[at] * factor : time,
                spread ? p95_us[at] * factor : time,
                beyond,
                time,
                0};
  };
  if (size_bytes <= bytes.front()) {
    return known(0, 1, size_bytes > 0 ? bytes.front() / size_bytes : 1);
  }
  if (size_bytes >= bytes.back()) {
    // The last piece says what a further byte takes, within what noise of its two times may not
    // undo: no more than a byte of the whole transfer, nor less than half of that.
    const double whole = time_us[last] / bytes[last];
    const double piece = (time_us[last] - time_us[last - 1]) / (bytes[last] - bytes[last - 1]);
    const double slope = std::clamp(piece, whole / 2, whole);
    const double time = time_us[last] + slope * (size_bytes - bytes[last]);
    return known(last, time / time_us[last], size_bytes / bytes[last]);
  }
  const auto above = std::upper_bound(bytes.begin(), bytes.end(), size_bytes);
  const auto right = static_cast<std::size_t>(above - bytes.begin());
  const std::size_t left = right - 1;
  const auto value = [&](const std::vector<double>& times) {
    return straight(size_bytes, {bytes[left], times[left]}, {bytes[right], times[right]});
  };
  const double time = value(time_us);
  return {time,
          spread ? value(p05_us) : time,
          spread ? value(p95_us) : time,
          1,
          curved(size_bytes, {bytes[left], time_us[left]}, {bytes[right], time_us[right]}),
          std::log2(std::min(size_bytes / bytes[left], bytes[right] / size_bytes))};
}

std::vector<MeasuredExchange> read_measured_exchanges(const Node& cluster, int gpus_per_node,
                                                      int nodes) {
  std::vector<MeasuredExchange> exchanges;
  if (!cluster.has("exchanges")) return exchanges;
  for (const Node& node : cluster.items("exchanges")) {
    MeasuredExchange exchange = read_exchange(node, gpus_per_node, nodes);
    for (const MeasuredExchange& earlier : exchanges) {
      if (earlier.operation == exchange.operation && earlier.nodes == exchange.nodes &&
          earlier.gpus == exchange.gpus && earlier.library == exchange.library) {
        node.fail(fmt::format("{} of {} GPUs on {} nodes with {} is there twice: keep one",
                              name_of(exchange.operation), exchange.gpus, exchange.nodes,
                              exchange.library.empty() ? "no library stated" : exchange.library));
      }
    }
    exchanges.push_back(std::move(exchange));
  }
  return exchanges;
}

}  // namespace moesim::cluster
