#include "tools/moesim/scenario/scenario_notes.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/units.hpp"
#include "sim/routing/simulation/routing_cache.hpp"
#include "sim/scenario/router_options.hpp"
#include "sim/step/exchanges/network_choice.hpp"
#include "tools/moesim/base/host_memory.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/base/progress.hpp"

namespace moesim::tool {

void note_left_out(const model::Model& model, const std::string& name) {
  if (model.left_out.empty()) return;
  note(fmt::format("note: {}: without {}: the language model alone is counted", name,
                   fmt::join(model.left_out, ", ")));
}

void note_idle_options(const scenario::OptionValues& typed,
                       std::span<const scenario::Scenario* const> scenarios,
                       scenario::Asker asker) {
  for (const scenario::IdleOption& idle : scenario::idle_options(typed, scenarios, asker)) {
    note_idle_option(idle);
  }
}

void note_idle_option(const scenario::IdleOption& idle) {
  note(fmt::format("note: --{} has no effect: {}", idle.option, idle.why));
}

namespace {

// The share of the routes of a balanced load for which experts have no slot.
double share_without_slot(const scenario::Scenario& scenario) {
  const auto tokens = static_cast<double>(scenario.tokens_per_gpu);
  const auto slots =
      static_cast<double>(scenario.router.capacity(scenario.tokens_per_gpu, scenario.experts));
  return 1 - scenario.experts * slots / (scenario.router.top_k * tokens);
}

}  // namespace

void note_small_capacity(const scenario::OptionValues& typed,
                         std::span<const scenario::Scenario* const> scenarios) {
  const auto factors = typed.find("capacity-factor");
  if (factors == typed.end() || typed.contains("capacity-convention") ||
      typed.contains("router-dialect")) {
    return;
  }
  // A list or range goes below what a balanced load needs on purpose, unless it is far below.
  constexpr int many = 4;
  const bool is_list = factors->second.find_first_of(",:") != std::string::npos;
  for (const scenario::Scenario* scenario : scenarios) {
    const routing::RouterConfig& router = scenario->router;
    const double factor = router.capacity_factor.to_double();
    const bool by_paper = router.capacity_convention == routing::CapacityConvention::paper &&
                          router.dialect == routing::Dialect::paper;
    if (!by_paper || !router.overflows() || router.top_k < 2) continue;
    if (is_list && (router.top_k < many || 2 * factor >= router.top_k)) continue;
    const double missing = share_without_slot(*scenario);
    if (missing <= 0) continue;
    note(fmt::format(
        "note: --capacity-factor {0}: in the paper's convention, the default, a balanced load of "
        "{1} needs {2}; at least {3:.1f} % of the routes fail, as with {4:g} per routed token; if "
        "{0} is per routed token, as in Megatron-LM, DeepSpeed and Tutel, add "
        "--capacity-convention library",
        router.capacity_factor.text(), router.name(), router.top_k, 100 * missing,
        factor / router.top_k));
    return;
  }
}

void note_trained_routers(std::span<const scenario::Scenario* const> scenarios) {
  std::set<std::string> said;
  for (const scenario::Scenario* scenario : scenarios) {
    const routing::RouterConfig& router = scenario->router;
    if (router.asked_name() == router.name() || !said.insert(router.asked_name()).second) continue;
    note(fmt::format("note: router {}: a forward pass routes as {}, whatever training does",
                     router.asked_name(), router.name()));
  }
}

void note_equal_weights(std::span<const scenario::Scenario* const> scenarios) {
  std::set<std::string> said;
  for (const scenario::Scenario* scenario : scenarios) {
    const std::string text = scenario::note_of_equal_weights(scenario->router);
    if (!text.empty() && said.insert(text).second) note(text);
  }
}

void note_second_experts(std::span<const scenario::Scenario* const> scenarios) {
  std::set<std::string> sampling;
  std::set<std::string> choosing;
  for (const scenario::Scenario* scenario : scenarios) {
    const routing::RouterConfig& router = scenario->router;
    if (router.dialect != routing::Dialect::deepspeed || router.top_k != 2) continue;
    const bool samples = router.second_expert == routing::SecondExpert::sampled;
    (samples ? sampling : choosing).insert(router.asked_name());
  }
  if (sampling.empty() || choosing.empty()) return;
  note(fmt::format(
      "note: --router-dialect deepspeed: the second expert is sampled by {}, and the best by {}: "
      "their losses differ by that too; --second-expert best compares them by one rule",
      fmt::join(sampling, ", "), fmt::join(choosing, ", ")));
}

namespace {

// `read`: a router chooses by its scores; else it says only how many experts and tokens there are.
void note_trace(const scenario::OptionValues& typed, const scenario::Scenario& scenario,
                bool read) {
  const routing::TraceShape& shape = scenario.scores.trace->shape();
  std::string taken;
  const auto take = [&](const char* option, std::int64_t value) {
    if (typed.count(option) == 0) taken += fmt::format(" --{} {}", option, value);
  };
  take("experts", scenario.experts);
  if (shape.ranks > 1) take("gpus", scenario.gpus);
  if (scenario.tokens_per_gpu == shape.tokens && typed.count("micro-batch") == 0 &&
      typed.count("sequence-length") == 0) {
    take("tokens-per-gpu", scenario.tokens_per_gpu);
  }
  if (read && scenario::takes_recorded_k(typed, scenario.scores)) take("top-k", shape.top_k);
  if (!taken.empty()) note(fmt::format("note: from {}:{}", scenario.scores.name(), taken));
  if (!read) return;
  std::string repeats;
  if (scenario.replicas > shape.steps) {
    repeats =
        fmt::format("{} replicas go through its {} steps again", scenario.replicas, shape.steps);
  }
  if (shape.ranks < scenario.gpus) {
    repeats += fmt::format("{}{} GPUs take the tokens of its {} ranks again",
                           repeats.empty() ? "" : ", ", scenario.gpus, shape.ranks);
  }
  const std::string layers =
      scenario::layers_again(scenario.scores, scenario.moe_layers(), scenario.model_name);
  if (!layers.empty()) repeats += (repeats.empty() ? "" : ", ") + layers;
  if (!repeats.empty()) note(fmt::format("note: {}: {}", scenario.scores.name(), repeats));
  const std::string weights = scenario::weights_of_layers(scenario.scores, scenario.moe_layers());
  if (!weights.empty()) note(weights);
}

// Each router once, whatever the popularities.
void note_trained_biases(std::span<const scenario::Scenario* const> scenarios) {
  std::set<std::string> said;
  for (const scenario::Scenario* scenario : scenarios) {
    if (!scenario->has_moe()) continue;
    const std::string text = scenario::note_of_trained_biases(scenario->scores, scenario->router);
    if (!text.empty() && said.insert(text).second) note(text);
  }
}

// Notes of the routers that read the same trace, or table of counts.
void note_recorded(const scenario::Scenario& scenario,
                   std::span<const scenario::Scenario* const> scenarios) {
  std::vector<routing::RouterConfig> routers;
  for (const scenario::Scenario* other : scenarios) {
    if (!other->has_moe() || other->model_name != scenario.model_name) continue;
    if (other->scores.name() == scenario.scores.name()) routers.push_back(other->router);
  }
  for (const std::string& text : scenario::notes_of_recorded(scenario.scores, routers)) note(text);
}

}  // namespace

void note_scores(const scenario::OptionValues& typed,
                 std::span<const scenario::Scenario* const> scenarios) {
  if (typed.contains("routing")) note_trained_biases(scenarios);
  std::set<std::pair<std::string, std::string>> seen;
  for (const scenario::Scenario* const scenario : scenarios) {
    if (!scenario->has_moe()) continue;
    if (!seen.emplace(scenario->scores.name(), scenario->model_name).second) continue;
    const bool read =
        std::any_of(scenarios.begin(), scenarios.end(), [&](const scenario::Scenario* other) {
          return other->has_moe() && other->router.scores_experts() &&
                 other->scores.name() == scenario->scores.name() &&
                 other->model_name == scenario->model_name;
        });
    if (scenario->scores.trace != nullptr) {
      note_trace(typed, *scenario, read);
      note_recorded(*scenario, scenarios);
      continue;
    }
    if (!read) continue;  // the note of idle options says so
    for (const std::string& text : scenario::notes_of_scores(
             scenario->scores, scenario->moe_layers(), scenario->model_name)) {
      note(text);
    }
    note_recorded(*scenario, scenarios);
  }
}

namespace {

// The seconds from which on a run says beforehand how long it takes.
constexpr double long_s = 60;

// Says that fewer replicas take less, where there are several.
std::string fewer_replicas(const scenario::Scenario& scenario) {
  constexpr int few = 3;
  return scenario.replicas > few ? fmt::format("--replicas {}, ", few) : "";
}

std::string in_replicas(const scenario::Scenario& scenario) {
  return scenario.replicas > 1 ? fmt::format(" in {} replicas", scenario.replicas) : "";
}

}  // namespace

void check_routing_fits(const scenario::Scenario& scenario) {
  if (!scenario.has_moe()) return;
  const routing::RoutingJob job = scenario.routing_job();
  const auto bytes = static_cast<double>(routing::result_bytes(job));
  const double memory = host_memory_bytes();
  if (bytes <= memory) return;
  throw UsageError(fmt::format(
      "the routing of one replica, {} GPUs x {} experts x {} layers, takes {:.0f} GiB, and this "
      "machine has {:.0f}: use fewer --gpus or --experts",
      job.gpus, job.experts, job.layers, bytes / bytes_per_gib, memory / bytes_per_gib));
}

void note_costly_routing(const scenario::Scenario& scenario) {
  if (!scenario.has_moe()) return;
  const routing::RoutingJob job = scenario.routing_job();
  const auto bytes = static_cast<double>(routing::result_bytes(job));
  // CPU time on one core with AVX-512 (tests/bench/README.md): top-k draws and routes a logit in 2
  // ns, other routers in up to 5; a count takes about 50, and each layer's counts are fitted to a
  // sample of tokens of 2^20 logits, or of 2,048 tokens.
  constexpr double logit_s = 3e-9;
  constexpr double count_s = 50e-9;
  constexpr double sampled_logit_s = 5e-9;
  const double sampled = job.layers * std::max(double{1 << 20}, 2048.0 * job.experts);
  const bool by_tokens = job.fidelity == routing::Fidelity::tokens;
  const double units = by_tokens ? routing::token_logits(job)
                                 : static_cast<double>(job.gpus) * job.experts * job.layers;
  const double seconds =
      scenario.replicas *
      (by_tokens ? units * logit_s : units * count_s + sampled * sampled_logit_s);
  if (seconds < long_s) return;
  const bool counts_are_less = by_tokens && routing::counts_refusal(job).empty();
  note(fmt::format(
      "note: {:.0f} million {} a replica, {} layers: routing takes about {} of CPU time{}{}; "
      "{}fewer GPUs{} take less",
      units * 1e-6, by_tokens ? "logits" : "counts", job.layers, duration(seconds),
      in_replicas(scenario),
      bytes > bytes_per_gib ? fmt::format(" and {:.0f} GiB", bytes / bytes_per_gib) : "",
      fewer_replicas(scenario),
      counts_are_less ? " or --fidelity counts"
      : by_tokens     ? " or --router dropless"
                      : ""));
}

void note_costly_flows(const scenario::Scenario& scenario) {
  const double seconds = step::flows_seconds(scenario) * scenario.replicas;
  if (seconds < long_s) return;
  note(
      fmt::format("note: exact flows among {} GPUs take about {} of CPU time{}, to a factor of "
                  "three; {}--network fast takes seconds: each exchange by itself, by its busiest "
                  "port",
                  scenario.expert_parallel, duration(seconds), in_replicas(scenario),
                  fewer_replicas(scenario)));
}

}  // namespace moesim::tool
