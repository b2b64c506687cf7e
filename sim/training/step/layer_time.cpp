#include "sim/training/step/layer_time.hpp"

#include <fmt/format.h>

#include "sim/base/error.hpp"
#include "sim/training/step/job_rules.hpp"
#include "sim/training/step/pipelines.hpp"

namespace moesim::training {
namespace {

using parallel::GroupKind;

constexpr std::array moe_parts = {TrainingPart::dense_ffn, TrainingPart::experts,
                                  TrainingPart::router, TrainingPart::dispatch,
                                  TrainingPart::combine};

Passes mean_moe_layer(const Pipelines& pipelines) {
  const DrawnLoads* const loads = pipelines.loads();
  if (loads == nullptr) return pipelines.prices().layer(true);
  Passes mean;
  for (int step = 0; step < loads->steps(); ++step) {
    for (int layer = 0; layer < loads->layers(); ++layer) {
      mean.add(pipelines.prices().moe_layer(pipelines.drawn_load(layer, {step, 0}, 0)));
    }
  }
  mean.divide(static_cast<double>(loads->steps()) * loads->layers());
  return mean;
}

}  // namespace

PartTimes layer_time(const TrainingJob& job, LayerExtent extent, bool backward) {
  if (!job.model->moe) {
    throw UsageError(fmt::format("--model {}: it has no experts, so no MoE layer",
                                 job.typed.model.empty() ? job.model->name : job.typed.model));
  }
  check_job(job);
  const Pipelines pipelines(job);
  const Passes passes = mean_moe_layer(pipelines);
  PartTimes all = passes.forward;
  if (backward) {
    all = passes.input_gradient;
    add(all, passes.weight_gradient);
  }
  if (extent == LayerExtent::whole) return all;
  PartTimes moe{};
  for (const TrainingPart part : moe_parts) moe[at(part)] = all[at(part)];
  return moe;
}

std::array<bool, part_names.size()> crossing_parts(const TrainingJob& job) {
  const ExchangePrices exchanges(job);
  const auto any = [&](std::initializer_list<GroupKind> groups) {
    bool crosses = false;
    for (const GroupKind group : groups) crosses = crosses || exchanges.crosses_domains(group);
    return crosses;
  };
  std::array<bool, part_names.size()> found{};
  found[at(TrainingPart::tensor)] = any({GroupKind::tensor, GroupKind::expert_tensor});
  found[at(TrainingPart::context)] = any({GroupKind::context});
  found[at(TrainingPart::dispatch)] = found[at(TrainingPart::combine)] = any({GroupKind::expert});
  found[at(TrainingPart::gradients)] = found[at(TrainingPart::parameters)] =
      any({GroupKind::data_context, GroupKind::expert_data});
  return found;
}

}  // namespace moesim::training
