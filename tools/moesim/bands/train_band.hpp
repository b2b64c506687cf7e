#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/cell.hpp"
#include "sim/study/training_band.hpp"
#include "sim/uncertainty/bands/loss_band.hpp"
#include "tools/moesim/bands/run_cost.hpp"
#include "tools/moesim/bands/train_baseline.hpp"
#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// How far a predicted training step may be off, and what a command was asked of it besides.
struct TrainBand : study::TrainingBand {
  std::optional<BaselineRatio> baseline;
  RunCost cost;
  // Of the token loss of the step: study::training_loss_band().
  std::optional<uncertainty::LossBand> loss;
};

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

// --software, and all flags of `train` that bands need.
inline constexpr const char* software_option = "software";
Flag software_flag();
std::vector<Flag> band_flags();

// What --software names, or the profile brings; "": neither does.
std::string requested_software(const CommandLine& line, const training::TrainingJob& job);

// Whether a job is predicted as it is, or stands for jobs among which a search chooses.
enum class Asked { step, search };
// Says study::software_notes().
void note_software(const CommandLine& line, const training::TrainingJob& job,
                   Asked what = Asked::step);

// study::apply_software() of --software, with what else the line asks for.
TrainBand requested_band(const CommandLine& line, const training::TrainingJob& job,
                         training::TrainingStep& step);
// The same where the software is applied already.
TrainBand requested_band(const CommandLine& line, const training::TrainingJob& job,
                         const training::TrainingStep& step, study::TrainingBand band);

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
