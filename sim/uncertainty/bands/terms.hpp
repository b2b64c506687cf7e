#pragma once

#include <string>
#include <vector>

#include "sim/training/job/training_job.hpp"
#include "sim/training/step/training_step.hpp"
#include "sim/uncertainty/published/step_errors.hpp"
#include "sim/uncertainty/software/step_software.hpp"

namespace moesim::uncertainty {

// A term of a step's error.
struct Term {
  std::string name;
  double deviation = 0;  // standard deviation of the log of the step time
  std::string remedy;    // what would make it smaller
  // The band too; otherwise only the prediction gets better, which the band's width, of published
  // steps, does not know.
  bool narrows = true;
};
void sort_terms(std::vector<Term>& terms);  // the largest first, equal ones as they are

// What makes a band wider whose lower ends alone lie farther out by `gain`, a log (hidden_gain()):
// the mean of both ends, as a deviation.
double hidden_deviation(double gain);

// The terms of the error of a step, the largest first. Those of the subject are the components that
// no measurement says anything about, the scatter of configurations, and the rest of what
// ErrorModel expects. Those of assumed constants are the share of the step that they decide times
// what the constant is known to: host launches to a factor of two, exchanges between nodes to the
// errors of their law on machines left out (profiles/ACCURACY.md). They name what makes a band
// wide: its width itself is calibrated as a whole, and wider by what the step hangs on the host and
// NICs beyond the measured ones (Band::moves); where that moves an end by 2 %, the remedy
// narrows the band. Times of the host that were given have no term.
std::vector<Term> terms_of(const StepErrors& errors, const Subject& subject, const Band& band,
                           const training::TrainingJob& job, const training::TrainingStep& step);

double nic_gbit_per_s(const cluster::Cluster& cluster);  // of a GPU
// What the errors of a job's step depend on; without NICs where it uses none.
Subject subject_of(const training::TrainingJob& job, const std::string& software);
// Whether its messages take NICs.
bool crosses_nodes(const training::TrainingJob& job);

// The terms of a step of one's own software.
std::vector<Term> own_terms(const StepErrors& errors, const Band& band, const Subject& subject,
                            const StepSoftware& software);

}  // namespace moesim::uncertainty
