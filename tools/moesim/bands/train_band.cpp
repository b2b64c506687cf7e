#include "tools/moesim/bands/train_band.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "sim/base/text.hpp"
#include "sim/job/job_options.hpp"
#include "sim/report/formats.hpp"
#include "tools/moesim/bands/own_ratio.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/rows/named_cells.hpp"

namespace moesim::tool {
namespace {

using training::TrainingStep;
using uncertainty::Band;
using uncertainty::Basis;

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
                        fmt::join(study::published_errors().residuals().software(), ", "),
                        band.machines);
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

}  // namespace

const std::string& software_cell(const TrainBand& band) {
  return band.own.empty() ? band.subject.software : band.own;
}

double unmeasured_deviation(const TrainBand& answer) {
  return study::published_errors().deviation_of(answer.band.unmeasured);
}

Flag software_flag() {
  return with_words(
      {"software", "NAME|FILE", "not known",
       "whose measured steps the band is based on: megatron-bridge, simumax (Megatron as "
       "SimuMax measured it), aws (Megatron on EFA), or your own: a document of moesim "
       "calibrate"},
      study::published_software);
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

std::string requested_software(const CommandLine& line, const training::TrainingJob& job) {
  return line.get(software_option, job.profile->calibration());
}

void note_software(const CommandLine& line, const training::TrainingJob& job, Asked what) {
  std::set<std::string> chosen;
  if (line.has(software_option)) chosen.insert(software_option);
  for (const job::JobOption& option : job::job_options()) {
    const bool is_searched = what == Asked::search && option.in_search == job::InSearch::searched;
    if (is_searched || line.has(option.name)) chosen.insert(option.name);
  }
  for (const std::string& text :
       study::software_notes(requested_software(line, job), job, chosen)) {
    note(text);
  }
}

TrainBand requested_band(const CommandLine& line, const training::TrainingJob& job,
                         TrainingStep& step) {
  return requested_band(line, job, step,
                        study::apply_software(requested_software(line, job), job, step));
}

TrainBand requested_band(const CommandLine& line, const training::TrainingJob& job,
                         const TrainingStep& step, study::TrainingBand band) {
  TrainBand found{std::move(band), std::nullopt, {}, std::nullopt};
  found.cost = requested_run_cost(line);
  check_run(found.cost, step.tokens);
  if (line.has("baseline")) {
    const auto own = study::own_software(requested_software(line, job), job);
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
  const study::StepTimes times = study::step_times(answer.band, step);
  const std::string& software = software_cell(answer);
  std::vector<std::pair<std::string, Cell>> cells = {
      {"software", software.empty() ? Cell() : Cell(software)},
      {"band_level", figure_cell(times.level)},
      {"step_ms_low", figure_cell(times.low_ms)},
      {"step_ms_likely", figure_cell(times.likely_ms)},
      {"step_ms_high", figure_cell(times.high_ms)},
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
