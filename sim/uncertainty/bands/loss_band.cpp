#include "sim/uncertainty/bands/loss_band.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "sim/base/numbers.hpp"
#include "sim/base/statistics.hpp"
#include "sim/uncertainty/statistics/student_t.hpp"

namespace moesim::uncertainty {
namespace {

constexpr double level = 0.9;

// The standard deviation of one draw, from at least two values.
double deviation_of(const std::vector<double>& values) {
  const double middle = mean(values);
  double squares = 0;
  for (const double value : values) squares += square(value - middle);
  return std::sqrt(squares / (static_cast<double>(values.size()) - 1));
}

// The value at `place`, counted from 1, between neighbours of the sorted values.
double at_place(const std::vector<double>& sorted, double place) {
  const double below = std::floor(place);
  const auto index = static_cast<std::size_t>(below) - 1;
  if (index + 1 == sorted.size()) return sorted.back();
  return sorted[index] + (place - below) * (sorted[index + 1] - sorted[index]);
}

void take_order_statistics(std::vector<double> losses, LossBand& band) {
  std::sort(losses.begin(), losses.end());
  const auto places = static_cast<double>(losses.size() + 1);
  band.p05 = at_place(losses, std::max(1.0, places * (1 - level) / 2));
  band.p95 = at_place(losses, std::min(places - 1, places * (1 + level) / 2));
}

void take_student_t(const std::vector<double>& losses, LossBand& band) {
  const auto count = static_cast<double>(losses.size());
  std::vector<double> angles;
  for (const double loss : losses)
    angles.push_back(std::asin(std::sqrt(std::clamp(loss, 0.0, 1.0))));
  const double reach =
      student_t_reach(count - 1, level) * deviation_of(angles) * std::sqrt(1 + 1 / count);
  const double middle = mean(angles);
  band.p05 = square(std::sin(std::max(0.0, middle - reach)));
  band.p95 = square(std::sin(std::min(std::numbers::pi / 2, middle + reach)));
}

}  // namespace

std::optional<LossBand> loss_band(std::span<const double> losses) {
  if (losses.size() < 2) return std::nullopt;
  const std::vector<double> values(losses.begin(), losses.end());
  LossBand band;
  band.steps = values.size();
  if (std::all_of(values.begin(), values.end(),
                  [&](double loss) { return loss == values.front(); })) {
    band.p05 = band.p95 = values.front();
    return band;
  }
  band.error = deviation_of(values) / std::sqrt(static_cast<double>(values.size()));
  if (values.size() < order_statistics_from) {
    take_student_t(values, band);
  } else {
    take_order_statistics(values, band);
  }
  return band;
}

LossBand widened(LossBand band, double loss, double below, double above) {
  band.p05 = std::max(0.0, loss - std::hypot(std::max(0.0, loss - band.p05), below));
  band.p95 = std::min(1.0, loss + std::hypot(std::max(0.0, band.p95 - loss), above));
  return band;
}

}  // namespace moesim::uncertainty
