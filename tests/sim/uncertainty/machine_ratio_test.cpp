#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/random.hpp"
#include "sim/uncertainty/published/step_errors.hpp"
#include "sim/uncertainty/steps/step_distance.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::uncertainty;

namespace {

constexpr double machine_spread = 0.06;
constexpr double step_spread = 0.04;

// One release of a software on five machines with three models, three steps of each, and another
// software, far off, on one machine. A machine's error is common to its steps; the software's
// cancels, however large.
std::vector<Observation> drawn(std::uint32_t run, double software = 0.7) {
  Stream stream({23, Purpose::test_data, run, 0, 0});
  std::vector<Observation> found;
  for (int machine = 0; machine < 6; ++machine) {
    const bool is_other = machine == 5;
    const double level = is_other ? -software : software + machine_spread * stream.normal();
    for (int model = 0; model < 3; ++model) {
      for (int row = 0; row < 3; ++row) {
        Observation each;
        each.subject = {is_other ? "other" : "known", fmt::format("machine {}", machine),
                        fmt::format("model {}", model), false};
        each.configuration = fmt::format("layout {}", row);
        each.release = "1.0";
        each.log_ratio = level + step_spread * stream.normal();
        each.moves = AssumedMoves{0.1, 0.05, 0.2};
        found.push_back(each);
      }
    }
  }
  return found;
}

StepErrors errors_of(const std::vector<Observation>& observations) {
  Residuals residuals = summarised(observations);
  residuals.name = "drawn";
  residuals.components = fitted_components(residuals.groups);
  return StepErrors(residuals);
}

double half(const Band& band) { return band.widest().log_ratios.high; }

}  // namespace

TEST_CASE("pairs of machines are of one release, model and precision") {
  Observation one;
  one.subject = {"known", "machine 0", "model", false};
  one.release = "1.0";
  Observation other = one;
  CHECK_FALSE(is_machine_pair(one, other));
  other.subject.machine = "machine 1";
  CHECK(is_machine_pair(one, other));
  const auto differs = [&](auto change) {
    Observation changed = other;
    change(changed);
    return !is_machine_pair(one, changed);
  };
  CHECK(differs([](Observation& each) { each.release = "2.0"; }));
  CHECK(differs([](Observation& each) { each.subject.software = "other"; }));
  CHECK(differs([](Observation& each) { each.subject.model = "another"; }));
  CHECK(differs([](Observation& each) { each.subject.low_precision = true; }));
  one.release = other.release = "";  // not told
  CHECK_FALSE(is_machine_pair(one, other));
}

TEST_CASE("the ratio of two machines in one software: its level cancels") {
  const Residuals small = summarised(drawn(1, 0.1));
  const Residuals large = summarised(drawn(1, 3));
  REQUIRE(small.machine_ratios.size() == 30);  // 10 pairs of machines, 3 models
  CHECK(small.machine_ratios.front().pairs == 9);
  const double of_small = half(errors_of(drawn(1, 0.1)).machine_ratio_band("known", {}, 0));
  const double of_large = half(errors_of(drawn(1, 3)).machine_ratio_band("known", {}, 0));
  CHECK(of_small == Approx(of_large).epsilon(1e-9));
  CHECK(errors_of(drawn(1)).machine_ratio_band("known", {}, 0).basis == Basis::software);
}

TEST_CASE("90 % bands hold about 90 % of the ratios of a machine that was left out") {
  // Of 200 draws the first machine is left out, and its pairs with the other four are judged: three
  // models and 3 x 3 steps each. They share the machine's error, so that draws count, not pairs.
  double inside = 0;
  constexpr int runs = 200;
  for (std::uint32_t run = 0; run < runs; ++run) {
    const std::vector<Observation> all = drawn(run);
    std::vector<Observation> left;
    for (const Observation& each : all) {
      if (each.subject.machine != "machine 0") left.push_back(each);
    }
    const double reach = half(errors_of(left).machine_ratio_band("known", {}, 0));
    int held = 0;
    int pairs = 0;
    for (const Observation& one : all) {
      for (const Observation& other : all) {
        if (one.subject.machine != "machine 0" || !is_machine_pair(one, other)) continue;
        held += std::abs(one.log_ratio - other.log_ratio) <= reach ? 1 : 0;
        ++pairs;
      }
    }
    REQUIRE(pairs == 4 * 3 * 9);
    inside += static_cast<double>(held) / pairs / runs;
  }
  CHECK(inside >= 0.85);
  CHECK(inside <= 0.95);
}

