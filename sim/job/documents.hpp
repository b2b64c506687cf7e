#pragma once

#include "sim/job/job_option.hpp"

namespace moesim::job {

// What --dispatcher has where there is none: NCCL's all-to-all.
inline constexpr const char* no_dispatcher = "all-to-all";
// TrainingJob::gathers_tokens.
inline constexpr const char* gathering_dispatcher = "allgather";

// Each reads the document, or takes that of Resolution::documents, and sets what follows from it.
void set_model(const std::string& name, Resolution& at);
void set_profile(const std::string& name, Resolution& at);
void set_cluster(const std::string& name, Resolution& at);
void set_dispatcher(const std::string& name, Resolution& at);
// The cluster that the profile names.
void use_usual_cluster(Resolution& at);

// Whether FP8 weights are kept by row and by column: Hopper has no FP8 product by column.
bool copies_transposed(const profile::Device& device);

// Throw UsageError: more GPUs than the cluster has, more ranks in a domain than it has GPUs, a
// precision whose products the profile lacks. Without a profile nothing lacks.
void check_cluster(const training::TrainingJob& job);
void check_products(const training::TrainingJob& job);

}  // namespace moesim::job
