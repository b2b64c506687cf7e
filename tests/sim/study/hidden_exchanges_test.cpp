#include "sim/study/sweep/hidden_exchanges.hpp"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "sim/engine/dataflow.hpp"
#include "sim/scenario/options.hpp"
#include "sim/step/exchanges/overlapped_gradients.hpp"
#include "sim/step/program/part.hpp"
#include "sim/study/sweep/baseline.hpp"
#include "sim/study/sweep/evaluate.hpp"
#include "tests/support/catch.hpp"

namespace moesim::study {
namespace {

using engine::StreamKind;
using step::StepPart;

scenario::Scenario of_zero(const char* zero, const scenario::OptionValues& more = {}) {
  scenario::OptionValues values = {
      {"gpus", "16"},    {"sequence-length", "512"}, {"micro-batch", "1"},   {"mode", "train"},
      {"replicas", "1"}, {"router", "top2"},         {"global-batch", "32"}, {"zero", zero}};
  for (const auto& [name, text] : more) values[name] = text;
  scenario::DocumentCache documents;
  return scenario::resolve(values, documents);
}

// Operations of 16 GPUs in two domains, with a duration in us each.
class Steps {
 public:
  Steps() {
    program.ranks = 16;
    program.partitions = {engine::blocks(16, 8), engine::blocks(16, 16)};  // inside, across
  }

  int add(const char* name, StepPart part, double us, int groups = -1, std::vector<int> after = {},
          StreamKind stream = StreamKind::compute) {
    engine::Operation operation;
    operation.name = name;
    operation.stream =
        groups >= 0 && stream == StreamKind::compute ? StreamKind::communication : stream;
    operation.category = static_cast<int>(part);
    operation.groups = groups;
    operation.after = std::move(after);
    durations.uniform.push_back(Picoseconds::from_us(us));
    durations.per_rank.emplace_back();
    return program.add(std::move(operation));
  }
  int gather(double us, int groups, std::vector<int> after) {
    return add("nccl:all_gather", StepPart::gradient, us, groups, std::move(after));
  }
  int compute(double us, std::vector<int> after) {
    return add("attention", StepPart::attention, us, -1, std::move(after));
  }

