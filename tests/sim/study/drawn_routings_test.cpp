#include "sim/study/search/drawn_routings.hpp"

#include "sim/routing/routers/router_name.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::study;
using training::TrainingJob;

namespace {

// Four layers of 128 experts on 8 ranks.
TrainingJob job(const char* router, bool pads = false) {
  TrainingJob made;
  made.profile = std::make_shared<const profile::Profile>(profile::Profile::load("h100-sxm"));
  made.cluster = std::make_shared<const cluster::Cluster>(cluster::Cluster::load("hgx-h100"));
  model::Model small = model::Model::load("qwen3-30b-a3b");
  small.layers = 4;
  made.model = std::make_shared<const model::Model>(small);
  made.layout.sizes.gpus = 8;
  made.layout.sizes.expert = 8;
  made.layout.sequence_length = 4096;
  made.layout.global_batch = 64;
  training::DrawnRouting drawn;
  drawn.router = routing::parse_router(router, 8, 8);
  drawn.router.capacity_convention = routing::CapacityConvention::library;
  drawn.router.capacity_factor = Decimal::parse("1", "test");
  drawn.router.padding = pads ? routing::Padding::capacity : routing::Padding::none;
  made.routing = drawn;
  return made;
}

template <class Compare>
bool holds_of_all(const training::DrawnLoads& one, const training::DrawnLoads& other,
                  Compare compare) {
  for (int layer = 0; layer < one.layers(); ++layer) {
    const training::MoeLoad left = one.at(layer, 0, 0);
    const training::MoeLoad right = other.at(layer, 0, 0);
    if (!compare(left.computed, right.computed) || !compare(left.exchanged, right.exchanged)) {
      return false;
    }
  }
  return one.layers() == other.layers();
}

}  // namespace

TEST_CASE("losses of several numbers of tokens share their pilots, and are those of each alone") {
  for (const char* name : {"topk", "topk+fr+ir"}) {
    std::vector<TrainingJob> jobs;
    routing::DrawCache draws(std::size_t{64} << 20);
    std::size_t pilots = 0;
    for (const std::int64_t length : {4096, 8192}) {
      TrainingJob& one = jobs.emplace_back(job(name));
      one.layout.sequence_length = length;
      const std::vector<TrainingJob> alone = {one};
      const auto kept = training::drawn_losses(alone, 4, &draws).front();
      const auto drawn = training::drawn_losses(alone, 4).front();
      CHECK(kept.loss.residual_loss == drawn.loss.residual_loss);
      CHECK(kept.loss.lost_mass == drawn.loss.lost_mass);
      CHECK(kept.error == drawn.error);
      CHECK(kept.loss.residual_loss > 0);
      if (pilots == 0) pilots = draws.pilots.bytes();
      CHECK(pilots > 0);
      CHECK(draws.pilots.bytes() == pilots);
    }
  }
}

TEST_CASE("rows without losses are those of a step") {
  for (const char* name : {"topk", "topk+fr", "topk+ir", "topk+fr+ir", "dropless"}) {
    const TrainingJob asked = job(name);
    DrawnRoutings drawn;
    const auto loads = drawn.loads(asked);
    const auto rows = drawn.rows(asked);
    CHECK(holds_of_all(*rows, *loads, std::equal_to<>()));
    const std::vector<int> layers = {0, 1, 2, 3};
    CHECK(rows->held_load(layers) == loads->held_load(layers));
    CHECK(rows->figures().p99_load == loads->figures().p99_load);
    CHECK((loads->figures().loss.residual_loss > 0) == asked.routing->router.has_capacity());
  }
}

