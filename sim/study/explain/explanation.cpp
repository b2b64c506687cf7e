#include "sim/study/explain/explanation.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/base/statistics.hpp"
#include "sim/cluster/measured_between.hpp"
#include "sim/study/explain/slow_gpu.hpp"
#include "sim/study/sweep/step_band.hpp"

namespace moesim::study {
namespace {

using uncertainty::WorkClass;

constexpr double worth_naming = 0.01;  // of the longer of the two steps

struct Words {
  std::string suspect;
  std::string next;
};

Words when_longer(StepPart part) {
  switch (part) {
    case StepPart::attention:
      return {
          "another attention kernel than the profile's (not fused, other layout), or GPUs that "
          "clock lower",
          "moesim profile on this GPU, then --profile FILE"};
    case StepPart::dense_ffn:
      return {"products that run below the profile's curve (clocks, shapes, not fused activations)",
              "moesim profile on this GPU, then --profile FILE"};
    case StepPart::router:
      return {
          "a router of many small kernels, or one in fp32, or that waits for the host",
          "the list of kernels below, with record_function around the router; --router-dialect"};
    case StepPart::dispatch_combine:
      return {"rows that are gathered by other kernels (masks and einsum, index_select, sort)",
              "--dispatch einsum or index, --dispatcher"};
    case StepPart::expert:
      return {"experts one by one instead of grouped, or more rows on the busiest GPU than drawn",
              "moesim import of the routing (logits, counts), then --routing trace:FOLDER"};
    case StepPart::rectify:
      return {"rectified rows in small products, or blended by many kernels",
              "the list of kernels below; --ir-compute"};
    case StepPart::exposed_exchange:
      return {
          "slower links than the cluster's, waiting for a slower or fuller GPU (uneven routing), "
          "or "
          "no overlap",
          "traces of all ranks; nccl-tests of these nodes: moesim import LOG... --cluster NAME; "
          "moesim import of the routing, then --routing trace:FOLDER"};
    case StepPart::gradient:
      return {"slower links between nodes, or a reduction that does not overlap as --overlap says",
              "nccl-tests all-reduce: moesim import LOG... --cluster NAME; --overlap, --zero"};
    case StepPart::optimizer:
      return {"an optimizer that is not fused, or states that are not sharded as --zero says",
              "a fused optimizer; --zero as in this run"};
    case StepPart::other:
      break;
  }
  return {"head, embedding, loss, or kernels that no rule knows", "record_function around them"};
}

Words when_shorter(StepPart part) {
  switch (part) {
    case StepPart::exposed_exchange:
    case StepPart::gradient:
      return {"exchanges that overlap computation, links faster than the cluster's, or fewer bytes",
              "--overlap; nccl-tests: moesim import LOG... --cluster NAME"};
    case StepPart::expert:
      return {"fewer rows (drops, balance) than drawn, or kernels faster than the profile's",
              "moesim import of the routing, then --routing trace:FOLDER"};
    default:
      return {"kernels faster or fewer than the profile's, or counted to another part by name",
              "the list of kernels below; moesim profile on this GPU"};
  }
}

Words words_of(const PartDifference& row) {
  if (row.parts.empty()) {
    return {"the GPU waits for the host: launches, synchronisation, data loading, Python",
            "CUDA graphs, fewer .item() and .cpu(); a profile without with_stack, which slows the "
            "host"};
  }
  if (row.parts.size() > 1) {
    return row.difference_ms() > 0
               ? Words{"products or memory-bound kernels; their names do not say of which part",
                       "record_function(\"attention\"), (\"experts\"), (\"router\") around "
                       "modules, or with_modules=True; then trace again"}
               : Words{"kernels faster or fewer than the profile's; names do not say of which part",
                       "record_function around modules; then trace again"};
  }
  return row.difference_ms() > 0 ? when_longer(row.parts.front()) : when_shorter(row.parts.front());
}

// What traces of all GPUs say of parts that wait for the fullest one, or are it.
std::optional<Words> words_of_routing(const PartDifference& row, const Explanation& found) {
  if (!found.routing || row.parts.size() != 1) return std::nullopt;
  const StepPart part = row.parts.front();
  const bool is_exchange = part == StepPart::exposed_exchange;
  if (!is_exchange && part != StepPart::expert && part != StepPart::dispatch_combine)
    return std::nullopt;
  if (row.difference_ms() <= 0) {
    if (!found.routing->is_more_even()) return std::nullopt;
    return Words{
        fmt::format("routing more even than drawn: in a layer the fullest GPU's experts take "
                    "{:.2f} times the mean of all GPUs, simulated {:.2f}{}",
                    found.routing->measured, found.routing->expected,
                    is_exchange ? "; the others wait less for it" : ""),
        "--routing balanced if the run forces balance; else moesim import of the routing (logits, "
        "counts), then --routing trace:FOLDER"};
  }
  if (found.routing->is_more_uneven()) {
    return Words{
        fmt::format("uneven routing: in a layer the fullest GPU's experts take {:.2f} times the "
                    "mean of all GPUs, simulated {:.2f}{}",
                    found.routing->measured, found.routing->expected,
                    is_exchange ? "; the others wait for it, and it sends and receives most" : ""),
        "moesim import of the routing (logits, counts), then --routing trace:FOLDER"};
  }
  if (!is_exchange) return std::nullopt;
  return Words{fmt::format("slower links than the cluster's{}, or no overlap; routing is as even "
                           "as simulated (fullest GPU over mean {:.2f}, simulated {:.2f})",
                           found.slow_gpus.empty() ? "" : ", waiting for the slower GPU",
                           found.routing->measured, found.routing->expected),
               "nccl-tests of these nodes: moesim import LOG... --cluster NAME; --overlap"};
}

// What the curve of a part may be off by, in the log.
double deviation_of(const scenario::Scenario& scenario, StepPart part) {
  std::array<double, part_count> only{};
  only[static_cast<std::size_t>(part)] = 1;
  const uncertainty::WorkShares shares = work_shares(scenario, only);
  const bool measured = cluster::measured_between_domains(*scenario.cluster);
  double systematic = 0;
  for (std::size_t work = 0; work < shares.size(); ++work) {
    systematic +=
        shares[work] * uncertainty::systematic_error(static_cast<WorkClass>(work), measured);
  }
  return std::sqrt(systematic * systematic + uncertainty::curve_error * uncertainty::curve_error +
                   uncertainty::run_noise * uncertainty::run_noise);
}

double at(const ExposedTime& time, KernelKind kind) {
  return time.kind_ms[static_cast<std::size_t>(kind)];
}

// The rows of the table. Parts that kernels of any part could belong to are one row, where these
// take time; experts are apart where their kernels are known.
std::vector<PartDifference> rows_of(const scenario::Scenario& scenario, const ExposedTime& expected,
                                    const ExposedTime& measured,
                                    const std::optional<ComputedAgain>& again) {
  const double any_part =
      at(measured, KernelKind::any_product) + at(measured, KernelKind::any_memory);
  const bool merges = any_part > most_of_any_part * measured.total_ms;
  const auto is_mixed = [&](StepPart part) {
    if (!merges) return part == StepPart::other;
    if (part == StepPart::expert) return at(measured, KernelKind::expert) == 0;
    return part != StepPart::exposed_exchange && part != StepPart::gradient &&
           part != StepPart::optimizer;
  };
  PartDifference mixed;
  mixed.measured_ms = any_part + at(measured, KernelKind::unknown);
  double weighted = 0;
  std::vector<PartDifference> rows;
  for (std::size_t index = 0; index < part_count; ++index) {
    const StepPart part = static_cast<StepPart>(index);
    PartDifference row;
    row.parts = {part};
    row.expected_ms = at(expected, kind_of(part));
    row.measured_ms = at(measured, kind_of(part));
    if (part == StepPart::other) row.measured_ms += at(measured, KernelKind::pipeline);
    if (again) row.more_calls_ms = again->more_ms[index];
    const double deviation = deviation_of(scenario, part);
    if (is_mixed(part)) {
      mixed.parts.push_back(part);
      mixed.expected_ms += row.expected_ms;
      mixed.measured_ms += row.measured_ms;
      mixed.more_calls_ms += row.more_calls_ms;
      weighted += deviation * row.expected_ms;
      continue;
    }
    row.low = std::exp(-normal_p95 * deviation);
    row.high = std::exp(normal_p95 * deviation);
    if (row.expected_ms > 0 || row.measured_ms > 0) rows.push_back(std::move(row));
  }
  if (mixed.expected_ms > 0) {
    mixed.low = std::exp(-normal_p95 * weighted / mixed.expected_ms);
    mixed.high = 1 / mixed.low;
  }
  if (mixed.expected_ms > 0 || mixed.measured_ms > 0) {
    rows.insert(merges ? rows.begin() : rows.end(), std::move(mixed));
  }
  PartDifference idle;
  idle.expected_ms = expected.idle_ms;
  idle.measured_ms = measured.idle_ms;
  rows.push_back(idle);
  return rows;
}

// What the GPU that is compared takes longer than the others, as one row of the parts it computes.
PartDifference slow_row(const ExposedTime& measured, const ExposedTime& usual) {
  PartDifference row;
  for (std::size_t index = 0; index < part_count; ++index) {
    const KernelKind kind = kind_of(static_cast<StepPart>(index));
    if (at(measured, kind) > at(usual, kind)) row.parts.push_back(static_cast<StepPart>(index));
  }
  row.expected_ms = usual.total_ms;
  row.measured_ms = measured.total_ms;
  return row;
}

// "attention 96 for 48, exchanges of both passes 288 for 192".
std::string calls_text(const ComputedAgain& again) {
  std::vector<std::string> words;
  for (const CallCounts& each : again.calls) {
    const char* name = each.part == StepPart::attention ? "attention"
                       : each.part == StepPart::expert  ? "experts"
                                                        : "exchanges of both passes";
    words.push_back(fmt::format("{} {} for {}", name, each.measured, each.expected));
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

Words words_of(const ComputedAgain& again) {
  const std::string calls = calls_text(again);
  if (!again.is_more) {
    return {
        "recomputation that the options have and the step did not do; forward calls measured "
        "for simulated: " +
            calls,
        "--checkpointing none (train: without --recompute)"};
  }
  if (!again.is_whole) {
    return {
        "recomputation of attention that the options do not have; forward calls measured for "
        "simulated: " +
            calls,
        "moesim train --recompute core_attn; --checkpointing full computes whole layers again"};
  }
  return {
      "recomputation of activations that the options do not have; forward calls measured for "
      "simulated: " +
          calls,
      again.is_every ? "--checkpointing full (train: --recompute full)"
                     : "moesim train --recompute full:block:N, for some layers; "
                       "--checkpointing full is all of them"};
}

// All that is computed again as one row.
PartDifference again_row(const ComputedAgain& again, const ExposedTime& expected) {
  PartDifference row;
  for (std::size_t index = 0; index < part_count; ++index) {
    if (again.more_ms[index] == 0) continue;
    row.parts.push_back(static_cast<StepPart>(index));
    row.expected_ms += expected.kind_ms[index];
  }
  row.measured_ms = row.expected_ms + again.total_ms();
  return row;
}

// What is left of a row if forward passes ran as often as simulated.
PartDifference of_calls(PartDifference row) {
  row.expected_ms = row.judged_ms();
  row.more_calls_ms = 0;
  return row;
}

std::vector<Suspicion> suspicions_of(const std::vector<PartDifference>& all_rows,
                                     const std::optional<PartDifference>& slow,
                                     const ExposedTime& expected, double longer_ms,
                                     const Explanation& explained) {
  std::vector<PartDifference> rows;
  for (const PartDifference& row : all_rows) rows.push_back(of_calls(row));
  double sizes = slow ? slow->difference_ms() : 0;
  const auto& again = explained.computed_again;
  if (again) sizes += std::abs(again->total_ms());
  for (const PartDifference& row : rows) sizes += std::abs(row.difference_ms());
  std::vector<Suspicion> found;
  if (slow) {
    found.push_back({*slow, slow->difference_ms() / sizes, true, false,
                     "lower clocks (power, heat), another process on it, or a slower model of GPU",
                     "nvidia-smi -q -d CLOCK,PERFORMANCE,TEMPERATURE on its node; simulate "
                     "--slow-gpu says what it costs"});
  }
  for (const PartDifference& row : rows) {
    const double size = std::abs(row.difference_ms());
    if (size < worth_naming * longer_ms) continue;
    const Words words = words_of_routing(row, explained).value_or(words_of(row));
    found.push_back({row, size / sizes, false, false, words.suspect, words.next});
  }
  std::stable_sort(found.begin(), found.end(), [](const Suspicion& one, const Suspicion& other) {
    return one.share > other.share;
  });
  if (again) {
    const Words words = words_of(*again);
    found.insert(found.begin(), {again_row(*again, expected), std::abs(again->total_ms()) / sizes,
                                 false, true, words.suspect, words.next});
  }
  return found;
}

// The software's error has a mean of its own: such software takes longer than its kernels.
std::vector<TermReach> reaches_of(const scenario::Scenario& scenario, const Outcome& outcome,
                                  double measured_ms) {
  const uncertainty::SoftwareError software =
      software_error(scenario, work_shares(scenario, outcome.parts_ms));
  const double off = std::log(measured_ms / outcome.step_ms);
  std::vector<TermReach> reaches;
  for (const uncertainty::Term& term : outcome.band.terms) {
    const double mean = term.name == software.name ? software.mean : 0;
    reaches.push_back({term, (off - mean) / term.deviation});
  }
  return reaches;
}

// How much slower the scenario lets its slowest GPU be than the others.
double expected_factor(const engine::Timeline& timeline) {
  const std::vector<SlowGpu> slow = slow_gpus(exposed_times(timeline));
  return slow.empty() ? 1 : slow.front().factor;
}

// Names the GPUs that are slower than the scenario lets one be; returns the one that is compared,
// with its factors beyond that.
std::optional<SlowGpu> find_slow(const engine::Timeline& timeline, const Measured& measured,
                                 std::vector<SlowTrace>& named) {
  std::vector<ExposedTime> gpus;
  for (const TracedGpu& gpu : measured.trace->all) gpus.push_back(gpu.exposed);
  const std::vector<SlowGpu> slow = slow_gpus(gpus);
  if (slow.empty()) return std::nullopt;
  const double expected = expected_factor(timeline);
  std::optional<SlowGpu> compared;
  for (SlowGpu gpu : slow) {
    gpu.factor /= expected;
    if (gpu.factor <= 1 + worth_naming) continue;
    for (double& factor : gpu.of_kind) factor = factor > 1 ? factor / expected : 1;
    const TracedGpu& trace = measured.trace->all[gpu.index];
    const bool is_compared =
        trace.file == measured.trace->file && trace.device == measured.trace->device;
    named.push_back({trace.file, trace.device, gpu.factor, is_compared});
    if (is_compared) compared = gpu;
  }
  return compared;
}

ExposedTime scaled(ExposedTime time, double by) {
  for (double& kind : time.kind_ms) kind *= by;
  time.exchange_ms *= by;
  time.idle_ms *= by;
  time.total_ms *= by;
  return time;
}

}  // namespace

Explanation explain(const scenario::Scenario& scenario, const Outcome& outcome,
                    const engine::Timeline& timeline, const Measured& measured) {
  Explanation result;
  result.expected_ms = outcome.step_ms;
  result.measured_ms = measured.ms();
  result.band = outcome.band;
  result.terms = reaches_of(scenario, outcome, result.measured_ms);
  if (!measured.trace) return result;
  const ExposedTime exposed = scaled(measured.trace->exposed, measured.trace_scale());
  const ExposedTime expected = exposed_time(timeline);
  const double longer_ms = std::max(result.expected_ms, exposed.total_ms);
  result.computed_again = computed_again(timeline, *measured.trace);
  auto& again = result.computed_again;
  if (again && std::abs(again->total_ms()) < worth_naming * longer_ms) again.reset();
  result.routing =
      uneven_routing(timeline, *measured.trace, static_cast<std::size_t>(scenario.expert_parallel));
  result.parts = rows_of(scenario, expected, exposed, again);
  const std::optional<SlowGpu> slow = find_slow(timeline, measured, result.slow_gpus);
  if (slow) {
    const ExposedTime usual = slow->at_speed_of_others(exposed);
    result.suspicions = suspicions_of(rows_of(scenario, expected, usual, again),
                                      slow_row(exposed, usual), expected, longer_ms, result);
  } else {
    result.suspicions = suspicions_of(result.parts, std::nullopt, expected, longer_ms, result);
  }
  result.any_part_share =
      (at(exposed, KernelKind::any_product) + at(exposed, KernelKind::any_memory)) /
      exposed.total_ms;
  result.unknown_share = at(exposed, KernelKind::unknown) / exposed.total_ms;
  return result;
}

}  // namespace moesim::study
