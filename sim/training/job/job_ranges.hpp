#pragma once

#include "sim/training/job/training_job.hpp"

namespace moesim::training {

// Throws UsageError that names the document which a job for a step lacks.
void check_documents(const TrainingJob& job);

// Throws UsageError, which names the option or the field and what it may be, for a field of a job
// that is outside of its range by itself: no GPU, a share above 1, a time that is no number. What
// goes together is for check_job() to say. Precondition: the job has a model.
void check_ranges(const TrainingJob& job);

}  // namespace moesim::training