TEST_CASE("what is kept is the least of what is rectified too, and drawn once for both") {
  for (const char* name : {"topk+ir", "topk+fr+ir"}) {
    const TrainingJob asked = job(name);
    DrawnRoutings drawn;
    const DrawnRoutings::Least least = drawn.least(asked);
    CHECK_FALSE(least.are_own);
    const auto rows = drawn.rows(asked);
    CHECK(holds_of_all(*least.loads, *rows, std::less_equal<>()));
    CHECK_FALSE(holds_of_all(*least.loads, *rows, std::equal_to<>()));
    const std::string plain = std::string(name).substr(0, std::string(name).size() - 3);
    const TrainingJob same = job(plain.c_str());
    CHECK(drawn.rows(same) == least.loads);
    CHECK(drawn.drawn() == 2);
  }
  DrawnRoutings drawn;
  for (const char* name : {"topk", "topk+fr", "dropless"}) {
    const TrainingJob asked = job(name);
    CHECK(drawn.least(asked).are_own);
  }
  // Padded blocks are as long whatever they keep.
  const TrainingJob padded = job("topk+ir", true);
  CHECK(drawn.least(padded).are_own);
  // Few tokens are drawn token by token, whose losses cost nothing.
  TrainingJob few = job("topk");
  few.layout.sequence_length = 128;
  CHECK(drawn.rows(few) == drawn.loads(few));
}

TEST_CASE("routings that differ in padding alone are drawn apart") {
  const TrainingJob asked = job("topk");
  const TrainingJob padded = job("topk", true);
  DrawnRoutings drawn;
  const auto sent = drawn.loads(asked);
  CHECK(drawn.loads(padded) != sent);
  CHECK(drawn.loads(padded)->at(0, 0, 0).computed == 1);  // CF 1
  CHECK(sent->at(0, 0, 0).computed < 1);
}

TEST_CASE("precisions share what is drawn, and dispatchers that send alike") {
  const auto with = [](TrainingJob made, const char* dispatcher) {
    made.dispatcher =
        std::make_shared<const profile::Dispatcher>(profile::Dispatcher::load(dispatcher));
    return made;
  };
  const TrainingJob asked = job("topk");
  TrainingJob other = asked;
  other.states.precision = model::Precision::fp8_current;
  DrawnRoutings drawn;
  CHECK(drawn.loads(asked) == drawn.loads(other));
  CHECK(drawn.drawn() == 1);
  // What a dispatcher's busiest port has to do is of its copies, not of rows.
  const TrainingJob sent = with(asked, "deepep");
  other = with(other, "deepep");
  CHECK(drawn.loads(asked) != drawn.loads(sent));
  CHECK(drawn.loads(sent) == drawn.loads(other));
  const TrainingJob by_expert = with(asked, "low-latency");
  CHECK(drawn.loads(sent) != drawn.loads(by_expert));
  CHECK(drawn.drawn() == 3);
}

TEST_CASE("loads beyond the bound are drawn again, and are the same") {
  DrawnRoutings all;
  DrawnRoutings few(1);  // the last one alone
  std::vector<TrainingJob> jobs;
  for (const char* name : {"topk", "topk+ir", "dropless"}) jobs.push_back(job(name));
  for (int round = 0; round < 2; ++round) {
    for (const TrainingJob& asked : jobs) {
      const auto kept = all.loads(asked);
      const auto again = few.loads(asked);
      CHECK(holds_of_all(*kept, *again, std::equal_to<>()));
      CHECK(kept->figures().loss.residual_loss == again->figures().loss.residual_loss);
      CHECK(few.bytes() == again->bytes());
    }
  }
  CHECK(all.drawn() == 3);
  CHECK(few.drawn() == 6);
  CHECK(all.bytes() < DrawnRoutings::usual_bytes);
}

TEST_CASE("a loss is of what is drawn, not of the number of a routing") {
  const TrainingJob plain = job("topk");
  const TrainingJob rectified = job("topk+ir");
  std::size_t draws = 0;
  DrawnRoutings drawn;
  const auto count = [&](std::size_t /*all*/) { ++draws; };
  drawn.draw_losses({&plain}, 1, count);
  // Another router of the same number is another routing, and the same one of another number is
  // not.
  drawn.draw_losses({&rectified, &plain}, 1, count);
  CHECK(draws == 2);
  const double lost = drawn.loss(plain).loss.residual_loss;
  CHECK(lost > 0);
  CHECK(drawn.loss(rectified).loss.residual_loss < lost);
  TrainingJob other = plain;
  other.routing->seed = 2;
  drawn.draw_losses({&other}, 1, count);
  CHECK(draws == 3);
  CHECK(drawn.loss(other).loss.residual_loss != lost);
}

