#include "sim/uncertainty/steps/step_traits.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "sim/uncertainty/steps/step_distance.hpp"

namespace moesim::uncertainty {
namespace {

using parallel::ScheduleKind;
using training::TrainingJob;
using training::TrainingPart;
using training::TrainingStep;

// What counts of a step besides the time of the parts: the bubble of 1F1B, hidden exchanges of
// experts, both, hidden exchanges of tensor ranks, hidden copies to the host; or of the parts only
// what rows beyond balance take.
enum class Beside { nothing, bubble, hidden, both, hidden_tensor, hidden_copies, excess };

struct Rule {
  const char* name;
  const char* text;                        // {}: the size
  double reach;                            // see reach_of()
  double (*size)(const TrainingJob& job);  // 0: the job does not have it
  std::vector<TrainingPart> parts;
  Beside beside = Beside::nothing;
};

double above_one(int size) { return size > 1 ? size : 0; }
double flag(bool has) { return has ? 1 : 0; }
const parallel::ParallelLayout& sizes(const TrainingJob& job) { return job.layout.sizes; }
bool runs(const TrainingJob& job, const std::vector<ScheduleKind>& kinds) {
  return sizes(job).pipeline > 1 &&
         std::find(kinds.begin(), kinds.end(), job.layout.kind()) != kinds.end();
}

// Whether a job is unbalanced, by drawn routing or by a load that random routing does not have.
bool is_unbalanced(const TrainingJob& job) {
  if (job.routing) return !training::ignores_draws(job);
  if (job.expert_load <= 0 || !job.model->moe) return false;
  TrainingJob random = job;
  random.expert_load = 0;
  return job.expert_load > training::LayerPrices(random).imbalance();
}

const std::vector<Rule>& rules() {
  static const std::vector<Rule> all = {
      {"tensor-parallel",
       "TP {:g}",
       2,
       [](const TrainingJob& job) { return above_one(sizes(job).tensor); },
       {TrainingPart::tensor}},
      {"tensor-overlap",
       "overlapped exchanges of tensor ranks",
       1,
       [](const TrainingJob& job) { return flag(job.overlaps_tensor); },
       {TrainingPart::tensor},
       Beside::hidden_tensor},
      {"context-parallel",
       "context parallelism",
       1,
       [](const TrainingJob& job) { return flag(sizes(job).context > 1); },
       {TrainingPart::attention, TrainingPart::context}},
      {"pipeline-parallel",
       "PP {:g}",
       2,
       [](const TrainingJob& job) { return above_one(sizes(job).pipeline); },
       {TrainingPart::p2p},
       Beside::bubble},
      {"virtual-pipeline",
       "VP {:g}",
       2,
       [](const TrainingJob& job) { return above_one(sizes(job).virtual_pipeline); },
       {TrainingPart::p2p},
       Beside::bubble},
      {"zero-bubble",
       "zero-bubble schedules",
       1,
       [](const TrainingJob& job) {
         return flag(runs(job, {ScheduleKind::zb_h1, ScheduleKind::zb_h2}));
       },
       {TrainingPart::p2p},
       Beside::bubble},
      {"dualpipe",
       "DualPipe",
       1,
       [](const TrainingJob& job) {
         return flag(runs(job, {ScheduleKind::dualpipe, ScheduleKind::dualpipe_v}));
       },
       {TrainingPart::p2p, TrainingPart::dispatch, TrainingPart::combine},
       Beside::both},
      {"gpipe",
       "GPipe",
       1,
       [](const TrainingJob& job) { return flag(runs(job, {ScheduleKind::gpipe})); },
       {TrainingPart::p2p},
       Beside::bubble},
      {"expert-parallel",
       "EP {:g}",
       2,
       [](const TrainingJob& job) { return above_one(sizes(job).expert); },
       {TrainingPart::dispatch, TrainingPart::combine}},
      {"expert-overlap",
       "overlapped exchanges of experts",
       1,
       [](const TrainingJob& job) { return flag(job.layout.expert_overlap); },
       {TrainingPart::dispatch, TrainingPart::combine},
       Beside::hidden},
      {"expert-tensor",
       "expert-tensor parallelism",
       1,
       [](const TrainingJob& job) { return flag(sizes(job).expert_tensor > 1); },
       {TrainingPart::experts, TrainingPart::tensor, TrainingPart::dispatch,
        TrainingPart::combine}},
      {"expert-copies",
       "copies of experts",
       1,
       [](const TrainingJob& job) { return flag(job.redundant_experts > 0); },
       {TrainingPart::experts, TrainingPart::dispatch, TrainingPart::combine}},
      {"optimizer-instances",
       "several optimizer instances",
       1,
       [](const TrainingJob& job) { return flag(job.states.optimizer_instances > 1); },
       {TrainingPart::gradients, TrainingPart::parameters, TrainingPart::optimizer}},
      {"offload",
       "offloaded activations",
       1,
       [](const TrainingJob& job) { return flag(job.offload.modules != 0); },
       {TrainingPart::offload, TrainingPart::recompute},
       Beside::hidden_copies},
      {"fp8-attention",
       "attention in FP8",
       1,
       [](const TrainingJob& job) { return flag(job.fp8_attention); },
       {TrainingPart::attention}},
      {"linear-attention",
       "linear attention",
       1,
       [](const TrainingJob& job) { return flag(job.model->linear.has_value()); },
       {TrainingPart::attention}},
      {"low-precision-dispatch",
       "rows sent in low precision",
       1,
       [](const TrainingJob& job) { return flag(job.low_precision_dispatch); },
       {TrainingPart::dispatch, TrainingPart::combine}},
      {"capacity",
       "blocks padded to a capacity",
       1,
       [](const TrainingJob& job) { return flag(job.capacity_factor > 0); },
       {TrainingPart::experts, TrainingPart::router, TrainingPart::dispatch,
        TrainingPart::combine}},
      {"rank-capacity",
       "a capacity per rank",
       1,
       [](const TrainingJob& job) { return flag(job.routing && job.routing->rank_capacity > 0); },
       {TrainingPart::experts, TrainingPart::reruns}},
      {"sequence-length",
       "sequences of {:g} tokens",
       2,
       [](const TrainingJob& job) { return static_cast<double>(job.layout.sequence_length); },
       {TrainingPart::attention}},
      {"gpus", "{:g} GPUs", 1,
       [](const TrainingJob& job) { return static_cast<double>(sizes(job).gpus); },
       training::exchange_parts()},
      {"drawn-routing",
       "experts that are not balanced",
       1,
       [](const TrainingJob& job) { return flag(is_unbalanced(job)); },
       {TrainingPart::experts, TrainingPart::dispatch, TrainingPart::combine},
       Beside::excess},
  };
  return all;
}

// Traits of which a step has one of several, "KIND:NAME".
constexpr const char* precision_kind = "precision";
constexpr const char* zero_kind = "zero";
struct Choice {
  const char* kind;
  const char* text;
  std::string (*name)(const TrainingJob& job);  // "": none of them
  std::vector<TrainingPart> parts;
};
const std::vector<Choice>& choices() {
  static const std::vector<Choice> all = {
      {precision_kind,
       "products in {}",
       [](const TrainingJob& job) { return std::string(model::name_of(job.states.precision)); },
       {TrainingPart::attention, TrainingPart::dense_ffn, TrainingPart::experts,
        TrainingPart::recompute}},
      {"dispatcher",
       "dispatcher {}",
       [](const TrainingJob& job) {
         if (sizes(job).expert == 1) return std::string();
         if (job.gathers_tokens) return std::string("allgather");
         return job.dispatcher ? job.dispatcher->name : std::string("all-to-all");
       },
       {TrainingPart::dispatch, TrainingPart::combine}},
      {zero_kind,
       "ZeRO {}",
       [](const TrainingJob& job) {
         const bool shares = sizes(job).data() * sizes(job).context > 1 ||
                             (job.model->moe && sizes(job).expert_data() > 1);
         return shares ? fmt::format("{}", job.states.zero) : std::string();
       },
       {TrainingPart::gradients, TrainingPart::parameters, TrainingPart::optimizer}},
      {"moment-bytes",
       "moments of {} bytes",
       [](const TrainingJob& job) { return fmt::format("{}", job.states.moment_bytes); },
       {TrainingPart::optimizer}},
      {"recompute",
       "{} recomputed",
       [](const TrainingJob& job) {
         if (job.recompute.full != model::FullRecompute::none) return std::string("whole layers");
         return std::string(job.recompute.modules != 0 ? "modules" : "");
       },
       {TrainingPart::recompute}},
      {"cuda-graphs",
       "CUDA graphs {}",
       [](const TrainingJob& job) {
         return std::string(name_in(training::graphs_names, job.graphs));
       },
       {TrainingPart::host}},
  };
  return all;
}

// The share of a step that `moe_us` and `dense_us` of each such layer take.
double share_of_layers(const TrainingJob& job, const TrainingStep& step, double moe_us,
                       double dense_us) {
  const int dense = job.model->moe ? job.model->dense_layers() : job.model->layers;
  const double all_us = moe_us * (job.model->layers - dense) + dense_us * dense;
  return all_us / sizes(job).pipeline * step.micro_batches / step.step_us;
}

// The share of the step that dispatch and combine of the busiest rank take if none of it is hidden.
double unhidden_exchange(const TrainingJob& job, const TrainingStep& step) {
  if (!job.model->moe) return 0;
  const training::Passes layer = training::LayerPrices(job).layer(true);
  return share_of_layers(job, step,
                         layer.all_of(training::at(TrainingPart::dispatch)) +
                             layer.all_of(training::at(TrainingPart::combine)),
                         0);
}

double hidden_tensor(const TrainingJob& job, const TrainingStep& step) {
  TrainingJob plain = job;
  plain.overlaps_tensor = false;
  const training::LayerPrices without(plain);
  const training::LayerPrices with(job);
  const auto hidden = [&](bool is_moe) {
    return without.layer(is_moe).all_of(training::at(TrainingPart::tensor)) -
           with.layer(is_moe).all_of(training::at(TrainingPart::tensor));
  };
  return share_of_layers(job, step, job.model->moe ? hidden(true) : 0, hidden(false));
}

double hidden_copies(const TrainingJob& job, const TrainingStep& step) {
  const training::LayerPrices prices(job);
  const auto both_ways = [&](bool is_moe) { return 2 * prices.offload_us(is_moe, step.imbalance); };
  const double all =
      share_of_layers(job, step, job.model->moe ? both_ways(true) : 0, both_ways(false));
  return std::max(all - part_share(step, {TrainingPart::offload}), 0.0);
}

// The bubble of 1F1B over the time of a rank: what other schedules avoid.
double plain_bubble(const TrainingJob& job, const TrainingStep& step) {
  const double others = sizes(job).pipeline - 1;
  return others / (others + step.micro_batches);
}

double share_of(const Rule& rule, const TrainingJob& job, const TrainingStep& step) {
  double share = part_share(step, rule.parts);
  if (rule.beside == Beside::excess) share *= 1 - 1 / std::max(step.imbalance, 1.0);
  if (rule.beside == Beside::bubble || rule.beside == Beside::both) {
    const double bubble = part_share(step, {TrainingPart::p2p});
    share += std::max(plain_bubble(job, step) - bubble, 0.0);
  }
  if (rule.beside == Beside::hidden || rule.beside == Beside::both) {
    const double exposed = part_share(step, {TrainingPart::dispatch, TrainingPart::combine});
    share += std::max(unhidden_exchange(job, step) - exposed, 0.0);
  }
  if (rule.beside == Beside::hidden_tensor) share += hidden_tensor(job, step);
  if (rule.beside == Beside::hidden_copies) share += hidden_copies(job, step);
  return std::min(share, 1.0);
}

const Rule* rule_of(const std::string& name) {
  for (const Rule& rule : rules()) {
    if (rule.name == name) return &rule;
  }
  return nullptr;
}

std::string kind_of(const std::string& name) { return name.substr(0, name.find(':')); }

std::string words_of(const StepTrait& trait) {
  if (const Rule* rule = rule_of(trait.name))
    return fmt::format(fmt::runtime(rule->text), trait.size);
  const std::string kind = kind_of(trait.name);
  for (const Choice& choice : choices()) {
    if (kind == choice.kind) {
      return fmt::format(fmt::runtime(choice.text), trait.name.substr(kind.size() + 1));
    }
  }
  return trait.name;
}

double most_of(const MeasuredTraits& measured, const std::string& trait) {
  const auto found = measured.most.find(trait);
  return found == measured.most.end() ? 0 : found->second;
}

}  // namespace

std::vector<StepTrait> traits_of(const TrainingJob& job, const TrainingStep& step) {
  std::vector<StepTrait> traits;
  for (const Rule& rule : rules()) {
    const double size = rule.size(job);
    if (size > 0) traits.push_back({rule.name, size, share_of(rule, job, step)});
  }
  for (const Choice& choice : choices()) {
    const std::string name = choice.name(job);
    if (name.empty()) continue;
    traits.push_back(
        {fmt::format("{}:{}", choice.kind, name), 1, part_share(step, choice.parts),
         std::string_view(choice.kind) == zero_kind ? training::hidden_gain(step) : 0});
  }
  return traits;
}

std::vector<StepTrait> traits_of_layer(const TrainingJob& job) {
  const auto is_of_layer = [](const std::vector<TrainingPart>& parts) {
    constexpr std::array layer{TrainingPart::attention, TrainingPart::dense_ffn,
                               TrainingPart::experts,   TrainingPart::router,
                               TrainingPart::tensor,    TrainingPart::context,
                               TrainingPart::dispatch,  TrainingPart::combine};
    const auto in_layer = [&](TrainingPart part) {
      return std::find(layer.begin(), layer.end(), part) != layer.end();
    };
    // What is recomputed is a layer's forward pass again, and says nothing by itself.
    return std::any_of(parts.begin(), parts.end(), in_layer) &&
           std::all_of(parts.begin(), parts.end(), [&](TrainingPart part) {
             return in_layer(part) || part == TrainingPart::recompute;
           });
  };
  std::vector<StepTrait> traits;
  for (const Rule& rule : rules()) {
    const double size = is_of_layer(rule.parts) ? rule.size(job) : 0;
    if (size > 0) traits.push_back({rule.name, size, 0});
  }
  for (const Choice& choice : choices()) {
    const std::string name = is_of_layer(choice.parts) ? choice.name(job) : "";
    if (!name.empty()) traits.push_back({fmt::format("{}:{}", choice.kind, name), 1, 0});
  }
  return traits;
}

void MeasuredTraits::add(const std::vector<StepTrait>& traits) {
  for (const StepTrait& trait : traits) most[trait.name] = std::max(most[trait.name], trait.size);
}

const StepTrait* trait_of(const std::vector<StepTrait>& traits, const std::string& name) {
  for (const StepTrait& trait : traits) {
    if (trait.name == name) return &trait;
  }
  return nullptr;
}

double reach_of(const std::string& trait) {
  const Rule* rule = rule_of(trait);
  return rule == nullptr ? 1 : rule->reach;
}

std::vector<UnmeasuredTrait> unmeasured_traits(const std::vector<MeasuredTraits>& measured,
                                               const std::string& machine,
                                               const std::vector<StepTrait>& traits) {
  std::vector<UnmeasuredTrait> found;
  for (const StepTrait& trait : traits) {
    if (trait.share <= 0) continue;
    double most = 0;
    std::optional<double> here;  // on the machine, where steps were measured
    for (const MeasuredTraits& each : measured) {
      most = std::max(most, most_of(each, trait.name));
      if (each.machine == machine) here = most_of(each, trait.name);
    }
    const double reach = reach_of(trait.name);
    if (trait.size > reach * most) {
      found.push_back({trait, most, ""});
    } else if (kind_of(trait.name) == precision_kind && here && trait.size > *here) {
      found.push_back({trait, *here, machine});
    }
  }
  return found;
}

double hidden_gain(const std::vector<UnmeasuredTrait>& unmeasured) {
  double sum = 0;
  for (const UnmeasuredTrait& each : unmeasured) sum += each.trait.hidden;
  return sum;
}

std::string text_of(const UnmeasuredTrait& unmeasured) {
  std::string text = words_of(unmeasured.trait);
  if (!unmeasured.machine.empty())
    return fmt::format("{} on {} (on others alone)", text, unmeasured.machine);
  if (unmeasured.most == 0) return text;
  return text + fmt::format(" (at most {:g} measured)", unmeasured.most);
}

std::string texts_of(const std::vector<UnmeasuredTrait>& unmeasured, const char* between) {
  std::vector<std::string> texts;
  for (const UnmeasuredTrait& each : unmeasured) texts.push_back(text_of(each));
  return fmt::format("{}", fmt::join(texts, between));
}

}  // namespace moesim::uncertainty
