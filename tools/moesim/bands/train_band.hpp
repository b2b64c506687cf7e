#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/cell.hpp"
#include "sim/training/drawn/shared_draws.hpp"
#include "sim/uncertainty/bands/loss_band.hpp"
#include "sim/uncertainty/bands/terms.hpp"
#include "sim/uncertainty/software/step_software.hpp"
#include "tools/moesim/bands/run_cost.hpp"
#include "tools/moesim/bands/train_baseline.hpp"
#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// How far a predicted training step may be off, by steps that were measured.
struct TrainBand {
  uncertainty::Subject subject;
  uncertainty::Band band;
  std::vector<uncertainty::Term> terms;  // the largest first
  std::string own;                       // the document of one's own software; "": published steps
  std::string fitted;                    // what it says of itself
  uncertainty::AssumedMoves moves;       // of the step, whatever the steps have that it is based on
  std::optional<BaselineRatio> baseline;
  RunCost cost;
  // Of the token loss of the step: study::training_loss_band().
  std::optional<uncertainty::LossBand> loss;
};

// Whether what --software names, or a row's column, is a document of one's own, not published
// software.
bool names_own_software(const std::string& name);
// What the column software of a row has: published software, or the document; "": not known.
const std::string& software_cell(const TrainBand& band);

// The standard deviation of the log of a step's time by what no published step has; a column, too.
double unmeasured_deviation(const TrainBand& band);
inline constexpr const char* unmeasured_column = "not_measured_deviation";
// What the log of the step's time gains where the host takes twice as long, and loses where it
// takes half: columns, of published software.
inline constexpr const char* host_slower_column = "host_slower";
inline constexpr const char* host_faster_column = "host_faster";

// The step's time if computing hid the exchanges that ZeRO 2 and 3 repeat in every micro-batch: a
// column of such steps, where no measured step tells what is hidden.
inline constexpr const char* hidden_column = "step_ms_hidden";

// The errors of the published steps that ship.
const uncertainty::StepErrors& shipped_errors();
// What the errors of a job's step depend on. Throws UsageError for a software of which no step was
// published; "" is one that is not known.
uncertainty::Subject subject_of(const training::TrainingJob& job, const std::string& software);

// Throws UsageError for a software of which no step was published, and what StepSoftware::load()
// throws for a document of one's own.
void check_software(const std::string& name);

// --software, and all flags of `train` that bands need.
inline constexpr const char* software_option = "software";
Flag software_flag();
std::vector<std::string> software_words();  // whose measured steps are known, for completion
std::vector<Flag> band_flags();

// The document of one's own software that --software or the profile names; nothing: neither does.
// Throws UsageError for two of them, and for one of another machine.
std::optional<uncertainty::StepSoftware> own_software(const CommandLine& line,
                                                      const training::TrainingJob& job);

// The step of a job, before own software scales it: with the host's times as its document says, to
// which `job` is set too. `progress`: of drawing routing, may be empty. `shared`: what other
// steps of the command draw alike; null: nothing. Throws as own_software() and
// training::training_step().
training::TrainingStep requested_step(const CommandLine& line, training::TrainingJob& job,
                                      const training::DrawProgress& progress,
                                      training::SharedDraws* shared = nullptr);

// Whether a job is predicted as it is, or stands for jobs among which a search chooses.
enum class Asked { step, search };
// Says where --software was fitted to what another profile predicts than that of the step, where
// the published steps on its GPU had other NICs than its cluster, and how those of its software are
// built that were built most like it.
void note_software(const CommandLine& line, const training::TrainingJob& job,
                   Asked what = Asked::step);

// The band for --software, or for software that is not named. A document of one's own software
// changes `step` to what that software makes of it. Throws UsageError for a software of which no
// step was measured, and for a document of another machine.
TrainBand requested_band(const CommandLine& line, const training::TrainingJob& job,
                         training::TrainingStep& step);

// What of one of several steps no step has that its band is based on.
struct UnmeasuredStep {
  std::string place;  // "2"; "512 GPUs"
  std::vector<std::string> texts;
  bool of_own = false;  // none of the steps of a document of one's own software has it
};
std::vector<std::string> texts_of(const uncertainty::Band& band);
// "not measured: ZeRO 2, context parallelism (1, 3): ...", a line for published and for own steps;
// "" where all is.
std::string not_measured_lines(const std::vector<UnmeasuredStep>& steps);

// What makes the band wide most of all, and what would narrow it.
std::string widest_text(const TrainBand& band, const char* between);

// Step, speed and TFLOP/s at each level; what the band is based on and what would narrow it.
std::string band_text(const TrainBand& band, const training::TrainingStep& step);
// Columns of a row: the widest level and its ends.
std::vector<std::pair<std::string, Cell>> band_cells(const TrainBand& band,
                                                     const training::TrainingStep& step);

}  // namespace moesim::tool
