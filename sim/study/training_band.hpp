#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sim/training/drawn/shared_draws.hpp"
#include "sim/uncertainty/bands/terms.hpp"
#include "sim/uncertainty/software/step_software.hpp"

namespace moesim::study {

// The software of a training step, as --software names it: one of which steps were published, a
// document of one's own software (moesim calibrate), or "" where it is not known. A profile may
// bring its own: Profile::calibration(). All that follows takes it as `software`.

// The errors of the published steps that ship.
const uncertainty::StepErrors& published_errors();
std::vector<std::string> published_software();

// Whether it is a document of one's own software, as find_document() tells paths from names.
bool names_own_software(const std::string& software);
// Throws UsageError for a software of which no step was published, and what StepSoftware::load()
// throws for a document of one's own.
void check_software(const std::string& software);
// What the errors of a job's step depend on. Throws UsageError for a software of which no step was
// published; "" is one that is not known.
uncertainty::Subject subject_of(const training::TrainingJob& job, const std::string& software);
// The document of one's own software; nothing: `software` is published, or not known. Throws
// UsageError for another one than the job's profile brings, and for one of another machine.
std::optional<uncertainty::StepSoftware> own_software(const std::string& software,
                                                      const training::TrainingJob& job);
// "3 of your own steps, 4 layers and 6 exchanges".
std::string own_rows_text(const uncertainty::StepSoftware& software);
// What a user should know of the software, a line each: published steps on its GPU had other NICs,
// or other options; where it was named, and not the profile that brings it, that it was fitted to
// what another profile predicts. `chosen`: the options that somebody, or a search, chose.
std::vector<std::string> software_notes(const std::string& software,
                                        const training::TrainingJob& job,
                                        const std::set<std::string>& chosen);

// How far a predicted training step may be off, by steps that were measured.
struct TrainingBand {
  uncertainty::Subject subject;
  uncertainty::Band band;                // of measured over predicted
  std::vector<uncertainty::Term> terms;  // the largest first
  std::string own;                       // the document of one's own software; "": published steps
  std::string fitted;                    // what it says of itself
  uncertainty::AssumedMoves moves;       // of the step, whatever the steps have that it is based on
};

// The band of a step, which takes what the software makes of it: a document of one's own scales its
// time, parts and speeds. `step`: step_before_software() of the job. Throws as own_software() and
// subject_of().
TrainingBand apply_software(const std::string& software, const training::TrainingJob& job,
                            training::TrainingStep& step);

// The step of a job as the profile's curves have it, with the host's times as a document of one's
// own software says, to which `job` is set too: apply_software() does the rest. `progress`: of
// drawing routing, may be empty. `shared`: what other steps draw alike; null: nothing. Throws as
// own_software() and training::training_step().
training::TrainingStep step_before_software(const std::string& software, training::TrainingJob& job,
                                            const training::DrawProgress& progress = {},
                                            training::SharedDraws* shared = nullptr);

// The ends of the band of a step, in milliseconds: at the band's widest level, and with 90 %
// chance, stretched as a normal distribution where that level is another one.
struct StepTimes {
  double level = 0;
  double low_ms = 0;
  double likely_ms = 0;
  double high_ms = 0;
  double p05_ms = 0;
  double p95_ms = 0;
};
StepTimes step_times(const uncertainty::Band& band, const training::TrainingStep& step);

}  // namespace moesim::study
