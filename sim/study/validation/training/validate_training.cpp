#include "sim/study/validation/training/validate_training.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/parallel.hpp"
#include "sim/base/statistics.hpp"
#include "sim/job/job_options.hpp"
#include "sim/study/validation/training/deepseek_profile.hpp"
#include "sim/study/validation/training/training_calibration.hpp"
#include "sim/study/validation/training/training_coverage.hpp"
#include "sim/study/validation/training/training_rows.hpp"
#include "sim/training/step/training_step.hpp"
#include "sim/uncertainty/bands/terms.hpp"
#include "sim/uncertainty/published/error_model.hpp"
#include "sim/uncertainty/published/unmeasured_law.hpp"
#include "sim/uncertainty/steps/step_distance.hpp"

namespace moesim::study {
namespace {

constexpr const char* study_name = "training";
constexpr double median_bar = 0.08;
constexpr double p90_bar = 0.20;
constexpr double order_bar = 0.90;
constexpr double too_close = 1.05;  // ratios closer to 1 are not ordered

struct Predicted {
  const TrainingRow* row = nullptr;
  training::TrainingStep step;
  double ratio = 1;  // measured over predicted
};

// Whose rows a factor is of: those of the same machine, or of all others.
enum class Machines { same, others };

// The geometric mean of the ratios of a system's rows of one family of software, without those of
// one model; nothing where no other model is left.
std::optional<double> factor_without(const std::vector<Predicted>& all, const Predicted& held,
                                     Machines machines = Machines::same) {
  double logs = 0;
  int count = 0;
  for (const Predicted& each : all) {
    const bool is_same = each.row->system == held.row->system;
    if (is_same != (machines == Machines::same) || each.row->family != held.row->family) continue;
    if (each.row->job.model == held.row->job.model) continue;
    logs += std::log(each.ratio);
    ++count;
  }
  if (count == 0) return std::nullopt;
  return std::exp(logs / count);
}

std::string parts_text(const training::TrainingStep& step) {
  std::vector<std::pair<double, const char*>> shares;
  for (const auto& part : training::part_names) {
    shares.emplace_back(step.parts[static_cast<std::size_t>(part.value)] / step.step_us, part.name);
  }
  std::sort(shares.rbegin(), shares.rend());
  std::string text;
  for (std::size_t place = 0; place < 4; ++place) {
    text += fmt::format("{}{} {:.0f} %", place == 0 ? "" : ", ", shares[place].second,
                        100 * shares[place].first);
  }
  return text;
}

std::string subject_of(const TrainingRow& row) {
  const parallel::ParallelLayout& sizes = row.job.layout.sizes;
  return fmt::format("{}: {}, {} x {}, TP {} PP {} VP {} EP {}, {}", row.id, row.model, sizes.gpus,
                     row.system, sizes.tensor, sizes.pipeline, sizes.virtual_pipeline, sizes.expert,
                     row.precision);
}

void report_groups(const std::vector<Predicted>& all, Validation& validation) {
  std::map<std::string, std::vector<double>> groups;
  for (const Predicted& each : all) {
    groups[each.row->system + ", " + each.row->family].push_back(each.ratio);
  }
  for (const auto& [name, ratios] : groups) {
    std::vector<double> errors;
    for (const double ratio : ratios) errors.push_back(std::abs(1 / ratio - 1));
    validation.verdicts.push_back(
        {study_name,
         fmt::format("{}: {} configurations, measured / predicted {:.2f} in the median ({:.2f} to "
                     "{:.2f}), error {:.0f} % in the median, no factor",
                     name, ratios.size(), median(ratios),
                     *std::min_element(ratios.begin(), ratios.end()),
                     *std::max_element(ratios.begin(), ratios.end()), 100 * median(errors)),
         std::nullopt});
  }
}

void judge_left_out(const Validation& rows, Validation& validation) {
  std::vector<double> errors;
  for (const ValidationRow& row : rows.rows) {
    if (row.left_out_error) errors.push_back(std::abs(*row.left_out_error));
  }
  if (errors.size() < 10) return;
  const double middle = median(errors);
  const double high = quantile(errors, 0.9);
  validation.verdicts.push_back(
      {study_name,
       fmt::format("one factor per system and software, each model left out in turn, {} "
                   "configurations: {:.1f} % in the median, bar 8 %",
                   errors.size(), 100 * middle),
       middle <= median_bar});
  validation.verdicts.push_back(
      {study_name, fmt::format("the same, 90th percentile: {:.1f} %, bar 20 %", 100 * high),
       high <= p90_bar});
}

// Blind for the machine too: the factor of one family of software on other machines.
void report_machines_out(const std::vector<Predicted>& all, Validation& validation) {
  std::vector<double> errors;
  for (const Predicted& held : all) {
    const std::optional<double> factor = factor_without(all, held, Machines::others);
    if (factor) errors.push_back(std::abs(*factor / held.ratio - 1));
  }
  if (errors.size() < 10) return;
  validation.verdicts.push_back(
      {study_name,
       fmt::format("one factor per software, the model and the system left out: {:.1f} % in the "
                   "median over {} configurations, 90th percentile {:.1f} %",
                   100 * median(errors), errors.size(), 100 * quantile(errors, 0.9)),
       std::nullopt});
}

// Pairs of one source whose descriptions differ in one column.
void judge_order(const std::vector<Predicted>& all, Validation& validation) {
  int pairs = 0;
  int right = 0;
  for (std::size_t one = 0; one < all.size(); ++one) {
    for (std::size_t other = one + 1; other < all.size(); ++other) {
      const TrainingRow& a = *all[one].row;
      const TrainingRow& b = *all[other].row;
      if (a.source != b.source) continue;  // another release of the software
      int differing = 0;
      for (std::size_t cell = 0; cell < a.cells.size(); ++cell) {
        if (a.cells[cell] != b.cells[cell]) ++differing;
      }
      const auto speed = [](const Predicted& each, double seconds) {
        return each.step.tokens / each.row->job.layout.sizes.gpus / seconds;
      };
      const double measured = speed(all[one], a.measured_s) / speed(all[other], b.measured_s);
      if (differing != 1 || std::max(measured, 1 / measured) < too_close) continue;
      const double predicted =
          speed(all[one], all[one].step.step_us) / speed(all[other], all[other].step.step_us);
      ++pairs;
      if ((measured > 1) == (predicted > 1) && predicted != 1) ++right;
    }
  }
  if (pairs < 10) return;
  const double share = static_cast<double>(right) / pairs;
  validation.verdicts.push_back(
      {study_name,
       fmt::format("pairs that differ in one thing and by more than 5 %: {} of {} in the right "
                   "order ({:.0f} %), bar 90 %",
                   right, pairs, 100 * share),
       share >= order_bar});
}

// SimuMax's predictions of its own measurements (MooreThreads/SimuMax, v1.2).
void compare_simumax(const std::vector<Predicted>& all, Validation& validation) {
  double ours = 0;
  double theirs = 0;
  int count = 0;
  for (const Predicted& each : all) {
    if (each.row->simumax_s <= 0) continue;
    ours += std::abs(1 / each.ratio - 1);
    theirs += std::abs(each.row->simumax_s / each.row->measured_s - 1);
    ++count;
  }
  if (count == 0) return;
  validation.verdicts.push_back(
      {study_name,
       fmt::format("on SimuMax's {} configurations: {:.1f} % on average, SimuMax's own "
                   "predictions {:.1f} %",
                   count, 100 * ours / count, 100 * theirs / count),
       ours < theirs});
}

// A pair of chunks, of which the rate of FP8 products by block is: no verdict.
void compare_profile(const std::string& folder, Validation& validation) {
  const std::optional<ProfiledPair> pair = deepseek_pair(folder);
  if (!pair) return;
  const double error = pair->predicted_ms / pair->measured_ms - 1;
  validation.verdicts.push_back(
      {study_name,
       fmt::format("DeepSeek's profile of DualPipe, four MoE layers forward beside four backward, "
                   "EP 64 on H800: {:.1f} ms, {:.1f} ms predicted with H100's curves ({:+.1f} %; "
                   "had the exchange SMs of its own, {:.1f} ms); its FP8 products set their price",
                   pair->measured_ms, pair->predicted_ms, 100 * error, pair->apart_ms),
       std::nullopt});
}

// What a guess says that takes the same share of the peak for every row of a system.
void compare_constant(const std::vector<Predicted>& all, Validation& validation) {
  std::vector<double> errors;
  for (const Predicted& held : all) {
    std::vector<double> shares;
    for (const Predicted& each : all) {
      if (each.row->system == held.row->system && each.row->job.model != held.row->job.model) {
        shares.push_back(each.step.mfu / each.ratio);
      }
    }
    if (shares.empty()) continue;
    errors.push_back(std::abs(held.step.mfu / held.ratio / median(shares) - 1));
  }
  if (errors.size() < 10) return;
  validation.verdicts.push_back(
      {study_name,
       fmt::format(
           "the share of the peak that other models reach on the system, as a guess: {:.0f} "
           "% in the median over {} configurations",
           100 * median(errors), errors.size()),
       std::nullopt});
}

std::vector<uncertainty::Observation> observations_of(const std::vector<Predicted>& all) {
  std::vector<uncertainty::Observation> observations;
  for (const Predicted& each : all) {
    const training::TrainingJob& job = each.row->job;
    uncertainty::Observation found;
    found.subject = uncertainty::subject_of(job, each.row->software());
    found.subject.nic_gbit_per_s = uncertainty::nic_gbit_per_s(*job.cluster);
    // All that describes it but the release, which is the last cell.
    for (std::size_t cell = 0; cell + 1 < each.row->cells.size(); ++cell) {
      found.configuration += each.row->cells[cell] + "|";
    }
    found.log_ratio = std::log(each.ratio);
    found.parts = uncertainty::part_times(each.step);
    found.traits = uncertainty::traits_of(job, each.step);
    found.moves = uncertainty::moves_of(job, each.step);
    found.release = each.row->source;
    found.build = job::built_options(job);
    observations.push_back(found);
  }
  return observations;
}

// How far the parts of traits are off that were left out, where it is known to 30 %.
void report_traits(const std::vector<uncertainty::Observation>& observations,
                   Validation& validation) {
  constexpr double known = 0.3;
  const std::vector<uncertainty::TraitError> errors = uncertainty::trait_errors(observations);
  for (const uncertainty::TraitError& each : errors) {
    if (each.variance > known * known) continue;
    validation.verdicts.push_back(
        {study_name,
         fmt::format("steps with {}{} left out, {} rows: its parts, {:.0f} % of their time, take "
                     "{:.2f} times what the others let expect (known to {:.0f} %)",
                     uncertainty::text_of({{each.trait, each.size, each.share}, 0, ""}),
                     each.size > 1 ? " or more" : "", each.rows, 100 * each.share,
                     std::exp(each.error), 100 * std::sqrt(each.variance)),
         std::nullopt});
  }
  const uncertainty::UnmeasuredLaw law = uncertainty::law_of(errors);
  validation.verdicts.push_back(
      {study_name,
       fmt::format("of {} traits, each left out in turn, the time of their parts is off by {:.0f} "
                   "% (standard deviation of its log)",
                   law.traits, 100 * law.deviation),
       std::nullopt});
}

// Priced with hosts that take more or less time, as `moesim calibrate` prices its rows.
std::vector<uncertainty::MeasuredRow> measured_steps(const std::vector<Predicted>& all) {
  std::vector<uncertainty::MeasuredRow> steps(all.size());
  parallel_for(all.size(), core_count(), [&](std::size_t at) {
    const Predicted& each = all[at];
    steps[at] = {uncertainty::classes_of(each.step), each.row->measured_s * 1e3};
    for (const double factor : uncertainty::host_factors) {
      training::TrainingJob moved = each.row->job;
      moved.host.factor = factor;
      steps[at].hosts.add(factor, uncertainty::classes_of(training::training_step(moved)));
    }
  });
  return steps;
}

void write_residuals(const std::vector<uncertainty::Observation>& observations,
                     const std::string& source, const std::string& path) {
  uncertainty::Residuals residuals = uncertainty::summarised(observations);
  residuals.name = "training";
  residuals.source = source;
  residuals.regenerate = "tools/regenerate_bands.py --data FOLDER";
  residuals.components = uncertainty::fitted_components(residuals.groups);
  residuals.unmeasured =
      uncertainty::never_in_sight(uncertainty::law_of(uncertainty::trait_errors(observations)));
  write_file_atomically(path, residuals.text());
}

}  // namespace

Validation validate_training(const std::string& folder, const std::string& residuals_out) {
  Validation validation{"Training steps with tensor, pipeline and expert parallelism",
                        "performance pages of NVIDIA-NeMo/Megatron-Bridge (Apache-2.0), "
                        "MooreThreads/SimuMax v1.2, awslabs/awsome-distributed-ai (MIT-0)",
                        {},
                        {}};
  const std::vector<TrainingRow> rows = load_training_rows(folder);
  std::vector<Predicted> all;
  std::map<std::string, int> refused;
  for (const TrainingRow& row : rows) {
    std::string why = row.refusal;
    if (why.empty()) {
      try {
        Predicted each{&row, training::training_step(row.job), 1};
        each.ratio = row.measured_s * 1e6 / each.step.step_us;
        all.push_back(each);
      } catch (const Error& error) {
        why = error.what();
      }
    }
    if (!why.empty()) ++refused[fmt::format("{}: {}", row.system, why)];
  }
  if (all.empty()) {
    throw Error(fmt::format("{}/moe_training_steps.csv: no row can be predicted{}", folder,
                            refused.empty() ? "" : "; " + refused.begin()->first));
  }
  for (const Predicted& each : all) {
    const double predicted = each.step.step_us / 1e3;
    const std::optional<double> factor = factor_without(all, each);
    std::optional<double> left_out;
    if (factor) left_out = *factor / each.ratio - 1;
    validation.rows.push_back({study_name, subject_of(*each.row), "check", "ms",
                               each.row->measured_s * 1e3, predicted, 1 / each.ratio - 1, left_out,
                               parts_text(each.step)});
  }
  report_groups(all, validation);
  compare_simumax(all, validation);
  compare_constant(all, validation);
  compare_profile(folder, validation);
  judge_left_out(validation, validation);
  report_machines_out(all, validation);
  judge_order(all, validation);
  const std::vector<uncertainty::Observation> observations = observations_of(all);
  report_traits(observations, validation);
  report_coverage(observations, validation);
  report_calibration(observations, measured_steps(all), validation);
  if (!residuals_out.empty()) write_residuals(observations, validation.source, residuals_out);
  for (const auto& [why, count] : refused) {
    validation.verdicts.push_back(
        {study_name, fmt::format("{} configurations left out: {}", count, why), std::nullopt});
  }
  return validation;
}

}  // namespace moesim::study
