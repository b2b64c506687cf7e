#include <fmt/format.h>

#include <algorithm>

#include "sim/base/enum_names.hpp"
#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "tools/moesim/bands/train_band.hpp"
#include "tools/moesim/base/command.hpp"
#include "tools/moesim/base/kept_result.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/base/progress.hpp"
#include "tools/moesim/recommend/best/step_order.hpp"
#include "tools/moesim/recommend/prefill/recommend_prefill.hpp"
#include "tools/moesim/recommend/report/search_charts.hpp"
#include "tools/moesim/recommend/report/search_report.hpp"
#include "tools/moesim/recommend/request/recommend_flags.hpp"
#include "tools/moesim/recommend/request/recommend_request.hpp"
#include "tools/moesim/recommend/request/requested_gpus.hpp"
#include "tools/moesim/recommend/request/requested_machines.hpp"
#include "tools/moesim/recommend/request/search_source.hpp"
#include "tools/moesim/recommend/search/search_progress.hpp"
#include "tools/moesim/recommend/search/search_proof.hpp"
#include "tools/moesim/recommend/search/search_stop.hpp"
#include "tools/moesim/recommend/several/recommend_machines.hpp"
#include "tools/moesim/recommend/several/recommend_scaling.hpp"
#include "tools/moesim/recommend/tables/search_texts.hpp"
#include "tools/moesim/train/train_request.hpp"

namespace moesim::tool {
namespace {

// How many are simulated is not known beforehand, how many are bounded is.
void show_search(ProgressLine& line, const study::SearchProgress& done) {
  if (done.simulated == 0 && !done.is_ending) {
    line.show(search_text(done), done.bounded);
  } else {
    line.show(search_text(done));
  }
}

void check_all(const std::string& path) {
  if (!path.ends_with(".csv")) {
    throw UsageError(fmt::format("--all: {}: the rows are CSV: the name must end in .csv", path));
  }
  check_writable(path);
}

// Notes ZeRO 2 or 3 under a pipeline, once.
void note_zero(const study::TrainingFound& found) {
  const auto splits_both = [](const study::FoundStep& step) {
    return step.job.states.zero >= 2 && step.job.layout.sizes.pipeline > 1;
  };
  const auto first = std::find_if(found.best.begin(), found.best.end(), splits_both);
  if (first == found.best.end()) return;
  note_zero_under_pipeline(first->job, "; --zero 1 searches layouts without");
}

// Every candidate, in the file of --all, or those simulated before a stop. "": all; else what the
// stop left there.
std::string write_all(const RecommendRequest& request, const std::string& path) {
  study::AllSteps all;
  try {
    all = study::simulate_all(request.search);
  } catch (const study::SearchStopped&) {
    return fmt::format("{} is as it was", path);
  }
  if (all.left_out > 0) {
    note(fmt::format("note: --all: {} candidates left out, such as: {}", all.left_out,
                     all.a_reason));
  }
  const std::string rows = rendered_candidates(request, all.steps);
  if (all.unfinished == 0) {
    write_keeping_others(Output(path), rows);
    return "";
  }
  const std::size_t done = all.steps.size() + all.left_out;
  const std::string reached =
      fmt::format("{} of {} candidates", count_text(done), count_text(done + all.unfinished));
  if (all.steps.empty()) return fmt::format("{}, none priced: {} is as it was", reached, path);
  // Fewer rows may be in the way of those of a whole run.
  write_keeping(Output(path), rows, report::Format::csv, train_option_columns());
  return fmt::format("{}: {}", reached, path);
}

ExitCode search_layouts(const SearchSource& source) {
  const CommandLine& line = source.line;
  const report::Format format = chosen_format(line, report::Format::table);
  const Output out(line.get("out"));
  const std::string all = line.get("all");
  if (!all.empty()) check_all(all);
  if (!all.empty() && line.has("time-limit")) {
    throw UsageError("--time-limit with --all: every candidate is simulated: leave one out");
  }
  const std::string chart = line.get("chart");
  if (!chart.empty()) check_chart(chart);
  SearchStop stop(line);
  RecommendRequest request = requested_search(source);
  note_cluster(line, request.search.space.base);
  note_software(line, request.search.space.base, Asked::search);
  ProgressLine progress("candidates");
  study::SearchProgress reached;
  request.search.progress = [&](const study::SearchProgress& done) {
    reached = done;
    show_search(progress, done);
  };
  request.search.stop = [&] { return stop.is_due(); };
  request.search.give_up = [&] { return stop.is_over(); };
  if (!all.empty()) {
    if (const std::string left = write_all(request, all); !left.empty()) {
      progress.finish(fmt::format("moesim: {}: {}", stop.text(), left));
      return stop.code(false);
    }
  }
  study::TrainingFound found;
  try {
    found = study::search_training(request.search);
  } catch (const study::SearchStopped&) {
    progress.finish(stopped_text(stop, reached));
    return stop.code(false);
  }
  progress.finish();
  if (found.unproven) {
    note(fmt::format("moesim: {}: {}", stop.text(),
                     is_unproven(found) ? "the best so far are not proven"
                                        : "the best are proven, the rest is not complete"));
  }
  if (found.best.empty() && found.front.empty()) {
    throw Error(nothing_fits(request.search, found),
                found.unproven ? stop.code(false) : ExitCode::failure);
  }
  note_zero(found);
  write_keeping_others(out, rendered_search(request, found, format));
  note_written(found.best.size(), found.front.size(), out);
  if (!chart.empty()) {
    draw_front(rendered_search(request, found, report::Format::csv), order_noise(request, found),
               chart);
  }
  return stop.code(!found.unproven);
}

ExitCode run(const CommandLine& typed) {
  const CommandLine line = with_config(typed);
  static constexpr EnumNames<bool, 2> modes{{{false, "train"}, {true, "prefill"}}};
  if (value_in(modes, line.get("mode", "train"), "--mode")) return recommend_prefill(line);
  if (const std::vector<Machine> machines = requested_machines(line); machines.size() > 1) {
    return recommend_machines(line, machines);
  }
  SearchSource source = requested_source(line);
  const std::vector<int> gpus = requested_gpus(source.line);
  if (gpus.size() > 1) return recommend_scaling(source, gpus);
  if (!gpus.empty()) source.line.values["gpus"] = fmt::format("{}", gpus.front());
  return search_layouts(source);
}

}  // namespace

Command recommend_command() {
  return {
      "recommend",
      "the fastest layouts of a training job, and how sure that is",
      "[options]",
      "moesim recommend --model qwen3-30b-a3b --gpus 64",
      recommend_flags(),
      false,
      0,
      run,
      "Searches tensor, context, pipeline, expert and expert-tensor parallelism, virtual stages,\n"
      "micro-batches, recomputation and ZeRO; no better one is left out (sim/study/search).\n",
      true};
}

}  // namespace moesim::tool
