#include <cmath>

#include "tests/support/catch.hpp"
#include "tests/support/drawn_job.hpp"

using namespace moesim;
using namespace moesim::training;

TEST_CASE("a rank overflows as often as the law of its rows says") {
  // One micro-batch of one group, all experts alike: P(max > rows), of 16 x 58 layers drawn.
  for (const char* scores : {"gaussian:0", "gaussian:0.1"}) {
    TrainingJob job = job_of("deepseek-v3", 32, 1, 32, 16);
    job.routing = drawn("dropless", nullptr, scores, per_micro_batch);
    const RankRowsLaw law(job);
    const DrawnLoads loads(job);
    for (const double load : {1.008, 1.012, 1.02, 1.2, 1.3}) {
      double over = 0;
      for (int layer = 0; layer < 58; ++layer) {
        for (int micro = 0; micro < 16; ++micro) {
          over += loads.at(layer, 0, micro).computed > load ? 1 : 0;
        }
      }
      const double chance = law.overflow_chance_of_one(load * 8 * 4096);
      // 3.6 standard deviations of the count at most, and the rounding of loads to 1/1024.
      CHECK(over / (58 * 16) == Approx(chance).margin(0.06));
    }
  }
}

TEST_CASE("a step overflows if any of its ranks does") {
  TrainingJob job = job_of("deepseek-v3", 64, 1, 32, 16);
  job.routing = drawn("dropless", nullptr, "gaussian:0", per_micro_batch);
  const RankRowsLaw law(job);
  const double rows = 1.025 * 8 * 4096;
  const double one = law.overflow_chance_of_one(rows);
  // 58 layers alike, 16 micro-batches, 2 groups.
  CHECK(law.overflow_chance(rows) == Approx(1 - std::pow(1 - one, 58 * 16 * 2)).epsilon(1e-6));
  CHECK(law.overflow_chance(8 * 4096) == 1);
  CHECK(law.overflow_chance(8 * law.rows_for(0.01) / 8) <= 0.01);
  CHECK(law.overflow_chance(law.rows_for(0.01) - 2) > 0.01);
}

TEST_CASE("a capacity per rank saves host reads and pays for reruns") {
  TrainingJob job = job_of("qwen3-30b-a3b", 64, 2, 8, 8);
  job.host = {0, 20, 0};
  DrawnRouting routing = drawn("dropless", nullptr, "gaussian:0.1", per_micro_batch);
  const TrainingStep dropless = with(job, routing);
  routing.rank_capacity = 2;
  const TrainingStep wide = with(job, routing);
  CHECK(wide.rank_capacity->rows == 65536);  // 2 x 8 x 4096, a multiple of 256
  CHECK(wide.rank_capacity->overflow_chance < 1e-9);
  CHECK(wide.step_us < dropless.step_us);
  CHECK(wide.parts[static_cast<std::size_t>(TrainingPart::host)] == 0);
  CHECK(wide.rank_capacity->rerun_us == dropless.step_us);
  CHECK(wide.routing->loss.residual_loss == 0);
  routing.rank_capacity = 1.001;
  const TrainingStep narrow = with(job, routing);
  CHECK(narrow.rank_capacity->rows == 33024);  // 32,800 rounded up to 129 x 256
  CHECK(narrow.rank_capacity->overflow_chance == 1);
  CHECK(narrow.step_us == Approx(narrow.rank_capacity->static_step_us + dropless.step_us));
  // Every step runs again without a budget: its memory has to be there too.
  CHECK(narrow.peak_memory() == dropless.peak_memory());
  CHECK(narrow.peak_memory() < wide.peak_memory());
  routing = drawn("topk", "1", "gaussian:0.1");
  routing.rank_capacity = 1.5;
  CHECK_THROWS_WITH(with(job, routing), ContainsSubstring("leave --capacity-factor out"));
}
