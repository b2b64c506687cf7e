#include "tools/moesim/recommend/several/recommend_machines.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "sim/base/no_answer.hpp"
#include "tools/moesim/base/kept_result.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/recommend/report/search_charts.hpp"
#include "tools/moesim/recommend/request/recommend_flags.hpp"
#include "tools/moesim/recommend/request/requested_gpus.hpp"
#include "tools/moesim/recommend/request/typed_lists.hpp"
#include "tools/moesim/recommend/search/search_stop.hpp"
#include "tools/moesim/recommend/several/best_searches.hpp"
#include "tools/moesim/recommend/several/machines_report.hpp"
#include "tools/moesim/train/train_request.hpp"

namespace moesim::tool {
namespace {

constexpr std::size_t most_searches = 64;

// The machine with what --from or --megatron start from; nothing: an error of this machine.
struct Start {
  const Machine* machine = nullptr;
  std::optional<SearchSource> source;
  std::string refusal;
};

// Leaves out those of several precisions that the machine's GPU does not have, and says so; where
// it has none of them the search says why.
void take_own_precisions(const std::string& machine, scenario::DocumentCache& documents,
                         CommandLine& line) {
  if (!line.has("precision")) return;
  const std::vector<int> gpus = requested_gpus(line);
  std::vector<std::string> own;
  std::vector<std::string> others;
  for (const std::string& text : list_of(line, "precision")) {
    value_in(model::precision_names, text, "--precision");
    CommandLine one = first_values(line);
    one.values["precision"] = text;
    if (!gpus.empty()) one.values["gpus"] = fmt::format("{}", gpus.front());
    try {
      resolved_job(one, true, &documents);
      own.push_back(text);
    } catch (const Error&) {
      others.push_back(fmt::format("note: not searched on {}: {}", machine, why_unanswered()));
    }
  }
  if (own.empty()) return;
  for (const std::string& text : others) note(text);
  line.values["precision"] = fmt::format("{}", fmt::join(own, ","));
}

std::vector<Start> starts_of(const std::vector<Machine>& machines) {
  const EachNoteOnce once;
  std::vector<Start> starts;
  std::exception_ptr last;
  const auto documents = std::make_shared<scenario::DocumentCache>();
  for (const Machine& machine : machines) {
    starts.push_back({&machine, std::nullopt, ""});
    try {
      SearchSource source = requested_source(machine.typed, documents);
      take_own_precisions(machine.name, *documents, source.line);
      starts.back().source = std::move(source);
    } catch (const Error&) {
      starts.back().refusal = why_unanswered();
      last = std::current_exception();
    }
  }
  const bool any = std::any_of(starts.begin(), starts.end(),
                               [](const Start& start) { return start.source.has_value(); });
  if (!any) std::rethrow_exception(last);
  return starts;
}

// Those of the first that can be started from; one that is not typed counts too.
std::vector<std::optional<int>> gpus_of(const std::vector<Start>& starts) {
  const auto first = std::find_if(starts.begin(), starts.end(),
                                  [](const Start& start) { return start.source.has_value(); });
  std::vector<std::optional<int>> all;
  for (const int gpus : requested_gpus(first->source->line)) all.emplace_back(gpus);
  if (all.empty()) all.emplace_back();
  return all;
}

// Where no machine has a layout: the error of a flag that all have, or the reason of each.
[[noreturn]] void fail(const MachineSearches& searches, const std::exception_ptr& last,
                       ExitCode code) {
  std::vector<std::string> reasons;
  bool is_one = true;
  for (const RefusedMachine& each : searches.refused) {
    is_one = is_one && each.reason == searches.refused.front().reason;
    reasons.push_back(fmt::format("{}: {}", searches.place_of(each), each.reason));
  }
  if (last && is_one) std::rethrow_exception(last);
  throw Error(fmt::format("none of the machines has a layout\n  {}", fmt::join(reasons, "\n  ")),
              code);
}

MachineSearches search_all(const std::vector<Start>& starts,
                           const std::vector<std::optional<int>>& numbers, SearchStop& stop) {
  BestSearches all(stop, starts.size() * numbers.size());
  MachineSearches searches;
  searches.machines = starts.size();
  searches.numbers = numbers.size();
  std::exception_ptr last;
  for (const std::optional<int> gpus : numbers) {
    for (const Start& start : starts) {
      const std::string& name = start.machine->name;
      RefusedMachine refused{start.machine, gpus, start.refusal,
                             searches.found.size() + searches.refused.size()};
      if (!start.source) {
        searches.refused.push_back(refused);
        continue;
      }
      SearchSource source = *start.source;
      if (gpus) source.line.values["gpus"] = fmt::format("{}", *gpus);
      const std::string place = searches.place_of(refused);
      if (auto best = all.next(source, place)) {
        searches.found.push_back({name, std::move(*best), refused.search});
      } else {
        refused.reason = all.reason();
        searches.refused.push_back(refused);
        last = all.error();
      }
    }
  }
  all.finish();
  searches.counts = all.counts();
  searches.is_stopped = all.is_stopped();
  if (searches.found.empty()) {
    fail(searches, last, searches.is_stopped ? stop.code(false) : ExitCode::failure);
  }
  return searches;
}

}  // namespace

ExitCode recommend_machines(const CommandLine& line, const std::vector<Machine>& machines) {
  const char* const several =
      line.get("profile").find(',') != std::string::npos ? "profile" : "cluster";
  for (const char* flag : {"best", "distinct", "all"}) {
    if (!line.has(flag)) continue;
    throw UsageError(
        fmt::format("--{} with several values of --{}: of one search: give one, or leave --{} out",
                    flag, several, flag));
  }
  const report::Format format = chosen_format(line, report::Format::table);
  const Output out(line.get("out"));
  const std::string chart = line.get("chart");
  if (!chart.empty()) check_chart(chart);
  SearchStop stop(line);
  const std::vector<Start> starts = starts_of(machines);
  const std::vector<std::optional<int>> numbers = gpus_of(starts);
  if (starts.size() * numbers.size() > most_searches) {
    throw UsageError(
        fmt::format("{} machines on {} numbers of GPUs, each with a search of its own: at most {}",
                    starts.size(), numbers.size(), most_searches));
  }
  const MachineSearches searches = search_all(starts, numbers, stop);
  if (searches.is_stopped) {
    note(fmt::format("moesim: {}: not all of the layouts are proven", stop.text()));
  }
  write_keeping_others(out, format == report::Format::table ? machines_text(searches)
                                                            : machines_rows(searches, format));
  if (line.has("out")) {
    note(fmt::format("{} layouts on {} machines: {}", searches.found.size(), machines.size(),
                     out.path()));
  }
  if (!chart.empty()) draw_machines(machines_rows(searches, report::Format::csv), chart);
  return stop.code(!searches.is_stopped);
}

}  // namespace moesim::tool
