#pragma once

#include <memory>
#include <string>

#include "sim/scenario/document_cache.hpp"
#include "sim/scenario/idle_rules.hpp"
#include "sim/scenario/option.hpp"

namespace moesim::scenario {

// What a scenario is made of: documents, with their names as typed, as the columns must reproduce
// the row.
struct Documents {
  std::shared_ptr<const profile::Profile> profile;
  std::shared_ptr<const model::Model> model;
  std::shared_ptr<const cluster::Cluster> cluster;
  std::string profile_name;
  std::string model_name;
  std::string cluster_name;
};

// Throws UsageError for a profile that names none.
void use_usual_cluster(Resolution& at);
bool routes_layers_of_model(const Scenario& scenario);
// Throws UsageError for a model whose attention a simulated step does not know; routing does not
// ask.
void check_attention(const Scenario& scenario, Use use);
std::uint64_t profile_contents(const Scenario& scenario);
std::uint64_t model_contents(const Scenario& scenario);
std::uint64_t cluster_contents(const Scenario& scenario);

template <class Table>
void declare_documents(Table& table) {
  using Cache = DocumentCache;
  table.document("profile", &Cache::profile, &Documents::profile, &Documents::profile_name)
      .by_default("a100-sxm-80gb")
      .help("GPU and node, as measured; an unknown name lists those that ship")
      .in_route(true)
      .contents(profile_contents);
  table.document("model", &Cache::model, &Documents::model, &Documents::model_name)
      .by_default("llama2-7b-moe8")
      .help("transformer and its MoE layers; names as of profiles")
      .affects(Affects::routing)
      .applies(routes_layers_of_model)
      .idle(unless_model_is_read)
      .checked(check_attention)
      .contents(model_contents);
  table.document("cluster", &Cache::cluster, &Documents::cluster, &Documents::cluster_name)
      .by_default("the profile's usual node", use_usual_cluster)
      .help("nodes, NICs and fabric; names as of profiles")
      .affects(Affects::routing)
      .after({"profile"})
      .contents(cluster_contents);
}

}  // namespace moesim::scenario
