#include "tools/moesim/recommend/recommend_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/base/parallel.hpp"
#include "sim/base/text.hpp"
#include "sim/study/search/drawn_routings.hpp"
#include "sim/training/step_bound.hpp"
#include "tools/moesim/bands/train_band.hpp"
#include "tools/moesim/named_cells.hpp"
#include "tools/moesim/recommend/recommend_assumptions.hpp"
#include "tools/moesim/recommend/recommend_cells.hpp"
#include "tools/moesim/recommend/recommend_order.hpp"
#include "tools/moesim/recommend/recommend_request.hpp"
#include "tools/moesim/recommend/recommend_yours.hpp"
#include "tools/moesim/train/train_report.hpp"

namespace moesim::tool {
namespace {

using study::FoundStep;
using study::TrainingFound;
using study::TrainingSearch;
using training::TrainingJob;
constexpr std::size_t most_drawn = 20;
using Lines = std::vector<std::vector<std::string>>;

std::string heading(const TrainingSearch& search, const TrainingFound& found) {
  const TrainingJob& base = search.space.base;
  const study::SearchCounts& counts = found.counts;
  return fmt::format(
      "{} on {} x {} ({}): {} sequences of {} tokens per step, {}\n"
      "{} candidates; {} cannot fit in {:.1f} GiB ({:.0f} % of a GPU), {} were simulated, no other "
      "can be better\n{}{}",
      base.typed.model, base.layout.layout.gpus, base.profile->device().name, base.typed.cluster,
      base.layout.global_batch, base.layout.sequence_length, precisions_text(search),
      count_text(counts.candidates), count_text(counts.too_large), room_gib(search),
      100 * search.memory_share, count_text(counts.simulated), undrawn_line(counts),
      routing_line(search));
}

// "-2.1 % speed, 11 GiB more memory, 0.3 points more loss".
std::string given_up(const FoundStep& step, const FoundStep& best) {
  std::vector<std::string> parts;
  const double speed = step.step.tokens_per_second_per_gpu / best.step.tokens_per_second_per_gpu;
  if (speed <= 1) parts.push_back(fmt::format("{:.1f} % speed", 100 * (1 - speed)));
  const double memory = step.step.peak_memory().gib() - best.step.peak_memory().gib();
  if (memory >= 0.5) parts.push_back(fmt::format("{:.0f} GiB", memory));
  if (step.loss > best.loss) {
    parts.push_back(fmt::format("{:.2f} % of tokens' weight", 100 * (step.loss - best.loss)));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

// The best under forced balance with the routing of a model's router, which is never balanced; as
// many as best, nothing where one cannot be drawn. Empty: there is nothing to draw.
using DrawnBest = std::vector<std::optional<FoundStep>>;

DrawnBest drawn_best(const RecommendRequest& request, const std::vector<FoundStep>& best) {
  const TrainingSearch& search = request.search;
  if (!search.space.base.model->moe || best.front().job.routing) return {};
  // The others of a long list are not worth the time.
  DrawnBest drawn(std::min(best.size(), most_drawn));
  study::DrawnRoutings draws;
  parallel_for(drawn.size(), search.jobs, [&](std::size_t at) {
    try {
      FoundStep found{request.drawn(best[at].job), {}, 0, 0, {}, {}};
      const auto loads = draws.loads({0, &found.job});
      study::set_step(search, training::training_step(found.job, loads), found);
      drawn[at] = std::move(found);
    } catch (const Error&) {
      // Its groups cannot be drawn: the cell stays empty.
    }
  });
  return drawn;
}

std::string speed_text(double speed) { return fmt::format("{:.0f}", speed); }

// Of one of the best: predicted, likely by the software's level, with routing drawn, the band.
std::vector<std::string> speed_cells(const RecommendRequest& request, const FoundStep& found,
                                     const DrawnBest& drawn, std::size_t place) {
  training::TrainingStep step = found.predicted.value_or(found.step);
  const uncertainty::Band band = requested_band(request.line, found.job, step).band;
  const uncertainty::Interval widest = band.widest().log_ratios;
  const double speed = step.tokens_per_second_per_gpu;
  std::vector<std::string> cells = {speed_text(speed),
                                    speed_text(speed / std::exp(band.expected.mean))};
  if (!drawn.empty()) {
    const bool known = place < drawn.size() && drawn[place];
    cells.push_back(known ? speed_text(drawn[place]->step.tokens_per_second_per_gpu) : "");
  }
  cells.push_back(
      fmt::format("{:.0f} to {:.0f}", speed / std::exp(widest.high), speed / std::exp(widest.low)));
  return cells;
}

std::string legend_of(bool has_drawn, bool gives_up) {
  std::string text =
      "likely: tokens/s/GPU that a measurement is expected to say, the band around it";
  if (has_drawn) text += "; drawn: as predicted, with routing drawn";
  if (gives_up) text += "; gives up: % of the speed of 1, GiB per GPU more than 1";
  return text + "\n";
}

std::string best_table(const RecommendRequest& request, const std::vector<FoundStep>& best,
                       const DrawnBest& drawn) {
  const Extras extras(request.search);
  training::TrainingStep first = best.front().predicted.value_or(best.front().step);
  const double level = requested_band(request.line, best.front().job, first).band.widest().level;
  Lines lines = {{"#"}};
  append(lines.front(), layout_names);
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
    add(yours, 0, drawn.empty() ? DrawnBest{} : drawn_best(request, {yours}), "yours");
  }
  return report::align(lines, right_aligned(lines.front())) +
         legend_of(!drawn.empty(), best.size() > 1 || lines.size() > 2);
}

std::string first_cost_text(const RecommendRequest& request, const FoundStep& first) {
  training::TrainingStep step = first.predicted.value_or(first.step);
  const TrainBand answer = requested_band(request.line, first.job, step);
  const uncertainty::BandLevel& widest = answer.band.widest();
  const auto at_band = [&](double figure, auto text) {
    return fmt::format("likely {}; {:.0f} % band {} to {}",
                       text(figure * std::exp(answer.band.expected.mean)), 100 * widest.level,
                       text(figure * std::exp(widest.log_ratios.low)),
                       text(figure * std::exp(widest.log_ratios.high)));
  };
  const RunCost& cost = answer.cost;
  const double hours = cost.gpu_hours(step);
  std::string text = fmt::format("1 costs {} GPU hours {}, {}\n", grouped(hours), run_text(cost),
                                 at_band(hours, grouped));
  if (cost.tokens) {
    const auto in_days = [](double days) { return fmt::format("{:.1f}", days); };
    const double days = cost.days(step);
    text += fmt::format("  days: {}, {}\n", in_days(days), at_band(days, in_days));
  }
  if (cost.price) {
    text += fmt::format("  at {:g} a GPU hour: {}, {}\n", *cost.price, grouped(cost.money(step)),
                        at_band(cost.money(step), grouped));
  }
  return text;
}

// What drawn routing makes of the best under forced balance.
std::string drawn_text(const RecommendRequest& request, const DrawnBest& drawn) {
  if (drawn.empty() || !drawn.front()) return "";
  const double room = room_gib(request.search);
  const FoundStep& first = *drawn.front();
  const auto speed = [](const FoundStep& found) { return found.step.tokens_per_second_per_gpu; };
  std::optional<std::size_t> fastest;  // that fits
  std::vector<std::string> too_large;
  for (std::size_t place = 0; place < drawn.size(); ++place) {
    if (!drawn[place]) continue;
    if (drawn[place]->step.peak_memory().gib() > room) {
      too_large.push_back(fmt::format("{}", place + 1));
    } else if (!fastest || speed(*drawn[place]) > speed(*drawn[*fastest])) {
      fastest = place;
    }
  }
  std::string text =
      fmt::format("with routing drawn ({}) 1 has {:.0f} tokens/s/GPU and takes {:.1f} GiB",
                  first.job.routing->scores.name(), speed(first), first.step.peak_memory().gib());
  if (!too_large.empty()) {
    text += fmt::format("; more than {:.1f} GiB take {}", room, fmt::join(too_large, ", "));
  }
  if (fastest.value_or(0) > 0) text += fmt::format("; the fastest that fits is {}", *fastest + 1);
  if (fastest.value_or(1) > 0) text += "\n  (--routing-draws per-layer searches with it)";
  return text + "\n";
}

// "2: 12 more within 0.4 % of its speed, that differ in VP, recompute".
std::string twin_lines(const TrainingSearch& search, const std::vector<FoundStep>& best) {
  std::string text;
  for (std::size_t place = 0; place < best.size(); ++place) {
    const study::Twins& twins = best[place].twins;
    if (twins.count == 0) continue;
    std::vector<const char*> differences;
    if (twins.routing) differences.push_back("router or CF");
    if (twins.virtual_stages) differences.push_back("VP");
    if (twins.split) differences.push_back("layers per chunk");
    if (twins.placement) differences.push_back("ranks per domain");
    if (twins.recompute) differences.push_back("recompute");
    if (twins.zero) differences.push_back("ZeRO");
    text +=
        fmt::format("{}  {}: {} more like it, within {:.1f} % of its speed, that differ in {}\n",
                    text.empty() ? "near twins, not listed:\n" : "", place + 1, twins.count,
                    100 * twins.slowest, fmt::join(differences, ", "));
  }
  if (!text.empty() && !search.chunks_tell_apart) {
    text += "  (--distinct chunks lists those that differ in VP)\n";
  }
  return text;
}

// "a" for the first of the front, "z", "aa" and so on; those of the best have numbers.
std::string front_name(std::size_t place) {
  std::string name;
  for (std::size_t left = place + 1; left > 0; left = (left - 1) / 26) {
    name.insert(name.begin(), static_cast<char>('a' + (left - 1) % 26));
  }
  return name;
}

std::string front_table(const TrainingSearch& search, const std::vector<FoundStep>& front) {
  if (front.size() < 2) return "";
  const Extras extras(search);
  Lines lines = {{"#", "loss %", "tokens/s/GPU"}};
  append(lines.front(), extras.names());
  append(lines.front(), layout_names);
  for (std::size_t place = 0; place < front.size(); ++place) {
    const FoundStep& found = front[place];
    std::vector<std::string> cells = {front_name(place), fmt::format("{:.3f}", 100 * found.loss),
                                      fmt::format("{:.0f}", found.step.tokens_per_second_per_gpu)};
    append(cells, extras.cells(found.job));
    append(cells, layout_cells(found.job));
    lines.push_back(cells);
  }
  return "speed for loss: no other candidate is faster and loses less\n" +
         report::align(lines, right_aligned(lines.front())) + "\n";
}

// Of the best, and of a front of more than one.
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

// Of the best, then of what is on the front alone.
std::vector<NamedCells> rows_of(const RecommendRequest& request, const TrainingFound& found) {
  std::vector<NamedCells> rows;
  const auto add = [&](const FoundStep& step, int rank, bool on_front, bool is_yours = false) {
    NamedCells row = row_of(request, step);
    training::TrainingStep predicted = step.predicted.value_or(step.step);
    const TrainBand band = requested_band(request.line, step.job, predicted);
    for (auto& [name, cell] : band_cells(band, predicted)) row.add(name, std::move(cell));
    if (is_yours) row.set("command", request.yours->command);
    row.add("rank", rank > 0 ? Cell(std::int64_t{rank}) : Cell());
    row.add("on_front", on_front);
    row.add("twins", rank > 0 ? Cell(static_cast<std::int64_t>(step.twins.count)) : Cell());
    if (request.yours) row.add("yours", is_yours);
    rows.push_back(std::move(row));
  };
  const auto same = [&](const FoundStep& one, const FoundStep& other) {
    return study::same_layout(one.job, other.job, request.search.chunks_tell_apart);
  };
  for (std::size_t place = 0; place < found.best.size(); ++place) {
    const FoundStep& step = found.best[place];
    add(step, static_cast<int>(place + 1),
        std::any_of(found.front.begin(), found.front.end(),
                    [&](const FoundStep& other) { return same(step, other); }));
  }
  for (const FoundStep& step : found.front) {
    const bool listed = std::any_of(found.best.begin(), found.best.end(),
                                    [&](const FoundStep& other) { return same(step, other); });
    if (!listed) add(step, 0, true);
  }
  if (request.yours && request.yours->step) add(*request.yours->step, 0, false, true);
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
    text += too_lossy_text(search, found) + "\n" + yours_text(request, {}, "") + "\n";
  } else {
    const DrawnBest drawn = drawn_best(request, found.best);
    text += best_table(request, found.best, drawn) + first_cost_text(request, found.best.front()) +
            order_text(request.software, found.best) + assumptions_text(request, found.best) +
            yours_text(request, found.best, "1") + drawn_text(request, drawn) +
            twin_lines(search, found.best) + "\n";
  }
  text += front_table(search, found.front);
  return text + commands(request, found);
}

std::string search_text(const study::SearchProgress& done) {
  const std::string candidates = grouped(static_cast<double>(done.candidates)) + " candidates";
  if (done.simulated == 0) {
    return fmt::format("{}: bounding them, {:.0f} %", candidates, 100 * done.bounded);
  }
  return fmt::format("{}, {} simulated", candidates, grouped(static_cast<double>(done.simulated)));
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
      "nothing loses at most {:g} % of the tokens' weight: the least loses {:.3f} %: give a larger "
      "--max-loss",
      100 * search.max_loss, 100 * found.front.back().loss);
}

std::string nothing_fits(const TrainingSearch& search, const TrainingFound& found) {
  const TrainingJob& base = search.space.base;
  if (!found.smallest) {
    return fmt::format(
        "none of the {} candidates reaches --min-speed {:g} in {:.1f} GiB per GPU: ask for less",
        count_text(found.counts.candidates), search.min_speed, room_gib(search));
  }
  std::string text =
      fmt::format("none of the {} candidates fits in {:.1f} GiB, {:.0f} % of the memory of {}: {}",
                  count_text(found.counts.candidates), room_gib(search), 100 * search.memory_share,
                  base.profile->device().name, least_memory_text(found));
  std::vector<std::string> remedies = what_would_fit(search, *found.smallest);
  return text +
         (remedies.empty() ? "" : fmt::format("; would fit: {}", fmt::join(remedies, ", or ")));
}

}  // namespace moesim::tool
