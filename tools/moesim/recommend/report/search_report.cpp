#include "tools/moesim/recommend/report/search_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/base/numbers.hpp"
#include "sim/base/parallel.hpp"
#include "sim/base/text.hpp"
#include "sim/study/search/searched_choices.hpp"
#include "tools/moesim/bands/train_band.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/recommend/best/drawn_best.hpp"
#include "tools/moesim/recommend/best/moved_assumptions.hpp"
#include "tools/moesim/recommend/best/remedies.hpp"
#include "tools/moesim/recommend/best/step_order.hpp"
#include "tools/moesim/recommend/best/untried_switches.hpp"
#include "tools/moesim/recommend/best/your_layout.hpp"
#include "tools/moesim/recommend/request/recommend_request.hpp"
#include "tools/moesim/recommend/request/search_room.hpp"
#include "tools/moesim/recommend/search/search_proof.hpp"
#include "tools/moesim/recommend/tables/search_texts.hpp"
#include "tools/moesim/recommend/tables/step_cells.hpp"
#include "tools/moesim/rows/named_cells.hpp"
#include "tools/moesim/train/train_report.hpp"

namespace moesim::tool {
namespace {

using study::FoundStep;
using study::TrainingFound;
using study::TrainingSearch;
using training::TrainingJob;
using Lines = std::vector<std::vector<std::string>>;

std::string heading(const TrainingSearch& search, const TrainingFound& found) {
  const TrainingJob& base = search.space.base;
  const study::SearchCounts& counts = found.counts;
  return fmt::format(
      "{} on {} x {} ({}): {} sequences of {} tokens per step, {}\n"
      "{} candidates; {} cannot fit in {:.1f} GiB ({:.0f} % of a GPU), {}",
      base.typed.model, base.layout.sizes.gpus, base.gpu_name(), base.typed.cluster,
      base.layout.global_batch, base.layout.sequence_length, precisions_text(search),
      count_text(counts.candidates), count_text(counts.too_large), room_gib(search),
      100 * search.memory_share,
      simulated_text(search, counts, found.unproven.has_value(), !is_unproven(found)));
}

std::string given_up(const FoundStep& step, const FoundStep& best) {
  return given_up_text(step.step.tokens_per_second_per_gpu / best.step.tokens_per_second_per_gpu,
                       step.step.peak_memory().gib() - best.step.peak_memory().gib(),
                       step.loss - best.loss);
}

std::string speed_text(double speed) { return fmt::format("{:.0f}", speed); }

// The speeds of one of the best: predicted, likely by the software's level, with routing drawn, and
// the band.
std::vector<std::string> speed_cells(const RecommendRequest& request, const FoundStep& found,
                                     const DrawnBest& drawn, std::size_t place) {
  training::TrainingStep step = found.predicted.value_or(found.step);
  const uncertainty::Band band = requested_band(request.line, found.job, step).band;
  const uncertainty::Interval widest = band.widest().log_ratios;
  const double speed = step.tokens_per_second_per_gpu;
  std::vector<std::string> cells = {speed_text(speed),
                                    speed_text(speed / std::exp(band.expected.mean))};
  if (!drawn.empty()) cells.push_back(drawn.cell(place));
  cells.push_back(
      fmt::format("{:.0f} to {:.0f}", speed / std::exp(widest.high), speed / std::exp(widest.low)));
  return cells;
}

std::string legend_of(bool has_drawn, bool gives_up) {
  std::string text =
      "likely: tokens/s/GPU that a measurement is expected to say, the band around it";
  if (has_drawn) {
    text += "; drawn: as predicted, with routing drawn, * where the GPU's memory is too small then";
  }
  if (gives_up) text += "; gives up: % of the speed of 1, GiB per GPU more than 1";
  return text + "\n";
}

std::string unmeasured_lines(const RecommendRequest& request, const std::vector<FoundStep>& best) {
  std::vector<UnmeasuredStep> steps;
  const auto add = [&](const FoundStep& found, std::string place) {
    training::TrainingStep step = found.predicted.value_or(found.step);
    const TrainBand band = requested_band(request.line, found.job, step);
    steps.push_back({std::move(place), texts_of(band.band), !band.own.empty()});
  };
  for (std::size_t at = 0; at < best.size(); ++at) add(best[at], fmt::format("{}", at + 1));
  if (request.yours && request.yours->step) add(*request.yours->step, "yours");
  return not_measured_lines(steps);
}

std::string best_table(const RecommendRequest& request, const std::vector<FoundStep>& best,
                       const DrawnBest& drawn) {
  const Extras extras(request.search);
  training::TrainingStep first = best.front().predicted.value_or(best.front().step);
  const double level = requested_band(request.line, best.front().job, first).band.widest().level;
  Lines lines = {{"#"}};
  append(lines.front(), layout_names());
  append(lines.front(), extras.names());
  append(lines.front(), {"tokens/s/GPU", "likely"});
  if (!drawn.empty()) lines.front().emplace_back("drawn");
  append(lines.front(),
         {fmt::format("{:.0f} % band", 100 * level), "step", "MFU %", "loss %", "GiB", "gives up"});
  const auto add = [&](const FoundStep& found, std::size_t place, const DrawnBest& drawn_there,
                       const std::string& name) {
    std::vector<std::string> cells = {name};
    append(cells, layout_cells(found.job));
    append(cells, extras.cells(found.job));
    append(cells, speed_cells(request, found, drawn_there, place));
    append(cells, {step_text(found.step.step_us), fmt::format("{:.1f}", 100 * found.step.mfu),
                   fmt::format("{:.2f}", 100 * found.loss),
                   fmt::format("{:.1f}", found.step.peak_memory().gib()),
                   &found == &best.front() ? "" : given_up(found, best.front())});
    lines.push_back(cells);
  };
  for (std::size_t place = 0; place < best.size(); ++place) {
    add(best[place], place, drawn, fmt::format("{}", place + 1));
  }
  if (request.yours && request.yours->step) {
    const FoundStep& yours = *request.yours->step;
    add(yours, 0, drawn.empty() ? drawn : DrawnBest(request, {yours}), "yours");
  }
  return report::align(lines, right_aligned(lines.front())) +
         legend_of(!drawn.empty(), best.size() > 1 || lines.size() > 2) +
         unmeasured_lines(request, best);
}

// The cost of the one to take, which has a place among the best, and what makes its band wide.
std::string cost_line(const RecommendRequest& request, const FoundStep& found, std::size_t place) {
  training::TrainingStep step = found.predicted.value_or(found.step);
  const TrainBand answer = requested_band(request.line, found.job, step);
  const uncertainty::BandLevel& widest = answer.band.widest();
  const auto at_band = [&](double figure, auto text) {
    return fmt::format("likely {}; {:.0f} % band {} to {}",
                       text(figure * std::exp(answer.band.expected.mean)), 100 * widest.level,
                       text(figure * std::exp(widest.log_ratios.low)),
                       text(figure * std::exp(widest.log_ratios.high)));
  };
  std::string text;
  for (const CostFigure& each : cost_figures(answer.cost, step)) {
    const std::string likely = at_band(each.value, each.text);
    if (text.empty()) {
      text = fmt::format("{} costs {} {} {}, {}\n", place + 1, each.text(each.value), each.name,
                         run_text(answer.cost), likely);
    } else {
      text += fmt::format("  {}: {}, {}\n", each.name, each.text(each.value), likely);
    }
  }
  return text + "  its band is wide most of all because: " + widest_text(answer, "; ");
}

std::string left_out_line(const TrainingFound& found) {
  return fmt::format(
      "left out, as the search was stopped: {}switches that are not searched, other assumptions\n",
      found.unproven ? "near twins, " : "");
}

// "2: 12 more within 0.4 % of its speed, that differ in VP, recompute".
std::string twin_lines(const TrainingSearch& search, const std::vector<FoundStep>& best) {
  std::string text;
  for (std::size_t place = 0; place < best.size(); ++place) {
    const study::Twins& twins = best[place].twins;
    if (twins.count == 0) continue;
    std::vector<const char*> differences;
    if (twins.routing) differences.push_back("router or CF");
    for (std::size_t at = 0; at < twins.choices.size(); ++at) {
      const study::ChoiceTraits& choice = study::searched_choices()[at]->traits();
      if (twins.choices[at]) {
        differences.push_back(*choice.of_twins != '\0' ? choice.of_twins : choice.heading);
      }
      if (twins.split && choice.tells_apart == study::TellsApart::with_chunks) {
        differences.push_back("layers per chunk");
      }
    }
    text += fmt::format("{}  {}: {} more like it, within {:.1f} % of its speed, that {} in {}\n",
                        text.empty() ? "near twins, not listed:\n" : "", place + 1, twins.count,
                        100 * twins.slowest, twins.count == 1 ? "differs" : "differ",
                        fmt::join(differences, ", "));
  }
  if (!text.empty() && !search.chunks_tell_apart) {
    text += "  (--distinct chunks lists those that differ in VP)\n";
  }
  return text;
}

// "1: as fast with --cuda-graphs router or parts".
std::string graphs_lines(const std::vector<FoundStep>& best) {
  std::string text;
  for (std::size_t place = 0; place < best.size(); ++place) {
    std::vector<const char*> others;
    for (const training::Graphs graphs : best[place].twins.as_fast) {
      others.push_back(name_in(training::graphs_names, graphs));
    }
    if (others.empty()) continue;
    text += fmt::format("{}  {}: {}\n",
                        text.empty() ? "as fast with other --cuda-graphs, not listed (those that "
                                       "launch less hang less on the host):\n"
                                     : "",
                        place + 1, fmt::join(others, ", "));
  }
  return text;
}

// In per cent.
std::string loss_text(double loss) {
  const bool is_next_to_none = loss > 0 && 100 * loss < 0.0005;
  return is_next_to_none ? "<0.001" : fmt::format("{:.3f}", 100 * loss);
}

std::string front_table(const TrainingSearch& search, const std::vector<FoundStep>& front) {
  if (front.size() < 2) return "";
  const Extras extras(search);
  Lines lines = {{"#", "loss %", "tokens/s/GPU"}};
  append(lines.front(), extras.names());
  append(lines.front(), layout_names());
  for (std::size_t place = 0; place < front.size(); ++place) {
    const FoundStep& found = front[place];
    std::vector<std::string> cells = {front_name(place), loss_text(found.loss),
                                      fmt::format("{:.0f}", found.step.tokens_per_second_per_gpu)};
    append(cells, extras.cells(found.job));
    append(cells, layout_cells(found.job));
    lines.push_back(cells);
  }
  return "speed for loss: of the steps simulated none is faster and loses less\n" +
         report::align(lines, right_aligned(lines.front())) + "\n";
}

// The commands of the best, and of a front of more than one.
std::string commands(const RecommendRequest& request, const TrainingFound& found) {
  Lines lines;
  for (std::size_t place = 0; place < found.best.size(); ++place) {
    lines.push_back({fmt::format("{}", place + 1), request.command_of(found.best[place])});
  }
  if (found.best.empty() || found.front.size() > 1) {
    for (std::size_t place = 0; place < found.front.size(); ++place) {
      lines.push_back({front_name(place), request.command_of(found.front[place])});
    }
  }
  if (request.yours && request.yours->step) lines.push_back({"yours", request.yours->command});
  std::string text = "to reproduce:\n";
  for (const auto& line : lines) text += fmt::format("  {}  {}\n", line[0], line[1]);
  return text;
}

// A step that has a row.
struct Listed {
  FoundStep found;
  int rank = 0;  // among the best, from 1; 0: it is none of them
  bool on_front = false;
  bool is_yours = false;
};

// The best, then what is on the front alone, then yours; each with its step under forced balance.
std::vector<Listed> listed_steps(const RecommendRequest& request, const TrainingFound& found) {
  std::vector<Listed> listed;
  const auto is_in = [&](const std::vector<FoundStep>& steps, const FoundStep& step) {
    return std::any_of(steps.begin(), steps.end(), [&](const FoundStep& other) {
      return study::same_layout(step.job, other.job, request.search.chunks_tell_apart);
    });
  };
  for (const FoundStep& step : found.best) {
    const int rank = static_cast<int>(listed.size()) + 1;
    listed.push_back({step, rank, is_in(found.front, step)});
  }
  for (const FoundStep& step : found.front) {
    if (!is_in(found.best, step)) listed.push_back({step, 0, true});
  }
  if (request.yours && request.yours->step)
    listed.push_back({*request.yours->step, 0, false, true});
  parallel_for(listed.size(), request.search.jobs,
               [&](std::size_t at) { study::add_forced_step(request.search, listed[at].found); });
  return listed;
}

std::vector<NamedCells> rows_of(const RecommendRequest& request, const TrainingFound& found) {
  std::vector<NamedCells> rows;
  const DrawnBest drawn(request, found.best);
  for (const Listed& each : listed_steps(request, found)) {
    const FoundStep& step = each.found;
    const int rank = each.rank;
    NamedCells row = row_of(request, step);
    training::TrainingStep predicted = step.predicted.value_or(step.step);
    const TrainBand band = requested_band(request.line, step.job, predicted);
    for (auto& [name, cell] : band_cells(band, predicted)) row.add(name, std::move(cell));
    if (each.is_yours) row.set("command", request.yours->command);
    row.add("rank", rank > 0 ? Cell(std::int64_t{rank}) : Cell());
    row.add("on_front", each.on_front);
    row.add("proven", rank > 0        ? Cell(unproven_gain(found, index_of(rank - 1)) == 0)
                      : each.is_yours ? Cell()
                                      : Cell(!found.unproven.has_value()));
    row.add("unproven_gain",
            rank > 0 ? figure_cell(unproven_gain(found, index_of(rank - 1))) : Cell());
    row.add("twins", rank > 0 ? Cell(static_cast<std::int64_t>(step.twins.count)) : Cell());
    if (request.yours) row.add("yours", each.is_yours);
    drawn.add_cells(rank > 0 ? static_cast<std::size_t>(rank - 1) : found.best.size(), row);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

std::string rendered_search(const RecommendRequest& request, const TrainingFound& found,
                            report::Format format) {
  const TrainingSearch& search = request.search;
  if (format != report::Format::table) {
    const std::vector<NamedCells> rows = rows_of(request, found);
    std::vector<std::string> columns;
    for (const NamedCells& row : rows) add_columns(row, columns);
    return rows_text(columns, rows, format);
  }
  std::string text = heading(search, found) + "\n";
  if (found.best.empty()) {
    text += too_lossy_text(search, found) + "\n" + unproven_lines(found) +
            yours_text(request, {}, "") + "\n";
  } else {
    const DrawnBest drawn(request, found.best);
    const std::size_t usable = drawn.usable();
    text += best_table(request, found.best, drawn) + unproven_lines(found) + drawn.text() +
            cost_line(request, found.best[usable], usable) + order_text(request, found.best);
    if (request.is_stopped()) {
      text += left_out_line(found);
    } else {
      text += switches_text(request, found.best[usable], fmt::format("{}", usable + 1)) +
              assumptions_text(request, found.best);
    }
    text += yours_text(request, found.best, "1") + graphs_lines(found.best) +
            twin_lines(search, found.best) + "\n";
  }
  text += front_table(search, found.front);
  return text + commands(request, found);
}

std::string rendered_candidates(const RecommendRequest& request,
                                const std::vector<FoundStep>& steps) {
  std::vector<report::CellRow> cells;
  NamedCells row;
  for (const FoundStep& step : steps) {
    row = row_of(request, step);
    cells.push_back(row.cells);
  }
  return report::to_csv(row.names, cells);
}

std::string too_lossy_text(const TrainingSearch& search, const TrainingFound& found) {
  return fmt::format(
      "{} loses at most {:g} % of the tokens' weight: the least loses {} %: give a larger "
      "--max-loss{}",
      found.unproven ? "nothing simulated so far" : "nothing", 100 * search.max_loss,
      loss_text(found.front.back().loss), found.unproven ? " or more time" : "");
}

std::string nothing_fits(const TrainingSearch& search, const TrainingFound& found) {
  const TrainingJob& base = search.space.base;
  if (found.unproven && found.counts.simulated == 0) {
    return fmt::format(
        "no step is simulated so far, {} candidates may be acceptable: give more time",
        count_text(found.unproven->may_be_faster));
  }
  if (found.unproven) {
    return fmt::format(
        "none of the {} steps simulated so far is acceptable, {} other candidates may be: give "
        "more time",
        count_text(found.counts.simulated), count_text(found.unproven->may_be_faster));
  }
  if (!found.smallest) {
    return fmt::format(
        "none of the {} candidates reaches --min-speed {:g} in {:.1f} GiB per GPU: ask for less",
        count_text(found.counts.candidates), search.min_speed, room_gib(search));
  }
  std::string text =
      fmt::format("none of the {} candidates fits in {:.1f} GiB, {:.0f} % of the memory of {}: {}",
                  count_text(found.counts.candidates), room_gib(search), 100 * search.memory_share,
                  base.gpu_name(), least_memory_text(found));
  const Remedies remedies = what_would_fit(search, *found.smallest);
  if (!remedies.found.empty()) {
    return text + fmt::format("; would fit: {}", fmt::join(remedies.found, ", or "));
  }
  return text + (remedies.tried.empty() ? ""
                                        : fmt::format("; tried, and none is enough by itself: {}",
                                                      fmt::join(remedies.tried, ", ")));
}

void note_written(std::size_t best, std::size_t front, const Output& out) {
  if (out.path().empty()) return;
  note(fmt::format("{} layout{}{}: {}", best, best == 1 ? "" : "s",
                   front < 2 ? "" : fmt::format(", and {} on the front", front), out.path()));
}

}  // namespace moesim::tool
