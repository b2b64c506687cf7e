#include "sim/study/validation/layers/validate_layer.hpp"

#include <fmt/format.h>

#include <cmath>

#include "sim/base/document.hpp"
#include "sim/base/shipped.hpp"
#include "sim/scenario/options.hpp"
#include "sim/step/layer_stages.hpp"

namespace moesim::study {
namespace {

void add_pass(const Node& root, step::Pass pass, const scenario::Scenario& scenario,
              Validation& validation) {
  const std::string name = pass == step::Pass::forward ? "forward" : "backward";
  const std::string study = root.text("name");
  const std::vector<step::LayerStage> stages = step::dropless_layer_stages(scenario, pass, true);
  for (const step::LayerStage& stage : stages) {
    validation.rows.push_back({study, stage.name, "part", "us", std::nullopt,
                               stage.estimate.time_us, std::nullopt, std::nullopt,
                               describe(stage.estimate)});
  }
  const double measured = root.positive(name + "_ms");
  const double predicted = step::total_us(stages) * 1e-3;
  const double error = predicted / measured - 1;
  const double bar = root.at("bars").positive(name);
  validation.rows.push_back(
      {study, name, "check", "ms", measured, predicted, error, std::nullopt, ""});
  validation.verdicts.push_back({study,
                                 fmt::format("{}: {:.3f} ms predicted, {:.3f} ms measured, "
                                             "{:+.1f} % (bar {:.0f} %)",
                                             name, predicted, measured, error * 100, bar * 100),
                                 std::abs(error) <= bar});
  double low = 0;
  double high = 0;
  for (const step::LayerStage& stage : stages) {
    low += stage.estimate.time_us_p05 * 1e-3;
    high += stage.estimate.time_us_p95 * 1e-3;
  }
  validation.verdicts.push_back(
      {study,
       fmt::format("{}: 90 % band {:.3f} to {:.3f} ms, the ends of its kernels added: {} the "
                   "measured time",
                   name, low, high, low <= measured && measured <= high ? "holds" : "misses"),
       std::nullopt});
}

}  // namespace

Validation validate_layer(scenario::DocumentCache& documents) {
  const Document document = Document::load(find_document("layers", "megatron-mixtral-h100"));
  document.validate("layer.schema");
  const Node root = document.root();
  scenario::OptionValues values;
  for (const std::string& option : root.at("options").keys()) {
    values[option] = root.at("options").text(option);
  }
  scenario::Scenario scenario = scenario::resolve(values, documents);
  scenario.fusion = scenario::Fusion::fused;
  Validation validation{root.text("title"), root.text("source"), {}, {}};
  add_pass(root, step::Pass::forward, scenario, validation);
  add_pass(root, step::Pass::backward, scenario, validation);
  validation.verdicts.push_back(
      {root.text("name"),
       "bands: two points of one layer tell no share inside; no 50, 80 and 90 % are printed",
       std::nullopt});
  return validation;
}

}  // namespace moesim::study
