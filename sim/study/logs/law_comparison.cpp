#include "sim/study/logs/law_comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "sim/base/enum_names.hpp"
#include "sim/base/no_answer.hpp"
#include "sim/base/units.hpp"
#include "sim/network/exchange/exchange_query.hpp"
#include "sim/profile/collective.hpp"
#include "sim/study/logs/link_evidence.hpp"

namespace moesim::study {
namespace {

using cluster::Cluster;
using cluster::MeasuredExchange;

std::string size_text(double bytes) {
  if (bytes >= bytes_per_gib) return fmt::format("{:.3g} GiB", bytes / bytes_per_gib);
  return bytes >= bytes_per_mib ? fmt::format("{:.4g} MiB", bytes / bytes_per_mib)
                                : fmt::format("{:.0f} bytes", bytes);
}

bool is_same(const MeasuredExchange& one, const MeasuredExchange& other) {
  return one.operation == other.operation && one.nodes == other.nodes && one.gpus == other.gpus &&
         one.library == other.library && one.origin == other.origin && one.bytes == other.bytes &&
         one.time_us == other.time_us;
}

std::optional<LawComparison> compared(const MeasuredExchange& measured,
                                      const std::shared_ptr<const Cluster>& base,
                                      const std::shared_ptr<const profile::Profile>& profile) {
  const auto collective = find_in(profile::collective_names, name_of(measured.operation));
  if (!collective || (base->nodes > 0 && measured.nodes > base->nodes)) return std::nullopt;
  LawComparison found{measured, profile->name(), {}};
  network::ExchangeQuery query;
  query.collective = *collective;
  const int each = measured.gpus / measured.nodes;
  for (int rank = 0; rank < measured.gpus; ++rank) {
    query.members.push_back(rank / each * base->gpus_per_node + rank % each);
  }
  try {
    for (std::size_t at = 0; at < measured.bytes.size(); ++at) {
      query.bytes = measured.bytes[at];
      const profile::Estimate law = network::predict_exchange(query, profile, base).estimate;
      found.points.push_back({measured.bytes[at], measured.time_us[at], law.time_us,
                              law.time_us_p05, law.time_us_p95});
    }
  } catch (const NotMeasured&) {
    return std::nullopt;
  }
  return found;
}

}  // namespace

std::size_t LawComparison::inside() const {
  return static_cast<std::size_t>(std::count_if(
      points.begin(), points.end(), [](const Point& point) { return point.is_inside(); }));
}

std::string LawComparison::text() const {
  const auto first = std::find_if(points.begin(), points.end(),
                                  [](const Point& point) { return point.bytes >= bytes_per_mib; });
  const Point& large = points.back();
  const Point& small = first == points.end() ? large : *first;
  std::string text = fmt::format(
      "{} ({}): the law of {} takes {:.2f} times the measured time at {}", described(measured),
      runs_of(measured), profile, small.law_us / small.measured_us, size_text(small.bytes));
  if (small.bytes < large.bytes) {
    text += fmt::format(", {:.2f} times at {}", large.law_us / large.measured_us,
                        size_text(large.bytes));
  }
  return text + fmt::format("; {} of {} sizes are inside its band", inside(), points.size());
}

nlohmann::ordered_json LawComparison::json() const {
  auto list = nlohmann::ordered_json::array();
  for (const Point& point : points) {
    list.push_back({{"bytes", point.bytes},
                    {"measured_us", point.measured_us},
                    {"law_us", point.law_us},
                    {"law_us_p05", point.p05_us},
                    {"law_us_p95", point.p95_us},
                    {"law_over_measured", point.law_us / point.measured_us},
                    {"inside", point.is_inside()}});
  }
  return {{"op", name_of(measured.operation)},
          {"nodes", measured.nodes},
          {"gpus", measured.gpus},
          {"library", measured.library},
          {"origin", measured.origin},
          {"profile", profile},
          {"sizes", points.size()},
          {"inside", inside()},
          {"points", std::move(list)}};
}

std::vector<LawComparison> law_comparisons(const Cluster& base, const Cluster& imported,
                                           const std::shared_ptr<const profile::Profile>& profile) {
  std::vector<LawComparison> found;
  if (!profile) return found;
  const auto without = std::make_shared<Cluster>(base);
  without->exchanges.clear();
  for (const MeasuredExchange& measured : imported.exchanges) {
    const bool was_there =
        std::any_of(base.exchanges.begin(), base.exchanges.end(),
                    [&](const MeasuredExchange& old) { return is_same(old, measured); });
    if (was_there) continue;
    if (auto comparison = compared(measured, without, profile)) {
      found.push_back(std::move(*comparison));
    }
  }
  return found;
}

}  // namespace moesim::study
