#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/job/job_option_table.hpp"
#include "sim/scenario/options.hpp"

namespace moesim::job {

// The options of a job's routing: those of a scenario that mean the same here, and what of a step
// is drawn.
void declare_routing(JobOptionTable& table);
// Throws UsageError if the text of an option of routing makes no sense whatever the others are.
void check_routing_text(const std::string& option, const std::string& text);
// Loads of experts: one given instead of drawn routing, and copies of hot experts.
void declare_loads(JobOptionTable& table);

// What a user should know of the options of routing, a line each.
struct RoutingNotes {
  std::vector<std::string> replaced;  // another router in the place of the model's
  std::vector<std::string> scores;    // what recorded scores have less of than the job
  std::vector<std::string> slots;     // that no routing fills
  std::vector<std::string> priority;  // that tells no tokens apart
  std::vector<scenario::IdleOption> idle;
};

// What the options ask for; nothing where none of them is given. `job` has its profile, cluster,
// model and layout. `documents`: read before, may have those of other jobs. Throws UsageError
// naming the flag.
std::optional<training::DrawnRouting> drawn_routing(const scenario::OptionValues& typed,
                                                    const training::TrainingJob& job,
                                                    scenario::DocumentCache& documents,
                                                    RoutingNotes& notes);

std::optional<training::DrawnRouting> drawn_routing(const scenario::OptionValues& typed,
                                                    const training::TrainingJob& job,
                                                    RoutingNotes& notes);  // which reads all

}  // namespace moesim::job
