#pragma once

#include <cstdint>
#include <vector>

#include "sim/job/job_options.hpp"
#include "sim/study/training_prediction.hpp"
#include "sim/training/drawn/shared_draws.hpp"
#include "sim/training/step/training_step.hpp"
#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// The flags of a training job as `train` takes them; as commands do that refuse a document of
// moesim calibrate as --profile; and those that `layout` takes too.
std::vector<Flag> train_flags();
std::vector<Flag> hardware_flags();
std::vector<Flag> layout_flags();

// The job that they ask for, as job::resolve_job(). `documents`: those of other jobs of the
// command; null: none.
job::ResolvedJob resolved_job(const CommandLine& line, bool of_several = false,
                              scenario::DocumentCache* documents = nullptr);
// The same; what is to be noted of options goes to stderr.
training::TrainingJob requested_job(const CommandLine& line, bool of_several = false,
                                    scenario::DocumentCache* documents = nullptr);

// Whether `recommend` chooses the value unless one is given: sizes of the layout, recomputation and
// the like; not precision, dispatcher and routing, which are the user's.
bool is_layout_choice(const job::JobOption& option);

// A whole number, within the bounds of the job's option. Throws UsageError naming the flag.
std::int64_t requested_whole(const CommandLine& line, const char* flag, std::int64_t fallback);

// study::predict_training() with --software and --replicas. `shared`: as there.
study::TrainingPrediction predicted_training(const CommandLine& line, training::TrainingJob job,
                                             const training::DrawProgress& progress = {},
                                             training::SharedDraws* shared = nullptr);

// Says where --cluster is of other NVLink domains than the GPU's usual one.
void note_cluster(const CommandLine& line, const training::TrainingJob& job);
// Says where graphs of whole layers need buffers for any routing, which memory does not have.
void note_graph_buffers(const training::TrainingJob& job);
// Notes ZeRO 2 and 3 under a pipeline, which most frameworks refuse. `help`: what ends the note.
void note_zero_under_pipeline(const training::TrainingJob& job, const char* help = "");
// Says that the model's depths of multi-token prediction are left out, and which option counts
// them.
void note_depths(const training::TrainingJob& job, const std::string& option);
// The same of a step without --pipeline-layout, with one that counts them unless it is of several.
void note_step_depths(const training::TrainingJob& job, bool of_several = false);

}  // namespace moesim::tool
