#include "sim/uncertainty/steps/assumed_moves.hpp"

#include <cmath>
#include <string>
#include <vector>

#include "sim/uncertainty/published/step_errors.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/training_job.hpp"

using namespace moesim;
using namespace moesim::uncertainty;

namespace {

const Subject known_subject{"megatron-bridge", "NVIDIA B200", "qwen3-30b-a3b", true, 400};

StepErrors errors_with(const AssumedMoves& measured) {
  Residuals residuals = Residuals::load("training");
  for (ResidualGroup& group : residuals.groups) group.moves = measured;
  return StepErrors(residuals);
}

}  // namespace

TEST_CASE("at 90 % the host is off by a factor of two, the law of NICs by 1.645 times 20 %") {
  // 1.645 x 0.42 is the log of 2 to a third of a percent.
  const MovedEnds host = moved_ends({0.5, 0.2, 0}, 0.9);
  CHECK(host.high == Approx(0.5).epsilon(0.004));
  CHECK(host.low == Approx(0.2).epsilon(0.004));
  // Half of the step takes e^0.329 times as long, or that much less.
  const MovedEnds exchanges = moved_ends({0, 0, 0.5}, 0.9);
  CHECK(exchanges.high == Approx(std::log(0.5 + 0.5 * std::exp(0.329))).epsilon(1e-3));
  CHECK(exchanges.low == Approx(-std::log(0.5 + 0.5 * std::exp(-0.329))).epsilon(1e-3));
  CHECK(exchanges.high > exchanges.low);
  const MovedEnds both = moved_ends({0.5, 0.2, 0.5}, 0.9);
  CHECK(both.high == Approx(std::hypot(host.high, exchanges.high)));
  CHECK(moved_ends({0.5, 0.2, 0}, 0.5).high < 0.5 * host.high);
  CHECK(moved_ends({}, 0.9).low == 0);
}

TEST_CASE("only what a step hangs on more than the measured ones makes its band wider") {
  const AssumedMoves measured{0.3, 0.1, 0.2};
  const StepErrors errors = errors_with(measured);
  const Band known = errors.band(known_subject);
  const auto asked = [&](const AssumedMoves& moves) {
    return errors.band(known_subject, usual_levels(), {}, moves);
  };
  const Band alike = asked(measured);
  CHECK(alike.moves == AssumedMoves());
  for (std::size_t at = 0; at < known.levels.size(); ++at) {
    CHECK(alike.levels[at].log_ratios == known.levels[at].log_ratios);
  }
  // A step that hardly waits yet: only its upper end moves.
  const Interval before = known.widest().log_ratios;
  const Interval waiting = asked({0.6, 0.1, 0}).widest().log_ratios;
  const double centre = known.expected.mean;
  const double moved = 0.3 * 1.645 * 0.42 / std::log(2);
  CHECK(waiting.low == before.low);
  CHECK(waiting.high - centre == Approx(std::hypot(before.high - centre, moved)).epsilon(1e-3));
  CHECK(asked({0.6, 0.1, 0}).expected.mean == centre);
  const Interval crossing = asked({0, 0, 0.8}).widest().log_ratios;
  CHECK(crossing.low < before.low);
  CHECK(crossing.high > before.high);
}

TEST_CASE("launches and reads whose time was given do not move, each by itself") {
  const auto asked = [](bool assumes_launch, bool assumes_read) {
    training::TrainingJob job = training::qwen_on_h100(16, 1, 8, 64);
    job.host = {};
    job.host.assumes_launch = assumes_launch;
    job.host.assumes_read = assumes_read;
    return moves_of(job, training::training_step(job));
  };
  const AssumedMoves assumed = asked(true, true);
  const AssumedMoves reads = asked(false, true);
  const AssumedMoves launches = asked(true, false);
  const AssumedMoves neither = asked(false, false);
  CHECK(neither.host_slower == 0);
  CHECK(neither.host_faster == 0);
  CHECK(reads.host_slower > 0);
  CHECK(launches.host_slower > reads.host_slower);
  CHECK(launches.host_slower < assumed.host_slower);
  CHECK(reads.host_faster > 0);
  CHECK(launches.host_faster < assumed.host_faster);
  CHECK(neither.crossing == assumed.crossing);
}

TEST_CASE("moves that a step has are taken, in place of pricing it again") {
  training::TrainingJob job = training::qwen_on_h100(16, 1, 8, 64);
  job.host = {};
  training::TrainingStep step = training::training_step(job);
  const AssumedMoves priced = moves_of(job, step);
  REQUIRE(priced.host_slower > 0);
  training::add_host_moves(job, step);
  CHECK(moves_of(job, step) == priced);
  step.host_moves = training::HostMoves{2, 1};
  training::add_host_moves(job, step);
  CHECK(moves_of(job, step) == AssumedMoves{2, 1, priced.crossing});
}

TEST_CASE("a document that does not say what its steps hang on widens nothing") {
  Residuals residuals = Residuals::load("training");
  for (ResidualGroup& group : residuals.groups) group.moves.reset();
  const StepErrors errors(residuals);
  const Band band = errors.band(known_subject, usual_levels(), {}, {0.7, 0.7, 0.7});
  CHECK(band.widest().log_ratios == errors.band(known_subject).widest().log_ratios);
}

TEST_CASE("a group keeps the mean of what its steps hang on, in a document, too") {
  std::vector<Observation> observations(3);
  for (std::size_t at = 0; at < observations.size(); ++at) {
    observations[at].subject = known_subject;
    observations[at].configuration = std::string(1, static_cast<char>('a' + at));
    observations[at].log_ratio = 0.1 * static_cast<double>(at);
  }
  observations[0].moves = AssumedMoves{0.2, 0.1, 0.4};
  observations[1].moves = AssumedMoves{0.4, 0, 0};
  const Residuals found = summarised(observations);
  REQUIRE(found.groups.size() == 1);
  REQUIRE(found.groups[0].moves);
  CHECK(found.groups[0].moves->host_slower == Approx(0.3));
  CHECK(found.groups[0].moves->host_faster == Approx(0.05));
  CHECK(found.groups[0].moves->crossing == Approx(0.2));
  CHECK(found.text().find("\"host_slower\":0.3") != std::string::npos);
  for (const ResidualGroup& group : Residuals::load("training").groups) CHECK(group.moves);
}