TEST_CASE("a software that was not measured on two machines has a wider ratio") {
  const StepErrors errors = errors_of(drawn(2));
  const Band known = errors.machine_ratio_band("known", {}, 0);
  for (const char* software : {"other", "another", ""}) {
    const Band band = errors.machine_ratio_band(software, {}, 0);
    CHECK(band.basis == Basis::nothing);
    CHECK(half(band) > half(known));
  }
  std::vector<Observation> single = drawn(2);
  std::erase_if(single, [](const Observation& each) {
    return each.subject.machine != "machine 0" && each.subject.machine != "machine 5";
  });
  Residuals residuals = summarised(single);
  CHECK(residuals.machine_ratios.empty());
}

TEST_CASE("hosts and NICs beyond those of the pairs, and other terms, widen a ratio of machines") {
  const StepErrors errors = errors_of(drawn(3));
  const double usual = half(errors.machine_ratio_band("known", {}, 0));
  // Pairs have no difference of hosts, and NICs of 0.2 x sqrt(2) = 0.283.
  CHECK(half(errors.machine_ratio_band("known", {0, 0, 0.28}, 0)) == usual);
  CHECK(half(errors.machine_ratio_band("known", {0, 0, 0.5}, 0)) > usual);
  const double moved = half(errors.machine_ratio_band("known", {0.3, 0, 0}, 0));
  CHECK(moved == Approx(std::hypot(usual, 1.6448536 * 0.42 / std::log(2.0) * 0.3)).epsilon(1e-6));
  CHECK(half(errors.machine_ratio_band("known", {0, 0.3, 0}, 0)) == Approx(moved).epsilon(1e-9));
  CHECK(half(errors.machine_ratio_band("known", {}, 0, 0.1)) ==
        Approx(std::hypot(usual, 0.16448536)).epsilon(1e-6));
}

TEST_CASE("of a host that is off alike on both machines the difference counts") {
  const AssumedMoves between = moves_between({0.4, 0.3, 0.3}, {0.1, 0.35, 0.4});
  CHECK(between.host_slower == Approx(0.3));
  CHECK(between.host_faster == Approx(0.05));
  CHECK(between.crossing == Approx(0.5));
}

TEST_CASE("two steps that differ more than the pairs of machines do are known less well") {
  std::vector<Observation> observations = drawn(1);
  for (std::size_t at = 0; at < observations.size(); ++at) {
    observations[at].parts = {1, 0.2 * static_cast<double>(at % 3)};
  }
  const StepErrors errors = errors_of(observations);
  double sum = 0;
  for (const MachinePairs& group : errors.residuals().machine_ratios) sum += *group.distance;
  const double usual = sum / static_cast<double>(errors.residuals().machine_ratios.size());
  CHECK(usual > 0);
  const double near = half(errors.machine_ratio_band("known", {}, usual));
  CHECK(half(errors.machine_ratio_band("known", {}, 0)) == near);
  CHECK(half(errors.machine_ratio_band("known", {}, 1)) ==
        Approx(near * distance_reach(1) / distance_reach(usual)).epsilon(1e-9));
}

TEST_CASE("a machine that is faster in all parts alike is no other step") {
  CHECK(share_distance({1, 2, 3}, {2, 4, 6}) == Approx(0).margin(1e-12));
  CHECK(share_distance({1, 1}, {1, 0}) == Approx(1));
}
