#pragma once

#include <string>
#include <vector>

#include "sim/routing/jobs/fidelity.hpp"
#include "sim/routing/scores/score_source.hpp"
#include "sim/scenario/idle_rules.hpp"
#include "sim/scenario/option.hpp"

namespace moesim::scenario {

// Where the scores of the router come from, and how finely tokens are routed by them.
struct Scores {
  routing::ScoreSource scores;
  routing::Fidelity fidelity = routing::Fidelity::automatic;  // as typed
  // The MoE layers of a trace that is routed by itself, without a typed model; 0: the model's.
  int trace_layers = 0;
  // Null where routing is drawn.
  const routing::TraceShape* recorded() const {
    return scores.trace == nullptr ? nullptr : &scores.trace->shape();
  }
};

void check_scores(const std::string& text, DocumentCache& documents);
void set_scores(const std::string& text, Resolution& at);
std::string scores_of(const Scenario& scenario);
std::uint64_t scores_contents(const Scenario& scenario);
std::string fidelity_used(const Scenario& scenario);
void check_routing_job(const Scenario& scenario, Use use);

// How scores that were recorded in a file serve `layers` MoE layers of `model`; else "". "48 MoE
// layers of qwen3-30b-a3b take its 16 layers in turn", or "the first 48 of its 60 layers".
std::string layers_again(const routing::ScoreSource& scores, int layers, const std::string& model);
// Where layers are taken in turn and not equally often, how a mean over layers weighs them; else
// "".
std::string weights_of_layers(const routing::ScoreSource& scores, int layers);
// A line for other layers than the model has, and for experts without a row of counts.
std::vector<std::string> notes_of_scores(const routing::ScoreSource& scores, int layers,
                                         const std::string& model);

template <class Table>
void declare_scores(Table& table) {
  table.text("routing", "SOURCE", check_scores, set_scores, scores_of)
      .by_default("gaussian:0.1")
      .help("which experts are popular, or what was recorded:")
      .forms(named_values(routing::score_source_forms()))
      .affects(Affects::routing)
      .applies(has_experts)
      .idle(without_scores)
      .contents(scores_contents)
      .checked(check_routing_job);
  const std::vector<NamedValue> fidelities{
      {"tokens", "each token"},
      {"counts", "how many tokens of each GPU an expert gets; losses are estimated"},
      {"auto", "tokens up to 1e9 logits a replica, then counts where offered"}};
  table
      .choice(
          "fidelity", fidelities, routing::parse_fidelity,
          [](routing::Fidelity value) { return routing::name_of(value); }, &Scores::fidelity)
      .shown_as(fidelity_used)
      .by_default("auto")
      .help("how routing is drawn:")
      .affects(Affects::routing)
      .applies(has_experts)
      .idle(unless_drawn_experts);
}

}  // namespace moesim::scenario
