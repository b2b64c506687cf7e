#include "tools/moesim/recommend/recommend_prefill.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "sim/base/text.hpp"
#include "sim/report/formats.hpp"
#include "sim/study/search/prefill_search.hpp"
#include "sim/study/sweep/grid.hpp"
#include "tools/moesim/output.hpp"
#include "tools/moesim/recommend/recommend_cells.hpp"
#include "tools/moesim/recommend/recommend_limits.hpp"
#include "tools/moesim/recommend/recommend_report.hpp"
#include "tools/moesim/recommend/recommend_request.hpp"
#include "tools/moesim/recommend/recommend_scaling.hpp"
#include "tools/moesim/shell_word.hpp"

namespace moesim::tool {
namespace {

using study::FoundPass;
using study::PrefillFound;
using study::PrefillSearch;

constexpr const char* dropless = "dropless";
constexpr const char* usual_factors = "0.5,0.75,1,1.05,1.1,1.25,1.5";
constexpr const char* usual_batches = "1,2,4,8";

bool is_option(const std::string& flag) {
  const auto& options = scenario::scenario_options();
  return std::any_of(options.begin(), options.end(),
                     [&](const scenario::Option& option) { return option.name == flag; });
}

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
    // The search counts what cannot be, and says why.
  }
  return values;
}

