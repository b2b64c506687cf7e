#include "tools/moesim/train/train_step.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "sim/base/formats/json_text.hpp"
#include "sim/job/job_options.hpp"
#include "sim/study/search/memory_share.hpp"
#include "sim/study/training_hints.hpp"
#include "sim/training/step/step_timeline.hpp"
#include "tools/moesim/base/kept_result.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/base/progress.hpp"
#include "tools/moesim/base/shell_word.hpp"
#include "tools/moesim/base/timeline.hpp"
#include "tools/moesim/scenario/scenario_notes.hpp"
#include "tools/moesim/train/measured_step.hpp"
#include "tools/moesim/train/train_losses.hpp"
#include "tools/moesim/train/train_measured.hpp"
#include "tools/moesim/train/train_request.hpp"

namespace moesim::tool {
namespace {

using training::TrainingJob;
using training::TrainingStep;

constexpr double much_slower = 0.8;  // of the speed: then another layout is worth a search

// What `recommend` is asked for the same step in another layout: the options typed, without those
// that it chooses or does not take.
std::string search_command(const CommandLine& line, const TrainingJob& job) {
  // Said by themselves, of the output, or of another kind of step in a search.
  static const std::set<std::string> left_out{
      "gpus", "global-batch", "profile",  "format", "out",     "jobs",     "config",
      "from", "baseline",     "megatron", "mode",   "experts", "replicas", "tokens-per-gpu"};
  std::string text = fmt::format("moesim recommend --gpus {} --global-batch {}",
                                 job.layout.sizes.gpus, job.layout.sequences());
  if (line.has("profile")) text += " --profile " + shell_word(line.get("profile"));
  std::set<std::string> its_choice;
  for (const job::JobOption& option : job::job_options()) {
    const bool is_placement = option.name == "ranks-per-domain";  // of the machine there is
    if (is_layout_choice(option) && !is_placement) its_choice.insert(option.name);
  }
  for (const Flag& flag : recommend_command().flags) {
    const std::string& name = flag.name;
    if (!line.has(name) || left_out.contains(name) || its_choice.contains(name)) continue;
    text += fmt::format(" --{} {}", flag.name, shell_word(line.get(flag.name)));
  }
  const int mtp = job.layout.stages ? job.layout.stages->mtp() : 0;
  if (mtp > 0) text += fmt::format(" --mtp {}", mtp);
  return text;
}

std::string search_hint(const CommandLine& line, const TrainingJob& job) {
  const bool has_budget = job.routing && job.routing->rank_capacity > 0;
  return fmt::format("; this searches all layouts{}:\n  {}",
                     has_budget ? ", without --rank-capacity" : "", search_command(line, job));
}

// On stderr, where the step does not fit: with what it would.
void note_memory(const CommandLine& line, const TrainingJob& job,
                 const training::TrainingStep& step) {
  const Bytes room = job.profile->device().hbm_bytes;
  if (step.peak_memory().count <= room.count) return;
  const Bytes usual{
      static_cast<std::int64_t>(study::usual_memory_share * static_cast<double>(room.count))};
  std::vector<study::TrainingHint> hints = study::training_hints(job, step, usual);
  const bool is_tight = hints.empty();
  if (is_tight) hints = study::training_hints(job, step, room);
  std::vector<std::string> enough;
  for (const study::TrainingHint& hint : hints) {
    enough.push_back(fmt::format("{} ({:.0f} GiB, {:+.0f} % speed)", hint.options, hint.need.gib(),
                                 100 * (hint.speed - 1)));
  }
  std::string text = enough.empty()
                         ? "no option alone is enough"
                         : fmt::format("would fit{}: {}", is_tight ? ", but tightly" : "",
                                       fmt::join(enough, ", or "));
  if (hints.empty() || hints.front().speed < much_slower) {
    text += search_hint(line, job);
  }
  note(fmt::format("warning: needs {:.1f} of {:.4g} GiB per GPU; {}", step.peak_memory().gib(),
                   room.gib(), text));
}

// A calibration has factors of the parts of a whole step, not of kernels at their places.
void note_timeline(const TrainBand& band, double predicted_us, double step_us) {
  if (band.own.empty()) return;
  note(fmt::format(
      "note: --timeline is of the step before {} scales it: {:.4g} ms, not the {:.4g} ms of the "
      "result: the fitted factors are of parts of a whole step, not of single kernels",
      band.own, predicted_us / 1e3, step_us / 1e3));
}

std::string timeline_title(const TrainingJob& job) {
  return fmt::format("moesim train {} {}", job.typed.model,
                     name_in(parallel::schedule_names, job.layout.shape().kind));
}

// Says which of several recorded steps is shown; their mean counts.
void note_shown_step(const training::TrainingStep& step) {
  if (step.shown_step_us == 0) return;
  note(
      fmt::format("note: --timeline shows recorded step {} of {}, {:.4g} ms, the nearest to the "
                  "mean of {:.4g} ms: --trace-step shows others",
                  step.routing->taken_steps[static_cast<std::size_t>(step.shown_step)],
                  step.routing->recorded_steps, step.shown_step_us / 1e3, step.step_us / 1e3));
}

}  // namespace

NamedCells row_of_train(const CommandLine&, const TrainingJob& job, const TrainingStep& step,
                        const TrainBand& band) {
  return training_row(job, step, band);
}

ExitCode run_train_step(const CommandLine& line, const RowOf& row) {
  const report::Format format = chosen_format(line, report::Format::table);
  const Output out(line.get("out"));
  const std::optional<study::Measured> measured = requested_measured(line);
  if (measured && format == report::Format::csv) {
    throw UsageError(fmt::format("--measured: is compared in a table or JSON: leave --{} out",
                                 line.has("format") ? "format" : "out"));
  }
  TrainingJob job = requested_job(line);
  if (measured) check_measured_gpus(*measured, job.layout.sizes.gpus);
  note_cluster(line, job);
  note_graph_buffers(job);
  note_zero_under_pipeline(job);
  note_left_out(*job.model, job.typed.model);
  note_step_depths(job);
  note_software(line, job);
  const TimelineFiles files(line, job.layout.sizes.gpus);
  ProgressLine progress("layers routed");
  study::TrainingPrediction made = predicted_training(
      line, std::move(job),
      [&](std::size_t drawn, std::size_t layers) { progress.show(drawn, layers); });
  progress.finish();
  job = std::move(made.job);
  const training::TrainingStep& step = made.step;
  if (files.wanted()) {
    files.write(training::step_timeline(job, made.before_software), timeline_title(job),
                "one pipeline");
    note_shown_step(made.before_software);
  }
  TrainBand band = requested_band(line, job, step, std::move(made.band));
  ProgressLine further("layers of further steps routed");
  band.loss = requested_loss_band(
      line, job, step, chosen_jobs(line),
      [&](std::size_t drawn, std::size_t layers) { further.show(drawn, layers); });
  further.finish();
  if (files.wanted()) note_timeline(band, made.before_software.step_us, step.step_us);
  std::string text = rendered_training(line, job, step, band, format, row);
  if (measured && format == report::Format::json) {
    auto object = nlohmann::ordered_json::parse(text);
    object["measured"] = measured_json(job, step, band, *measured);
    text = json_text(object, 2) + "\n";
  } else if (measured) {
    text += measured_text(job, step, band, *measured);
  }
  write_row_keeping(out, text, format, train_option_columns());
  note_memory(line, job, step);
  return ExitCode::ok;
}

}  // namespace moesim::tool
