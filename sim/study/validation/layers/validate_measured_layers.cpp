#include "sim/study/validation/layers/validate_measured_layers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/base/formats/document.hpp"
#include "sim/base/statistics.hpp"
#include "sim/scenario/options.hpp"
#include "sim/step/kernels/layer_stages.hpp"

namespace moesim::study {
namespace {

constexpr double median_bar = 0.03;
constexpr double worst_bar = 0.08;

scenario::Scenario scenario_of(const Node& root, const Node& params, const std::string& profile,
                               scenario::DocumentCache& documents) {
  const std::string gpus = std::to_string(root.integer("gpus"));
  return scenario::resolve({{"profile", profile},
                            {"model", root.text("model")},
                            {"gpus", gpus},
                            {"expert-parallel", gpus},
                            {"experts", std::to_string(params.integer("experts"))},
                            {"router", params.text("router")},
                            {"capacity-factor", params.text("capacity_factor")},
                            {"dispatch", params.text("dispatch")},
                            {"sequence-length", std::to_string(params.integer("tokens"))},
                            {"micro-batch", "1"}},
                           documents);
}

// The model gives the prediction its sizes: it must be the one that was measured.
void check_sizes(const Node& params, const scenario::Scenario& scenario) {
  const auto same = [&](const char* key, std::int64_t of_model) {
    if (params.integer(key) == of_model) return;
    params.fail(fmt::format("the model {} has {}", scenario.model_name, of_model), key);
  };
  same("hidden", scenario.model->hidden);
  same("ffn", scenario.model->moe->expert_ffn);
}

step::PaddedLayerRows rows_of(const Node& details, const scenario::Scenario& scenario) {
  step::PaddedLayerRows rows{details.positive_integer("capacity"), details.integer("ir_rows"), 0};
  const auto all = static_cast<double>(scenario.experts * rows.capacity);
  rows.padding_share = 1 - static_cast<double>(details.integer("kept_rows")) / all;
  return rows;
}

// The part rows of one layer; its prediction, microseconds.
double add_stages(const Node& details, const std::vector<step::LayerStage>& stages,
                  const std::string& subject, Validation& validation) {
  for (const step::LayerStage& stage : stages) {
    ValidationRow row{"measured layer",
                      fmt::format("{}: {}", subject, stage.name),
                      "part",
                      "us",
                      std::nullopt,
                      stage.estimate.time_us,
                      std::nullopt,
                      std::nullopt,
                      describe(stage.estimate)};
    for (const Node& measured : details.items("stages")) {
      if (measured.text("name") != stage.name) continue;
      row.measured = measured.number("time_us");
      if (*row.measured > 0) row.error = row.predicted / *row.measured - 1;
    }
    validation.rows.push_back(std::move(row));
  }
  return step::total_us(stages);
}

// The error of one measured layer; nothing if it does not count.
std::optional<double> add_point(const Node& root, const Node& point, const std::string& profile,
                                scenario::DocumentCache& documents, Validation& validation) {
  const Node params = point.at("params");
  const std::string subject =
      fmt::format("{}, CF {}, {}, {}", params.text("router"), params.text("capacity_factor"),
                  params.text("dispatch"), params.text("pass"));
  const bool synthetic = point.boolean("synthetic");
  if (point.text("verify") != "passed" || synthetic || !point.has("cold")) {
    validation.rows.push_back({"measured layer", subject, "excluded", "ms", std::nullopt, 0,
                               std::nullopt, std::nullopt,
                               synthetic ? "ranks shared a GPU" : point.text("verify")});
    return std::nullopt;
  }
  const scenario::Scenario scenario = scenario_of(root, params, profile, documents);
  check_sizes(params, scenario);
  const Node details = point.at("details");
  const step::Pass pass =
      params.text("pass") == "forward" ? step::Pass::forward : step::Pass::backward;
  const double predicted =
      add_stages(details, step::padded_layer_stages(scenario, pass, rows_of(details, scenario)),
                 subject, validation);
  const double measured = point.at("cold").positive("median");
  const double error = predicted / measured - 1;
  const std::string quality = point.text("quality");
  validation.rows.push_back({"measured layer", subject, "check", "ms", measured * 1e-3,
                             predicted * 1e-3, error, std::nullopt,
                             quality == "good" ? "" : quality});
  return error;
}

}  // namespace

Validation validate_measured_layers(const std::string& measured, const std::string& profile,
                                    scenario::DocumentCache& documents) {
  const Document document = Document::load(measured);
  document.validate("measured-layer.schema");
  const Node root = document.root();
  const std::string device = documents.profile(profile)->device().name;
  if (root.text("device") != device) {
    root.fail(fmt::format("measured on {}, but --profile {} is of {}: give the profile of the same "
                          "machine",
                          root.text("device"), profile, device),
              "device");
  }
  Validation validation{
      fmt::format("MoE layers on {}, {} GPU(s), {} tokens each", device, root.integer("gpus"),
                  root.integer("tokens")),
      fmt::format("{}, measured {}, driver {}", measured, root.text("date"), root.text("driver")),
      {},
      {}};
  std::vector<double> errors;
  for (const Node& point : root.items("points")) {
    if (const auto error = add_point(root, point, profile, documents, validation)) {
      errors.push_back(std::abs(*error));
    }
  }
  if (errors.empty()) root.fail("no layer in it was measured and verified", "points");
  const auto judge = [&](const char* what, double error, double bar) {
    validation.verdicts.push_back({"measured layer",
                                   fmt::format("{} error of {} layers: {:.1f} % (bar {:.0f} %)",
                                               what, errors.size(), error * 100, bar * 100),
                                   error <= bar});
  };
  judge("median", median(errors), median_bar);
  judge("worst", *std::max_element(errors.begin(), errors.end()), worst_bar);
  return validation;
}

}  // namespace moesim::study
