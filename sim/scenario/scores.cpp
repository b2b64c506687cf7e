#include "sim/scenario/scores.hpp"

#include <fmt/format.h>

#include "sim/base/digest.hpp"
#include "sim/base/file.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "sim/scenario/document_cache.hpp"
#include "sim/scenario/scenario.hpp"

namespace moesim::scenario {

void check_scores(const std::string& text, DocumentCache& documents) { documents.scores(text); }

void set_scores(const std::string& text, Resolution& at) {
  Scenario& scenario = at.scenario;
  scenario.scores = at.documents.scores(text);
  const bool alone = at.use == Use::routing && at.find("model") == nullptr;
  scenario.trace_layers = alone && scenario.recorded() != nullptr ? scenario.recorded()->layers : 0;
}

std::string scores_of(const Scenario& scenario) { return scenario.scores.name(); }

std::uint64_t scores_contents(const Scenario& scenario) {
  const routing::ScoreSource& scores = scenario.scores;
  if (scores.trace != nullptr) return scores.trace->digest();  // of several files
  return scores.file.empty() ? 0 : Digest().add(read_file(scores.file)).value();
}

std::string fidelity_used(const Scenario& scenario) {
  return routing::name_of(scenario.routing_job().fidelity);
}

namespace {

// 0: none were.
int recorded_layers(const routing::ScoreSource& scores) {
  if (scores.popularity != nullptr) return static_cast<int>(scores.popularity->layers().size());
  return scores.trace == nullptr ? 0 : scores.trace->shape().layers;
}

}  // namespace

std::string weights_of_layers(const routing::ScoreSource& scores, int layers) {
  const int recorded = recorded_layers(scores);
  if (recorded == 0 || layers <= recorded || layers % recorded == 0) return "";
  const int more = layers % recorded;
  return fmt::format(
      "note: {}: losses are means over {} layers, which weigh {} {} times, the {} {}",
      scores.name(), layers,
      more == 1 ? "its first layer" : fmt::format("its first {} layers", more),
      layers / recorded + 1, recorded - more == 1 ? "last" : "others", layers / recorded);
}

std::string layers_again(const routing::ScoreSource& scores, int layers, const std::string& model) {
  const int recorded = recorded_layers(scores);
  if (recorded == 0 || layers == recorded) return "";
  if (layers < recorded) {
    return fmt::format("{} MoE layer{} of {} take{} the first {} of its {} layers", layers,
                       layers == 1 ? "" : "s", model, layers == 1 ? "s" : "", layers, recorded);
  }
  return fmt::format("{} MoE layers of {} take its {} layer{} in turn", layers, model, recorded,
                     recorded == 1 ? "" : "s");
}

std::vector<std::string> notes_of_scores(const routing::ScoreSource& scores, int layers,
                                         const std::string& model) {
  std::vector<std::string> notes;
  if (const std::string again = layers_again(scores, layers, model); !again.empty()) {
    notes.push_back(fmt::format("note: {}: {}", scores.name(), again));
  }
  if (const std::string weights = weights_of_layers(scores, layers); !weights.empty()) {
    notes.push_back(weights);
  }
  if (scores.unlisted_experts > 0) {
    const int experts = scores.popularity->experts();
    notes.push_back(fmt::format(
        "warning: {} has rows of {} of the {} experts that it numbers{}: the others get no token "
        "there; rows of count 0 say that this is meant",
        scores.name(), experts - scores.unlisted_experts, experts,
        scores.popularity->layers().size() == 1 ? "" : ", in the layer with the fewest"));
  }
  return notes;
}

void check_routing_job(const Scenario& scenario, Use use) {
  if (use == Use::step && scenario.has_moe()) routing::check(scenario.routing_job());
}

}  // namespace moesim::scenario
