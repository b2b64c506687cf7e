#include "tools/moesim/bands/train_band.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "sim/base/contains.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/text.hpp"
#include "sim/job/job_options.hpp"
#include "sim/report/formats.hpp"
#include "sim/training/step/job_rules.hpp"
#include "sim/training/step/layer_time.hpp"
#include "sim/uncertainty/published/built_options.hpp"
#include "sim/uncertainty/published/shipped_errors.hpp"
#include "sim/uncertainty/software/step_software.hpp"
#include "tools/moesim/bands/own_ratio.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/rows/named_cells.hpp"

namespace moesim::tool {
namespace {

using training::TrainingStep;
using uncertainty::Band;
using uncertainty::Basis;

constexpr const char* published_steps = "training";
constexpr const char* none_published = "no published step";
constexpr const char* none_of_own = "none of your calibrated steps";

// Three digits: "83.9 s", "812 ms".
std::string duration_text(double us) {
  const bool long_enough = us >= 1e6;
  const double value = us / (long_enough ? 1e6 : 1e3);
  return fmt::format("{:.{}f} {}", value,
                     value < 10    ? 2
                     : value < 100 ? 1
                                   : 0,
                     long_enough ? "s" : "ms");
}

std::string ratio_text(double log_ratio) { return fmt::format("{:.2f}", std::exp(log_ratio)); }

std::string basis_text(const TrainBand& answer) {
  if (!answer.own.empty()) return answer.fitted;
  const Band& band = answer.band;
  std::string what = fmt::format("{} measured steps of {} model{}", band.rows, band.models,
                                 band.models == 1 ? "" : "s");
  if (band.basis == Basis::nothing) {
    what += fmt::format(" with {}, {} systems",
                        fmt::join(shipped_errors().residuals().software(), ", "), band.machines);
  } else if (band.basis == Basis::software) {
    what += fmt::format(" with {} on {} other machine{}", answer.subject.software, band.machines,
                        band.machines == 1 ? "" : "s");
  } else {
    what += fmt::format(" with {} on {}", answer.subject.software, answer.subject.machine);
  }
  std::string text = fmt::format(
      "{} took {} to {} times their prediction, {} in the median;\n"
      "likely weighs software, machines and models, not single steps;\n"
      "width by leaving out {} groups of all measured steps in turn\n",
      what, ratio_text(band.least), ratio_text(band.most), ratio_text(band.median), band.held_out);
  if (band.basis == Basis::nothing) {
    // The check is of few kinds of software, so that it widens no band: it is said.
    text +=
        "another software may be farther off than these levels say: with one left out, fewer of "
        "its\nsteps were inside (profiles/ACCURACY.md, a software left out)\n";
  }
  return text;
}

// The step's time with the exchanges of shared weights hidden; 0 where measured steps tell what is
// hidden, or nothing is shared.
double hidden_us(const TrainBand& answer, const TrainingStep& step) {
  const double gain = uncertainty::hidden_gain(answer.band.unmeasured);
  return gain > 0 ? step.step_us * std::exp(-gain) : 0;
}

// The same, that of the step where nothing can be hidden: a row without it is of a former version.
double hidden_in_row_us(const TrainBand& answer, const TrainingStep& step) {
  const double us = hidden_us(answer, step);
  const auto& unmeasured = answer.band.unmeasured;
  const bool is_asked =
      step.hidden_parts && std::any_of(unmeasured.begin(), unmeasured.end(), [](const auto& each) {
        return each.trait.name.starts_with("zero:");
      });
  return us == 0 && is_asked ? step.step_us : us;
}

std::string hidden_text(const TrainBand& answer, const TrainingStep& step) {
  const double us = hidden_us(answer, step);
  if (us == 0) return "";
  return fmt::format(
      "if all computing hid exchanges of weights and gradients: step {}; nobody measured how much "
      "does, so lower ends are of that step\n",
      duration_text(us));
}

std::string left_out_text(const uncertainty::StepSoftware& software) {
  if (!software.median_error || !software.worst_error) {
    return "one configuration, which tells nothing of how far others scatter";
  }
  return fmt::format("each left out: {:.0f} % off in the median, {:.0f} % at worst",
                     100 * *software.median_error, 100 * *software.worst_error);
}

TrainBand own_band(const std::string& path, const uncertainty::StepSoftware& calibrated,
                   const training::TrainingJob& job, TrainingStep& step) {
  const std::string& cluster = job.cluster->name;
  const uncertainty::StepSoftware software = calibrated.on(cluster);
  const bool elsewhere = software.covariance != calibrated.covariance;
  const uncertainty::StepErrors& errors = shipped_errors();
  const uncertainty::Components& parts = errors.residuals().components;
  TrainBand found;
  found.own = path;
  found.subject = subject_of(job, software.software);
  const uncertainty::CrossingParts crossing = training::crossing_parts(job);
  uncertainty::add_host_gain(software, job, step);
  found.band = software.band(uncertainty::classes_of(step, crossing), found.subject,
                             model::name_of(job.states.precision), parts.model, parts.precision);
  errors.widen_by(software.unmeasured(uncertainty::traits_of(job, step)), found.band);
  found.fitted =
      fmt::format("{} of {} model{} ({}); {}\n", own_rows_text(software), software.models.size(),
                  software.models.size() == 1 ? "" : "s", software.source, left_out_text(software));
  if (elsewhere) {
    found.fitted +=
        fmt::format("  none of them on {}: its exchanges are known to 25 % at best\n", cluster);
  }
  step = software.applied(step, crossing);
  found.terms = uncertainty::own_terms(errors, found.band, found.subject, software);
  return found;
}

// Says where software was fitted to what another profile predicts than that of the step. Given as
// --profile it brings its own.
void note_other_profile(const CommandLine& line, const training::TrainingJob& job) {
  if (!line.has("software")) return;
  const auto own = own_software(line, job);
  if (!own || own->profile.empty()) return;
  // The same profile may be typed by name or path.
  const auto name = [](const std::string& typed) {
    return std::filesystem::path(typed).stem().string();
  };
  const std::string used = job.typed.profile;
  if (used == line.get("software") || name(own->profile) == name(used)) return;
  note(fmt::format(
      "note: --software {0} was fitted to what {1} predicts, this step is predicted by {2}: where "
      "their curves differ, that counts twice or not at all: give --profile {0} in its place, or "
      "calibrate with --profile {2}",
      line.get("software"), own->profile, used));
}

// Says where the published steps on the GPU of a job, of `software` if that is known, had other
// NICs than its cluster has. Whether it did.
bool note_other_nics(const training::TrainingJob& job, const std::string& software) {
  const uncertainty::Subject asked = subject_of(job, software);
  double measured = 0;
  for (const uncertainty::ResidualGroup& group : shipped_errors().residuals().groups) {
    if (group.subject.machine != asked.machine) continue;
    if (!software.empty() && group.subject.software != software) continue;
    if (nics_alike(group.subject, asked)) return false;
    measured = group.subject.nic_gbit_per_s;
  }
  if (measured == 0) return false;
  note(fmt::format(
      "note: published steps on {} are in line with {:g} Gb/s a GPU between nodes; {} has {:g}, so "
      "that the band is that of other machines: give --cluster the NICs that yours has "
      "(sim/training/ACCURACY.md)",
      asked.machine, measured, job.cluster->name, asked.nic_gbit_per_s));
  return true;
}

// Says which options the measured steps of the software had that this step has not because nobody
// typed them. `left_out`: options that are not to be named.
void note_other_build(const CommandLine& line, const training::TrainingJob& job,
                      const std::string& software, const std::set<std::string>& left_out) {
  uncertainty::BuiltOptions options = job::built_options(job);
  std::set<std::string> typed;
  for (const std::string& name : left_out) options.erase(name);
  for (const auto& [name, value] : options) {
    if (line.has(name)) typed.insert(name);
  }
  const uncertainty::Subject asked = subject_of(job, software);
  const auto nearest =
      uncertainty::nearest_build(shipped_errors().residuals(), asked, options, typed);
  if (!nearest || nearest->differing.empty()) return;
  std::vector<std::string> theirs;
  for (const auto& [name, value] : nearest->differing) {
    theirs.push_back(fmt::format("--{} {}", name, value));
  }
  note(fmt::format(
      "note: the measured steps that the band is based on ({} on {}{}) had {}, this one has the "
      "defaults: give the options that your software has",
      asked.software, asked.machine, nearest->of_model ? ", " + asked.model : "",
      fmt::join(theirs, " ")));
}

// A line on what was not measured, for the steps held against published ones, or against one's own.
std::string not_measured_line(const std::vector<UnmeasuredStep>& steps, bool of_own) {
  std::vector<std::pair<std::string, std::vector<std::string>>> places;  // by what was not
  for (const UnmeasuredStep& step : steps) {
    if (step.of_own != of_own) continue;
    for (const std::string& text : step.texts) {
      const auto known = std::find_if(places.begin(), places.end(),
                                      [&](const auto& each) { return each.first == text; });
      const auto found = known == places.end() ? places.insert(known, {text, {}}) : known;
      found->second.push_back(step.place);
    }
  }
  if (places.empty()) return "";
  std::vector<std::string> parts;
  for (const auto& [text, where] : places) {
    parts.push_back(
        where.size() == steps.size() ? text : fmt::format("{} ({})", text, fmt::join(where, ", ")));
  }
  return fmt::format("not measured: {}: {} has {}, so bands are wider\n", fmt::join(parts, ", "),
                     of_own ? none_of_own : none_published, parts.size() == 1 ? "this" : "these");
}

void check_published(const std::string& software) {
  const std::vector<std::string> known = shipped_errors().residuals().software();
  if (contains(known, software)) return;
  throw UsageError(
      fmt::format("--software: unknown '{}'{}; with published steps: {}; or a document that "
                  "moesim calibrate wrote (a path, or a name ending in .json)",
                  software, suggestion(software, known), fmt::join(known, ", ")));
}

}  // namespace

// A path, as find_document() tells paths from names.
bool names_own_software(const std::string& name) {
  return name.find('/') != std::string::npos ||
         (name.size() > 5 && name.compare(name.size() - 5, 5, ".json") == 0);
}

const std::string& software_cell(const TrainBand& band) {
  return band.own.empty() ? band.subject.software : band.own;
}

double unmeasured_deviation(const TrainBand& answer) {
  return shipped_errors().deviation_of(answer.band.unmeasured);
}

const uncertainty::StepErrors& shipped_errors() {
  return uncertainty::shipped_errors(published_steps);
}

void check_software(const std::string& name) {
  if (names_own_software(name)) {
    uncertainty::StepSoftware::load(name);
  } else {
    check_published(name);
  }
}

uncertainty::Subject subject_of(const training::TrainingJob& job, const std::string& software) {
  if (!software.empty()) check_published(software);
  return uncertainty::subject_of(job, software);
}

std::vector<std::string> software_words() { return shipped_errors().residuals().software(); }

Flag software_flag() {
  return with_words(
      {"software", "NAME|FILE", "not known",
       "whose measured steps the band is based on: megatron-bridge, simumax (Megatron as "
       "SimuMax measured it), aws (Megatron on EFA), or your own: a document of moesim "
       "calibrate"},
      software_words);
}

std::vector<Flag> band_flags() {
  std::vector<Flag> flags = {software_flag(),
                             {"baseline", "FILE[:ROW]", "none",
                              "what train --format csv or json wrote of a step, or the row of "
                              "several, 1 is the first, with the same "
                              "software, on this machine or, of the same model, on another: by "
                              "how much this one is faster, and whether that is more than "
                              "noise"}};
  for (const Flag& flag : run_cost_flags()) flags.push_back(flag);
  return flags;
}

std::optional<uncertainty::StepSoftware> own_software(const CommandLine& line,
                                                      const training::TrainingJob& job) {
  const std::string& profiled = job.profile->calibration();
  const std::string software = line.get("software", profiled);
  if (!profiled.empty() && software != profiled) {
    throw UsageError(fmt::format(
        "--software {} with --profile {}: that is a software too: give one of them, or its profile "
        "{}",
        software, profiled, job.profile->name()));
  }
  if (!names_own_software(software)) return std::nullopt;
  auto own = uncertainty::StepSoftware::load(software);
  if (own.machine == job.profile->device().name) return own;
  throw UsageError(fmt::format(
      "--software {0}: calibrated on {1}, this step is one of {2}: {3}, or calibrate with steps of "
      "{2}",
      software, own.machine, job.profile->device().name,
      own.profile.empty() ? "give the --profile of " + own.machine
                          : fmt::format("give --profile {} in its place", software)));
}

TrainingStep requested_step(const CommandLine& line, training::TrainingJob& job,
                            const training::DrawProgress& progress, training::SharedDraws* shared) {
  const auto own = own_software(line, job);
  const bool prices_host = own && own->prices_host;
  if (prices_host) job.host.factor = own->host_factor();
  training::check_decoder(job);
  training::check_job(job);
  std::shared_ptr<const training::DrawnLoads> loads;
  if (job.routing) {
    loads = shared == nullptr
                ? std::make_shared<const training::DrawnLoads>(job, true, nullptr, progress)
                : shared->loads(job, progress);
  }
  TrainingStep step = training::training_step(job, loads);
  training::add_hidden_parts(job, step, loads);
  if (!own) training::add_host_moves(job, step, loads);
  if (prices_host) uncertainty::add_host_gain(*own, job, step, loads);
  return step;
}

void note_software(const CommandLine& line, const training::TrainingJob& job, Asked what) {
  const std::string software = line.get("software", job.profile->calibration());
  if (names_own_software(software)) {
    note_other_profile(line, job);
  } else {
    std::set<std::string> left_out;
    if (note_other_nics(job, software)) left_out.insert("cluster");
    for (const job::JobOption& option : job::job_options()) {
      const bool is_searched = option.in_search == job::InSearch::searched;
      if (what == Asked::search && is_searched) left_out.insert(option.name);
    }
    note_other_build(line, job, software, left_out);
  }
}

TrainBand requested_band(const CommandLine& line, const training::TrainingJob& job,
                         TrainingStep& step) {
  const std::string software = line.get("software", job.profile->calibration());
  TrainBand found;
  const auto own = own_software(line, job);
  training::add_hidden_parts(job, step);
  if (own) {
    found = own_band(software, *own, job, step);
  } else {
    const uncertainty::StepErrors& errors = shipped_errors();
    found.subject = subject_of(job, software);
    found.moves = uncertainty::moves_of(job, step);
    found.band = errors.band(found.subject, uncertainty::usual_levels(),
                             uncertainty::traits_of(job, step), found.moves);
    found.terms = uncertainty::terms_of(errors, found.subject, found.band, job, step);
  }
  found.cost = requested_run_cost(line);
  check_run(found.cost, step.tokens);
  if (line.has("baseline")) {
    found.baseline =
        requested_baseline(line.get("baseline"), job, step, found, own ? &*own : nullptr);
  }
  return found;
}

std::vector<std::string> texts_of(const Band& band) {
  std::vector<std::string> texts;
  for (const uncertainty::UnmeasuredTrait& each : band.unmeasured) texts.push_back(text_of(each));
  return texts;
}

std::string not_measured_lines(const std::vector<UnmeasuredStep>& steps) {
  return not_measured_line(steps, false) + not_measured_line(steps, true);
}

std::string widest_text(const TrainBand& answer, const char* between) {
  const uncertainty::Term& widest = answer.terms.front();
  return fmt::format("{}{}{} with: {}\n", widest.name, between,
                     widest.narrows ? "narrower" : "nearer to your machine, not narrower,",
                     widest.remedy);
}

std::string band_text(const TrainBand& answer, const TrainingStep& step) {
  const std::vector<CostFigure> costs = cost_figures(answer.cost, step);
  std::vector<std::vector<std::string>> lines = {
      {"band", "times predicted", "step", "tokens/s/GPU", "TFLOP/s/GPU"}};
  for (const CostFigure& cost : costs) lines.front().push_back(cost.name);
  lines.front()[lines.front().size() - costs.size()] += " " + run_text(answer.cost);
  const auto add_costs = [&](std::vector<std::string>& cells, auto between) {
    for (const CostFigure& cost : costs) cells.push_back(between(cost.value, cost.text));
  };
  for (const uncertainty::BandLevel& each : answer.band.levels) {
    const double low = std::exp(each.log_ratios.low);
    const double high = std::exp(each.log_ratios.high);
    lines.push_back(
        {fmt::format("{:.0f} %", 100 * each.level), fmt::format("{:.2f} to {:.2f}", low, high),
         fmt::format("{} to {}", duration_text(low * step.step_us),
                     duration_text(high * step.step_us)),
         fmt::format("{:.0f} to {:.0f}", step.tokens_per_second_per_gpu / high,
                     step.tokens_per_second_per_gpu / low),
         fmt::format("{:.0f} to {:.0f}", step.tflops_per_gpu / high, step.tflops_per_gpu / low)});
    add_costs(lines.back(), [&](double figure, auto text) {
      return fmt::format("{} to {}", text(low * figure), text(high * figure));
    });
  }
  const double likely = std::exp(answer.band.expected.mean);
  lines.push_back({"likely", fmt::format("{:.2f}", likely), duration_text(likely * step.step_us),
                   fmt::format("{:.0f}", step.tokens_per_second_per_gpu / likely),
                   fmt::format("{:.0f}", step.tflops_per_gpu / likely)});
  add_costs(lines.back(), [&](double figure, auto text) { return text(likely * figure); });
  std::vector<bool> right(lines.front().size(), true);
  right.front() = false;
  std::string text = report::align(lines, right) + basis_text(answer);
  text += "wide most of all because: " + widest_text(answer, "\n");
  if (!answer.band.unmeasured.empty()) {
    const double percent = 100 * unmeasured_deviation(answer);
    text += fmt::format("not measured: {}: {} has {}; the band is wider, as if by {} of the step\n",
                        uncertainty::texts_of(answer.band.unmeasured),
                        answer.own.empty() ? none_published : none_of_own,
                        answer.band.unmeasured.size() == 1 ? "this" : "these",
                        percent < 0.5 ? "less than 1 %" : fmt::format("{:.0f} %", percent));
  }
  text += hidden_text(answer, step);
  return answer.baseline ? text + "\n" + baseline_text(*answer.baseline) : text;
}

std::vector<std::pair<std::string, Cell>> band_cells(const TrainBand& answer,
                                                     const TrainingStep& step) {
  const uncertainty::BandLevel& widest = answer.band.widest();
  const double low = std::exp(widest.log_ratios.low);
  const double high = std::exp(widest.log_ratios.high);
  const std::string& software = software_cell(answer);
  std::vector<std::pair<std::string, Cell>> cells = {
      {"software", software.empty() ? Cell() : Cell(software)},
      {"band_level", figure_cell(widest.level)},
      {"step_ms_low", figure_cell(low * step.step_us / 1e3)},
      {"step_ms_likely", figure_cell(std::exp(answer.band.expected.mean) * step.step_us / 1e3)},
      {"step_ms_high", figure_cell(high * step.step_us / 1e3)},
      {"tokens_per_s_per_gpu_low", figure_cell(step.tokens_per_second_per_gpu / high)},
      {"tokens_per_s_per_gpu_high", figure_cell(step.tokens_per_second_per_gpu / low)},
      {"tflops_per_gpu_low", figure_cell(step.tflops_per_gpu / high)},
      {"tflops_per_gpu_high", figure_cell(step.tflops_per_gpu / low)},
      {"band_basis", std::string(name_in(uncertainty::basis_names, answer.band.basis))},
      {"widest_term", answer.terms.front().name},
      {not_measured_column, uncertainty::texts_of(answer.band.unmeasured, "; ")},
      {unmeasured_column, figure_cell(unmeasured_deviation(answer))}};
  if (const double us = hidden_in_row_us(answer, step); us > 0) {
    cells.emplace_back(hidden_column, figure_cell(us / 1e3));
  }
  if (answer.own.empty()) {
    cells.emplace_back(host_slower_column, figure_cell(answer.moves.host_slower));
    cells.emplace_back(host_faster_column, figure_cell(answer.moves.host_faster));
  }
  if (!answer.own.empty() && step.host_gain_us) {
    cells.emplace_back(host_gain_column, figure_cell(*step.host_gain_us / 1e3));
  }
  for (auto& cell : cost_cells(answer.cost, step, low, high)) cells.push_back(std::move(cell));
  if (answer.baseline) {
    for (auto& cell : baseline_cells(*answer.baseline)) cells.push_back(std::move(cell));
  }
  return cells;
}

}  // namespace moesim::tool
