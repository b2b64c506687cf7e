#include "sim/uncertainty/step_software.hpp"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "sim/base/document.hpp"
#include "sim/base/shipped.hpp"

namespace moesim::uncertainty {
namespace {

using training::Part;

constexpr const char* format = "moesim-training-software";

std::size_t at(Unknown unknown) { return static_cast<std::size_t>(unknown); }

bool is_exchange(Part part) {
  return part == Part::tensor || part == Part::context || part == Part::dispatch ||
         part == Part::combine || part == Part::gradients || part == Part::parameters;
}

bool holds(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

StepClasses classes_of(const training::TrainingStep& step) {
  StepClasses classes;
  for (const auto& part : training::part_names) {
    const double ms = step.parts[static_cast<std::size_t>(part.value)] / 1e3;
    if (part.value == Part::host) {
      classes.host += ms;
    } else if (is_exchange(part.value)) {
      classes.exchange += ms;
    } else {
      classes.compute += ms;
    }
  }
  return classes;
}

double scaled_ms(const StepClasses& classes, const Unknowns& unknowns) {
  return std::exp(unknowns[at(Unknown::level)]) *
             (classes.compute + std::exp(unknowns[at(Unknown::exchange)]) * classes.exchange +
              std::exp(unknowns[at(Unknown::host)]) * classes.host) +
         unknowns[at(Unknown::fixed_ms)];
}

Unknowns log_slopes(const StepClasses& classes, const Unknowns& unknowns) {
  const double total = scaled_ms(classes, unknowns);
  const double level = std::exp(unknowns[at(Unknown::level)]);
  Unknowns slopes{};
  slopes[at(Unknown::level)] = (total - unknowns[at(Unknown::fixed_ms)]) / total;
  slopes[at(Unknown::exchange)] =
      level * std::exp(unknowns[at(Unknown::exchange)]) * classes.exchange / total;
  slopes[at(Unknown::host)] = level * std::exp(unknowns[at(Unknown::host)]) * classes.host / total;
  slopes[at(Unknown::fixed_ms)] = 1 / total;
  return slopes;
}

training::TrainingStep StepSoftware::applied(const training::TrainingStep& step) const {
  training::TrainingStep scaled = step;
  const double level = std::exp(unknowns[at(Unknown::level)]);
  for (const auto& part : training::part_names) {
    double& us = scaled.parts[static_cast<std::size_t>(part.value)];
    us *= level;
    if (is_exchange(part.value)) us *= std::exp(unknowns[at(Unknown::exchange)]);
    if (part.value != Part::host) continue;
    us *= std::exp(unknowns[at(Unknown::host)]);
    us += 1e3 * unknowns[at(Unknown::fixed_ms)];
  }
  scaled.step_us = training::sum(scaled.parts);
  const double speed = step.step_us / scaled.step_us;
  scaled.tokens_per_second_per_gpu *= speed;
  scaled.tflops_per_gpu *= speed;
  scaled.mfu *= speed;
  // Of the same job with other rows: longer by as much.
  scaled.balanced_step_us /= speed;
  if (scaled.rank_capacity) {
    scaled.rank_capacity->static_step_us /= speed;
    scaled.rank_capacity->rerun_us /= speed;
    scaled.rank_capacity->capture_us /= speed;
  }
  return scaled;
}

Band StepSoftware::band(const StepClasses& classes, const Subject& subject,
                        const std::string& precision, double new_model,
                        double new_precision) const {
  const Unknowns slopes = log_slopes(classes, unknowns);
  double variance = 0;
  for (std::size_t row = 0; row < unknown_count; ++row) {
    for (std::size_t column = 0; column < unknown_count; ++column) {
      variance += slopes[row] * slopes[column] * covariance[row][column];
    }
  }
  const bool known_model = holds(models, subject.model);
  if (!known_model) variance += new_model * new_model;
  if (!holds(precisions, precision)) variance += new_precision * new_precision;
  Band found;
  found.basis = known_model ? Basis::own : Basis::own_models;
  found.expected = {0, std::sqrt(variance), scatter};
  found.held_out = static_cast<std::size_t>(rows);
  found.rows = rows;
  found.models = static_cast<int>(models.size());
  const boost::math::students_t distribution(degrees);
  for (const double level : usual_levels()) {
    const double half =
        boost::math::quantile(distribution, (1 + level) / 2) * found.expected.deviation();
    found.levels.push_back({level, {-half, half}});
  }
  return found;
}

StepSoftware StepSoftware::load(const std::string& path) {
  const Document document = Document::load(path);
  document.validate(Document::load(find_document("schema", "training-software.schema")));
  const Node root = document.root();
  StepSoftware software;
  software.name = root.text("name");
  software.source = root.text("source");
  software.machine = root.text("machine");
  software.software = root.text_or("software", "");
  software.models = root.texts("models");
  software.precisions = root.texts("precisions");
  software.rows = static_cast<int>(root.positive_integer("rows"));
  const Node fitted = root.at("fitted");
  software.unknowns = {std::log(fitted.positive("level")), std::log(fitted.positive("exchange")),
                       std::log(fitted.positive("host")), fitted.number("fixed_ms")};
  const std::vector<Node> lines = root.items("covariance");
  for (std::size_t row = 0; row < unknown_count; ++row) {
    const std::vector<Node> cells = lines[row].items();
    for (std::size_t column = 0; column < unknown_count; ++column) {
      software.covariance[row][column] = cells[column].as_number();
    }
    if (software.covariance[row][row] < 0) root.fail("a variance is negative", "covariance");
  }
  software.scatter = root.positive("scatter");
  software.degrees = root.positive("degrees");
  const Node errors = root.at("leave_one_out");
  software.median_error = errors.number("median_error");
  software.worst_error = errors.number("worst_error");
  return software;
}

std::string StepSoftware::text() const {
  nlohmann::ordered_json root;
  root["format"] = format;
  root["version"] = 1;
  root["name"] = name;
  root["source"] = source;
  root["machine"] = machine;
  if (!software.empty()) root["software"] = software;
  root["models"] = models;
  root["precisions"] = precisions;
  root["rows"] = rows;
  root["fitted"] = {{"level", std::exp(unknowns[at(Unknown::level)])},
                    {"exchange", std::exp(unknowns[at(Unknown::exchange)])},
                    {"host", std::exp(unknowns[at(Unknown::host)])},
                    {"fixed_ms", unknowns[at(Unknown::fixed_ms)]}};
  root["covariance"] = covariance;
  root["scatter"] = scatter;
  root["degrees"] = degrees;
  root["leave_one_out"] = {{"median_error", median_error}, {"worst_error", worst_error}};
  return root.dump(1) + "\n";
}

}  // namespace moesim::uncertainty
