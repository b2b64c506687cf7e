#include "sim/uncertainty/step_software.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "sim/base/contains.hpp"
#include "sim/base/formats/document.hpp"
#include "sim/base/formats/json_text.hpp"
#include "sim/uncertainty/assumed_deviations.hpp"
#include "sim/uncertainty/student_t.hpp"

namespace moesim::uncertainty {
namespace {

using training::Part;

constexpr const char* format = "moesim-training-software";

// "fixed-ms" is "fixed_ms" in the document.
std::string key_of(Unknown unknown) {
  std::string key = name_in(unknown_names, unknown);
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

// A document that prices the host says so by the name of its factor.
constexpr const char* priced_host_key = "host_times";

std::string key_of(Unknown unknown, bool prices_host) {
  return unknown == Unknown::host && prices_host ? priced_host_key : key_of(unknown);
}

// Factors on what the step consists of, and on all of it.
struct Factors {
  // `prices_host`: the host's factor is in the times already.
  Factors(const Unknowns& unknowns, bool prices_host)
      : level(std::exp(unknowns[at(Unknown::level)])),
        experts(std::exp(unknowns[at(Unknown::experts)])),
        exchange(std::exp(unknowns[at(Unknown::exchange)])),
        crossing(exchange * std::exp(unknowns[at(Unknown::nic)])),
        host(prices_host ? 1 : std::exp(unknowns[at(Unknown::host)])) {}
  double level, experts, exchange, crossing, host;

  double inside(const StepClasses& classes) const {
    return classes.compute + experts * classes.experts + exchange * classes.exchange +
           crossing * classes.crossing + host * classes.host;
  }
};

}  // namespace

double inside_ms(const StepClasses& classes, const Unknowns& unknowns) {
  return Factors(unknowns, classes.host_gain.has_value()).inside(classes);
}

double scaled_ms(const StepClasses& classes, const Unknowns& unknowns) {
  const double time = std::exp(unknowns[at(Unknown::level)]) * inside_ms(classes, unknowns);
  switch (classes.kind) {
    case RowKind::layer:
      return time * std::exp(unknowns[at(Unknown::layer_alone)]);
    case RowKind::exchange:
      return time * std::exp(unknowns[at(Unknown::exchange_alone)]);
    case RowKind::step:
      break;
  }
  return time + unknowns[at(Unknown::fixed_ms)];
}

Unknowns log_slopes(const StepClasses& classes, const Unknowns& unknowns) {
  const Factors factors(unknowns, classes.host_gain.has_value());
  const double inside = factors.inside(classes);
  const double total = scaled_ms(classes, unknowns);
  const bool is_step = classes.kind == RowKind::step;
  // The share of the whole that the factors act on.
  const double scaled = is_step ? factors.level * inside / total : 1;
  Unknowns slopes{};
  slopes[at(Unknown::level)] = scaled;
  slopes[at(Unknown::experts)] = scaled * factors.experts * classes.experts / inside;
  slopes[at(Unknown::nic)] = scaled * factors.crossing * classes.crossing / inside;
  slopes[at(Unknown::exchange)] =
      slopes[at(Unknown::nic)] + scaled * factors.exchange * classes.exchange / inside;
  slopes[at(Unknown::host)] =
      scaled * classes.host_gain.value_or(factors.host * classes.host) / inside;
  if (is_step) slopes[at(Unknown::fixed_ms)] = 1 / total;
  if (classes.kind == RowKind::layer) slopes[at(Unknown::layer_alone)] = 1;
  if (classes.kind == RowKind::exchange) slopes[at(Unknown::exchange_alone)] = 1;
  return slopes;
}

double variance_along(const Unknowns& weights, const Covariance& covariance) {
  double sum = 0;
  for (std::size_t row = 0; row < unknown_count; ++row) {
    for (std::size_t column = 0; column < unknown_count; ++column) {
      sum += weights[row] * weights[column] * covariance[row][column];
    }
  }
  return sum;
}

int StepSoftware::rows() const {
  int sum = 0;
  for (const Scatter& each : scatters) sum += each.rows;
  return sum;
}

double StepSoftware::host_factor() const {
  return prices_host ? std::exp(unknowns[at(Unknown::host)]) : 1;
}

double StepSoftware::host_reach() const {
  constexpr double least = 0.02;  // as near as the host is ever known
  return std::max(least, std::sqrt(covariance[at(Unknown::host)][at(Unknown::host)]));
}

void MeasuredExchanges::add(const ExchangeSize& size) {
  const auto widen = [&](double ExchangeSize::*part) {
    if (size.*part == 0) return;
    least.*part = least.*part == 0 ? size.*part : std::min(least.*part, size.*part);
    most.*part = std::max(most.*part, size.*part);
  };
  widen(&ExchangeSize::bytes);
  widen(&ExchangeSize::gpus);
  ++rows;
}

double MeasuredExchanges::times_beyond(const ExchangeSize& size) const {
  double times = 1;
  for (const auto part : {&ExchangeSize::bytes, &ExchangeSize::gpus}) {
    if (size.*part == 0 || least.*part == 0) continue;
    times = std::max({times, least.*part / (size.*part), size.*part / (most.*part)});
  }
  return times;
}

bool StepSoftware::has_exchanges(bool crosses) const {
  if (scatter(RowKind::exchange).rows == 0) return false;
  if (exchanges[0].rows + exchanges[1].rows > 0) return exchanges[crosses ? 1 : 0].rows > 0;
  return !crosses || covariance[at(Unknown::nic)][at(Unknown::nic)] > 0;
}

double StepSoftware::exchange_weight(bool crosses, const ExchangeSize& size) const {
  constexpr double near = 4;
  const double times = exchanges[crosses ? 1 : 0].times_beyond(size);
  return std::clamp(2 - std::log(times) / std::log(near), 0.0, 1.0);
}

StepSoftware::AloneFactor StepSoftware::exchange_factor(bool crosses, double level) const {
  StepClasses classes;
  classes.kind = RowKind::exchange;
  (crosses ? classes.crossing : classes.exchange) = 1;
  const Scatter& alone = scatter(RowKind::exchange);
  const double own = alone.deviation * alone.deviation;
  const double variance = variance_along(log_slopes(classes, unknowns), covariance) + own;
  // Only the scatter is estimated from few rows, and what the rows leave open partly: the degrees
  // of freedom grow as the scatter is less of the whole. Simulated rows: 86 to 94 % inside 90 %.
  const double degrees = alone.degrees * (variance / own);
  return {scaled_ms(classes, unknowns), student_t_reach(degrees, level) * std::sqrt(variance)};
}

training::TrainingStep StepSoftware::applied(const training::TrainingStep& step,
                                             const CrossingParts& crossing) const {
  training::TrainingStep scaled = step;
  const Factors factors(unknowns, prices_host);
  const auto scale = [&](training::PartTimes& parts) {
    for (const auto& part : training::part_names) {
      const auto place = at(part.value);
      double& us = parts[place];
      us *= factors.level;
      if (training::is_exchange(part.value))
        us *= crossing[place] ? factors.crossing : factors.exchange;
      if (part.value == Part::experts) us *= factors.experts;
      if (part.value != Part::host) continue;
      us *= factors.host;
      us += 1e3 * unknowns[at(Unknown::fixed_ms)];
    }
    return training::sum(parts);
  };
  scaled.step_us = scale(scaled.parts);
  if (step.balanced_step_us > 0) scaled.balanced_step_us = scale(scaled.balanced_parts);
  if (scaled.host_gain_us) *scaled.host_gain_us *= factors.level;
  const double speed = step.step_us / scaled.step_us;
  scaled.tokens_per_second_per_gpu *= speed;
  scaled.tflops_per_gpu *= speed;
  scaled.mfu *= speed;
  // Of the same job with other rows: longer by as much.
  scaled.shown_step_us /= speed;
  if (scaled.rank_capacity) {
    scaled.rank_capacity->static_step_us /= speed;
    scaled.rank_capacity->rerun_us /= speed;
    scaled.rank_capacity->capture_us /= speed;
  }
  return scaled;
}

double StepSoftware::least_us(double step_us, const CrossingParts& crossing) const {
  const Factors factors(unknowns, prices_host);
  double least = std::min({1.0, factors.experts, factors.exchange, factors.host});
  if (std::find(crossing.begin(), crossing.end(), true) != crossing.end()) {
    least = std::min(least, factors.crossing);
  }
  return factors.level * least * step_us + 1e3 * unknowns[at(Unknown::fixed_ms)];
}

std::vector<UnmeasuredTrait> StepSoftware::unmeasured(const std::vector<StepTrait>& traits) const {
  if (measured.most.empty()) return {};
  return unmeasured_traits({measured}, measured.machine, traits);
}

StepSoftware StepSoftware::on(const std::string& cluster) const {
  StepSoftware there = *this;
  if (clusters.empty() || contains(clusters, cluster)) return there;
  there.covariance[at(Unknown::exchange)][at(Unknown::exchange)] +=
      exchange_deviation * exchange_deviation;
  there.covariance[at(Unknown::nic)][at(Unknown::nic)] += crossing_deviation * crossing_deviation;
  return there;
}

Band StepSoftware::band(const StepClasses& predicted, const Subject& subject,
                        const std::string& precision, double new_model,
                        double new_precision) const {
  StepClasses classes = predicted;
  if (prices_host && !classes.host_gain) classes.host_gain = classes.host;
  double variance = variance_along(log_slopes(classes, unknowns), covariance);
  const bool known_model = contains(models, subject.model);
  if (!known_model) variance += new_model * new_model;
  if (!contains(precisions, precision)) variance += new_precision * new_precision;
  Band found;
  found.basis = known_model ? Basis::own : Basis::own_models;
  const Scatter& steps = scatter(RowKind::step);
  found.expected = {0, std::sqrt(variance), steps.deviation};
  found.held_out = static_cast<std::size_t>(rows());
  found.rows = rows();
  found.models = static_cast<int>(models.size());
  found.levels = symmetric_levels(steps.degrees, found.expected.deviation());
  return found;
}

void add_host_gain(const StepSoftware& software, const training::TrainingJob& job,
                   training::TrainingStep& step,
                   std::shared_ptr<const training::DrawnLoads> loads) {
  if (!software.prices_host || step.host_gain_us) return;
  step.host_gain_us = training::host_gain_us(job, software.host_reach(), std::move(loads));
}

namespace {

constexpr std::array exchange_keys = {"inside", "across"};

MeasuredExchanges read_exchanges(const Node& node) {
  MeasuredExchanges found;
  found.rows = node.count("rows");
  const auto range = [&](const char* key, double ExchangeSize::*part) {
    if (!node.has(key)) return;
    const std::vector<Node> ends = node.items(key);
    found.least.*part = ends[0].as_number();
    found.most.*part = ends[1].as_number();
    if (found.least.*part > found.most.*part) node.fail("from the least to the most", key);
  };
  range("bytes", &ExchangeSize::bytes);
  range("gpus", &ExchangeSize::gpus);
  return found;
}

nlohmann::ordered_json exchanges_json(const MeasuredExchanges& measured) {
  nlohmann::ordered_json kind;
  kind["rows"] = measured.rows;
  const auto range = [&](const char* key, double ExchangeSize::*part) {
    if (measured.least.*part > 0) kind[key] = {measured.least.*part, measured.most.*part};
  };
  range("bytes", &ExchangeSize::bytes);
  range("gpus", &ExchangeSize::gpus);
  return kind;
}

}  // namespace

StepSoftware StepSoftware::load(const std::string& path) {
  const Document document = Document::load(path);
  document.validate("training-software.schema");
  const Node root = document.root();
  StepSoftware software;
  software.name = root.text("name");
  software.source = root.text("source");
  software.machine = root.text("machine");
  software.software = root.text_or("software", "");
  software.models = root.texts("models");
  software.precisions = root.texts("precisions");
  if (root.has("clusters")) software.clusters = root.texts("clusters");
  software.profile = root.text_or("profile", "");
  software.measured.machine = software.machine;
  if (const auto traits = root.find("traits")) {
    for (const std::string& trait : traits->keys()) {
      software.measured.most[trait] = traits->positive(trait);
    }
  }
  if (const auto exchanges = root.find("exchanges")) {
    for (const bool crosses : {false, true}) {
      const auto kind = exchanges->find(exchange_keys[crosses ? 1 : 0]);
      if (kind) software.exchanges[crosses ? 1 : 0] = read_exchanges(*kind);
    }
  }
  const Node fitted = root.at("fitted");
  software.prices_host = fitted.has(priced_host_key);
  for (const auto& unknown : unknown_names) {
    const std::string key = key_of(unknown.value, software.prices_host);
    double& value = software.unknowns[at(unknown.value)];
    // Documents of steps alone have the first four.
    if (!fitted.has(key)) continue;
    value =
        unknown.value == Unknown::fixed_ms ? fitted.number(key) : std::log(fitted.positive(key));
  }
  const std::vector<Node> lines = root.items("covariance");
  for (std::size_t row = 0; row < std::min(lines.size(), unknown_count); ++row) {
    const std::vector<Node> cells = lines[row].items();
    if (cells.size() != lines.size()) root.fail("not a square matrix", "covariance");
    for (std::size_t column = 0; column < cells.size(); ++column) {
      software.covariance[row][column] = cells[column].as_number();
    }
    if (software.covariance[row][row] < 0) root.fail("a variance is negative", "covariance");
  }
  if (root.has("scatters")) {
    const Node scatters = root.at("scatters");
    for (const auto& kind : row_kind_names) {
      if (!scatters.has(kind.name)) continue;
      const Node each = scatters.at(kind.name);
      software.scatters[static_cast<std::size_t>(kind.value)] = {
          each.positive("deviation"), each.positive("degrees"),
          static_cast<int>(each.integer("rows"))};
    }
  } else {
    software.scatters[static_cast<std::size_t>(RowKind::step)] = {
        root.positive("scatter"), root.positive("degrees"), root.count("rows")};
  }
  if (const auto errors = root.find("leave_one_out")) {
    software.median_error = errors->number("median_error");
    software.worst_error = errors->number("worst_error");
  }
  return software;
}

std::string StepSoftware::text() const {
  nlohmann::ordered_json root;
  root["format"] = format;
  root["version"] = prices_host ? 3 : 2;
  root["name"] = name;
  root["source"] = source;
  root["machine"] = machine;
  if (!profile.empty()) root["profile"] = profile;
  if (!software.empty()) root["software"] = software;
  root["models"] = models;
  root["precisions"] = precisions;
  if (!clusters.empty()) root["clusters"] = clusters;
  if (!measured.most.empty()) root["traits"] = measured.most;
  root["rows"] = rows();
  for (const auto& unknown : unknown_names) {
    const double value = unknowns[at(unknown.value)];
    root["fitted"][key_of(unknown.value, prices_host)] =
        unknown.value == Unknown::fixed_ms ? value : std::exp(value);
  }
  root["covariance"] = covariance;
  for (const auto& kind : row_kind_names) {
    const Scatter& each = scatter(kind.value);
    root["scatters"][kind.name] = {
        {"rows", each.rows}, {"deviation", each.deviation}, {"degrees", each.degrees}};
  }
  for (std::size_t kind = 0; kind < exchanges.size(); ++kind) {
    if (exchanges[kind].rows == 0) continue;
    root["exchanges"][exchange_keys[kind]] = exchanges_json(exchanges[kind]);
  }
  if (median_error && worst_error) {
    root["leave_one_out"] = {{"median_error", *median_error}, {"worst_error", *worst_error}};
  }
  return json_text(root, 1) + "\n";
}

}  // namespace moesim::uncertainty