std::vector<scenario::OptionValues> scenarios_of(const CommandLine& line, bool may_lose) {
  scenario::OptionValues lists;
  for (const auto& [flag, value] : line.values) {
    if (is_option(flag)) lists[flag] = value;
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
void note_routers(const std::vector<scenario::OptionValues>& all) {
  scenario::DocumentCache documents;
  std::vector<scenario::Scenario> filled;
  for (const scenario::OptionValues& values : all) {
    try {
      filled.push_back(scenario::fill_in(values, documents, scenario::Use::step));
    } catch (const Error&) {
    }
  }
  std::vector<const scenario::Scenario*> scenarios;
  for (const scenario::Scenario& each : filled) scenarios.push_back(&each);
  note_trained_routers(scenarios);
}

std::string command_of(const FoundPass& pass) {
  std::string text = "moesim simulate";
  for (const auto& [option, value] : pass.options) {
    text += fmt::format(" --{} {}", option, shell_word(value));
  }
  return text;
}

// Options in which the passes differ and which are no columns of their own.
std::vector<std::string> varied_options(const PrefillFound& found) {
  static const std::set<std::string> shown = {"expert-parallel", "micro-batch", "router",
                                              "capacity-factor"};
  std::set<std::string> options;
  std::vector<const FoundPass*> passes;
  for (const std::vector<FoundPass>* list : {&found.best, &found.front}) {
    for (const FoundPass& pass : *list) {
      passes.push_back(&pass);
      for (const auto& [option, value] : pass.options) options.insert(option);
    }
  }
  std::vector<std::string> varied;
  for (const std::string& option : options) {
    std::set<std::string> different;  // "": not typed
    for (const FoundPass* pass : passes) {
      const auto typed = pass->options.find(option);
      different.insert(typed == pass->options.end() ? "" : typed->second);
    }
    if (different.size() > 1 && shown.count(option) == 0) varied.push_back(option);
  }
  return varied;
}

// The columns of a table of passes.
class PassCells {
 public:
  explicit PassCells(const PrefillFound& found) : varied_(varied_options(found)) {}

  std::vector<std::string> names() const {
    std::vector<std::string> names = {"EP", "batch", "router", "CF"};
    for (std::string option : varied_) {
      std::replace(option.begin(), option.end(), '-', ' ');
      names.push_back(std::move(option));
    }
    names.insert(names.end(), {"tokens/s/GPU", "likely", "step", "loss %", "GiB"});
    return names;
  }
  // Which are figures.
  std::vector<bool> right() const {
    std::vector<bool> right = {true, true, false, true};
    for (const std::string& option : varied_)
      right.push_back(scenario::option_named(option).is_number());
    right.insert(right.end(), 5, true);
    return right;
  }
  std::vector<std::string> of(const FoundPass& pass) const {
    const bool drops = !is_absent(pass.row[study::column_index("capacity_factor")]);
    std::vector<std::string> cells = {
        fmt::format("{:.0f}", pass.figure("expert_parallel")),
        fmt::format("{:.0f}", pass.figure("micro_batch")), pass.text("router"),
        drops ? report::figure(pass.figure("capacity_factor")) : "none"};
    for (const std::string& option : varied_) {
      const auto typed = pass.options.find(option);
      if (typed != pass.options.end())
        cells.push_back(typed->second);
      else
        cells.push_back(option == "top-k" ? fmt::format("{:.0f}", pass.figure("top_k")) : "");
    }
    const double speed = pass.figure("tokens_per_s_per_gpu");
    const double slower = pass.figure("step_ms_p50") / pass.figure("step_ms");
    cells.insert(cells.end(), {fmt::format("{:.0f}", speed), fmt::format("{:.0f}", speed / slower),
                               fmt::format("{:.1f} ms", pass.figure("step_ms")),
                               fmt::format("{:.2f}", 100 * pass.loss),
                               fmt::format("{:.1f}", pass.figure("memory_gib"))});
    return cells;
  }

 private:
  std::vector<std::string> varied_;
};

// How sure it is that the first is faster than each of the others: by their ratio to it, as
// `sweep --baseline` says it.
std::string order_text(const std::vector<FoundPass>& best) {
  if (best.size() < 2) return "";
  std::vector<std::size_t> noise, slower;
  std::size_t widest = 1;
  const auto width = [&](std::size_t place) {
    return best[place].figure("speed_over_baseline_p95") /
           best[place].figure("speed_over_baseline_p05");
  };
  for (std::size_t place = 1; place < best.size(); ++place) {
    const auto is_noise = std::get<bool>(best[place].row[study::column_index("within_noise")]);
    (is_noise ? noise : slower).push_back(place + 1);
    if (width(place) > width(widest)) widest = place;
  }
  std::vector<std::string> parts;
  const auto add = [&](const std::vector<std::size_t>& numbers, const std::string& what) {
    if (numbers.empty()) return;
    parts.push_back(
        fmt::format("{} {} {}", places_text(numbers), numbers.size() == 1 ? "is" : "are", what));
  };
  add(noise, "within the noise of 1");
  add(slower, "slower than 1 with " + chance_text(0.95));
  return fmt::format(
      "order: {}\n"
      "       (by p05 to p95 of the ratio of two passes, as sweep --baseline: {} is {:.3f} to "
      "{:.3f} times as fast as 1)\n",
      fmt::join(parts, "; "), widest + 1, best[widest].figure("speed_over_baseline_p05"),
      best[widest].figure("speed_over_baseline_p95"));
}

// The different values of a column, in order: "hgx-h100", "512 or 1024".
std::string values_of(const PrefillFound& found, const std::string& column) {
  std::vector<std::string> values;
  const auto add = [&](const FoundPass& pass) {
    const Cell& cell = pass.row[study::column_index(column)];
    if (is_absent(cell)) return;
    const std::string text = pass.text(column);
    const std::string value = text.empty() ? fmt::format("{:.0f}", pass.figure(column)) : text;
    if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
  };
  for (const FoundPass& pass : found.best) add(pass);
  for (const FoundPass& pass : found.front) add(pass);
  return fmt::format("{}", fmt::join(values, " or "));
}

// What a capacity factor is a multiple of: simulate and sweep have another default.
std::string convention_line(const PrefillFound& found) {
  const std::string conventions = values_of(found, "capacity_convention");
  if (conventions.empty()) return "";
  const char* meaning = conventions == "library" ? ", a balanced load needs CF 1"
                        : conventions == "paper" ? ", a balanced load needs CF k"
                                                 : "";
  return fmt::format(
      "CF: {} convention{} (--capacity-convention; the default is library here, paper in simulate "
      "and sweep)\n",
      conventions, meaning);
}

std::string k_line(const PrefillFound& found) {
  const std::string all = values_of(found, "top_k");
  if (all.find(" or ") == std::string::npos) return "";
  return fmt::format(
      "k: {}; losses are of a token's k best experts: those of different k do not compare\n", all);
}

std::string heading(const PrefillSearch& search, const PrefillFound& found) {
  std::string text = fmt::format(
      "{} on {} x {} ({}): forward passes of sequences of {} tokens, bf16\n"
      "{} scenarios simulated, {} of them do not fit in {:.0f} % of a GPU, {} cannot be\n",
      values_of(found, "model"), values_of(found, "gpus"), values_of(found, "profile"),
      values_of(found, "cluster"), values_of(found, "sequence_length"), found.simulated,
      found.too_large, 100 * search.memory_share, found.refused);
  if (found.refused > 0) text += fmt::format("one that cannot be: {}\n", found.a_refusal);
  return text + convention_line(found) + k_line(found) + "\n";
}

// That all lose too much, and the least --max-loss that would list one, in tenths of a per cent.
std::string too_lossy_text(const PrefillSearch& search, const PrefillFound& found) {
  const double least = found.front.back().loss;
  return fmt::format(
      "nothing loses at most {:g} % of the routing weight: the least loses {:.2f} %: --max-loss "
      "{:g}% would list some\n",
      100 * search.max_loss, 100 * least, std::ceil(1000 * least) / 10);
}

// Of the best, or where there are none of the front.
std::string commands(const PrefillFound& found) {
  std::string text = "\nto reproduce:\n";
  for (std::size_t place = 0; place < found.best.size(); ++place) {
    text += fmt::format("  {}  {}\n", place + 1, command_of(found.best[place]));
  }
  if (!found.best.empty()) return text;
  for (std::size_t place = 0; place < found.front.size(); ++place) {
    text += fmt::format("  {}  {}\n", front_name(place), command_of(found.front[place]));
  }
  return text;
}

std::string front_table(const PassCells& columns, const PrefillFound& found) {
  // A front of one is listed above, unless it loses too much to be.
  if (found.front.size() < (found.best.empty() ? 1U : 2U)) return "";
  std::vector<std::vector<std::string>> lines = {{"#"}};
  const auto add = [&](const std::vector<std::string>& cells) {
    lines.back().insert(lines.back().end(), cells.begin(), cells.end());
  };
  add(columns.names());
  for (std::size_t place = 0; place < found.front.size(); ++place) {
    lines.push_back({front_name(place)});
    add(columns.of(found.front[place]));
  }
  std::vector<bool> right = columns.right();
  right.insert(right.begin(), false);
  return "\nspeed for loss: no other scenario is faster and loses less\n" +
         report::align(lines, right);
}

std::string given_up(const FoundPass& pass, const FoundPass& best) {
  return given_up_text(pass.figure("tokens_per_s_per_gpu") / best.figure("tokens_per_s_per_gpu"),
                       pass.figure("memory_gib") - best.figure("memory_gib"),
                       pass.loss - best.loss);
}

std::string best_table(const PassCells& columns, const PrefillFound& found) {
  const std::vector<std::string> names = columns.names();
  const std::vector<bool> right = columns.right();
  std::vector<std::vector<std::string>> lines = {{"#"}};
  lines.front().insert(lines.front().end(), names.begin(), names.end());
  lines.front().insert(lines.front().end(), {"likely, p05 to p95", "gives up"});
  for (std::size_t place = 0; place < found.best.size(); ++place) {
    const FoundPass& pass = found.best[place];
    std::vector<std::string> cells = {fmt::format("{}", place + 1)};
    const std::vector<std::string> figures = columns.of(pass);
    cells.insert(cells.end(), figures.begin(), figures.end());
    cells.push_back(
        fmt::format("{:.1f} to {:.1f} ms", pass.figure("step_ms_p05"), pass.figure("step_ms_p95")));
    cells.push_back(place == 0 ? "" : given_up(pass, found.best.front()));
    lines.push_back(cells);
  }
  std::vector<bool> sides = {true};
  sides.insert(sides.end(), right.begin(), right.end());
  sides.insert(sides.end(), {true, false});
  return report::align(lines, sides) +
         "likely: tokens/s/GPU that a measurement is expected to say, by the median of its band; "
         "gives up: % of the speed of 1, GiB per GPU more than 1\n" +
         order_text(found.best);
}

std::string table_of(const PrefillSearch& search, const PrefillFound& found) {
  const PassCells columns(found);
  return heading(search, found) +
         (found.best.empty() ? too_lossy_text(search, found) : best_table(columns, found)) +
         front_table(columns, found) + commands(found);
}

// The columns of a sweep, and rank, front and command.
std::string rows_of(const PrefillFound& found, report::Format format) {
  std::vector<std::string> names = study::names_of(study::result_columns());
  names.insert(names.end(), {"counted_loss", "rank", "on_front", "command"});
  std::vector<report::CellRow> rows;
  const auto add = [&](const FoundPass& pass, Cell rank, bool on_front) {
    report::CellRow row = pass.row;
    row.insert(row.end(),
               {figure_cell(pass.loss), std::move(rank), Cell(on_front), Cell(command_of(pass))});
    rows.push_back(std::move(row));
  };
  const auto in = [](const std::vector<FoundPass>& passes, const FoundPass& pass) {
    return std::any_of(passes.begin(), passes.end(),
                       [&](const FoundPass& other) { return other.options == pass.options; });
  };
  for (std::size_t place = 0; place < found.best.size(); ++place) {
    add(found.best[place], std::int64_t(place + 1), in(found.front, found.best[place]));
  }
  for (const FoundPass& pass : found.front) {
    if (!in(found.best, pass)) add(pass, {}, true);
  }
  return format == report::Format::csv ? report::to_csv(names, rows)
                                       : report::to_json_text(names, rows);
}

}  // namespace

ExitCode recommend_prefill(const CommandLine& line) {
  static const std::vector<std::string> own = {"mode", "best",   "max-loss", "min-speed",
                                               "jobs", "format", "out",      "memory-share"};
  for (const auto& [flag, value] : line.values) {
    if (is_option(flag) || std::find(own.begin(), own.end(), flag) != own.end()) continue;
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
  PrefillSearch search;
  search.best = limits.best;
  search.max_loss = limits.max_loss;
  search.min_speed = limits.min_speed;
  search.memory_share = limits.memory_share;
  search.jobs = chosen_jobs(line);
  search.scenarios = scenarios_of(line, search.max_loss > 0);
  note_routers(search.scenarios);
  const PrefillFound found = study::search_prefill(search);
  if (found.best.empty() && found.front.empty()) {
    if (found.too_large == found.simulated) {
      throw Error(
          fmt::format("none of the {} scenarios fits in {:.0f} % of a GPU's memory: the least "
                      "takes {:.1f} GiB: "
                      "try more --gpus, or a larger --expert-parallel",
                      found.simulated, 100 * search.memory_share, found.least_gib));
    }
    throw Error(fmt::format("none of the {} scenarios that fit reaches --min-speed {:g}",
                            found.simulated - found.too_large, search.min_speed));
  }
  out.write(format == report::Format::table ? table_of(search, found) : rows_of(found, format));
  note_written(found.best.size(), found.front.size(), out);
  return ExitCode::ok;
}

}  // namespace moesim::tool
