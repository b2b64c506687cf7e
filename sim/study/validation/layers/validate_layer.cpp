#include "sim/study/validation/layers/validate_layer.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "sim/base/formats/document.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/statistics.hpp"
#include "sim/job/job_options.hpp"
#include "sim/training/prices/kernel_prices.hpp"
#include "sim/training/step/layer_time.hpp"

namespace moesim::study {
namespace {

using training::TrainingPart;

void take_options(const Node& options, scenario::OptionValues& values) {
  for (const std::string& name : options.keys()) values[name] = options.text(name);
}

// One of the document's layers, as a job of `train`.
training::TrainingJob job_of(const Node& root, const Node& layer) {
  scenario::OptionValues values;
  take_options(root.at("options"), values);
  take_options(layer.at("options"), values);
  training::TrainingJob job = job::resolve_job(values).job;
  model::Model model = *job.model;
  model.gated = root.boolean_or("gated", model.gated);
  job.model = std::make_shared<const model::Model>(std::move(model));
  return job;
}

struct PartTime {
  const char* name;
  double time_us;
};

// Where neither the router nor a dispatcher pads the rows of an expert for a low-precision format,
// Megatron-Core copies them before the products and behind them (TEGroupedMLP.forward,
// quantization_padding); microseconds of a pass.
double padding_us(const training::TrainingJob& job) {
  if (job.states.precision == model::Precision::bf16) return 0;
  if (job.dispatcher && job.dispatcher->pads_rows) return 0;
  const double rows = job.balanced_rows() * job.layout.sizes.expert_tensor;
  constexpr double copies = 2;
  constexpr double read_and_written = 4;  // bytes of bf16
  return training::KernelPrices(job).memory_us(
      copies * read_and_written * rows * static_cast<double>(job.model->hidden),
      profile::MemoryKernel::streaming);
}

std::vector<PartTime> parts_of(const training::TrainingJob& job, bool backward) {
  const training::PartTimes times = training::layer_time(job, training::LayerExtent::moe, backward);
  std::vector<PartTime> parts;
  for (const auto& part : training::part_names) {
    const double time_us = times[static_cast<std::size_t>(part.value)];
    const char* name = part.value == TrainingPart::dense_ffn ? "shared experts" : part.name;
    if (time_us > 0) parts.push_back({name, time_us});
  }
  if (const double time_us = padding_us(job); time_us > 0) {
    parts.push_back({"padding of rows", time_us});
  }
  return parts;
}

// The error of one pass, whose rows and verdict it adds.
double add_pass(const Node& root, const Node& layer, bool backward, Validation& validation) {
  const training::TrainingJob job = job_of(root, layer);
  const std::string study = root.text("name");
  const char* pass = backward ? "backward" : "forward";
  std::vector<std::string> values;
  for (const std::string& name : layer.at("options").keys()) {
    values.push_back(layer.at("options").text(name));
  }
  const std::string subject = fmt::format("{}, {}", fmt::join(values, ", "), pass);
  double predicted = 0;
  for (const PartTime& part : parts_of(job, backward)) {
    predicted += part.time_us * 1e-3;
    validation.rows.push_back({study, fmt::format("{}: {}", subject, part.name), "part", "us",
                               std::nullopt, part.time_us, std::nullopt, std::nullopt, ""});
  }
  const double measured = layer.positive(fmt::format("{}_ms", pass));
  const double error = predicted / measured - 1;
  const double bar = root.at("bars").positive(pass);
  validation.rows.push_back(
      {study, subject, "check", "ms", measured, predicted, error, std::nullopt, ""});
  validation.verdicts.push_back({study,
                                 fmt::format("{}: {:.3f} ms predicted, {:.3f} ms measured, "
                                             "{:+.1f} % (bar {:.0f} %)",
                                             subject, predicted, measured, error * 100, bar * 100),
                                 std::abs(error) <= bar});
  return error;
}

}  // namespace

Validation validate_layer() {
  const Document document = Document::load(find_document("layers", "megatron-mixtral-h100"));
  document.validate("layer.schema");
  const Node root = document.root();
  Validation validation{root.text("title"), root.text("source"), {}, {}};
  std::vector<double> errors;
  for (const Node& layer : root.items("layers")) {
    for (const bool backward : {false, true}) {
      errors.push_back(std::abs(add_pass(root, layer, backward, validation)));
    }
  }
  validation.verdicts.push_back(
      {root.text("name"),
       fmt::format("all {} passes: {:.1f} % off in the median, {:.1f} % at worst; no constant "
                   "is fitted to them",
                   errors.size(), 100 * median(errors),
                   100 * *std::max_element(errors.begin(), errors.end())),
       std::nullopt});
  return validation;
}

}  // namespace moesim::study