  engine::Program program;
  engine::Durations durations;
};

constexpr int inside = 0;
constexpr int across = 1;

// The step in us, as executed and with exchanges hidden.
std::pair<double, double> times(const Steps& steps, const engine::Execution& execution,
                                const char* zero = "3") {
  const double step = execution.end_of(execution.slowest_rank()).us();
  return {step, step / std::exp(hidden_gain(of_zero(zero), steps.program, execution))};
}

}  // namespace

TEST_CASE("weights are gathered beside what ran since those before were") {
  Steps steps;
  const int first = steps.gather(10, across, {});
  const int one = steps.compute(20, {first});
  const int second = steps.gather(30, across, {one});
  const int two = steps.compute(40, {second});
  const int third = steps.gather(15, across, {two});
  const int experts = steps.gather(35, across, {two});
  steps.compute(5, {third, experts});
  const engine::Execution execution = engine::run_alone(steps.program, steps.durations);
  // Nothing is beside the first; 20 of 30 are hidden, and 40 of 15 + 35: 155 - 60.
  CHECK(times(steps, execution).first == Approx(155));
  CHECK(times(steps, execution).second == Approx(95));
  // ZeRO 2 gathers weights once in a step, behind its end.
  CHECK(hidden_gain(of_zero("2"), steps.program, execution) == 0);
  CHECK(hidden_gain(of_zero("1"), steps.program, execution) == 0);
}

TEST_CASE("exchanges of tokens hide what takes other links") {
  Steps steps;
  const int first = steps.gather(10, across, {});
  const int one = steps.compute(20, {first});
  const int tokens = steps.add("nccl:all_to_all", StepPart::exposed_exchange, 7, inside, {one});
  const int through_nics = steps.gather(25, across, {tokens});
  const int two = steps.compute(1, {through_nics});
  const int more = steps.add("nccl:all_to_all", StepPart::exposed_exchange, 7, inside, {two});
  const int nvlink = steps.gather(25, inside, {more});
  steps.compute(1, {nvlink});
  const engine::Execution execution = engine::run_alone(steps.program, steps.durations);
  // 25 of 27 hide all of the second, and the 1 beside exchanges on NVLink 1 of the third.
  CHECK(times(steps, execution).first == Approx(96));
  CHECK(times(steps, execution).second == Approx(96 - 25 - 1));
}

TEST_CASE("gradients beside the backward pass get on in all of its time, not in a quarter") {
  Steps steps;
  const auto reduce = [&](int after) {
    return steps.add("nccl:reduce_scatter", StepPart::gradient, 30, across, {after},
                     StreamKind::gradients);
  };
  const int one = steps.compute(10, {});
  reduce(one);
  const int two = steps.compute(40, {one});
  const int tokens = steps.add("nccl:all_to_all", StepPart::exposed_exchange, 8, across, {two});
  const int three = steps.compute(20, {tokens});
  const int last = reduce(three);
  steps.compute(5, {last});
  engine::Durations slowed = steps.durations;
  std::vector<engine::LostTime> lost = step::slow_overlapped_gradients(
      steps.program, *of_zero("2").cluster, 1,
      [&](int op) { return steps.durations.uniform[static_cast<std::size_t>(op)]; }, slowed);
  engine::Execution execution = engine::run_alone(steps.program, slowed);
  execution.lost = std::move(lost);
  // The first reduction takes 30, 3/4 of 60 and all of 8 on its links: until 93, the last one until
  // 123. With all computing hiding it, it ends at 48; the last one begins at 78, behind the pass.
  CHECK(times(steps, execution, "2").first == Approx(10 + 83 + 30 + 5));
  CHECK(times(steps, execution, "2").second == Approx(78 + 30 + 5));
}

TEST_CASE("bands and ratios of ZeRO 3 reach the step with its gathers hidden") {
  routing::RoutingCache cache;
  const scenario::Scenario three = of_zero("3");
  const Outcome sharded = evaluate(three, cache);
  REQUIRE(sharded.hidden > 0.1);
  // No less than what is no gather: the parts are of the same replica.
  const double gradient = sharded.parts_ms[static_cast<std::size_t>(StepPart::gradient)];
  CHECK(std::exp(-sharded.hidden) * sharded.step_ms > sharded.step_ms - gradient);
  // The median, which does not move, is as far from the end as without the gain, and this besides.
  const uncertainty::SimulatedBand& band = sharded.band;
  const double upper = std::log(band.p95_ms / band.p50_ms);
  CHECK(std::log(band.p50_ms / band.p05_ms) == Approx(upper + sharded.hidden).epsilon(0.01));
  CHECK(std::log(sharded.step_ms / band.same_p05_ms) > sharded.hidden);
  const auto names_it = [](const uncertainty::Term& term) {
    return term.name.find("ZeRO 3") != std::string::npos;
  };
  CHECK(std::count_if(band.terms.begin(), band.terms.end(), names_it) == 1);

  const scenario::Scenario one = of_zero("1");
  const Outcome whole = evaluate(one, cache);
  CHECK(whole.hidden == 0);
  const SpeedRatio ratio = speed_ratio(three, sharded, one, whole);
  Outcome known = sharded;
  known.hidden = 0;
  const SpeedRatio priced = speed_ratio(three, known, one, whole);
  CHECK(ratio.p05 == priced.p05);
  CHECK(ratio.p95 == Approx(priced.p95 * std::exp(sharded.hidden)));
  const SpeedRatio back = speed_ratio(one, whole, three, sharded);
  CHECK(back.p05 == Approx(1 / ratio.p95));
}

TEST_CASE("gradients that are to be reduced after the pass are not hidden by it") {
  routing::RoutingCache cache;
  CHECK(evaluate(of_zero("2"), cache).hidden == 0);
  CHECK(evaluate(of_zero("2", {{"overlap", "gradient"}}), cache).hidden > 0);
  CHECK(evaluate(of_zero("1", {{"overlap", "gradient"}}), cache).hidden == 0);
  CHECK(evaluate(of_zero("3", {{"mode", "prefill"}}), cache).hidden == 0);
}

}  // namespace moesim::study
