#include "tools/moesim/recommend/several/machines_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "tools/moesim/recommend/best/untried_switches.hpp"
#include "tools/moesim/recommend/best/your_layout.hpp"
#include "tools/moesim/recommend/search/search_proof.hpp"
#include "tools/moesim/recommend/tables/search_texts.hpp"
#include "tools/moesim/recommend/tables/step_cells.hpp"

namespace moesim::tool {
namespace {

using Machines = std::vector<const MachineBest*>;

// "16 to 64 GPUs".
std::string gpus_text(const MachineSearches& searches) {
  const int fewest = searches.found.front().best.gpus();
  const int most = searches.found.back().best.gpus();
  return fewest == most ? fmt::format("{} GPUs", fewest)
                        : fmt::format("{} to {} GPUs", fewest, most);
}

// "bf16 or mxfp8": those searched on any of the machines.
std::string precisions_of(const MachineSearches& searches) {
  std::vector<std::string> names;
  for (const MachineBest& each : searches.found) {
    for (const model::Precision precision : each.best.request.search.space.precision) {
      const std::string name = model::name_of(precision);
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  return fmt::format("{}", fmt::join(names, " or "));
}

std::string heading(const MachineSearches& searches) {
  const RecommendRequest& request = searches.found.front().best.request;
  const study::TrainingSearch& search = request.search;
  const bool grows = searches.numbers > 1 && !request.line.has("global-batch");
  const study::SearchCounts& counts = searches.counts;
  return fmt::format(
      "{} on {} of {} machines: {}{} candidates; {} cannot fit in {:.0f} % of a GPU's memory, {}\n",
      search.space.base.typed.model, gpus_text(searches), searches.machines,
      batch_text(search, grows, precisions_of(searches)), count_text(counts.candidates),
      count_text(counts.too_large), 100 * search.memory_share,
      simulated_text(search, counts, searches.is_stopped, !searches.is_stopped));
}

// What any of the searches has beside layouts, or the machines differ in.
Extras extras_of(const std::vector<MachineBest>& all) {
  const BestFound& first = all.front().best;
  Extras extras(first.request.search);
  for (const MachineBest& each : all) {
    extras.add(each.best.request.search, each.best.best.job, first.best.job);
  }
  return extras;
}

// The level of all bands; nothing where they differ.
std::optional<double> band_level(const std::vector<MachineBest>& all) {
  const double level = all.front().best.band.band.widest().level;
  const bool is_one = std::all_of(all.begin(), all.end(), [&](const MachineBest& each) {
    return each.best.band.band.widest().level == level;
  });
  return is_one ? std::optional(level) : std::nullopt;
}

// The band; where levels differ, which one it is of.
std::string band_cell(const BestFound& best, bool with_level) {
  const double level = best.band.band.widest().level;
  return band_text(best) + (with_level ? fmt::format(" ({:.0f} %)", 100 * level) : "");
}

std::string table_of(const MachineSearches& searches) {
  const std::vector<MachineBest>& all = searches.found;
  const Extras extras = extras_of(all);
  const std::optional<double> level = band_level(all);
  const bool with_gpus = searches.numbers > 1;
  const bool with_price = all.front().best.band.cost.price.has_value();
  const bool with_loss = std::any_of(
      all.begin(), all.end(), [](const MachineBest& each) { return each.best.best.loss > 0; });
  std::vector<std::vector<std::string>> lines(1);
  if (with_gpus) lines.front().emplace_back("GPUs");
  append(lines.front(), {"machine", "cluster"});
  append(lines.front(), layout_names());
  append(lines.front(), extras.names());
  append(lines.front(),
         {"tokens/s/GPU", "step", level ? fmt::format("{:.0f} % band", 100 * *level) : "band"});
  if (with_loss) lines.front().emplace_back("loss %");
  lines.front().emplace_back("GiB");
  append(lines.front(), cost_names(all.front().best));
  if (with_price) lines.front().insert(lines.front().end() - 1, "a GPU hour");  // before the cost
  for (const MachineBest& each : all) {
    const study::FoundStep& best = each.best.best;
    std::vector<std::string> cells;
    if (with_gpus) cells.push_back(fmt::format("{}", each.best.gpus()));
    append(cells, {each.machine, best.job.typed.cluster});
    append(cells, layout_cells(best.job));
    append(cells, extras.cells(best.job));
    append(cells, {fmt::format("{:.0f}", best.step.tokens_per_second_per_gpu),
                   step_text(best.step.step_us), band_cell(each.best, !level)});
    if (with_loss) cells.push_back(fmt::format("{:.2f}", 100 * best.loss));
    cells.push_back(fmt::format("{:.1f}", best.step.peak_memory().gib()));
    append(cells, cost_texts(each.best));
    if (with_price) cells.insert(cells.end() - 1, fmt::format("{:g}", each.price()));
    lines.push_back(cells);
  }
  std::vector<bool> right = right_aligned(lines.front());
  for (std::size_t at = 0; at < right.size(); ++at) {
    if (lines.front()[at] == "machine" || lines.front()[at] == "cluster") right[at] = false;
  }
  return report::align(lines, right);
}

std::string not_measured_text(const MachineSearches& searches) {
  std::vector<UnmeasuredStep> steps;
  for (const MachineBest& each : searches.found) {
    steps.push_back(
        {searches.place_of(each), texts_of(each.best.band.band), !each.best.band.own.empty()});
  }
  return not_measured_lines(steps);
}

// Those on as many GPUs, fewest first.
std::vector<Machines> by_gpus(const MachineSearches& searches) {
  std::map<int, Machines> groups;
  for (const MachineBest& each : searches.found) groups[each.best.gpus()].push_back(&each);
  std::vector<Machines> found;
  for (auto& [gpus, machines] : groups) found.push_back(std::move(machines));
  return found;
}

std::string compared_text(const MachineSearches& searches) {
  std::string text;
  for (const Machines& machines : by_gpus(searches)) {
    if (searches.numbers > 1) {
      text += fmt::format("on {} GPUs:\n", machines.front()->best.gpus());
    }
    text += prices_text(machines);
  }
  return text;
}

// What drawing makes of the best, which were searched under forced balance.
std::string drawn_line(const MachineSearches& searches) {
  std::vector<DrawnPlace> places;
  for (const MachineBest& each : searches.found) {
    places.push_back({searches.place_of(each), &each.best.drawn});
  }
  return drawn_text(places);
}

std::string yours_lines(const MachineSearches& searches) {
  std::string text;
  for (const MachineBest& each : searches.found) {
    const std::optional<Yours>& yours = each.best.request.yours;
    if (!yours) continue;
    const bool is_there = yours->step && yours->step->job.layout.sizes.gpus == each.best.gpus();
    if (yours->step && !is_there) continue;
    const std::string place = searches.place_of(each);
    text += fmt::format("{}: {}", place,
                        yours_text(each.best.request, {each.best.best}, "the best there"));
  }
  return text;
}

// The switches that would make the best of each faster; of several numbers of GPUs nothing.
std::string switches_lines(const MachineSearches& searches) {
  if (searches.numbers > 1) return "";
  std::string text;
  for (const MachineBest& each : searches.found) {
    if (each.best.request.is_stopped()) continue;
    text += switches_text(each.best.request, each.best.best, each.machine);
  }
  return text;
}

NamedCells row_of(const MachineBest& each, const Machines& beside) {
  study::FoundStep best = each.best.best;
  study::add_forced_step(each.best.request.search, best);
  NamedCells row = row_of(each.best.request, best);
  row.add("reason", Cell());
  row.add("rank", Cell(std::int64_t{1}));
  add_best_cells(each.best, row);
  add_price_cells(each, beside, row);
  return row;
}

NamedCells row_of(const RefusedMachine& each, const training::TrainingJob& base) {
  NamedCells row;
  const CommandLine& typed = each.machine->typed;
  row.add("model", base.typed.model);
  row.add("profile", typed.get("profile", base.typed.profile));
  row.add("cluster", typed.has("cluster") ? Cell(typed.get("cluster")) : Cell());
  row.add("gpus", std::int64_t{each.gpus.value_or(base.layout.sizes.gpus)});
  row.add("status", std::string("refused"));
  row.add("reason", each.reason);
  return row;
}

template <class One>
std::string place_on(const std::string& machine, const One& gpus, std::size_t numbers) {
  return numbers > 1 ? fmt::format("{} x {}", gpus, machine) : machine;
}

}  // namespace

std::string MachineSearches::place_of(const MachineBest& best) const {
  return place_on(best.machine, best.best.gpus(), numbers);
}

std::string MachineSearches::place_of(const RefusedMachine& without) const {
  return place_on(without.machine->name, without.gpus.value_or(0), numbers);
}

std::string machines_text(const MachineSearches& searches) {
  std::string text = heading(searches) + table_of(searches);
  for (const MachineBest& each : searches.found) {
    text += unproven_text(each.best, searches.place_of(each));
  }
  text += not_measured_text(searches);
  for (const RefusedMachine& each : searches.refused) {
    text += fmt::format("no layout on {}: {}\n", searches.place_of(each), each.reason);
  }
  text += "\n" + compared_text(searches) + "\n" + drawn_line(searches) + switches_lines(searches) +
          yours_lines(searches) + "to reproduce:\n";
  for (const MachineBest& each : searches.found) {
    text += fmt::format("  {}  {}\n", searches.place_of(each),
                        each.best.request.command_of(each.best.best));
  }
  return text;
}

std::string machines_rows(const MachineSearches& searches, report::Format format) {
  std::map<std::size_t, NamedCells> by_search;
  std::vector<std::string> columns;
  for (const Machines& machines : by_gpus(searches)) {
    for (const MachineBest* each : machines) {
      NamedCells row = row_of(*each, machines);
      add_columns(row, columns);
      by_search.emplace(each->search, std::move(row));
    }
  }
  const training::TrainingJob& base = searches.found.front().best.request.search.space.base;
  for (const RefusedMachine& each : searches.refused) {
    by_search.emplace(each.search, row_of(each, base));
  }
  std::vector<NamedCells> rows;
  for (auto& [search, row] : by_search) rows.push_back(std::move(row));
  return rows_text(columns, rows, format);
}

}  // namespace moesim::tool
