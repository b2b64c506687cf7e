#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "sim/cluster/cluster.hpp"
#include "sim/model/model.hpp"
#include "sim/profile/dispatcher.hpp"
#include "sim/profile/profile.hpp"
#include "sim/routing/scores/score_source.hpp"

namespace moesim::scenario {

// Profiles, models, clusters, dispatchers and score files by name, each read once: one that changes
// afterwards is not read again. Safe to use from threads.
class DocumentCache {
 public:
  std::shared_ptr<const profile::Profile> profile(const std::string& name);
  // The same, also of a document of moesim calibrate (Profile::Calibrated::taken).
  std::shared_ptr<const profile::Profile> calibrated_profile(const std::string& name);
  std::shared_ptr<const model::Model> model(const std::string& name);
  std::shared_ptr<const cluster::Cluster> cluster(const std::string& name);
  std::shared_ptr<const profile::Dispatcher> dispatcher(const std::string& name);
  routing::ScoreSource scores(const std::string& text);

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const profile::Profile>> profiles_;
  std::map<std::string, std::shared_ptr<const profile::Profile>> calibrated_profiles_;
  std::map<std::string, std::shared_ptr<const model::Model>> models_;
  std::map<std::string, std::shared_ptr<const cluster::Cluster>> clusters_;
  std::map<std::string, std::shared_ptr<const profile::Dispatcher>> dispatchers_;
  std::map<std::string, routing::ScoreSource> scores_;
};

}  // namespace moesim::scenario
