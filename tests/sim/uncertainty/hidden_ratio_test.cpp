#include "sim/uncertainty/ratios/hidden_ratio.hpp"

#include <cmath>

#include "sim/uncertainty/bands/terms.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/training_job.hpp"

using namespace moesim;
using namespace moesim::uncertainty;

namespace {

const Subject known_subject{"megatron-bridge", "NVIDIA B200", "qwen3-30b-a3b", true, 400};

const StepErrors& published() {
  static const StepErrors errors(Residuals::load("training"));
  return errors;
}

// The band of a step with one trait, which decides a fifth of it.
Band band_of(const std::string& trait, double hidden, const AssumedMoves& moves = {}) {
  return published().band(known_subject, usual_levels(), {{trait, 1, 0.2, hidden}}, moves);
}

}  // namespace

TEST_CASE("lower ends are those of the step with its exchanges hidden") {
  const double gain = std::log(8.1 / 4.4);
  // Beyond all that else moves the ends.
  const AssumedMoves moves{0.6, 0.4, 0.5};
  const Band without = band_of("zero:3", 0, moves);
  const Band band = band_of("zero:3", gain, moves);
  REQUIRE(band.unmeasured.size() == 1);
  CHECK(hidden_gain(band.unmeasured) == gain);
  for (std::size_t level = 0; level < band.levels.size(); ++level) {
    const Interval& before = without.levels[level].log_ratios;
    // 8.1 s times the low factor is 4.4 s times what that was.
    CHECK(8.1 * std::exp(band.levels[level].log_ratios.low) == Approx(4.4 * std::exp(before.low)));
    CHECK(band.levels[level].log_ratios.high == before.high);
  }
  // A band of one's own software, of whose steps none has it.
  Band own;
  own.levels = symmetric_levels(8, 0.1);
  const Interval narrow = own.widest().log_ratios;
  published().widen_by({{{"zero:3", 1, 0, gain}, 0, ""}}, own);
  CHECK(own.widest().log_ratios.low == Approx(narrow.low - gain));
  CHECK(own.widest().log_ratios.high == narrow.high);
}

TEST_CASE("what measured steps have is known, however much could be hidden") {
  const Band band = band_of("zero:1", 0.5);
  CHECK(band.unmeasured.empty());
  CHECK(band.widest().log_ratios == band_of("zero:1", 0).widest().log_ratios);
}

TEST_CASE("a ratio moves to the side of the step of which more may be hidden") {
  Band ratio;
  ratio.levels = {{0.9, {-0.2, 0.2}}, {0.5, {-0.1, 0.1}}};
  const auto widened = [&](double one, double other) {
    Band wide = ratio;
    widen_by_hidden(one, other, wide);
    return wide.levels.back().log_ratios;
  };
  CHECK(widened(0.3, 0).low == -0.1);
  CHECK(widened(0.3, 0).high == Approx(0.4));
  CHECK(widened(0, 0.3).low == Approx(-0.4));
  CHECK(widened(0, 0.3).high == 0.1);
  // One software runs both.
  CHECK(widened(0.3, 0.3) == Interval{-0.1, 0.1});
  CHECK(widened(0.1, 0.3).low == Approx(-0.3));
}

TEST_CASE("steps of ZeRO 2 and 3 say what may be hidden of their exchanges") {
  training::TrainingJob job = training::qwen_on_h100(64, 1, 8, 256);
  const auto hidden_of = [&](int zero) {
    job.states.zero = zero;
    training::TrainingStep step = training::training_step(job);
    training::add_hidden_parts(job, step);
    return std::pair(hidden_gain(unmeasured_traits({}, "", traits_of(job, step))),
                     training::hidden_gain(step));
  };
  CHECK(hidden_of(1).first == 0);
  for (const int zero : {2, 3}) {
    const auto [of_traits, of_step] = hidden_of(zero);
    CHECK(of_traits > 0.1);
    CHECK(of_traits == of_step);
  }
}
