#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "sim/job/drawn_routing.hpp"
#include "sim/job/job_option.hpp"

namespace moesim::job {

// Every option of a training job, declared once, in the order of help texts and grids.
const std::vector<JobOption>& job_options();
const JobOption* find_job_option(const std::string& name);  // null: there is none
// Throws Error if there is none.
const JobOption& job_option_named(const std::string& name);

// How the software of a job is built, by option: those of `built_in`, as they would be typed, and
// "cluster", its document's name. {"cuda-graphs", "layers"}, {"gradients", "bf16"}, ...
std::map<std::string, std::string> built_options(const training::TrainingJob& job);
// Whether a job can have these instead, besides its cluster.
bool can_be_built(training::TrainingJob job, const std::map<std::string, std::string>& options);

// On the options of `asked` that are not at their default and change nothing in any of the jobs, a
// line each: "note: --tensor-overlap has no effect: ...", with the reason in the first job.
std::vector<std::string> idle_notes(const scenario::OptionValues& asked,
                                    std::span<const training::TrainingJob> jobs);

struct ResolvedJob {
  training::TrainingJob job;
  std::vector<std::string> notes;  // what a user should know of other options, a line each
  RoutingNotes routing_notes;
};
// The job that the options ask for. Throws UsageError naming the flag; whether the layout can be is
// for parallel::check_layout() to say. Of options without effect those are noted that are in
// `asked`: not those of a row, or of one of several jobs at once. Throws Error for a name that is
// no option of a job.
// `documents` keeps the profiles, models, clusters, dispatchers and scores for the next job, which
// shares them (megabytes, and what curves know of sizes that were asked for): one for many jobs,
// also in threads. Without it each call reads them.
// A document of one's own software as "profile" brings curves, and factors of whole steps that are
// not in the job: study::predict_training() applies them. So those without `asked` refuse it.
ResolvedJob resolve_job(const scenario::OptionValues& typed, const scenario::OptionValues& asked,
                        scenario::DocumentCache& documents);
ResolvedJob resolve_job(const scenario::OptionValues& typed,
                        scenario::DocumentCache& documents);  // all of it
ResolvedJob resolve_job(const scenario::OptionValues& typed, const scenario::OptionValues& asked);
ResolvedJob resolve_job(const scenario::OptionValues& typed);  // all of it

// The same of a job without a GPU: only the options that a layout has too, with so many ranks in an
// NVLink domain. Preconditions of what the result is used for: nothing reads its profile or
// cluster.
training::TrainingJob resolve_layout(const scenario::OptionValues& typed, int ranks_per_domain);

}  // namespace moesim::job
