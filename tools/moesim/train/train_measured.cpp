#include "tools/moesim/train/train_measured.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cctype>
#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/report/formats.hpp"
#include "sim/scenario/exchange.hpp"

namespace moesim::tool {
namespace {

using study::KernelKind;
using training::TrainingPart;

// Parts of the expected step, and the kernels of a trace that they are.
struct Row {
  std::string key;  // in JSON
  std::string name;
  std::vector<TrainingPart> parts;
  std::vector<KernelKind> kinds;
  bool is_idle = false;
  double expected_ms = 0;
  double measured_ms = 0;
  double difference_ms() const { return measured_ms - expected_ms; }
};

// `mixed`: kernels that could be of any part are there, or computed again; with `experts_apart`
// these are none of the experts.
std::vector<Row> rows_of(bool mixed, bool experts_apart) {
  std::vector<Row> rows;
  if (mixed) {
    Row compute{"compute",
                "compute",
                {TrainingPart::attention, TrainingPart::dense_ffn, TrainingPart::router,
                 TrainingPart::recompute, TrainingPart::head, TrainingPart::tensor,
                 TrainingPart::context, TrainingPart::offload},
                {KernelKind::attention, KernelKind::dense_ffn, KernelKind::router,
                 KernelKind::dispatch_combine, KernelKind::rectify, KernelKind::other,
                 KernelKind::any_product, KernelKind::any_memory, KernelKind::unknown}};
    if (!experts_apart) {
      compute.parts.push_back(TrainingPart::experts);
      compute.kinds.push_back(KernelKind::expert);
    }
    rows.push_back(std::move(compute));
    if (experts_apart)
      rows.push_back({"experts", "experts", {TrainingPart::experts}, {KernelKind::expert}});
  } else {
    rows = {
        {"attention", "attention", {TrainingPart::attention}, {KernelKind::attention}},
        {"dense_ffn", "dense FFN", {TrainingPart::dense_ffn}, {KernelKind::dense_ffn}},
        {"experts", "experts", {TrainingPart::experts}, {KernelKind::expert}},
        {"rows",
         "router and rows",
         {TrainingPart::router, TrainingPart::recompute},
         {KernelKind::router, KernelKind::dispatch_combine, KernelKind::rectify}},
        {"other",
         "head, tensor and context exchange, other",
         {TrainingPart::head, TrainingPart::tensor, TrainingPart::context, TrainingPart::offload},
         {KernelKind::other, KernelKind::any_product, KernelKind::any_memory,
          KernelKind::unknown}}};
  }
  rows.push_back({"dispatch",
                  "dispatch, combine",
                  {TrainingPart::dispatch, TrainingPart::combine},
                  {KernelKind::exposed_exchange}});
  rows.push_back({"gradients",
                  "gradients, parameters",
                  {TrainingPart::gradients, TrainingPart::parameters},
                  {KernelKind::gradient}});
  rows.push_back({"optimizer", "optimizer", {TrainingPart::optimizer}, {KernelKind::optimizer}});
  rows.push_back({"host",
                  "host, bubble and p2p",
                  {TrainingPart::host, TrainingPart::p2p, TrainingPart::reruns},
                  {KernelKind::pipeline},
                  true});
  return rows;
}

// Receives that wait for another stage run as send-receive kernels: bubble and exchange are one
// where the trace does not say the group of a collective.
void join_pipeline(std::vector<Row>& rows) {
  const auto row_of = [&](const char* key) {
    const auto found =
        std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return row.key == key; });
    assert(found != rows.end());
    return found;
  };
  Row& exchange = *row_of("dispatch");
  const auto host = row_of("host");
  const Row& idle = *host;
  exchange.key = "dispatch_host";
  exchange.name = "dispatch, combine, bubble, host";
  exchange.parts.insert(exchange.parts.end(), idle.parts.begin(), idle.parts.end());
  exchange.kinds.insert(exchange.kinds.end(), idle.kinds.begin(), idle.kinds.end());
  exchange.is_idle = true;
  rows.erase(host);
}

