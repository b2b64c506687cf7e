#include "tools/moesim/recommend/several/recommend_scaling.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <optional>
#include <utility>

#include "sim/study/search/scaling.hpp"
#include "tools/moesim/bands/train_band.hpp"
#include "tools/moesim/base/kept_result.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/recommend/best/step_order.hpp"
#include "tools/moesim/recommend/best/untried_switches.hpp"
#include "tools/moesim/recommend/best/your_layout.hpp"
#include "tools/moesim/recommend/report/search_charts.hpp"
#include "tools/moesim/recommend/request/recommend_request.hpp"
#include "tools/moesim/recommend/request/search_room.hpp"
#include "tools/moesim/recommend/search/search_proof.hpp"
#include "tools/moesim/recommend/search/search_stop.hpp"
#include "tools/moesim/recommend/several/best_searches.hpp"
#include "tools/moesim/recommend/tables/search_texts.hpp"
#include "tools/moesim/recommend/tables/step_cells.hpp"

namespace moesim::tool {
namespace {

using study::FoundStep;
using study::ScalingFigures;
using study::ScalingPoint;

// The search on one number of GPUs.
struct Searched : BestFound {
  ScalingFigures scaling{};
};

struct Refused {
  int gpus = 0;
  std::string reason;
};

struct Searches {
  std::vector<Searched> searched;  // fewest GPUs first
  std::vector<Refused> refused;
  study::SearchCounts counts;  // of all
  bool is_stopped = false;     // one of them, before it was proven

