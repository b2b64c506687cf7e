#include "sim/scenario/document_cache.hpp"

namespace moesim::scenario {
namespace {

template <class Value, class Load>
Value remembered(std::mutex& mutex, std::map<std::string, Value>& known, const std::string& name,
                 Load load) {
  const std::lock_guard lock(mutex);
  const auto found = known.find(name);
  if (found != known.end()) return found->second;
  return known.emplace(name, load()).first->second;
}

}  // namespace

// Only a document of moesim calibrate is taken by one of the two and not by the other.
std::shared_ptr<const profile::Profile> DocumentCache::profile(const std::string& name) {
  return remembered(mutex_, profiles_, name, [&] {
    const auto known = calibrated_profiles_.find(name);
    if (known != calibrated_profiles_.end() && known->second->calibration().empty()) {
      return known->second;
    }
    return std::make_shared<const profile::Profile>(profile::Profile::load(name));
  });
}

std::shared_ptr<const profile::Profile> DocumentCache::calibrated_profile(const std::string& name) {
  return remembered(mutex_, calibrated_profiles_, name, [&] {
    const auto known = profiles_.find(name);
    if (known != profiles_.end()) return known->second;
    return std::make_shared<const profile::Profile>(
        profile::Profile::load(name, profile::Profile::Calibrated::taken));
  });
}

std::shared_ptr<const model::Model> DocumentCache::model(const std::string& name) {
  return remembered(mutex_, models_, name,
                    [&] { return std::make_shared<const model::Model>(model::Model::load(name)); });
}

std::shared_ptr<const cluster::Cluster> DocumentCache::cluster(const std::string& name) {
  return remembered(mutex_, clusters_, name, [&] {
    return std::make_shared<const cluster::Cluster>(cluster::Cluster::load(name));
  });
}

std::shared_ptr<const profile::Dispatcher> DocumentCache::dispatcher(const std::string& name) {
  return remembered(mutex_, dispatchers_, name, [&] {
    return std::make_shared<const profile::Dispatcher>(profile::Dispatcher::load(name));
  });
}

routing::ScoreSource DocumentCache::scores(const std::string& text) {
  return remembered(mutex_, scores_, text,
                    [&] { return routing::parse_score_source(text, "--routing"); });
}

}  // namespace moesim::scenario