double at(const training::TrainingStep& step, TrainingPart part) {
  return step.parts[static_cast<std::size_t>(part)] / 1e3;
}
double at(const study::ExposedTime& time, KernelKind kind) {
  return time.kind_ms[static_cast<std::size_t>(kind)];
}

double any_part_ms(const study::ExposedTime& time) {
  return at(time, KernelKind::any_product) + at(time, KernelKind::any_memory);
}

// Rows that take time, expected or measured.
std::vector<Row> filled_rows(const training::TrainingJob& job, const training::TrainingStep& step,
                             const study::Measured& measured) {
  const study::ExposedTime& time = measured.trace->exposed;
  const bool mixed = at(step, TrainingPart::recompute) > 0 ||
                     any_part_ms(time) > study::most_of_any_part * time.total_ms;
  const bool experts_apart =
      at(time, KernelKind::expert) > 0 && !job.recompute.recomputes_experts();
  std::vector<Row> rows = rows_of(mixed, experts_apart);
  if (at(step, TrainingPart::p2p) > 0 && at(time, KernelKind::pipeline) == 0) join_pipeline(rows);
  for (Row& row : rows) {
    if (row.is_idle) row.measured_ms = time.idle_ms;
    for (const TrainingPart part : row.parts) row.expected_ms += at(step, part);
    for (const KernelKind kind : row.kinds) row.measured_ms += at(time, kind);
  }
  std::erase_if(rows, [](const Row& row) { return row.expected_ms == 0 && row.measured_ms == 0; });
  return rows;
}

std::string part_table(const std::vector<Row>& rows, const study::ExposedTime& time) {
  std::vector<std::vector<std::string>> lines = {
      {"part", "expected ms", "measured ms", "difference ms"}};
  for (const Row& row : rows) {
    lines.push_back({row.name, fmt::format("{:.2f}", row.expected_ms),
                     fmt::format("{:.2f}", row.measured_ms),
                     fmt::format("{:+.2f}", row.difference_ms())});
  }
  std::string text = report::align(lines, {false, true, true, true});
  if (any_part_ms(time) > 0 || at(time, KernelKind::unknown) > 0) {
    text += fmt::format(
        "{:.1f} % of the measured step are kernels that could be of any part, {:.1f} % have names "
        "that no rule knows\n",
        100 * any_part_ms(time) / time.total_ms,
        100 * at(time, KernelKind::unknown) / time.total_ms);
  }
  return text;
}

// What may be the matter with the part that differs most, and what narrows it.
struct Cause {
  std::string key;
  std::string name;
  double difference_ms = 0;
  std::string suspect;
  std::string next;
};

struct Words {
  std::string suspect;
  std::string next;
};

// Longer or shorter by more than 5 %.
bool differs(const std::vector<Row>& rows, const char* key, bool longer) {
  constexpr double clearly = 1.05;
  return std::any_of(rows.begin(), rows.end(), [&](const Row& row) {
    if (row.key != key) return false;
    return longer ? row.measured_ms > clearly * row.expected_ms
                  : row.expected_ms > clearly * row.measured_ms;
  });
}

bool contains_any(const std::string& name, std::initializer_list<const char*> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](const char* word) { return name.find(word) != std::string::npos; });
}

// What carries rows, by the name of a kernel that exchanges them.
enum class Carrier { all_to_all, all_gather, kernels_of_dispatcher, unknown };

Carrier carrier_of(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  if (contains_any(name, {"nccl", "rccl"})) {
    if (contains_any(name, {"sendrecv", "alltoall"})) return Carrier::all_to_all;
    if (contains_any(name, {"allgather", "reducescatter"})) return Carrier::all_gather;
    return Carrier::unknown;
  }
  return contains_any(name, {"dispatch", "combine"}) ? Carrier::kernels_of_dispatcher
                                                     : Carrier::unknown;
}

