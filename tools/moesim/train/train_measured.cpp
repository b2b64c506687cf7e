#include "tools/moesim/train/train_measured.hpp"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "sim/report/formats.hpp"

namespace moesim::tool {
namespace {

using study::Place;
using training::Part;

// Parts of the expected step, and the kernels of a trace that they are.
struct Row {
  std::string name;
  std::vector<Part> parts;
  std::vector<Place> places;
  bool is_idle = false;
};

// `mixed`: kernels that could be of any part are there, or computed again.
std::vector<Row> rows_of(bool mixed) {
  std::vector<Row> rows;
  if (mixed) {
    rows.push_back(
        {"compute",
         {Part::attention, Part::dense_ffn, Part::experts, Part::router, Part::recompute,
          Part::head, Part::tensor, Part::context, Part::offload},
         {Place::attention, Place::dense_ffn, Place::expert, Place::router, Place::dispatch_combine,
          Place::rectify, Place::other, Place::any_product, Place::any_memory, Place::unknown}});
  } else {
    rows = {{"attention", {Part::attention}, {Place::attention}},
            {"dense FFN", {Part::dense_ffn}, {Place::dense_ffn}},
            {"experts", {Part::experts}, {Place::expert}},
            {"router and rows",
             {Part::router, Part::recompute},
             {Place::router, Place::dispatch_combine, Place::rectify}},
            {"head, tensor and context exchange, other",
             {Part::head, Part::tensor, Part::context, Part::offload},
             {Place::other, Place::any_product, Place::any_memory, Place::unknown}}};
  }
  rows.push_back({"dispatch, combine", {Part::dispatch, Part::combine}, {Place::exposed_exchange}});
  rows.push_back({"gradients, parameters", {Part::gradients, Part::parameters}, {Place::gradient}});
  rows.push_back({"optimizer", {Part::optimizer}, {Place::optimizer}});
  rows.push_back(
      {"host, bubble and p2p", {Part::host, Part::p2p, Part::reruns}, {Place::pipeline}, true});
  return rows;
}

// Receives that wait for another stage run as send-receive kernels: bubble and exchange are one
// where the trace does not say the group of a collective.
void join_pipeline(std::vector<Row>& rows) {
  Row& exchange = rows[rows.size() - 4];
  Row& idle = rows.back();
  exchange.name = "dispatch, combine, bubble, host";
  exchange.parts.insert(exchange.parts.end(), idle.parts.begin(), idle.parts.end());
  exchange.places.insert(exchange.places.end(), idle.places.begin(), idle.places.end());
  exchange.is_idle = true;
  rows.pop_back();
}

double at(const training::TrainingStep& step, Part part) {
  return step.parts[static_cast<std::size_t>(part)] / 1e3;
}
double at(const study::ExposedTime& time, Place place) {
  return time.place_ms[static_cast<std::size_t>(place)];
}

std::string part_table(const training::TrainingStep& step, const study::Measured& measured) {
  const study::ExposedTime& time = measured.trace->exposed;
  const double unplaced = at(time, Place::any_product) + at(time, Place::any_memory);
  const bool mixed =
      at(step, Part::recompute) > 0 || unplaced > study::most_unplaced * time.total_ms;
  std::vector<Row> rows = rows_of(mixed);
  if (at(step, Part::p2p) > 0 && at(time, Place::pipeline) == 0) join_pipeline(rows);
  std::vector<std::vector<std::string>> lines = {
      {"part", "expected ms", "measured ms", "difference ms"}};
  for (const Row& row : rows) {
    double expected = 0;
    double seen = row.is_idle ? time.idle_ms : 0;
    for (const Part part : row.parts) expected += at(step, part);
    for (const Place place : row.places) seen += at(time, place);
    if (expected == 0 && seen == 0) continue;
    lines.push_back({row.name, fmt::format("{:.2f}", expected), fmt::format("{:.2f}", seen),
                     fmt::format("{:+.2f}", seen - expected)});
  }
  std::string text = report::align(lines, {false, true, true, true});
  if (unplaced > 0 || at(time, Place::unknown) > 0) {
    text += fmt::format(
        "{:.1f} % of the measured step are kernels that could be of any part, {:.1f} % have names "
        "that no rule knows\n",
        100 * unplaced / time.total_ms, 100 * at(time, Place::unknown) / time.total_ms);
  }
  return text;
}

}  // namespace

std::string measured_text(const training::TrainingJob& job, const training::TrainingStep& step,
                          const TrainBand& band, const study::Measured& measured) {
  const double expected_ms = step.step_us / 1e3;
  const double log_ratio = std::log(measured.ms() / expected_ms);
  std::string verdict = "outside of all bands: look for what the layout does not say";
  // The narrowest level is the last.
  for (const uncertainty::BandLevel& each : band.band.levels) {
    if (log_ratio < each.log_ratios.low || log_ratio > each.log_ratios.high) continue;
    verdict = fmt::format("inside the {:.0f} % band, {:.2f} to {:.2f}", 100 * each.level,
                          std::exp(each.log_ratios.low), std::exp(each.log_ratios.high));
  }
  std::string text = fmt::format("\nmeasured {:.2f} ms, expected {:.2f} ms: {:.3f} times, {}\n",
                                 measured.ms(), expected_ms, measured.ms() / expected_ms, verdict);
  if (!measured.trace) return text;
  const std::size_t gpus = measured.trace->gpus;
  text += fmt::format("{}{}; each moment counts once\n", measured.trace->file,
                      gpus == 1 ? ", of one GPU" : fmt::format(" of {} GPUs, the slowest", gpus));
  text += part_table(step, measured);
  if (!job.model->linear) return text;
  return text +
         "expected of attention: of linear attention counted FLOPs and bytes at assumed rates, no "
         "curve is of its kernels\n";
}

}  // namespace moesim::tool
