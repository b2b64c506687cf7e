#include "sim/study/training_prediction.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/no_answer.hpp"
#include "sim/base/text.hpp"
#include "sim/cluster/cluster.hpp"
#include "sim/job/job_options.hpp"
#include "sim/profile/kernels/attention_curve.hpp"
#include "sim/routing/simulation/mean_loss.hpp"
#include "sim/scenario/document_cache.hpp"

namespace moesim::study {
namespace {

using training::TrainingJob;
using training::TrainingStep;

constexpr int most_replicas = 1 << 20;  // as simulate

// The options to lower where a layer has more rows than a GPU holds.
std::string options_of_rows(const TrainingJob& job) {
  if (job.routing && job.routing->router.has_capacity()) {
    const routing::RouterConfig& router = job.routing->router;
    const std::int64_t tokens = std::llround(job.tokens_per_rank());
    const std::int64_t slots = router.capacity(tokens, job.model->moe->experts);
    if (slots > tokens) {
      return router.min_capacity >= slots ? "a lower --min-capacity" : "a lower --capacity-factor";
    }
  }
  return "a lower --micro-batch or --sequence-length, or more --context-parallel";
}

TrainingStep median_of_replicas(TrainingJob& job, const TrainingSettings& settings) {
  const auto step_of = [&] {
    return step_before_software(settings.software, job, settings.progress, settings.shared);
  };
  if (!job.routing || settings.replicas == 1) return step_of();
  const std::uint64_t seed = job.routing->seed;
  std::vector<TrainingStep> steps;
  std::vector<routing::TokenLoss> losses;
  for (int replica = 0; replica < settings.replicas; ++replica) {
    job.routing->seed = seed + static_cast<std::uint64_t>(replica);
    steps.push_back(step_of());
    losses.push_back(steps.back().routing->loss);
  }
  job.routing->seed = seed;
  std::vector<std::size_t> order(steps.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(steps[a].step_us, a) < std::pair(steps[b].step_us, b);
  });
  TrainingStep& median = steps[order[(steps.size() - 1) / 2]];
  median.routing->loss = routing::mean_loss(losses);
  return std::move(median);
}

TrainingStep drawn_step(TrainingJob& job, const TrainingSettings& settings) {
  if (settings.replicas < 1 || settings.replicas > most_replicas) {
    throw UsageError(fmt::format("--replicas {}: from 1 to {}", settings.replicas, most_replicas));
  }
  try {
    return median_of_replicas(job, settings);
  } catch (const BeyondMemory& error) {
    throw UsageError(fmt::format("{}: {}", error.what(), options_of_rows(job)));
  } catch (const profile::SequenceTooLong& error) {
    throw UsageError(
        fmt::format("--sequence-length {}: {}", job.layout.sequence_length, error.what()));
  }
}

// What the command takes, too: the GPUs of a cluster that is named without them.
void take_profile_of_cluster(scenario::OptionValues& options, std::vector<std::string>& notes) {
  const auto cluster = options.find("cluster");
  if (cluster == options.end() || options.contains("profile")) return;
  const std::string found = cluster::Cluster::load(cluster->second).profile;
  const std::string& usual = job::job_option_named("profile").default_text;
  if (found.empty() || found == usual) return;
  notes.push_back(fmt::format("note: --profile {}, the GPUs of {}; the default is {}", found,
                              cluster->second, usual));
  options["profile"] = found;
}

void append(const std::vector<std::string>& more, std::vector<std::string>& notes) {
  notes.insert(notes.end(), more.begin(), more.end());
}

// The option of that name, taken out: a job has none.
std::optional<std::string> take(const std::string& name, scenario::OptionValues& options) {
  const auto found = options.find(name);
  if (found == options.end()) return std::nullopt;
  std::string text = found->second;
  options.erase(found);
  return text;
}

}  // namespace

int parse_replicas(const std::string& text) {
  return static_cast<int>(parse_whole("--replicas", text, 1, most_replicas));
}

TrainingPrediction predict_training(TrainingJob job, const TrainingSettings& settings) {
  TrainingPrediction made;
  made.job = std::move(job);
  made.step = drawn_step(made.job, settings);
  made.before_software = made.step;
  made.band = apply_software(settings.software, made.job, made.step);
  return made;
}

TrainingPrediction predict_training(const scenario::OptionValues& options,
                                    scenario::DocumentCache& documents) {
  scenario::OptionValues typed = options;
  std::set<std::string> chosen;
  for (const auto& [name, value] : options) chosen.insert(name);
  std::vector<std::string> notes;
  take_profile_of_cluster(typed, notes);
  TrainingSettings settings;
  const std::optional<std::string> software = take("software", typed);
  const std::optional<std::string> replicas = take("replicas", typed);
  if (replicas) settings.replicas = parse_replicas(*replicas);
  job::ResolvedJob resolved = job::resolve_job(typed, typed, documents);
  settings.software = software.value_or(resolved.job.profile->calibration());
  append(resolved.routing_notes.replaced, notes);
  append(resolved.routing_notes.scores, notes);
  append(resolved.routing_notes.slots, notes);
  append(resolved.routing_notes.priority, notes);
  for (const scenario::IdleOption& idle : resolved.routing_notes.idle) {
    notes.push_back(fmt::format("note: --{} has no effect: {}", idle.option, idle.why));
  }
  append(resolved.notes, notes);
  append(software_notes(settings.software, resolved.job, chosen), notes);
  TrainingPrediction made = predict_training(std::move(resolved.job), settings);
  made.notes = std::move(notes);
  return made;
}

}  // namespace moesim::study