// What carries rows in the layout. A dispatcher's own document does not say.
Carrier carrier_of(const training::TrainingJob& job) {
  if (job.gathers_tokens) return Carrier::all_gather;
  if (!job.dispatcher) return Carrier::all_to_all;
  const auto& forms = scenario::dispatcher_forms();
  const bool has_name = std::any_of(forms.begin(), forms.end(), [&](const auto& form) {
    return form.name == job.typed.dispatcher;
  });
  return has_name ? Carrier::kernels_of_dispatcher : Carrier::unknown;
}

// "void deep_ep::intranode::dispatch<8, 768>(int4*, ...)": "deep_ep::intranode::dispatch".
std::string function_of(const std::string& kernel) {
  const std::string_view returned = "void ";
  const std::size_t start = kernel.starts_with(returned) ? returned.size() : 0;
  return kernel.substr(start, kernel.find_first_of("<(", start + 1) - start);
}

// The function that carries rows longest, where none in the trace is of the layout's dispatcher.
// With tensor parallelism of experts all-to-all has all-gathers too.
std::optional<std::string> other_dispatcher(const training::TrainingJob& job,
                                            const study::TracedStep& trace) {
  const Carrier told = carrier_of(job);
  if (told == Carrier::unknown) return std::nullopt;
  std::optional<std::string> longest;
  for (const study::KernelSum& kernel : trace.kernels) {  // the longest sum first
    if (kernel.kind != KernelKind::exposed_exchange) continue;
    const Carrier carrier = carrier_of(kernel.name);
    if (carrier == told) return std::nullopt;
    if (carrier != Carrier::unknown && !longest) longest = function_of(kernel.name);
  }
  return longest;
}

Words words_of_host(bool longer, bool with_exchange) {
  if (!longer) return {"a faster host, or graphs", "--cuda-graphs, --launch-us"};
  return {with_exchange ? "the GPU waits for the host or another stage, or slower links"
                        : "the GPU waits for the host (launches, reads, data loading) or, in a "
                          "pipeline, for another stage",
          "--launch-us and --host-read-us from a trace, --cuda-graphs as in the run; moesim "
          "calibrate on steps of this software"};
}

// Uneven routing, or more even routing than told: rows of experts differ in all that they pass.
std::optional<Words> words_of_uneven(const std::vector<Row>& rows, bool longer) {
  const bool has_rows =
      std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.key == "rows"; });
  // On a slower GPU attention takes longer too.
  const bool is_uneven = differs(rows, "experts", longer) &&
                         (!has_rows || differs(rows, "rows", longer)) &&
                         !differs(rows, "attention", longer);
  if (!is_uneven) return std::nullopt;
  const char* what = has_rows ? "experts and their rows" : "experts";
  if (!longer) {
    return Words{fmt::format("more even routing than told, or drops: {} take less time too", what),
                 "--routing and --capacity-factor as in the run; moesim import of the routing "
                 "(logits, counts), then --routing trace:FOLDER"};
  }
  return Words{fmt::format("uneven routing: {} take longer too", what),
               "moesim import of the routing (logits, counts), then --routing trace:FOLDER"};
}

Words words_of_exchange(const std::vector<Row>& rows, bool longer) {
  if (const auto words = words_of_uneven(rows, longer)) return *words;
  Words of_links =
      longer ? Words{"slower links than the cluster's",
                     "nccl-tests of these nodes: moesim import LOG... --cluster NAME, then "
                     "--cluster FILE"}
             : Words{"links faster than the cluster's, or overlap", "moesim import of nccl-tests"};
  // A dispatcher has its own kernels that gather and sort rows.
  if (!differs(rows, "rows", longer) || differs(rows, "attention", longer)) return of_links;
  return {fmt::format("another dispatcher than the layout's (gathering and sorting rows takes {} "
                      "too), or {}",
                      longer ? "longer" : "less time", of_links.suspect),
          "--dispatcher as in the run; " + of_links.next};
}