  std::vector<ScalingPoint> points() const;
};

int gpus_of(const FoundStep& step) { return step.job.layout.sizes.gpus; }

// As the software of the search runs it.
ScalingPoint point_of(const FoundStep& step) {
  return {gpus_of(step), gpus_of(step) * step.step.tokens_per_second_per_gpu};
}

std::vector<ScalingPoint> Searches::points() const {
  std::vector<ScalingPoint> found;
  for (const Searched& each : searched) found.push_back(point_of(each.best));
  return found;
}

Searches search_all(const SearchSource& source, const std::vector<int>& gpus, SearchStop& stop) {
  BestSearches all(stop, gpus.size());
  Searches searches;
  for (const int each : gpus) {
    SearchSource one = source;
    one.line.values["gpus"] = fmt::format("{}", each);
    if (auto best = all.next(one, fmt::format("{} GPUs", each))) {
      searches.searched.push_back({std::move(*best)});
    } else {
      searches.refused.push_back({each, all.reason()});
    }
  }
  all.finish();
  searches.counts = all.counts();
  searches.is_stopped = all.is_stopped();
  if (searches.searched.empty()) {
    // That of a flag, where none has a layout.
    if (all.error()) std::rethrow_exception(all.error());
    throw Error(fmt::format("none of the {} numbers of GPUs has a layout; {}: {}", gpus.size(),
                            searches.refused.back().gpus, searches.refused.back().reason),
                searches.is_stopped ? stop.code(false) : ExitCode::failure);
  }
  const std::vector<ScalingFigures> figures = study::scaling_of(searches.points());
  for (std::size_t at = 0; at < figures.size(); ++at) searches.searched[at].scaling = figures[at];
  return searches;
}

std::string heading(const CommandLine& line, const Searches& searches,
                    const std::vector<int>& gpus) {
  const study::TrainingSearch& search = searches.searched.front().request.search;
  const training::TrainingJob& base = search.space.base;
  const study::SearchCounts& counts = searches.counts;
  return fmt::format(
      "{} on {} to {} x {} ({}): {}{} candidates on {} numbers of GPUs; {} cannot fit in {:.1f} "
      "GiB ({:.0f} % of a GPU), {}\n",
      base.typed.model, gpus.front(), gpus.back(), base.gpu_name(), base.typed.cluster,
      batch_text(search, !line.has("global-batch"), precisions_text(search)),
      count_text(counts.candidates), gpus.size(), count_text(counts.too_large), room_gib(search),
      100 * search.memory_share,
      simulated_text(search, counts, searches.is_stopped, !searches.is_stopped));
}

std::string percent(double share) { return fmt::format("{:.0f}", 100 * share); }

std::vector<std::string> figures_of(const Searched& each, bool with_loss) {
  const training::TrainingStep& step = each.best.step;
  std::vector<std::string> cells = {fmt::format("{:.0f}", point_of(each.best).tokens_per_s),
                                    fmt::format("{:.0f}", step.tokens_per_second_per_gpu),
                                    percent(each.scaling.efficiency),
                                    each.scaling.gain ? percent(*each.scaling.gain) : ""};
  append(cells, cost_texts(each));
  append(cells, {step_text(step.step_us), band_text(each)});
  if (with_loss) cells.push_back(fmt::format("{:.2f}", 100 * each.best.loss));
  cells.push_back(fmt::format("{:.1f}", step.peak_memory().gib()));
  return cells;
}

std::string table_of(const std::vector<Searched>& searched) {
  Extras extras(searched.front().request.search);
  for (const Searched& each : searched) {
    extras.add(each.request.search, each.best.job, searched.front().best.job);
  }
  const bool with_loss = std::any_of(searched.begin(), searched.end(),
                                     [](const Searched& each) { return each.best.loss > 0; });
  std::vector<std::vector<std::string>> lines = {{"GPUs"}};
  append(lines.front(), layout_names());
  append(lines.front(), extras.names());
  append(lines.front(), {"tokens/s", "tokens/s/GPU", "efficiency %", "added GPU %"});
  append(lines.front(), cost_names(searched.front()));
  append(lines.front(),
         {"step", fmt::format("{:.0f} % band", 100 * searched.front().band.band.widest().level)});
  if (with_loss) lines.front().emplace_back("loss %");
  lines.front().emplace_back("GiB");
  for (const Searched& each : searched) {
    std::vector<std::string> cells = {fmt::format("{}", gpus_of(each.best))};
    append(cells, layout_cells(each.best.job));
    append(cells, extras.cells(each.best.job));
    append(cells, figures_of(each, with_loss));
    lines.push_back(cells);
  }
  std::vector<UnmeasuredStep> steps;
  for (const Searched& each : searched) {
    steps.push_back({fmt::format("{} GPUs", gpus_of(each.best)), texts_of(each.band.band),
                     !each.band.own.empty()});
  }
  return report::align(lines, right_aligned(lines.front())) + not_measured_lines(steps);
}

// "66 % (51 to 82) from 128 to 256": what each added GPU brings, and what it would if the ratio of
// the two steps were off as the narrowest band of such ratios reaches.
std::string gain_text(const std::vector<Searched>& searched, std::size_t at, double level) {
  const Searched& each = searched[at];
  const Searched& last = searched[each.scaling.last];
  const uncertainty::Band ratios = step_ratios(each.request, last.best, each.best).band;
  const auto found = std::find_if(ratios.levels.begin(), ratios.levels.end(),
                                  [&](const auto& one) { return one.level == level; });
  std::string range;
  if (found != ratios.levels.end()) {
    const auto gain = [&](double log_ratio) {
      ScalingPoint point = point_of(each.best);
      point.tokens_per_s /= std::exp(log_ratio);
      return added_gpu_gain(point_of(last.best), point, each.scaling.best_per_gpu);
    };
    range = fmt::format(" ({} to {})", percent(gain(found->log_ratios.high)),
                        percent(gain(found->log_ratios.low)));
  }
  return fmt::format("{} %{} from {} to {} GPUs", percent(*each.scaling.gain), range,
                     gpus_of(last.best), gpus_of(each.best));
}

// What is said of the last number that pays, and of those that do not.
std::string pays_text(const Searches& searches) {
  const std::vector<Searched>& searched = searches.searched;
  if (searched.size() < 2) return "";
  constexpr double level = 0.5;
  const int most = study::pays_up_to(searches.points());
  std::vector<std::string> gains;
  for (std::size_t at = 1; at < searched.size(); ++at) {
    const bool is_passed = searched[at].scaling.pays && gpus_of(searched[at].best) != most;
    if (!is_passed) gains.push_back(gain_text(searched, at, level));
  }
  return fmt::format(
      "scaling pays up to {} GPUs{}: an added GPU brings, of a GPU's speed at the most efficient "
      "number,\n"
      "  {}\n"
      "  (rule: at least {:.0f} %, then an added token costs at most twice the GPU hours of the "
      "cheapest;\n"
      "  in brackets: {:.0f} % of the ratios of two measured steps that differ as these do are "
      "that near)\n"
      "efficiency: tokens/s/GPU over those on {} GPUs\n",
      most, most == gpus_of(searched.back().best) ? ", the most searched" : "",
      fmt::join(gains, ", "), 100 * study::least_gain, 100 * level, gpus_of(searched.front().best));
}

std::string drawn_text(const std::vector<Searched>& searched) {
  std::vector<DrawnPlace> places;
  for (const Searched& each : searched) {
    places.push_back({fmt::format("{} GPUs", gpus_of(each.best)), &each.drawn});
  }
  return drawn_text(places);
}

// Compares the layout that was started from with the best on as many GPUs, if these were searched.
std::string yours_text(const Searches& searches) {
  for (const Searched& each : searches.searched) {
    const std::optional<Yours>& yours = each.request.yours;
    if (!yours || !yours->step || gpus_of(*yours->step) != gpus_of(each.best)) continue;
    return yours_text(each.request, {each.best},
                      fmt::format("the best on {} GPUs", gpus_of(each.best)));
  }
  const std::optional<Yours>& yours = searches.searched.front().request.yours;
  if (!yours) return "";
  if (!yours->step) return yours_text(searches.searched.front().request, {}, "");
  return fmt::format("yours ({}) is on {} GPUs, where no layout was found or none was asked for\n",
                     yours->name, gpus_of(*yours->step));
}

// The switches that would make the best on the last number that pays faster.
std::string switches_text(const Searches& searches) {
  const int most = study::pays_up_to(searches.points());
  for (const Searched& each : searches.searched) {
    if (gpus_of(each.best) != most || each.request.is_stopped()) continue;
    return switches_text(each.request, each.best, fmt::format("the best on {} GPUs", most));
  }
  return "";
}

std::string unproven_text(const Searches& searches) {
  std::string text;
  for (const Searched& each : searches.searched) {
    text += unproven_text(each, fmt::format("{} GPUs", gpus_of(each.best)));
  }
  return text;
}

std::string refused_text(const Searches& searches) {
  std::string text;
  for (const Refused& each : searches.refused) {
    text += fmt::format("no layout on {} GPUs: {}\n", each.gpus, each.reason);
  }
  return text;
}

NamedCells row_of(const Searched& each) {
  study::FoundStep best = each.best;
  study::add_forced_step(each.request.search, best);
  NamedCells row = row_of(each.request, best);
  row.add("reason", Cell());
  row.add("rank", Cell(std::int64_t{1}));
  row.add("tokens_per_s", figure_cell(point_of(best).tokens_per_s));
  row.add("efficiency", figure_cell(each.scaling.efficiency));
  row.add("added_gpu_gain", each.scaling.gain ? figure_cell(*each.scaling.gain) : Cell());
  row.add("scaling_pays", each.scaling.pays);
  add_best_cells(each, row);
  return row;
}

// What rows of a number without a layout have.
NamedCells row_of(const Refused& each, const training::TrainingJob& base) {
  NamedCells row;
  row.add("model", base.typed.model);
  row.add("profile", base.typed.profile);
  row.add("cluster", base.typed.cluster);
  row.add("gpus", each.gpus);
  row.add("status", std::string("refused"));
  row.add("reason", each.reason);
  return row;
}

std::string rows_text(const Searches& searches, report::Format format) {
  std::map<int, NamedCells> by_gpus;
  std::vector<std::string> columns;
  for (const Searched& each : searches.searched) {
    NamedCells row = row_of(each);
    add_columns(row, columns);
    by_gpus.emplace(gpus_of(each.best), std::move(row));
  }
  const training::TrainingJob& base = searches.searched.front().request.search.space.base;
  for (const Refused& each : searches.refused) by_gpus.emplace(each.gpus, row_of(each, base));
  std::vector<NamedCells> rows;
  for (auto& [gpus, row] : by_gpus) rows.push_back(std::move(row));
  return tool::rows_text(columns, rows, format);
}

std::string text_of(const CommandLine& line, const Searches& searches,
                    const std::vector<int>& gpus) {
  std::string text = heading(line, searches, gpus) + table_of(searches.searched) +
                     unproven_text(searches) + pays_text(searches) + switches_text(searches) +
                     drawn_text(searches.searched) + yours_text(searches) + refused_text(searches) +
                     "\nto reproduce:\n";
  for (const Searched& each : searches.searched) {
    text += fmt::format("  {}  {}\n", gpus_of(each.best), each.request.command_of(each.best));
  }
  return text;
}

}  // namespace

ExitCode recommend_scaling(const SearchSource& source, const std::vector<int>& gpus) {
  const CommandLine& line = source.line;
  for (const char* flag : {"best", "distinct", "all"}) {
    if (!line.has(flag)) continue;
    throw UsageError(fmt::format(
        "--{} with several values of --gpus: of one search: give one number, or leave --{} out",
        flag, flag));
  }
  const report::Format format = chosen_format(line, report::Format::table);
  const Output out(line.get("out"));
  const std::string chart = line.get("chart");
  if (!chart.empty()) check_chart(chart);
  SearchStop stop(line);
  const Searches searches = search_all(source, gpus, stop);
  if (searches.is_stopped) {
    note(fmt::format("moesim: {}: not all of the layouts are proven", stop.text()));
  }
  write_keeping_others(out, format == report::Format::table ? text_of(line, searches, gpus)
                                                            : rows_text(searches, format));
  if (line.has("out")) {
    note(fmt::format("layouts on {} numbers of GPUs: {}", searches.searched.size(), out.path()));
  }
  if (chart.empty()) return stop.code(!searches.is_stopped);
  if (searches.searched.size() < 2) {
    note(fmt::format("note: no chart: of these numbers of GPUs only {} has a layout",
                     gpus_of(searches.searched.front().best)));
  } else {
    draw_scaling(rows_text(searches, report::Format::csv), chart);
  }
  return stop.code(!searches.is_stopped);
}

}  // namespace moesim::tool
