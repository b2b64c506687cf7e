#include "sim/report/explanation.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "sim/base/formats/csv.hpp"
#include "sim/base/statistics.hpp"
#include "sim/report/formats.hpp"
#include "sim/report/summary.hpp"

namespace moesim::report {
namespace {

using Json = nlohmann::ordered_json;
using Lines = std::vector<std::vector<std::string>>;

constexpr double negligible_ms = 1e-3;
constexpr std::size_t most_kernels = 12;
constexpr std::size_t longest_name = 56;

std::string ms(double value) {
  const double size = std::abs(value);
  return fmt::format("{:.{}f}", value, size >= 100 ? 1 : size >= 10 ? 2 : 3);
}

// Rounding of picoseconds is no difference.
std::string signed_ms(double value) {
  if (std::abs(value) < 5e-4) return "0";
  return (value < 0 ? "-" : "+") + ms(std::abs(value));
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

// "products" and "memory-bound": kernels that could be of any part.
const char* label_of(study::KernelKind kind) {
  switch (kind) {
    case study::KernelKind::any_product:
      return "any part: product";
    case study::KernelKind::any_memory:
      return "any part: memory-bound";
    case study::KernelKind::pipeline:
      return "between pipeline stages";
    case study::KernelKind::unknown:
      return "not recognised";
    default:
      return part_label(static_cast<step::StepPart>(kind));
  }
}

std::string key_of(study::KernelKind kind) {
  switch (kind) {
    case study::KernelKind::any_product:
      return "any_product";
    case study::KernelKind::any_memory:
      return "any_memory";
    case study::KernelKind::pipeline:
      return "pipeline";
    case study::KernelKind::unknown:
      return "unknown";
    default:
      return step::part_names()[static_cast<std::size_t>(kind)];
  }
}

std::string name_of(const study::PartDifference& row) {
  if (row.parts.empty()) return "no kernel runs";
  if (row.parts.size() == 1) return part_label(row.parts.front());
  return "parts told apart only in sum*";
}

// To the two digits of a ratio.
bool is_as_simulated(const study::PartDifference& row) {
  constexpr double rounding = 0.005;
  return std::abs(row.measured_ms - row.judged_ms()) <=
         std::max(negligible_ms, rounding * std::max(row.judged_ms(), row.measured_ms));
}

std::string names_in(const study::PartDifference& row) {
  std::vector<std::string> names;
  for (const step::StepPart part : row.parts) names.emplace_back(part_label(part));
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string verdict(const study::Explanation& explanation) {
  if (explanation.is_inside_same())
    return "inside the band of the step itself: the curves' errors alone may explain it";
  if (explanation.is_inside()) {
    return "inside the 90 % band of software and machine, outside that of the step itself: a "
           "factor of software or machine explains it";
  }
  return fmt::format("OUTSIDE the 90 % band of software and machine: {} than 19 of 20 measurements",
                     explanation.measured_ms > explanation.band.p95_ms ? "longer" : "shorter");
}

std::string step_lines(const study::Explanation& explanation) {
  const uncertainty::SimulatedBand& band = explanation.band;
  const double difference = explanation.measured_ms - explanation.expected_ms;
  return align({{"simulated", ms(explanation.expected_ms) + " ms",
                 fmt::format("{} to {} (p05 to p95) with software as fast as the profile's kernels",
                             ms(band.same_p05_ms), ms(band.same_p95_ms))},
                {"expected", ms(band.p50_ms) + " ms",
                 fmt::format("{} to {} (p05 to p95) of a measurement, its software included",
                             ms(band.p05_ms), ms(band.p95_ms))},
                {"measured", ms(explanation.measured_ms) + " ms",
                 fmt::format("{} ms, {:.3f} times the simulated step", signed_ms(difference),
                             explanation.ratio())}},
               {false, true, false}) +
         verdict(explanation) + "\n";
}

std::string trace_line(const study::Measured& measured) {
  const study::TracedStep& trace = *measured.trace;
  const auto [least, most] = std::minmax_element(trace.steps_ms.begin(), trace.steps_ms.end());
  std::string text = fmt::format("\n{}, GPU {}", trace.file, trace.device);
  if (trace.gpus > 1) text += fmt::format(", the slowest of {}", trace.gpus);
  if (!trace.has_marks) {
    return text + ": no ProfilerStep#, so all of the trace counts as one step\n";
  }
  text += fmt::format(": {} step{}", trace.steps_ms.size(), trace.steps_ms.size() == 1 ? "" : "s");
  if (trace.steps_ms.size() > 1) {
    text += fmt::format(" of {} to {} ms, here that of median length", ms(*least), ms(*most));
  }
  return text + "\n";
}

// A trace divides the time that was given beside it.
std::string scale_line(const study::Measured& measured) {
  constexpr double rounding = 0.005;
  if (std::abs(measured.trace_scale() - 1) < rounding) return "";
  return fmt::format("its step takes {} ms: parts are {:.2f} times as long, to make up {} ms\n",
                     ms(measured.trace->exposed.total_ms), measured.trace_scale(),
                     ms(measured.ms()));
}

std::string part_lines(const study::Explanation& explanation, const study::Measured& measured) {
  Lines lines{{"exposed time, ms", "simulated", "measured", "difference", "ratio", ""}};
  const study::PartDifference* mixed = nullptr;
  double expected = 0;
  double total = 0;
  for (const study::PartDifference& row : explanation.parts) {
    expected += row.expected_ms;
    total += row.measured_ms;
    if (row.parts.size() > 1) mixed = &row;
    const std::string ratio = row.expected_ms > negligible_ms
                                  ? fmt::format("{:.2f}", row.measured_ms / row.expected_ms)
                                  : "";
    const bool is_negligible = std::max(row.expected_ms, row.measured_ms) < negligible_ms;
    if (row.parts.empty() && is_negligible) continue;
    std::string note;
    if (!row.parts.empty() && row.is_inside()) {
      note = is_as_simulated(row)
                 ? "as simulated"
                 : fmt::format("within its error ({:.2f} to {:.2f})", row.low, row.high);
    } else if (!row.parts.empty() && row.expected_ms > negligible_ms) {
      note = fmt::format("beyond {:.2f} to {:.2f}", row.low, row.high);
    }
    if (row.more_calls_ms != 0) {
      const char* more = row.more_calls_ms > 0 ? "more" : "fewer";
      const char* each = note.empty() ? "" : "; each ";
      note = fmt::format("{} by {} calls{}{}", signed_ms(row.more_calls_ms), more, each, note);
    }
    lines.push_back({name_of(row), ms(row.expected_ms), ms(row.measured_ms),
                     signed_ms(row.difference_ms()), ratio, note});
  }
  lines.push_back({"sum", ms(expected), ms(total), signed_ms(total - expected),
                   fmt::format("{:.2f}", total / expected), ""});
  std::string text = trace_line(measured) + scale_line(measured) +
                     align(lines, {false, true, true, true, true, false});
  if (mixed != nullptr) {
    text += fmt::format("* {}:\n  {} of the measured step has names that do not say of which\n",
                        names_in(*mixed), percent(explanation.any_part_share));
  }
  text += "Each moment counts once: to the kernel that computes, else to the exchange that runs.\n";
  return text + fmt::format("not recognised, counted to \"other\": {} of the measured step\n",
                            percent(explanation.unknown_share));
}

// "GPU 3 (rank3.json.gz) is 1.30 times slower than the other 15".
std::string slow_name(const study::SlowTrace& gpu, std::size_t gpus) {
  return fmt::format("GPU {} ({}) is {:.2f} times slower than the other{}", gpu.device, gpu.file,
                     gpu.factor, gpus > 2 ? fmt::format(" {}", gpus - 1) : "");
}

// Those that are not the one that is compared have no difference of their own.
std::string slow_lines(const study::Explanation& explanation, std::size_t gpus) {
  std::string text;
  for (const study::SlowTrace& gpu : explanation.slow_gpus) {
    if (!gpu.is_compared) text += slow_name(gpu, gpus) + ", in what it computes\n";
  }
  return text.empty() ? text : "\n" + text;
}

std::string suspicion_name(const study::Explanation& explanation, const study::Suspicion& one,
                           std::size_t gpus) {
  if (one.is_computed_again) {
    return fmt::format("{} {}computed again",
                       explanation.computed_again->is_whole ? "forward pass" : "attention",
                       explanation.computed_again->is_more ? "" : "not ");
  }
  if (!one.is_slow_gpu) return name_of(one.difference);
  const auto slow = std::find_if(explanation.slow_gpus.begin(), explanation.slow_gpus.end(),
                                 [](const study::SlowTrace& gpu) { return gpu.is_compared; });
  return slow_name(*slow, gpus);
}

std::string suspicion_lines(const study::Explanation& explanation, std::size_t gpus) {
  std::string text = slow_lines(explanation, gpus);
  if (explanation.suspicions.empty()) {
    return text + "\nNo part differs by 1 % of the step or more.\n";
  }
  text += explanation.computed_again
              ? "\nwhere the difference lies: how often kernels run, then the largest first\n"
              : "\nwhere the difference lies, the largest first\n";
  for (const study::Suspicion& one : explanation.suspicions) {
    text +=
        fmt::format("  {}: {} ms, {:.0f} % of all differences{}\n    suspect: {}\n    next: {}\n",
                    suspicion_name(explanation, one, gpus),
                    signed_ms(one.difference.difference_ms()), 100 * one.share,
                    one.is_within_error()
                        ? fmt::format("; within its error ({:.2f} to {:.2f}), which alone may "
                                      "explain it",
                                      one.difference.low, one.difference.high)
                        : "",
                    one.suspect, one.next);
  }
  return text;
}

// Where there is something to explain.
std::string term_lines(const study::Explanation& explanation) {
  if (explanation.is_inside_same()) return "";
  std::string text = "\nwhat of the band would explain it alone\n";
  for (const study::TermReach& one : explanation.terms) {
    const double size = std::abs(one.deviations);
    const std::string answer = size <= normal_p95 ? "yes"
                               : size < 100
                                   ? fmt::format("no: {:.1f} of its standard deviations", size)
                                   : "no";
    text +=
        fmt::format("  {}\n    {}; narrower with: {}\n", one.term.name, answer, one.term.remedy);
  }
  return text;
}

std::string multiplier_lines(const study::Explanation& explanation,
                             const study::Measured& measured) {
  std::string text = fmt::format(
      "\nimplied multiplier of this step: {:.3f}. Other configurations of the same software "
      "scatter around it.\nOne step cannot say what it is made of",
      explanation.ratio());
  if (!measured.trace) {
    text += ": give a trace of torch.profiler (moesim explain rank0.json.gz ...)";
  }
  return text +
         ".\nnext: moesim calibrate --command simulate (steps of these nodes), moesim import "
         "LOG... (their nccl-tests)\n";
}

std::string kernel_lines(const study::TracedStep& trace) {
  Lines lines{{"kernels, sum of their times", "ms", "calls", "counted to"}};
  for (const study::KernelSum& kernel : trace.kernels) {
    if (lines.size() > most_kernels) break;
    std::string name = kernel.name;
    if (name.size() > longest_name) name = name.substr(0, longest_name - 3) + "...";
    lines.push_back(
        {name, ms(kernel.sum_ms), fmt::format("{}", kernel.calls), label_of(kernel.kind)});
  }
  std::string text = "\n" + align(lines, {false, true, true, false});
  if (trace.kernels.size() > most_kernels) {
    text += fmt::format("and {} more: --format json\n", trace.kernels.size() - most_kernels);
  }
  return text;
}

Json keys_of(const study::PartDifference& row) {
  Json keys = Json::array();
  for (const step::StepPart part : row.parts) {
    keys.push_back(step::part_names()[static_cast<std::size_t>(part)]);
  }
  if (row.parts.empty()) keys.push_back("idle");
  return keys;
}

Json trace_json(const study::TracedStep& trace) {
  Json steps = Json::array();
  for (const double step : trace.steps_ms) steps.push_back(json_figure(step));
  Json kernels = Json::array();
  for (const study::KernelSum& kernel : trace.kernels) {
    kernels.push_back({{"name", kernel.name},
                       {"counted_to", key_of(kernel.kind)},
                       {"calls", kernel.calls},
                       {"sum_ms", json_figure(kernel.sum_ms)}});
  }
  return {{"file", trace.file},           {"device", trace.device}, {"gpus", trace.gpus},
          {"has_marks", trace.has_marks}, {"steps_ms", steps},      {"kernels", kernels}};
}

}  // namespace

std::string explanation_text(const scenario::Scenario& scenario,
                             const study::Explanation& explanation,
                             const study::Measured& measured) {
  std::string text =
      fmt::format("{} on {} x {} ({}), {}, router {}\n\n", scenario.model_name, scenario.gpus,
                  scenario.gpu_name(), scenario.cluster_name,
                  name_in(scenario::mode_names, scenario.mode), scenario.router.name());
  text += step_lines(explanation);
  if (measured.trace) {
    text += part_lines(explanation, measured) + suspicion_lines(explanation, measured.trace->gpus);
  }
  text += term_lines(explanation) + multiplier_lines(explanation, measured);
  if (measured.trace) text += kernel_lines(*measured.trace);
  return text;
}

nlohmann::ordered_json explanation_json(const study::Explanation& explanation,
                                        const study::Measured& measured) {
  const uncertainty::SimulatedBand& band = explanation.band;
  Json result{{"simulated_ms", json_figure(explanation.expected_ms)},
              {"measured_ms", json_figure(explanation.measured_ms)},
              {"multiplier", json_figure(explanation.ratio())},
              {"step_ms_p05", json_figure(band.p05_ms)},
              {"step_ms_p50", json_figure(band.p50_ms)},
              {"step_ms_p95", json_figure(band.p95_ms)},
              {"step_ms_same_p05", json_figure(band.same_p05_ms)},
              {"step_ms_same_p95", json_figure(band.same_p95_ms)},
              {"inside_band", explanation.is_inside()},
              {"inside_same_band", explanation.is_inside_same()}};
  Json& terms = result["terms"] = Json::array();
  for (const study::TermReach& one : explanation.terms) {
    terms.push_back({{"name", one.term.name},
                     {"deviation", json_figure(one.term.deviation)},
                     {"deviations_needed", json_figure(one.deviations)},
                     {"explains_alone", std::abs(one.deviations) <= normal_p95},
                     {"narrower_with", one.term.remedy}});
  }
  if (!measured.trace) return result;
  Json& parts = result["parts_exposed"] = Json::array();
  for (const study::PartDifference& row : explanation.parts) {
    parts.push_back({{"parts", keys_of(row)},
                     {"simulated_ms", json_figure(row.expected_ms)},
                     {"measured_ms", json_figure(row.measured_ms)},
                     {"difference_ms", json_figure(row.difference_ms())},
                     {"more_calls_ms", json_figure(row.more_calls_ms)}});
    if (row.parts.empty()) continue;  // no curve
    parts.back()["ratio_low"] = json_figure(row.low);
    parts.back()["ratio_high"] = json_figure(row.high);
    parts.back()["inside"] = row.is_inside();
  }
  Json& suspicions = result["suspicions"] = Json::array();
  for (const study::Suspicion& one : explanation.suspicions) {
    suspicions.push_back({{"parts", keys_of(one.difference)},
                          {"difference_ms", json_figure(one.difference.difference_ms())},
                          {"share", json_figure(one.share)},
                          {"slow_gpu", one.is_slow_gpu},
                          {"computed_again", one.is_computed_again},
                          {"within_error", one.is_within_error()},
                          {"suspect", one.suspect},
                          {"next", one.next}});
  }
  Json& slow = result["slow_gpus"] = Json::array();
  for (const study::SlowTrace& one : explanation.slow_gpus) {
    slow.push_back(
        {{"device", one.device}, {"file", one.file}, {"factor", json_figure(one.factor)}});
  }
  if (explanation.routing) {
    result["uneven_routing"] = {{"simulated", json_figure(explanation.routing->expected)},
                                {"measured", json_figure(explanation.routing->measured)},
                                {"more_wait_ms", json_figure(explanation.routing->more_wait_ms)}};
  }
  result["any_part_share"] = json_figure(explanation.any_part_share);
  result["unknown_share"] = json_figure(explanation.unknown_share);
  result["trace"] = trace_json(*measured.trace);
  return result;
}

std::string measured_parts_csv(const study::TracedStep& step) {
  std::array<std::int64_t, study::kernel_kind_count> calls{};
  std::array<double, study::kernel_kind_count> kernel_ms{};
  for (const study::KernelSum& kernel : step.kernels) {
    calls[static_cast<std::size_t>(kernel.kind)] += kernel.calls;
    kernel_ms[static_cast<std::size_t>(kernel.kind)] += kernel.sum_ms;
  }
  std::string text = csv_line({"part", "calls", "kernel_ms", "exposed_ms"});
  for (std::size_t kind = 0; kind < study::kernel_kind_count; ++kind) {
    if (calls[kind] == 0) continue;
    text += csv_line({key_of(static_cast<study::KernelKind>(kind)), fmt::format("{}", calls[kind]),
                      fmt::format("{:.6g}", kernel_ms[kind]),
                      fmt::format("{:.6g}", step.exposed.kind_ms[kind])});
  }
  text += csv_line({"idle", "0", "0", fmt::format("{:.6g}", step.exposed.idle_ms)});
  return text;
}

std::string largest_parts_text(const study::TracedStep& step) {
  std::vector<std::pair<double, std::string>> parts = {{step.exposed.idle_ms, "idle"}};
  for (std::size_t kind = 0; kind < study::kernel_kind_count; ++kind) {
    const double ms = step.exposed.kind_ms[kind];
    if (ms > 0) parts.emplace_back(ms, key_of(static_cast<study::KernelKind>(kind)));
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const auto& one, const auto& other) { return one.first > other.first; });
  constexpr std::size_t most_named = 3;
  std::vector<std::string> words;
  for (const auto& [ms, name] : parts) {
    if (words.size() < most_named) words.push_back(fmt::format("{} {:.3g} ms", name, ms));
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace moesim::report