Words words_of_compute(const training::TrainingJob& job, const study::ExposedTime& time,
                       bool longer) {
  const bool recomputes = job.recompute.modules != 0 || job.recompute.recomputes_experts();
  if (!longer && recomputes) {
    return {"recomputation that the layout has and the step did not do, or faster kernels",
            "the step without --recompute"};
  }
  if (!longer) return {"faster kernels than the profile's", "moesim profile on this GPU"};
  if (!recomputes && any_part_ms(time) > study::most_of_any_part * time.total_ms) {
    return {"activations that are computed again, or kernels slower than the profile's",
            "--recompute as in the run (full, or its modules); moesim profile on this GPU"};
  }
  return {"kernels slower than the profile's, or more recomputation than the layout has",
          "moesim profile on this GPU, then --profile FILE; --recompute as in the run"};
}

// Forward kernels of attention that run more often than the layout says.
bool is_computed_again(const training::TrainingJob& job, const study::TracedStep& trace) {
  constexpr double clearly = 1.02;
  return job.recompute.full == model::FullRecompute::none &&
         !job.recompute.has(model::RecomputeModule::core_attn) &&
         study::attention_passes(trace) > clearly;
}

Words words_of(const Row& row, const std::vector<Row>& rows, const training::TrainingJob& job,
               const study::TracedStep& trace) {
  const study::ExposedTime& time = trace.exposed;
  const bool longer = row.difference_ms() > 0;
  const bool is_of_layers = !row.is_idle && row.key != "gradients" && row.key != "optimizer";
  if (longer && is_of_layers && is_computed_again(job, trace)) {
    return {
        "activations that are computed again: forward kernels of attention run more often than "
        "backward ones",
        "--recompute as in the run (full, or its modules)"};
  }
  // A dispatcher launches and waits as its own kernels need: the host's row is of it too.
  if (row.is_idle || row.key == "dispatch" || row.key == "rows") {
    if (const auto function = other_dispatcher(job, trace)) {
      return {fmt::format("another dispatcher than the layout's: {} carries the rows", *function),
              "--dispatcher as in the run"};
    }
  }
  if (row.is_idle) return words_of_host(longer, row.key != "host");
  if (row.key == "dispatch") return words_of_exchange(rows, longer);
  if (row.key == "gradients") {
    return {longer ? "slower links between nodes, or less overlap" : "more overlap",
            "--zero and --optimizer-instances as in the run; nccl-tests of reduce-scatter and "
            "all-gather: moesim import LOG... --cluster NAME"};
  }
  if (row.key == "experts" || row.key == "rows") {
    const bool experts_too = row.key == "experts" || differs(rows, "experts", longer);
    if (differs(rows, "dispatch", longer) && (longer || !experts_too))
      return words_of_exchange(rows, longer);
    return {longer ? "more rows on this GPU, or kernels slower than the profile's"
                   : "fewer rows (drops), or faster kernels",
            "--routing trace:FOLDER (moesim import); moesim profile on this GPU"};
  }
  if (row.key == "optimizer") {
    return {"another optimizer, or other sharding of its states", "--zero, --precision"};
  }
  return words_of_compute(job, time, longer);
}

constexpr double worth_naming = 0.01;  // of the measured step

// Idle time is what kernels leave of a step: where the host limits, longer kernels only shorten it.
// It is a cause of its own where the whole step differs in its direction.
bool is_left_by_kernels(const Row& row, double step_difference_ms, double total_ms) {
  if (!row.is_idle) return false;
  const double in_its_direction = std::copysign(1.0, row.difference_ms()) * step_difference_ms;
  return in_its_direction < worth_naming * total_ms;
}

// Of the part that differs most, if by 1 % of the step or more.
std::optional<Cause> cause_of(const std::vector<Row>& rows, const training::TrainingJob& job,
                              const study::TracedStep& trace) {
  double step_difference_ms = 0;
  for (const Row& row : rows) step_difference_ms += row.difference_ms();
  const Row* largest = nullptr;
  for (const Row& row : rows) {
    if (is_left_by_kernels(row, step_difference_ms, trace.exposed.total_ms)) continue;
    if (largest == nullptr || std::abs(row.difference_ms()) > std::abs(largest->difference_ms()))
      largest = &row;
  }
  if (largest == nullptr) return std::nullopt;
  if (std::abs(largest->difference_ms()) < worth_naming * trace.exposed.total_ms)
    return std::nullopt;
  const Words words = words_of(*largest, rows, job, trace);
  return Cause{largest->key, largest->name, largest->difference_ms(), words.suspect, words.next};
}

