#include "sim/scenario/idle_rules.hpp"

#include "sim/scenario/router_options.hpp"
#include "sim/scenario/scenario.hpp"

namespace moesim::scenario {
namespace {

constexpr Reason useful;

// Rows of experts leave their GPU.
bool exchanges(const Scenario& scenario) {
  return scenario.has_moe() && scenario.expert_parallel > 1;
}

// Exchanges of blocks of equal size take the same time by both networks: where the links of a group
// are its own.
bool has_links_of_its_own(const Scenario& scenario) {
  if (scenario.gpus == scenario.expert_parallel) return scenario.conditions.slow_links.empty();
  const cluster::Cluster& cluster = *scenario.cluster;
  return cluster.domain.levels.empty() && scenario.has_aligned_groups() &&
         scenario.expert_parallel <= cluster.gpus_per_domain;
}

// Of a step with experts: gradients under the backward pass, or rectified rows under an exchange.
bool computes_beside_exchanges(const Scenario& scenario) {
  if (is_training(scenario) && scenario.gradient_overlap != GradientOverlap::none) return true;
  return rectifies(scenario) && scenario.router.ir_compute == routing::IrCompute::overlap;
}

}  // namespace

Reason without_experts(const Question& ask) {
  return ask.scenario.router.is_dense() ? "a dense model has no experts" : useful;
}

Reason without_capacity(const Question& ask) {
  if (ask.scenario.router.has_capacity()) return useful;
  return ask.scenario.router.pads_to_busiest() ? "--padding busiest drops nothing"
                                               : "no router of this run has a capacity";
}

// Without a capacity a dialect still says what is sent beside the tokens, how routes are weighed
// and what groups are worth.
Reason without_dialect(const Question& ask) {
  const routing::RouterConfig& router = ask.scenario.router;
  const bool says = ask.asker != Asker::routing || router.groups > 1;
  return says && router.chooses_top_k() ? useful : without_capacity(ask);
}

Reason without_overflow(const Question& ask) {
  return ask.scenario.router.overflows() ? useful
                                         : "no router of this run has experts that overflow";
}

Reason without_slots(const Question& ask) {
  return ask.scenario.router.pads_to_busiest() ? useful : without_capacity(ask);
}

Reason without_groups(const Question& ask) {
  return ask.scenario.router.groups > 1 ? useful : "no router of this run has groups of experts";
}

Reason without_scores_of_experts(const Question& ask) {
  return ask.scenario.router.scores_experts() ? useful : "no router of this run chooses by score";
}

Reason without_variants(const Question& ask) {
  return ask.scenario.router.kind->takes_best ? useful
                                              : "no router of this run takes the best experts";
}

Reason without_blocks(const Question& ask) {
  if (ask.scenario.router.pads_to_busiest()) return useful;
  if (const char* reason = ask.scenario.router.kind->idle_padding; reason != nullptr) return reason;
  if (!without_overflow(ask).empty()) return "no router of this run has slots that may stay empty";
  // Blocks of unequal GPUs are a question of the routing too.
  return ask.asker == Asker::step || ask.scenario.scores.is_ragged()
             ? useful
             : "routing alone exchanges nothing";
}

Reason without_weights(const Question& ask) {
  if (ask.asker != Asker::logits)
    return "only the routes that 'route --logits' writes have weights";
  const char* reason = ask.scenario.router.kind->idle_weights;
  return reason != nullptr ? reason : useful;
}

Reason without_fill_in(const Question& ask) {
  return ask.scenario.router.fill_in ? useful : "no router of this run fills in (+fr)";
}

Reason without_rectification(const Question& ask) {
  return ask.scenario.router.rectification != routing::Rectification::none
             ? useful
             : "no router of this run rectifies inside a GPU or NVLink domain (+ir)";
}

Reason without_scores(const Question& ask) {
  if (ask.asker == Asker::logits) return "the logits are given";
  if (ask.scenario.router.is_dense()) return without_experts(ask);
  return ask.scenario.router.scores_experts() || ask.scenario.scores.is_ragged()
             ? useful
             : "no router of this run chooses by score";
}

Reason without_step(const Question& ask) {
  return ask.asker == Asker::step ? useful : "routing alone times no step";
}

Reason without_moe_step(const Question& ask) {
  return ask.scenario.router.is_dense() ? without_experts(ask) : without_step(ask);
}

Reason without_several_experts(const Question& ask) {
  const Reason unused = without_moe_step(ask);
  if (!unused.empty()) return unused;
  return ask.scenario.router.choices() > 1 ? useful : "a token of this run has one expert alone";
}

Reason without_own_rows(const Question& ask) {
  const Reason unused = without_several_experts(ask);
  if (!unused.empty()) return unused;
  return ask.scenario.dispatcher == nullptr ? useful
                                            : "the --dispatcher says what it sends of a token";
}

Reason without_exchange(const Question& ask) {
  const Reason unused = without_moe_step(ask);
  if (!unused.empty()) return unused;
  return ask.scenario.expert_parallel > 1 ? useful : "--expert-parallel 1 exchanges nothing";
}

Reason without_links(const Question& ask) {
  const Reason unused = without_step(ask);
  if (!unused.empty()) return unused;
  const Scenario& scenario = ask.scenario;
  // The reduction of gradients takes as long by both, but where the profile slows it down.
  const bool slows = is_training(scenario) && scenario.profile->overlap().has_value() &&
                     scenario.gradient_overlap != GradientOverlap::none;
  if (!exchanges(scenario)) return slows ? useful : "no rows of experts are exchanged";
  return scenario.dispatcher == nullptr ? useful : "the time of a --dispatcher is a law of its own";
}

// Slowdowns also decide between networks, where they may differ.
Reason without_overlap(const Question& ask) {
  const Reason unused = without_step(ask);
  if (!unused.empty()) return unused;
  const Scenario& scenario = ask.scenario;
  const bool chooses = exchanges(scenario) && scenario.network == Network::automatic &&
                       !has_links_of_its_own(scenario);
  return chooses || computes_beside_exchanges(scenario)
             ? useful
             : "nothing is computed beside an exchange (--overlap none)";
}

Reason without_rectified_step(const Question& ask) {
  const Reason unused = without_rectification(ask);
  return unused.empty() ? without_step(ask) : unused;
}

Reason without_training(const Question& ask) {
  if (ask.asker != Asker::step) return without_step(ask);
  return ask.scenario.mode == Mode::train ? useful : "--mode prefill is a forward pass alone";
}

Reason without_phase(const Question& ask) {
  const bool differs = ask.asker == Asker::step || ask.scenario.router.kind->infer != nullptr;
  return differs ? useful : "no router of this run routes otherwise in a forward pass";
}

Reason without_sequences(const Question& ask) {
  if (ask.asker == Asker::logits) return "the logits say how many tokens there are";
  const bool counted = ask.asker == Asker::routing && ask.has("tokens-per-gpu");
  return counted ? "--tokens-per-gpu says how many tokens there are" : useful;
}

Reason unless_drawn(const Question& ask) {
  return ask.asker == Asker::logits ? "the logits are given" : useful;
}

Reason unless_model_is_read(const Question& ask) {
  if (ask.asker != Asker::logits || !ask.scenario.router.chooses_top_k()) return useful;
  return !ask.has("router") || takes_models_k(ask.typed)
             ? useful
             : "the logits and --router say all that is asked of it";
}

Reason unless_random(const Question& ask) {
  const routing::RouterConfig& router = ask.scenario.router;
  const bool draws = !router.kind->takes_best || router.trains_biases() ||
                     router.second_expert != routing::SecondExpert::best ||
                     router.priority == routing::Priority::random;
  return ask.asker != Asker::logits || draws ? useful : "the logits are given, no choice is random";
}

Reason unless_drawn_experts(const Question& ask) {
  return ask.scenario.router.is_dense() ? without_experts(ask) : unless_drawn(ask);
}

Reason without_own_experts(const Question& ask) {
  return ask.scenario.router.is_dense() ? without_experts(ask) : useful;
}

bool has_experts(const Scenario& scenario) { return !scenario.router.is_dense(); }

bool has_capacity(const Scenario& scenario) { return scenario.router.has_capacity(); }

bool has_blocks(const Scenario& scenario) {
  return scenario.router.has_capacity() || scenario.router.pads_to_busiest();
}

bool scores_experts(const Scenario& scenario) { return scenario.router.scores_experts(); }

bool has_groups(const Scenario& scenario) { return scenario.router.groups > 1; }

bool has_dialect(const Scenario& scenario) {
  return scenario.router.has_capacity() || scenario.router.chooses_top_k();
}

bool fills_in(const Scenario& scenario) { return has_experts(scenario) && scenario.router.fill_in; }

bool rectifies(const Scenario& scenario) {
  return has_experts(scenario) && scenario.router.rectification != routing::Rectification::none;
}

bool sends_counted_rows(const Scenario& scenario) {
  return has_experts(scenario) && !scenario.router.counts_known();
}

bool is_training(const Scenario& scenario) { return scenario.mode == Mode::train; }

}  // namespace moesim::scenario
