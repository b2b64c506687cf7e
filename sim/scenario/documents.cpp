#include "sim/scenario/documents.hpp"

#include <fmt/format.h>

#include "sim/base/digest.hpp"
#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/shipped.hpp"
#include "sim/model/megatron/megatron_arguments.hpp"
#include "sim/scenario/document_cache.hpp"
#include "sim/scenario/scenario.hpp"

namespace moesim::scenario {
namespace {

std::uint64_t contents_of(const char* kind, const std::string& name) {
  return Digest().add(read_file(find_document(kind, name))).value();
}

}  // namespace

void use_usual_cluster(Resolution& at) {
  Scenario& scenario = at.scenario;
  scenario.cluster_name = scenario.profile->device().usual_cluster;
  if (scenario.cluster_name.empty()) {
    throw UsageError(
        fmt::format("--cluster: profile {} does not name its usual cluster: give --cluster NAME",
                    scenario.profile_name));
  }
  scenario.cluster = at.documents.cluster(scenario.cluster_name);
}

bool routes_layers_of_model(const Scenario& scenario) { return scenario.trace_layers == 0; }

void check_attention(const Scenario& scenario, Use use) {
  const model::Model& model = *scenario.model;
  if (use == Use::routing || (!model.linear && !model.output_gate)) return;
  throw UsageError(fmt::format(
      "--model {}: {} is not known to a simulated step: use moesim train, layout or recommend, "
      "which price it (a measured step: moesim train --measured)",
      scenario.model_name,
      model.linear ? "its linear attention" : "the output gate of its attention"));
}

std::uint64_t profile_contents(const Scenario& scenario) {
  return contents_of("hardware", scenario.profile_name);
}

std::uint64_t model_contents(const Scenario& scenario) {
  const std::string& name = scenario.model_name;
  if (model::MegatronArguments::is_path(name)) {
    return Digest().add(name).add(read_file(model::MegatronArguments::file_of(name))).value();
  }
  return contents_of("models", scenario.model_name);
}

std::uint64_t cluster_contents(const Scenario& scenario) {
  return contents_of("clusters", scenario.cluster_name);
}

}  // namespace moesim::scenario
