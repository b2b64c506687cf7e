#include "tools/moesim/recommend/prefill/recommend_prefill.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "sim/base/no_answer.hpp"
#include "sim/base/text.hpp"
#include "sim/report/formats.hpp"
#include "sim/study/search/prefill_search.hpp"
#include "sim/study/sweep/grid.hpp"
#include "tools/moesim/base/kept_result.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/base/progress.hpp"
#include "tools/moesim/recommend/prefill/prefill_report.hpp"
#include "tools/moesim/recommend/report/search_report.hpp"
#include "tools/moesim/recommend/request/recommend_flags.hpp"
#include "tools/moesim/recommend/request/requested_gpus.hpp"
#include "tools/moesim/recommend/request/search_limits.hpp"
#include "tools/moesim/recommend/search/search_stop.hpp"
#include "tools/moesim/scenario/scenario_notes.hpp"

namespace moesim::tool {
namespace {

using study::PrefillFound;
using study::PrefillSearch;

constexpr const char* dropless = "dropless";
constexpr const char* usual_factors = "0.5,0.75,1,1.05,1.1,1.25,1.5";
constexpr const char* usual_batches = "1,2,4,8";

// Groups inside a node and over several, as far as experts and GPUs allow, of all that lists have.
std::string usual_groups(const scenario::OptionValues& lists, scenario::DocumentCache& documents) {
  std::set<int> sizes;
  for (const scenario::OptionValues& values : study::grid(lists)) {
    const scenario::Scenario usual = scenario::fill_in(values, documents, scenario::Use::step);
    for (int size = 1; size <= std::min(usual.gpus, usual.experts); size *= 2) {
      if (usual.gpus % size == 0 && usual.experts % size == 0) sizes.insert(size);
    }
  }
  return fmt::format("{}", fmt::join(sizes, ","));
}

// The same scenario with all routes kept: top-k without a capacity takes its usual one. Routers
// whose capacity is part of them stay as they are.
scenario::OptionValues without_capacity(scenario::OptionValues values,
                                        scenario::DocumentCache& documents) {
  const auto router_of = [&] {
    return scenario::fill_in(values, documents, scenario::Use::step).router;
  };
  try {
    const routing::RouterConfig own = router_of();
    if (!own.kind->takes_best || !own.has_capacity()) return values;
    values["router"] = dropless;
    values.erase("top-k");
    if (router_of().top_k != own.top_k) values["top-k"] = fmt::format("{}", own.top_k);
  } catch (const Error&) {
    why_unanswered();  // the search counts what cannot be, and says why
  }
  return values;
}

std::vector<scenario::OptionValues> scenarios_of(const CommandLine& line, bool may_lose) {
  scenario::OptionValues lists;
  for (const auto& [flag, value] : line.values) {
    if (is_scenario_option(flag)) lists[flag] = value;
  }
  lists["mode"] = "prefill";
  if (lists.count("capacity-convention") == 0) lists["capacity-convention"] = "library";
  if (lists.count("profile") == 0) lists["profile"] = "h100-sxm";
  if (lists.count("micro-batch") == 0) lists["micro-batch"] = usual_batches;
  const std::string typed = line.get("capacity-factor");
  lists.erase("capacity-factor");
  scenario::DocumentCache documents;
  if (lists.count("expert-parallel") == 0) {
    scenario::OptionValues first = lists;
    first["micro-batch"] = "1";
    first.erase("router");
    lists["expert-parallel"] = usual_groups(first, documents);
  }
  std::vector<std::string> factors;
  bool without = typed.empty();
  for (const std::string_view factor : split(typed, ',')) {
    if (factor == dropless)
      without = true;
    else if (!factor.empty())
      factors.emplace_back(factor);
  }
  std::vector<scenario::OptionValues> all;
  if (without) {
    for (const scenario::OptionValues& each : study::grid(lists)) {
      scenario::OptionValues values = without_capacity(each, documents);
      if (std::find(all.begin(), all.end(), values) == all.end()) all.push_back(std::move(values));
    }
  }
  if (typed.empty() && may_lose) factors.emplace_back(usual_factors);
  if (!factors.empty()) {
    lists["capacity-factor"] = fmt::format("{}", fmt::join(factors, ","));
    for (const scenario::OptionValues& each : study::grid(lists)) all.push_back(each);
  }
  return all;
}

// What cannot be filled in is counted, with its reason, by the search.
void note_scenarios(const CommandLine& line, const std::vector<scenario::OptionValues>& all) {
  scenario::DocumentCache documents;
  std::vector<scenario::Scenario> filled;
  for (const scenario::OptionValues& values : all) {
    try {
      filled.push_back(scenario::fill_in(values, documents, scenario::Use::step));
    } catch (const Error&) {
      why_unanswered();
    }
  }
  std::vector<const scenario::Scenario*> scenarios;
  for (const scenario::Scenario& each : filled) scenarios.push_back(&each);
  note_trained_routers(scenarios);
  note_equal_weights(scenarios);
  scenario::OptionValues asked = line.asked_scenario();
  for (const char* searched : {"mode", "capacity-factor"}) asked.erase(searched);
  if (!scenarios.empty()) note_idle_options(asked, scenarios, scenario::Asker::step);
}

// Why there is no answer.
std::string nothing_found(const PrefillSearch& search, const PrefillFound& found,
                          const SearchStop& stop) {
  const bool is_stopped = found.unfinished > 0;
  const std::string left = is_stopped ? fmt::format("; {}: {} others were not simulated, and may",
                                                    stop.text(), found.unfinished)
                                      : "";
  if (found.too_large == found.simulated) {
    const std::string why = fmt::format(
        "none of the {} scenarios{} fits in {:.0f} % of a GPU's memory: the least takes {:.1f} GiB",
        found.simulated, is_stopped ? " simulated so far" : "", 100 * search.memory_share,
        found.least_gib);
    return is_stopped ? why + left : why + ": try more --gpus, or a larger --expert-parallel";
  }
  return fmt::format("none of the {} scenarios{} that fit reaches --min-speed {:g}{}",
                     found.simulated - found.too_large, is_stopped ? " simulated so far" : "",
                     search.min_speed, left);
}

}  // namespace

ExitCode recommend_prefill(const CommandLine& line) {
  static const std::vector<std::string> own = {"mode",      "best",         "max-loss",
                                               "min-speed", "jobs",         "format",
                                               "out",       "memory-share", "time-limit"};
  for (const auto& [flag, value] : line.values) {
    if (is_scenario_option(flag) || std::find(own.begin(), own.end(), flag) != own.end()) continue;
    throw UsageError(
        fmt::format("--{} with --mode prefill: of a training step: leave it out", flag));
  }
  if (requested_gpus(line).size() > 1) {
    throw UsageError(
        fmt::format("--gpus {} with --mode prefill: layouts on several numbers of GPUs are of "
                    "training steps: give one number, or moesim sweep --mode prefill --gpus {}",
                    line.get("gpus"), line.get("gpus")));
  }
  const report::Format format = chosen_format(line, report::Format::table);
  const Output out(line.get("out"));
  const SearchLimits limits = requested_limits(line);
  const SearchStop stop(line);
  PrefillSearch search;
  search.best = limits.best;
  search.max_loss = limits.max_loss;
  search.min_speed = limits.min_speed;
  search.memory_share = limits.memory_share;
  search.jobs = chosen_jobs(line);
  search.scenarios = scenarios_of(line, search.max_loss > 0);
  note_scenarios(line, search.scenarios);
  search.stop = [&stop] { return stop.is_due(); };
  ProgressLine progress("scenarios");
  search.progress = [&](const study::SweepProgress& done) { progress.show(done); };
  PrefillFound found;
  try {
    found = study::search_prefill(search);
  } catch (const study::SearchStopped& stopped) {
    progress.finish(
        fmt::format("moesim: {} before the first of {} scenarios was simulated: no result is kept",
                    stop.text(), stopped.unfinished()));
    return stop.code(false);
  }
  progress.finish();
  const bool is_stopped = found.unfinished > 0;
  if (found.best.empty() && found.front.empty()) {
    throw Error(nothing_found(search, found, stop),
                is_stopped ? stop.code(false) : ExitCode::failure);
  }
  if (is_stopped) {
    note(fmt::format("moesim: {}: the best so far, others may be faster", stop.text()));
  }
  write_keeping_others(out, rendered_passes(search, found, format));
  note_written(found.best.size(), found.front.size(), out);
  return is_stopped ? stop.code(false) : ExitCode::ok;
}

}  // namespace moesim::tool
