#include "sim/scenario/idle_options.hpp"

#include <algorithm>
#include <string_view>

namespace moesim::scenario {
namespace {

using routing::RouterKind;

// Why one scenario has no use for an option; "" where it has.
struct Question {
  const Scenario& scenario;
  const OptionValues& typed;
  Asker asker;

  const routing::RouterConfig& router() const { return scenario.router; }
  bool has(const char* option) const { return typed.count(option) != 0; }
};
using Answer = std::string_view;
constexpr Answer useful;

Answer needs_experts(const Question& ask) {
  return ask.router().is_dense() ? "a dense model has no experts" : useful;
}

Answer needs_capacity(const Question& ask) {
  return ask.router().has_capacity() ? useful : "no router of this run has a capacity";
}

// Without a capacity a dialect still says what is sent beside the tokens.
Answer needs_dialect(const Question& ask) {
  const bool sends = ask.asker == Asker::step && ask.router().chooses_top_k();
  return sends ? useful : needs_capacity(ask);
}

Answer needs_overflow(const Question& ask) {
  const bool fills = ask.router().kind == RouterKind::expert_choice ||  // takes what is best
                     ask.router().kind == RouterKind::soft;
  return ask.router().has_capacity() && !fills ? useful
                                               : "no router of this run has experts that overflow";
}

Answer needs_blocks(const Question& ask) {
  if (ask.router().kind == RouterKind::scomoe) return "scomoe exchanges the blocks of its pools";
  if (!needs_overflow(ask).empty()) return "no router of this run can do either";
  // Blocks of unequal GPUs are a question of the routing too.
  return ask.asker == Asker::step || ask.scenario.scores.is_ragged()
             ? useful
             : "routing alone exchanges nothing";
}

Answer needs_weights(const Question& ask) {
  if (ask.asker != Asker::logits)
    return "only the routes that 'route --logits' writes have weights";
  return ask.router().kind == RouterKind::base ? "base weighs by the sigmoid of the logit" : useful;
}

Answer needs_fill_in(const Question& ask) {
  return ask.router().fill_in ? useful : "no router of this run fills in (+fr)";
}

Answer needs_rectification(const Question& ask) {
  return ask.router().rectification != routing::Rectification::none
             ? useful
             : "no router of this run rectifies inside a GPU or node (+ir)";
}

Answer needs_scores(const Question& ask) {
  if (ask.asker == Asker::logits) return "the logits are given";
  if (ask.router().is_dense()) return needs_experts(ask);
  const bool scored = ask.router().has_gate() && ask.router().kind != RouterKind::soft;
  return scored || ask.scenario.scores.is_ragged() ? useful
                                                   : "no router of this run chooses by score";
}

Answer needs_step(const Question& ask) {
  return ask.asker == Asker::step ? useful : "routing alone times no step";
}

Answer needs_moe_step(const Question& ask) {
  return ask.router().is_dense() ? needs_experts(ask) : needs_step(ask);
}

Answer needs_several_experts(const Question& ask) {
  const Answer unused = needs_moe_step(ask);
  if (!unused.empty()) return unused;
  return ask.router().choices() > 1 ? useful : "a token of this run has one expert alone";
}

Answer needs_rectified_step(const Question& ask) {
  const Answer unused = needs_rectification(ask);
  return unused.empty() ? needs_step(ask) : unused;
}

Answer needs_training(const Question& ask) {
  if (ask.asker != Asker::step) return needs_step(ask);
  return ask.scenario.mode == Mode::train ? useful : "--mode prefill is a forward pass alone";
}

Answer needs_phase(const Question& ask) {
  const bool differs = ask.asker == Asker::step || ask.router().kind == RouterKind::base ||
                       ask.router().kind == RouterKind::gating_dropout;
  return differs ? useful : "no router of this run routes otherwise in a forward pass";
}

Answer needs_sequences(const Question& ask) {
  if (ask.asker == Asker::logits) return "the logits say how many tokens there are";
  const bool counted = ask.asker == Asker::routing && ask.has("tokens-per-gpu");
  return counted ? "--tokens-per-gpu says how many tokens there are" : useful;
}

Answer needs_draws(const Question& ask) {
  return ask.asker == Asker::logits ? "the logits are given" : useful;
}

Answer needs_drawn_experts(const Question& ask) {
  return ask.router().is_dense() ? needs_experts(ask) : needs_draws(ask);
}

struct Rule {
  const char* option;
  Answer (*unused)(const Question& ask);
};

constexpr Rule rules[] = {{"gpus", needs_draws},
                          {"expert-parallel", needs_experts},
                          {"experts", needs_experts},
                          {"expert-placement", needs_drawn_experts},
                          {"top-k", needs_experts},
                          {"capacity-factor", needs_capacity},
                          {"capacity-convention", needs_capacity},
                          {"capacity-scope", needs_capacity},
                          {"min-capacity", needs_capacity},
                          {"router-dialect", needs_dialect},
                          {"padding", needs_blocks},
                          {"priority", needs_overflow},
                          {"weights", needs_weights},
                          {"fill-order", needs_fill_in},
                          {"ir-compute", needs_rectified_step},
                          {"ir-duplicates", needs_rectification},
                          {"dispatch", needs_moe_step},
                          {"dedup", needs_several_experts},
                          {"mode", needs_phase},
                          {"sequence-length", needs_sequences},
                          {"micro-batch", needs_sequences},
                          {"global-batch", needs_training},
                          {"checkpointing", needs_training},
                          {"zero", needs_training},
                          {"overlap", needs_training},
                          {"routing", needs_scores},
                          {"fidelity", needs_drawn_experts},
                          {"network", needs_step},
                          {"slow-gpu", needs_step},
                          {"slow-link", needs_step},
                          {"jitter", needs_step},
                          {"overlap-slowdown", needs_step},
                          {"replicas", needs_draws}};

}  // namespace

std::vector<IdleOption> idle_options(const OptionValues& typed,
                                     std::span<const Scenario* const> scenarios, Asker asker) {
  std::vector<IdleOption> idle;
  if (scenarios.empty()) return idle;
  for (const Rule& rule : rules) {
    if (typed.count(rule.option) == 0) continue;
    const auto uses = [&](const Scenario* scenario) {
      return rule.unused({*scenario, typed, asker}).empty();
    };
    if (std::any_of(scenarios.begin(), scenarios.end(), uses)) continue;
    idle.push_back({rule.option, std::string(rule.unused({*scenarios.front(), typed, asker}))});
  }
  return idle;
}

}  // namespace moesim::scenario
