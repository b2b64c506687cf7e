#include "tools/moesim/bands/unmeasured_pair.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "sim/base/contains.hpp"
#include "sim/base/numbers.hpp"
#include "sim/report/formats.hpp"
#include "sim/uncertainty/ratios/hidden_ratio.hpp"
#include "tools/moesim/bands/train_band.hpp"
#include "tools/moesim/rows/named_cells.hpp"

namespace moesim::tool {
namespace {

// The variance by the traits of `one` that `other` has not.
double variance_alone(const UnmeasuredOfRow& one, const UnmeasuredOfRow& other) {
  const auto shared = static_cast<std::size_t>(
      std::count_if(one.texts.begin(), one.texts.end(),
                    [&](const std::string& text) { return contains(other.texts, text); }));
  if (shared == one.texts.size()) return 0;
  if (shared == 0 || one.deviations.size() != one.texts.size()) return square(one.deviation);
  double variance = 0;
  for (std::size_t trait = 0; trait < one.texts.size(); ++trait) {
    if (!contains(other.texts, one.texts[trait])) variance += square(one.deviations[trait]);
  }
  return variance;
}

// Whether ZeRO is among the traits that no measured step has.
bool names_zero(const std::vector<std::string>& texts) {
  return std::any_of(texts.begin(), texts.end(),
                     [](const std::string& text) { return text.starts_with("ZeRO "); });
}

}  // namespace

UnmeasuredOfRow unmeasured_of(const uncertainty::Band& band) {
  UnmeasuredOfRow found{
      texts_of(band), study::published_errors().deviation_of(band.unmeasured), {}};
  found.hidden = uncertainty::hidden_gain(band.unmeasured);
  for (const uncertainty::UnmeasuredTrait& each : band.unmeasured) {
    found.deviations.push_back(study::published_errors().deviation_of({each}));
  }
  return found;
}

UnmeasuredOfRow unmeasured_of(
    const std::function<std::string(const std::string& column)>& text_in) {
  const auto number = [](const std::string& text) { return std::strtod(text.c_str(), nullptr); };
  UnmeasuredOfRow found{
      listed(text_in(not_measured_column)), number(text_in(unmeasured_column)), {}};
  for (const std::string& each : listed(text_in(unmeasured_each_column))) {
    found.deviations.push_back(number(each));
  }
  const double hidden_ms = number(text_in(hidden_column));
  if (hidden_ms > 0) {
    found.hidden = std::max(0.0, std::log(number(text_in("step_ms")) / hidden_ms));
  } else {
    found.tells_hidden = number(text_in("zero")) < 2 || !names_zero(found.texts);
  }
  return found;
}

double unmeasured_between(const UnmeasuredOfRow& one, const UnmeasuredOfRow& other) {
  return std::sqrt(variance_alone(one, other) + variance_alone(other, one));
}

void widen_by_hidden(const UnmeasuredOfRow& one, const UnmeasuredOfRow& other,
                     uncertainty::Band& ratio) {
  uncertainty::widen_by_hidden(one.tells_hidden ? one.hidden : other.hidden,
                               other.tells_hidden ? other.hidden : one.hidden, ratio);
}

std::string untold_hidden_text(const UnmeasuredOfRow& baseline) {
  if (baseline.tells_hidden) return "";
  return fmt::format(
      "; the baseline's row, of a former version, has no {}: what computing may hide of its "
      "exchanges is taken to be as much as of this step's: write it again",
      hidden_column);
}

std::vector<std::pair<std::string, Cell>> unmeasured_cells(const uncertainty::Band& band) {
  const UnmeasuredOfRow found = unmeasured_of(band);
  if (found.deviations.size() < 2) return {};
  std::vector<std::string> texts;
  for (const double deviation : found.deviations) texts.push_back(report::figure(deviation));
  return {{unmeasured_each_column, fmt::format("{}", fmt::join(texts, list_separator))}};
}

}  // namespace moesim::tool