TEST_CASE(
    "capacities and layouts that share counts or a sample have the loads that each has alone") {
  std::vector<TrainingJob> jobs;
  for (const char* name :
       {"topk", "topk+fr", "topk+ir", "topk+fr+ir", "bias-balanced:0.001:50+groups:4:2"}) {
    for (const char* factor : {"1", "1.25"}) {
      for (const int micro_batch : {1, 2}) {
        TrainingJob made = job(name);
        made.routing->router.capacity_factor = Decimal::parse(factor, "test");
        made.routing->seed = 3;
        made.layout.micro_batch = micro_batch;
        jobs.push_back(made);
        // As many tokens of a group, on fewer ranks: the same sample.
        made.layout.sizes.expert = 8 / (2 / micro_batch);
        made.layout.micro_batch = 2;
        jobs.push_back(made);
      }
    }
  }
  // Kept, and not: of one byte each forgets all but the last.
  DrawnRoutings together;
  DrawnRoutings forgetful(1);
  for (const TrainingJob& asked : jobs) {
    DrawnRoutings alone;
    const auto own = alone.loads(asked);
    CAPTURE(asked.routing->router.name(), asked.layout.sizes.expert, asked.layout.micro_batch);
    for (DrawnRoutings* drawn : {&together, &forgetful}) {
      const auto shared = drawn->loads(asked);
      CHECK(holds_of_all(*shared, *own, std::equal_to<>()));
      CHECK(shared->figures().loss.residual_loss == own->figures().loss.residual_loss);
      CHECK(shared->figures().mean_expert_load == own->figures().mean_expert_load);
    }
  }
}

TEST_CASE(
    "a loss that was not drawn, as the draws were stopped, is drawn when it is asked for again") {
  const TrainingJob asked = job("topk");
  TrainingJob other = asked;
  other.layout.micro_batch = 2;  // drawn apart
  DrawnRoutings drawn;
  struct Enough {};
  CHECK_THROWS_AS(drawn.draw_losses({&asked, &other}, 1, [](std::size_t) { throw Enough(); }),
                  Enough);
  CHECK(drawn.knows_loss(asked) != drawn.knows_loss(other));  // one of them was
  drawn.draw_losses({&asked, &other}, 1);
  CHECK(drawn.knows_loss(asked));
  CHECK(drawn.loss(other).loss.residual_loss > 0);
  CHECK(drawn.loss(asked).loss.residual_loss > 0);
}

TEST_CASE("layouts that share the tokens of a pilot have the loads that each has alone") {
  std::vector<TrainingJob> jobs;
  for (const char* name : {"topk+ir", "topk+fr+ir"}) {
    for (const int gpus : {8, 16}) {
      for (const int micro_batch : {1, 2}) {
        TrainingJob made = job(name);
        made.layout.sizes.gpus = gpus;
        made.layout.micro_batch = micro_batch;
        jobs.push_back(made);
      }
    }
  }
  DrawnRoutings together;
  for (const TrainingJob& asked : jobs) {
    DrawnRoutings alone;
    const auto own = alone.loads(asked);
    const auto shared = together.loads(asked);
    CAPTURE(asked.routing->router.name(), asked.layout.sizes.gpus, asked.layout.micro_batch);
    CHECK(holds_of_all(*shared, *own, std::equal_to<>()));
    CHECK(shared->figures().loss.residual_loss == own->figures().loss.residual_loss);
    CHECK(own->figures().loss.residual_loss > 0);
  }
}
