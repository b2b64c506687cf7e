#include "tools/moesim/calibrate/calibrate_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "sim/base/statistics.hpp"
#include "sim/base/text.hpp"
#include "sim/report/formats.hpp"

namespace moesim::tool {

using uncertainty::MeasuredRow;
using uncertainty::StepFit;
using uncertainty::StepSoftware;
using uncertainty::Unknown;

namespace {

// Four digits, those of thousands all.
std::string milliseconds(double ms) { return ms < 1000 ? fmt::format("{:.4g}", ms) : grouped(ms); }

// "level 1.2, exchange 1.0 (taken) or level 1.0, exchange 1.3 fit alike: ..."; the unknowns in
// which they differ.
std::string fit_alike_text(const uncertainty::Unknowns& taken, const uncertainty::Unknowns& rival,
                           const char* what_tells) {
  constexpr double same = 0.02;  // of the logs of factors
  std::vector<std::string> ones;
  std::vector<std::string> others;
  for (const auto& unknown : uncertainty::unknown_names) {
    const auto place = static_cast<std::size_t>(unknown.value);
    const double one = taken[place], other = rival[place];
    if (unknown.value == Unknown::fixed_ms || std::abs(one - other) < same) continue;
    ones.push_back(fmt::format("{} {:.2f}", unknown.name, std::exp(one)));
    others.push_back(fmt::format("{} {:.2f}", unknown.name, std::exp(other)));
  }
  return fmt::format("{} (taken) or {} fit alike: {}\n", fmt::join(ones, ", "),
                     fmt::join(others, ", "), what_tells);
}

// The line of a row; where there are several files, with the name of its file.
std::string line_name(const std::vector<CalibrationRow>& rows, std::size_t row) {
  std::string line = fmt::format("{}", rows[row].line);
  if (rows.front().file == rows.back().file) return line;
  return fmt::format("{}:{}", std::filesystem::path(rows[row].file).filename().string(), line);
}

}  // namespace

bool is_step(const CalibrationRow& row) {
  return row.step.predicted.kind == uncertainty::RowKind::step;
}

std::string rows_table(const std::vector<CalibrationRow>& rows,
                       const std::vector<double>& calibrated_ms,
                       const std::vector<double>& left_out) {
  const auto percent = [](double log) {
    return fmt::format("{:+.1f} %", 100 * (std::exp(-log) - 1));
  };
  std::vector<std::vector<std::string>> lines = {
      {"line", "measured ms", "predicted", "calibrated", "off", "off, row left out", ""}};
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const MeasuredRow& step = rows[row].step;
    const double calibrated = calibrated_ms[row];
    std::vector<std::string> what;
    if (!is_step(rows[row])) what.push_back(rows[row].op);
    if (!rows[row].options.empty()) what.push_back(rows[row].options);
    if (rows[row].repeats > 1) what.push_back(fmt::format("mean of {} rows", rows[row].repeats));
    lines.push_back({line_name(rows, row), milliseconds(step.measured_ms),
                     milliseconds(step.predicted.total()), milliseconds(calibrated),
                     percent(std::log(step.measured_ms / calibrated)),
                     left_out.empty() ? "-" : percent(left_out[row]),
                     fmt::format("{}", fmt::join(what, ", "))});
  }
  return report::align(lines, {true, true, true, true, true, true, false});
}

std::string fit_table(const StepFit& fit, const std::vector<Unknown>& free,
                      const uncertainty::SoftwarePrior& prior) {
  std::vector<std::vector<std::string>> lines = {{"fitted", "value", "68 %", "before", ""}};
  for (const auto& unknown : uncertainty::unknown_names) {
    const auto place = static_cast<std::size_t>(unknown.value);
    if (prior.deviation[place] == 0) continue;  // not in question
    const double value = fit.unknowns[place];
    // Where exchanges across are known as a whole, nic is that over those inside.
    const bool is_apart = prior.crossing_apart && unknown.value == Unknown::nic;
    const double before =
        std::hypot(prior.deviation[place],
                   is_apart ? prior.deviation[static_cast<std::size_t>(Unknown::exchange)] : 0);
    const double deviation = std::sqrt(fit.covariance[place][place]);
    const auto shown = [&](double each) {
      return unknown.value == Unknown::fixed_ms ? fmt::format("{:.1f}", std::max(each, 0.0))
                                                : fmt::format("{:.3f}", std::exp(each));
    };
    const bool is_free = std::find(free.begin(), free.end(), unknown.value) != free.end();
    lines.push_back(
        {unknown.name, shown(value),
         fmt::format("{} to {}", shown(value - deviation), shown(value + deviation)),
         fmt::format("{} ({} to {})", shown(prior.mean[place]), shown(prior.mean[place] - before),
                     shown(prior.mean[place] + before)),
         std::string(unknown.meaning) + (is_free ? "" : "; not fitted")});
  }
  return report::align(lines, {false, true, true, true, false});
}

