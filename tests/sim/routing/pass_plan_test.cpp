#include "sim/routing/simulation/pass_plan.hpp"

#include "tests/support/catch.hpp"

using namespace moesim::routing;

// 256 layers of 10 ms for the logits and 1 ms a job: 2.56 s and 0.256 s of all replicas.
namespace {
constexpr PassCost cost{0.010, 0.001};
constexpr double layers = 256;
}  // namespace

TEST_CASE("the cost of a pass follows from a layer of one job and of all") {
  // draw + job = 11 ms, draw + 40 job = 50 ms.
  const PassCost found = measured_cost(0.011, 0.050, 40);
  CHECK_THAT(found.draw, Catch::Matchers::WithinAbs(0.010, 1e-12));
  CHECK_THAT(found.job, Catch::Matchers::WithinAbs(0.001, 1e-12));
  CHECK_THAT(found.of_layer(40), Catch::Matchers::WithinAbs(0.050, 1e-12));
  // A first layer that took longer than that of all: a job takes a little all the same.
  const PassCost odd = measured_cost(0.060, 0.048, 3);
  CHECK_THAT(odd.job, Catch::Matchers::WithinAbs(0.001, 1e-12));
  CHECK_THAT(odd.draw, Catch::Matchers::WithinAbs(0.045, 1e-12));
}

TEST_CASE("a pass takes no longer than its limit, but for the drawing") {
  const std::size_t many = 1000;
  // (20 s / 256 - 10 ms) / 1 ms = 68.1 jobs.
  CHECK(jobs_of_pass(cost, layers, many, 1, {20, 1}) == 68);
  // Two threads: (40 s / 256 - 10 ms) / 1 ms = 146.25.
  CHECK(jobs_of_pass(cost, layers, many, 1, {20, 2}) == 146);
  // In 1 s not even the logits are drawn: as many jobs as take as long as that, then three and
  // seven times as long, in the end nine times.
  CHECK(jobs_of_pass(cost, layers, 100, 0, {1, 1}) == 10);
  CHECK(jobs_of_pass(cost, layers, many, 1, {1, 1}) == 30);
  CHECK(jobs_of_pass(cost, layers, many, 2, {1, 1}) == 70);
  CHECK(jobs_of_pass(cost, layers, many, 3, {1, 1}) == 90);
  CHECK(jobs_of_pass(cost, layers, many, 50, {1, 1}) == 90);
}

TEST_CASE("a first pass has few jobs where drawing once more takes little") {
  // Drawing is 2.56 s of 256 (190 + 10) = 51.2 s, a twentieth; of 48.6 s it is more.
  CHECK(jobs_of_pass(cost, layers, 190, 0, {20, 1}) == 4);
  CHECK(jobs_of_pass(cost, layers, 180, 0, {20, 1}) == 68);
  CHECK(jobs_of_pass(cost, layers, 190, 0, {20, 16}) == 16);
  // A tenth of a second, of 0.35 s in all.
  CHECK(jobs_of_pass(cost, 10, 25, 0, {20, 1}) == 4);
  CHECK(jobs_of_pass(cost, 10.1, 25, 0, {20, 1}) == 25);
}

TEST_CASE("a pass has a job for each thread, and takes the last few along") {
  CHECK(jobs_of_pass(cost, layers, 1000, 0, {0.001, 64}) == 64);
  CHECK(jobs_of_pass(cost, layers, 12, 0, {1, 1}) == 12);
  CHECK(jobs_of_pass(cost, layers, 13, 0, {1, 1}) == 10);
  CHECK(jobs_of_pass(cost, layers, 3, 0, {1, 1}) == 3);
}

TEST_CASE("without a limit all jobs are in one pass") {
  CHECK(jobs_of_pass(cost, layers, 1000, 0, {}) == 1000);
  CHECK(jobs_of_pass({}, layers, 1000, 0, {1, 1}) == 1000);
}
