#include "tools/moesim/recommend/prefill/prefill_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "sim/scenario/exchange.hpp"
#include "sim/scenario/software.hpp"
#include "tools/moesim/base/shell_word.hpp"
#include "tools/moesim/recommend/tables/search_texts.hpp"

namespace moesim::tool {
namespace {

using study::FoundPass;
using study::PrefillFound;
using study::PrefillSearch;

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

// The different values of a column, in order: "hgx-h100", "512 or 1024". `absent`: of a pass
// without one; "": it does not count.
std::string values_of(const PrefillFound& found, const std::string& column,
                      const std::string& absent = "") {
  std::vector<std::string> values;
  const auto add = [&](const FoundPass& pass) {
    const Cell& cell = pass.row[study::column_index(column)];
    if (is_absent(cell) && absent.empty()) return;
    const std::string text = is_absent(cell) ? absent : pass.text(column);
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

// "--fusion eager (a kernel for each operation, ...)", of each value that the passes have.
std::string assumed(const PrefillFound& found, const char* option, const std::string& usual) {
  const scenario::Option& described = scenario::option_named(option);
  std::string values = values_of(found, described.column, usual);
  for (const scenario::NamedValue& each : described.values) {
    if (each.name == values) values += fmt::format(" ({})", each.meaning);
  }
  return fmt::format("{} {}", described.flag(), values);
}

// The kernels and the exchange that passes are priced with.
std::string software_lines(const PrefillFound& found) {
  if (values_of(found, "expert_products").empty()) {  // no experts
    return fmt::format("kernels: {}\n", assumed(found, "fusion", ""));
  }
  return fmt::format("kernels: {}; {}\nexchange of experts: {}\n", assumed(found, "fusion", ""),
                     assumed(found, "expert-products", ""),
                     assumed(found, "dispatcher", scenario::nccl_dispatcher));
}

std::string heading(const PrefillSearch& search, const PrefillFound& found) {
  std::string text = fmt::format(
      "{} on {} x {} ({}): forward passes of sequences of {} tokens, bf16\n"
      "{} scenarios simulated, {} of them do not fit in {:.0f} % of a GPU, {} cannot be\n",
      values_of(found, "model"), values_of(found, "gpus"), values_of(found, "profile"),
      values_of(found, "cluster"), values_of(found, "sequence_length"), found.simulated,
      found.too_large, 100 * search.memory_share, found.refused);
  if (found.refused > 0) text += fmt::format("one that cannot be: {}\n", found.a_refusal);
  if (found.unfinished > 0) {
    text += fmt::format(
        "stopped: NOT ALL ARE KNOWN: {} scenarios were not simulated, and may be faster\n",
        found.unfinished);
  }
  return text + software_lines(found) + convention_line(found) + k_line(found) + "\n";
}

// Values of the software that no scenario has, and the options that search them.
std::string not_searched_lines(const PrefillSearch& search, const PrefillFound& found) {
  const bool has_experts = !values_of(found, "expert_products").empty();
  std::vector<std::string> missing, lists;
  for (const char* name : {"fusion", "expert-products", "dispatcher"}) {
    const scenario::Option& option = scenario::option_named(name);
    if (!has_experts && option.name != "fusion") continue;
    std::vector<std::string> searched, others;
    for (const scenario::OptionValues& values : search.scenarios) {
      const auto typed = values.find(option.name);
      const std::string& value = typed == values.end() ? option.default_text : typed->second;
      if (std::find(searched.begin(), searched.end(), value) == searched.end()) {
        searched.push_back(value);
      }
    }
    for (const scenario::NamedValue& each : option.values) {
      if (std::find(searched.begin(), searched.end(), each.name) == searched.end()) {
        others.push_back(each.name);
      }
    }
    if (others.empty()) continue;
    missing.push_back(fmt::format("{} {}", option.flag(), fmt::join(others, ", ")));
    lists.push_back(
        fmt::format("{} {},{}", option.flag(), fmt::join(searched, ","), fmt::join(others, ",")));
  }
  if (missing.empty()) return "";
  return fmt::format(
      "not searched: {}\n  search them: {} (other options of simulate take lists too)\n",
      fmt::join(missing, "; "), fmt::join(lists, " "));
}

// That all lose too much, and the least --max-loss that would list one, in tenths of a per cent.
std::string too_lossy_text(const PrefillSearch& search, const PrefillFound& found) {
  const double least = found.front.back().loss;
  return fmt::format(
      "nothing loses at most {:g} % of the routing weight: the least loses {:.2f} %: --max-loss "
      "{:g}% would list some\n",
      100 * search.max_loss, 100 * least, std::ceil(1000 * least) / 10);
}

// The commands of the best, or of the front where there are none.
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

// "--expert-products separate": what another scenario has that a pass has not.
std::string difference(const scenario::OptionValues& other, const scenario::OptionValues& pass) {
  std::vector<std::string> words;
  for (const auto& [option, value] : other) {
    const auto same = pass.find(option);
    if (same != pass.end() && same->second == value) continue;
    words.push_back(fmt::format("--{} {}", option, shell_word(value)));
  }
  for (const auto& [option, value] : pass) {
    if (!other.contains(option)) words.push_back(fmt::format("no --{}", option));
  }
  return fmt::format("{}", fmt::join(words, " "));
}

std::string equal_line(const std::string& name, const FoundPass& pass) {
  if (pass.equals.empty()) return "";
  std::vector<std::string> others;
  for (const scenario::OptionValues& other : pass.equals) {
    others.push_back(difference(other, pass.options));
  }
  return fmt::format("  {}: {}\n", name, fmt::join(others, "; "));
}

bool is_among(const std::vector<FoundPass>& passes, const FoundPass& pass) {
  return std::any_of(passes.begin(), passes.end(),
                     [&](const FoundPass& other) { return other.options == pass.options; });
}

// Of the best, then of those that are on the front alone.
std::string equal_lines(const PrefillFound& found) {
  std::string text;
  for (std::size_t place = 0; place < found.best.size(); ++place) {
    text += equal_line(fmt::format("{}", place + 1), found.best[place]);
  }
  for (std::size_t place = 0; place < found.front.size(); ++place) {
    const FoundPass& pass = found.front[place];
    if (!is_among(found.best, pass)) text += equal_line(front_name(place), pass);
  }
  return text.empty() ? "" : "equal in every figure, not listed:\n" + text;
}

std::string table_of(const PrefillSearch& search, const PrefillFound& found) {
  const PassCells columns(found);
  return heading(search, found) +
         (found.best.empty() ? too_lossy_text(search, found) : best_table(columns, found)) +
         front_table(columns, found) + equal_lines(found) + not_searched_lines(search, found) +
         commands(found);
}

// The columns of a sweep, and what the search says of each.
std::string rows_of(const PrefillFound& found, report::Format format) {
  std::vector<std::string> names = study::names_of(study::result_columns());
  names.insert(names.end(), {"rank", "on_front", "proven", "unproven_gain", "twins", "command"});
  // Without bounds nothing is known of those that were not simulated.
  const bool is_proven = found.unfinished == 0;
  std::vector<report::CellRow> rows;
  const auto add = [&](const FoundPass& pass, Cell rank, bool on_front) {
    report::CellRow row = pass.row;
    row.insert(row.end(), {std::move(rank), Cell(on_front), Cell(is_proven),
                           is_proven ? figure_cell(0) : Cell(),
                           Cell(std::int64_t(pass.equals.size())), Cell(command_of(pass))});
    rows.push_back(std::move(row));
  };
  for (std::size_t place = 0; place < found.best.size(); ++place) {
    add(found.best[place], std::int64_t(place + 1), is_among(found.front, found.best[place]));
  }
  for (const FoundPass& pass : found.front) {
    if (!is_among(found.best, pass)) add(pass, {}, true);
  }
  return format == report::Format::csv ? report::to_csv(names, rows)
                                       : report::to_json_text(names, rows);
}

}  // namespace

std::string rendered_passes(const PrefillSearch& search, const PrefillFound& found,
                            report::Format format) {
  return format == report::Format::table ? table_of(search, found) : rows_of(found, format);
}

}  // namespace moesim::tool
