#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "sim/scenario/scenario.hpp"

namespace moesim::scenario {

// How the values of a scenario option are written: what a list of them may hold.
enum class OptionKind { text, whole, decimal };  // ranges lo:hi:step for whole and decimal only

// One scenario option of the command line, in the order of the documentation, which is also the
// grid order: the first option varies slowest.
struct OptionSpec {
  std::string name;  // without the dashes
  OptionKind kind = OptionKind::text;
  std::string value;         // what stands for the value in a help text
  std::string default_text;  // as a help text says it
  std::string help;
  std::vector<std::pair<std::string, std::string>> choices = {};  // what it may be: what that means
};
const std::vector<OptionSpec>& scenario_options();

// The options of one scenario as typed: name without dashes -> text. What is absent has its
// default.
using OptionValues = std::map<std::string, std::string>;

// Profiles, models, clusters and score files by name, each read once. Safe to use from threads.
class DocumentCache {
 public:
  std::shared_ptr<const profile::Profile> profile(const std::string& name);
  std::shared_ptr<const model::Model> model(const std::string& name);
  std::shared_ptr<const cluster::Cluster> cluster(const std::string& name);
  routing::ScoreSource scores(const std::string& text);

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const profile::Profile>> profiles_;
  std::map<std::string, std::shared_ptr<const model::Model>> models_;
  std::map<std::string, std::shared_ptr<const cluster::Cluster>> clusters_;
  std::map<std::string, routing::ScoreSource> scores_;
};

// What a scenario is for: routing alone does not ask that tokens make whole sequences.
enum class Use { step, routing };

// Throws UsageError naming flag, value, reason and what to try, if the value makes no sense
// whatever the other options are.
void check_value(const std::string& option, const std::string& text, DocumentCache& documents);

// The scenario with every default filled in. Throws UsageError for one that cannot be.
Scenario resolve(const OptionValues& values, DocumentCache& documents, Use use = Use::step);

// The same in two stages: the options in their own right, then whether they go together, so that
// a refused scenario can still be shown in full.
Scenario fill_in(const OptionValues& values, DocumentCache& documents, Use use);
void check_together(const Scenario& scenario, Use use);

}  // namespace moesim::scenario
