#include "sim/scenario/scores.hpp"

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

void check_routing_job(const Scenario& scenario, Use use) {
  if (use == Use::step && scenario.has_moe()) routing::check(scenario.routing_job());
}

}  // namespace moesim::scenario