// The narrowest band that a measured time lies inside; none: outside of all.
const uncertainty::BandLevel* narrowest_level(const TrainBand& band, double ratio) {
  const double log_ratio = std::log(ratio);
  const uncertainty::BandLevel* found = nullptr;
  // The narrowest level is the last.
  for (const uncertainty::BandLevel& each : band.band.levels) {
    if (log_ratio >= each.log_ratios.low && log_ratio <= each.log_ratios.high) found = &each;
  }
  return found;
}

}  // namespace

std::string measured_text(const training::TrainingJob& job, const training::TrainingStep& step,
                          const TrainBand& band, const study::Measured& measured) {
  const double expected_ms = step.step_us / 1e3;
  std::string verdict = "outside of all bands: look for what the layout does not say";
  if (const auto* level = narrowest_level(band, measured.ms() / expected_ms)) {
    verdict = fmt::format("inside the {:.0f} % band, {:.2f} to {:.2f}", 100 * level->level,
                          std::exp(level->log_ratios.low), std::exp(level->log_ratios.high));
  }
  std::string text = fmt::format("\nmeasured {:.2f} ms, expected {:.2f} ms: {:.3f} times, {}\n",
                                 measured.ms(), expected_ms, measured.ms() / expected_ms, verdict);
  if (!measured.trace) return text;
  const std::size_t gpus = measured.trace->gpus;
  text += fmt::format("{}{}; each moment counts once\n", measured.trace->file,
                      gpus == 1 ? ", of one GPU" : fmt::format(" of {} GPUs, the slowest", gpus));
  const std::vector<Row> rows = filled_rows(job, step, measured);
  text += part_table(rows, measured.trace->exposed);
  if (const auto cause = cause_of(rows, job, *measured.trace)) {
    text += fmt::format("largest: {} {:+.2f} ms\n  suspect: {}\n  next: {}\n", cause->name,
                        cause->difference_ms, cause->suspect, cause->next);
  }
  if (!job.model->linear) return text;
  return text +
         "expected of attention: of linear attention counted FLOPs and bytes at assumed rates, no "
         "curve is of its kernels\n";
}

nlohmann::ordered_json measured_json(const training::TrainingJob& job,
                                     const training::TrainingStep& step, const TrainBand& band,
                                     const study::Measured& measured) {
  const double expected_ms = step.step_us / 1e3;
  const uncertainty::BandLevel* level = narrowest_level(band, measured.ms() / expected_ms);
  nlohmann::ordered_json result{{"measured_ms", report::json_figure(measured.ms())},
                                {"expected_ms", report::json_figure(expected_ms)},
                                {"multiplier", report::json_figure(measured.ms() / expected_ms)},
                                {"band_level", nullptr}};
  if (level != nullptr) result["band_level"] = level->level;
  if (!measured.trace) return result;
  const study::ExposedTime& time = measured.trace->exposed;
  const std::vector<Row> rows = filled_rows(job, step, measured);
  for (const Row& row : rows) {
    result["parts"].push_back({{"part", row.key},
                               {"expected_ms", report::json_figure(row.expected_ms)},
                               {"measured_ms", report::json_figure(row.measured_ms)},
                               {"difference_ms", report::json_figure(row.difference_ms())}});
  }
  result["any_part_share"] = report::json_figure(any_part_ms(time) / time.total_ms);
  result["unknown_share"] = report::json_figure(at(time, KernelKind::unknown) / time.total_ms);
  if (const auto cause = cause_of(rows, job, *measured.trace)) {
    result["largest"] = {{"part", cause->key},
                         {"difference_ms", report::json_figure(cause->difference_ms)},
                         {"suspect", cause->suspect},
                         {"next", cause->next}};
  }
  return result;
}

}  // namespace moesim::tool