std::string decided_text(const std::vector<CalibrationRow>& rows, double effective,
                         std::size_t parameters) {
  return fmt::format(
      "{} decide{} {:.1f} of {} parameter{}, published steps and assumptions the "
      "rest\n",
      counted_rows(rows), rows.size() == 1 && rows.front().repeats == 1 ? "s" : "", effective,
      parameters, parameters == 1 ? "" : "s");
}

std::string rival_text(const StepFit& fit) {
  if (fit.rival) {
    return fit_alike_text(fit.unknowns, *fit.rival,
                          "a step that waits more for the host (more tensor parallelism) or not at "
                          "all (a larger micro-batch) would tell, or --launch-us from a trace of "
                          "the framework");
  }
  if (!fit.exchange_rival) return "";
  return fit_alike_text(fit.unknowns, *fit.exchange_rival,
                        "a step that exchanges far less (less expert and tensor parallelism) would "
                        "tell, or nccl-tests of these nodes (moesim import)");
}

std::string errors_text(const std::vector<CalibrationRow>& rows, const StepFit& fit,
                        const std::vector<double>& left_out,
                        const uncertainty::SoftwarePrior& prior) {
  std::string text;
  const bool only_steps = std::all_of(rows.begin(), rows.end(), is_step);
  const bool is_repeated = std::any_of(rows.begin(), rows.end(),
                                       [](const CalibrationRow& row) { return row.repeats > 1; });
  const char* any_row = is_repeated ? "configuration" : "row";
  for (const auto& kind : uncertainty::row_kind_names) {
    if (fit.scatter(kind.value).rows == 0) continue;
    std::vector<double> errors;
    std::string worst;
    for (std::size_t row = 0; row < left_out.size(); ++row) {
      if (rows[row].step.predicted.kind != kind.value) continue;
      const double error = std::abs(std::exp(-left_out[row]) - 1);
      if (errors.empty() || error > *std::max_element(errors.begin(), errors.end())) {
        worst = line_name(rows, row);
      }
      errors.push_back(error);
    }
    text += errors.empty()
                ? fmt::format("one {}, which no other predicts", only_steps ? any_row : kind.name)
                : fmt::format(
                      "each {} left out: {:.1f} % off in the median, {:.1f} % at worst "
                      "(line {}; others unlike all rows may be as far off)",
                      only_steps ? any_row : kind.name, 100 * median(errors),
                      100 * *std::max_element(errors.begin(), errors.end()), worst);
    text +=
        fmt::format("; scatter {:.1f} % (before: {:.1f} %, as if from {:.0f} rows)\n",
                    100 * fit.scatter(kind.value).deviation,
                    100 * prior.scatter[static_cast<std::size_t>(kind.value)], prior.scatter_rows);
  }
  return text;
}

std::string nic_text(const StepSoftware& software) {
  const bool inside = software.has_exchanges(false);
  const bool across = software.has_exchanges(true);
  std::string text;
  if (across) {
    const auto nics = software.exchange_factor(true, 0.68);
    text = fmt::format(
        "exchanges through NICs take {:.3f} times their prediction: NICs carry {:.0f} % of what "
        "they were expected to\n",
        nics.factor, 100 / nics.factor);
  }
  if (inside != across) {
    text += fmt::format("no row is an exchange {}: predict does not scale these\n",
                        inside ? "between domains" : "inside a domain");
  }
  return text;
}

}  // namespace moesim::tool
