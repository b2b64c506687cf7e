#include "sim/study/search/training_search.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "sim/base/error.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/study/search/drawn_routings.hpp"
#include "tests/sim/study/small_search.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::study;
using training::TrainingJob;

namespace {

std::vector<FoundStep> best_of(const std::vector<FoundStep>& by_speed, std::size_t count,
                               double max_loss) {
  std::vector<FoundStep> best;
  for (const FoundStep& step : by_speed) {
    const bool known = std::any_of(best.begin(), best.end(), [&](const FoundStep& other) {
      return same_sizes(step.job, other.job) && 0.99 * other.loss <= step.loss;
    });
    if (!known && step.loss <= max_loss && best.size() < count) best.push_back(step);
  }
  return best;
}

void check_same(const std::vector<FoundStep>& found, const std::vector<FoundStep>& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t at = 0; at < found.size(); ++at) {
    CHECK(found[at].step.step_us == expected[at].step.step_us);
    CHECK(found[at].loss == Approx(expected[at].loss).epsilon(0.05).margin(1e-4));
    CHECK(same_layout(found[at].job, expected[at].job));
  }
}

// As a search draws it, but of each job by itself.
double loss_of(const training::TrainingJob& job) {
  DrawnRoutings drawn;
  drawn.draw_losses({&job}, 1);
  return drawn.loss(job).loss.residual_loss;
}

}  // namespace

TEST_CASE("the best five are those of an exhaustive search") {
  const TrainingSearch asked = search();
  const std::vector<FoundStep> by_speed = ranked(asked);
  const TrainingFound found = search_training(asked);
  check_same(found.best, best_of(by_speed, 5, 0));
  CHECK(found.counts.violations == 0);
  CHECK(found.counts.candidates > 500);
  CHECK(found.counts.too_large > 50);
  CHECK(found.counts.simulated < found.counts.candidates / 5);
  CHECK(found.front.size() == 1);
  // Bands ask for them: the loads are not drawn again.
  for (const FoundStep& each : found.best) {
    REQUIRE(each.step.host_moves.has_value());
    CHECK(each.step.host_moves->slower == training::host_moves(each.job, each.step).slower);
  }
}

TEST_CASE("the best of one's own software are those of an exhaustive search") {
  TrainingSearch asked = search();
  asked.space.expert_tensor = {1};
  asked.space.recompute.resize(2);
  const TrainingFound plain = search_training(asked);
  using uncertainty::Unknown;
  const auto check_software = [&](double exchange, double host, double experts, double nic) {
    uncertainty::StepSoftware software;
    const auto set = [&](Unknown unknown, double factor) {
      software.unknowns[static_cast<std::size_t>(unknown)] = std::log(factor);
    };
    set(Unknown::level, 1.2);
    set(Unknown::exchange, exchange);
    set(Unknown::host, host);
    set(Unknown::experts, experts);
    set(Unknown::nic, nic);
    software.unknowns[static_cast<std::size_t>(Unknown::fixed_ms)] = 30;
    asked.software = std::make_shared<const uncertainty::StepSoftware>(software);
    const TrainingFound found = search_training(asked);
    check_same(found.best, best_of(ranked(asked), 5, 0));
    CHECK(found.counts.violations == 0);
    REQUIRE(found.best.front().predicted.has_value());
    CHECK(found.best.front().step.step_us > found.best.front().predicted->step_us);
    return same_sizes(found.best.front().job, plain.best.front().job);
  };
  CHECK(check_software(1, 1, 1, 1));
  CHECK_FALSE(check_software(8, 1.5, 1, 4));  // the order changes
  check_software(0.6, 0.8, 1.3, 0.9);
}

TEST_CASE("one's own software that prices the host is searched with its times") {
  TrainingSearch asked = search();
  asked.space.expert_tensor = {1};
  asked.space.recompute.resize(1);
  const TrainingFound plain = search_training(asked);
  uncertainty::StepSoftware software;
  const auto host = static_cast<std::size_t>(uncertainty::Unknown::host);
  software.prices_host = true;
  software.unknowns[host] = std::log(2);
  software.covariance[host][host] = 0.01;
  asked.software = std::make_shared<const uncertainty::StepSoftware>(software);
  asked.space.base.host.factor = software.host_factor();
  const TrainingFound found = search_training(asked);
  check_same(found.best, best_of(ranked(asked), 5, 0));
  CHECK(found.counts.violations == 0);
  // Layouts that wait for the host fall behind.
  CHECK(found.best.front().step.step_us > plain.best.front().step.step_us);
  for (const FoundStep& each : found.best) {
    REQUIRE(each.step.host_gain_us.has_value());
    CHECK(*each.step.host_gain_us == Approx(training::host_gain_us(each.job, 0.1)));
  }
}

TEST_CASE("placements are those that people use") {
  TrainingJob job = search().space.base;
  CHECK(usual_placements(job) == std::vector<int>{0});  // nodes of 8 are full
  job.cluster = std::make_shared<const cluster::Cluster>(cluster::Cluster::load("gb200-nvl72"));
  const auto of_gpus = [&](int gpus) {
    job.layout.sizes.gpus = gpus;
    return usual_placements(job);
  };
  CHECK(of_gpus(72) == std::vector<int>{0});
  CHECK(of_gpus(128) == std::vector<int>{0, 72});      // 64 + 64 is the default
  CHECK(of_gpus(144) == std::vector<int>{0, 72, 48});  // the default: 64 + 64 + 16
  CHECK(of_gpus(216) == std::vector<int>{0, 72});      // 4 x 54 are no whole nodes
  CHECK(of_gpus(160) == std::vector<int>{0, 72});
  job.ranks_per_domain = 36;
  CHECK(usual_training_space(job).ranks_per_domain == std::vector<int>{36});
}

TEST_CASE("the best of several placements are those of an exhaustive search") {
  TrainingSearch asked = search();
  TrainingJob base = asked.space.base;
  base.profile = std::make_shared<const profile::Profile>(profile::Profile::load("gb200"));
  base.cluster = std::make_shared<const cluster::Cluster>(cluster::Cluster::load("gb200-nvl72"));
  base.layout.sizes.gpus = 144;
  base.layout.global_batch = 576;
  asked.space = usual_training_space(base);
  asked.space.tensor = {1};
  asked.space.pipeline = {1, 2, 3};
  asked.space.virtual_pipeline = {1, 4};
  asked.space.fewer_in_last = {0};
  asked.space.expert_tensor = {1};
  asked.space.micro_batch = {1, 2};
  asked.space.recompute.resize(2);
  const TrainingFound found = search_training(asked);
  const std::vector<FoundStep> by_speed = ranked(asked);
  check_same(found.best, best_of(by_speed, 5, 0));
  CHECK(found.counts.violations == 0);
  CHECK(found.best.front().job.ranks_per_domain == by_speed.front().job.ranks_per_domain);
  std::set<int> placed;
  for (const FoundStep& step : found.best) placed.insert(step.job.placed_ranks());
  CHECK(placed != std::set<int>{64});
}

TEST_CASE("with several capacity factors, so are the best of little loss and the front") {
  TrainingSearch asked = search();
  // Four layers: a draw takes a fraction of a second.
  model::Model small = *asked.space.base.model;
  small.layers = 4;
  asked.space.base.model = std::make_shared<const model::Model>(small);
  asked.space.tensor = {1};
  asked.space.recompute.resize(1);
  asked.space.zero = {1};
  asked.space.routings = {std::nullopt};
  for (const char* factor : {"0.5", "1", "1.25"}) {
    training::DrawnRouting drawn;
    drawn.router = routing::parse_router("topk", 8, 8);
    drawn.router.capacity_convention = routing::CapacityConvention::library;
    drawn.router.capacity_factor = Decimal::parse(factor, "test");
    asked.space.routings.push_back(drawn);
  }
  std::vector<FoundStep> by_speed = ranked(asked);
  for (FoundStep& step : by_speed) step.loss = loss_of(step.job);
  for (const double max_loss : {0.0, 0.06, 1.0}) {
    asked.max_loss = max_loss;
    const TrainingFound found = search_training(asked);
    check_same(found.best, best_of(by_speed, 5, max_loss));
    std::vector<FoundStep> front;
    for (const FoundStep& step : by_speed) {
      if (front.empty() || step.loss < 0.99 * front.back().loss) front.push_back(step);
    }
    check_same(found.front, front);
    CHECK(front.size() >= 3);
    CHECK(found.counts.violations == 0);
  }
}

TEST_CASE("rectified and dropless routers are bounded below their drawn steps") {
  TrainingSearch asked = search_of_four_layers();
  asked.space.tensor = {1};
  asked.space.expert_tensor = {1};
  asked.space.recompute.resize(2);
  asked.space.zero = {1};
  asked.space.routings.clear();
  for (const char* name : {"topk", "topk+fr+ir", "topk+ir", "dropless"}) {
    asked.space.routings.emplace_back(of_router(name));
  }
  for (const routing::Padding padding : {routing::Padding::busiest, routing::Padding::none}) {
    training::DrawnRouting drawn = *asked.space.routings.front();
    drawn.router.padding = padding;
    drawn.router.drops = padding == routing::Padding::none;
    asked.space.routings.push_back(drawn);
  }
  std::vector<FoundStep> by_speed = ranked(asked);
  for (FoundStep& step : by_speed) step.loss = loss_of(step.job);
  for (const double max_loss : {0.0, 0.03, 1.0}) {
    asked.max_loss = max_loss;
    const TrainingFound found = search_training(asked);
    check_same(found.best, best_of(by_speed, 5, max_loss));
    CHECK(found.counts.violations == 0);
    CHECK(found.counts.simulated < found.counts.candidates / 2);
    CHECK(found.counts.drawn < found.counts.simulated);
  }
}

TEST_CASE("routers of which the host launches more are searched with these launches") {
  TrainingSearch asked = search_of_four_layers();
  asked.space.tensor = asked.space.expert_tensor = {1};
  asked.space.micro_batch = {1};
  asked.space.recompute.resize(1);
  asked.space.base.host.launch_us = 60;  // the host limits every step
  asked.space.routings = {of_router("topk+fr"), of_router("topk"), of_router("topk+ir")};
  asked.max_loss = 1;
  std::vector<FoundStep> by_speed = ranked(asked);
  for (FoundStep& step : by_speed) step.loss = loss_of(step.job);
  const TrainingFound found = search_training(asked);
  check_same(found.best, best_of(by_speed, 5, 1));
  CHECK(found.counts.violations == 0);
  CHECK(found.best.front().routing == 1);  // fewer launches than both others
}

TEST_CASE("steps of a dispatcher are bounded below their drawn copies") {
  TrainingSearch asked = search_of_four_layers();
  asked.space.tensor = {1};
  asked.space.zero = {1};
  asked.space.recompute.resize(1);
  asked.max_loss = 1;
  for (const char* scores : {"gaussian:0.58", "hot-rank:4"}) {
    asked.space.routings.clear();
    for (const char* name : {"topk", "dropless"}) {
      training::DrawnRouting drawn = of_router(name);
      drawn.router.padding = routing::Padding::none;
      drawn.scores = routing::parse_score_source(scores, "test");
      asked.space.routings.push_back(drawn);
    }
    for (const char* dispatcher : {"deepep", "low-latency"}) {
      CAPTURE(scores, dispatcher);
      asked.space.dispatchers = {{dispatcher, std::make_shared<const profile::Dispatcher>(
                                                  profile::Dispatcher::load(dispatcher))}};
      const TrainingFound found = search_training(asked);
      const std::vector<FoundStep> by_speed = ranked(asked);
      REQUIRE(!found.best.empty());
      CHECK(found.best.front().step.step_us == by_speed.front().step.step_us);
      CHECK(found.counts.violations == 0);
    }
  }
}

TEST_CASE("few are simulated of those that drop without padding") {
  TrainingSearch asked = search_of_four_layers();
  asked.space.tensor = asked.space.expert_tensor = {1};
  asked.space.zero = {1};
  asked.space.recompute.resize(2);
  asked.space.routings.clear();
  for (const char* name : {"topk", "topk+ir"}) {
    for (const char* factor : {"1", "1.25"}) {
      training::DrawnRouting drawn = of_router(name, factor);
      drawn.router.padding = routing::Padding::none;
      asked.space.routings.push_back(drawn);
    }
  }
  asked.max_loss = 0.02;
  const TrainingFound found = search_training(asked);
  std::vector<FoundStep> by_speed = ranked(asked);
  for (FoundStep& step : by_speed) step.loss = loss_of(step.job);
  check_same(found.best, best_of(by_speed, 5, asked.max_loss));
  CHECK(found.counts.violations == 0);
  CHECK(found.counts.simulated < found.counts.candidates / 10);
}

TEST_CASE("what a search has drawn is kept for steps behind it") {
  TrainingSearch asked = search_of_four_layers();
  asked.space.recompute.resize(1);
  training::DrawnRouting drawn;
  drawn.router = routing::parse_router("topk", 8, 8);
  drawn.router.padding = routing::Padding::none;
  asked.space.routings = {drawn};
  asked.max_loss = 1;
  asked.drawn = std::make_shared<DrawnRoutings>();
  const TrainingFound found = search_training(asked);
  CHECK(found.counts.drawn > 0);
  CHECK(asked.drawn->drawn() == found.counts.drawn);
  REQUIRE(!found.best.empty());
  TrainingJob overlapping = found.best.front().job;
  overlapping.layout.expert_overlap = true;
  asked.drawn->loads(overlapping);
  CHECK(asked.drawn->drawn() == found.counts.drawn);
  // Another search draws nothing that the first one has.
  CHECK(search_training(asked).counts.drawn == 0);
}

TEST_CASE("layers that skip their exchange are not taken for padded ones") {
  TrainingSearch asked = search_of_four_layers();
  asked.space.base.layout.sequence_length = 1024;
  asked.space.tensor = {1};
  asked.space.expert_tensor = {1};
  asked.space.micro_batch = {1};
  asked.space.recompute.resize(1);
  asked.space.zero = {1};
  asked.space.routings.clear();
  for (const char* name : {"topk", "gating-dropout:0.5"}) {
    asked.space.routings.emplace_back(of_router(name));
  }
  asked.max_loss = 1;
  const TrainingFound found = search_training(asked);
  check_same(found.best, best_of(ranked(asked), 5, 1));
  CHECK(found.counts.violations == 0);
}

TEST_CASE("candidates are different and possible, and keep what they are asked") {
  TrainingSearch asked = search();
  // 27 layers on two ranks: 14|13, whether the first has one more or the last one fewer.
  const bool uneven = GENERATE(false, true);
  if (uneven) {
    model::Model odd = *asked.space.base.model;
    odd.layers = 27;
    asked.space.base.model = std::make_shared<const model::Model>(odd);
    asked.space.fewer_in_last = {0, 1, 2, 3};
  }
  const TrainingCandidates possible = candidates_of(asked.space);
  std::set<std::string> seen;
  for (const TrainingFamily& family : possible.families) {
    for (const TrainingJob& job : family.jobs()) {
      CHECK(!parallel::layout_refusal(*job.model, job.layout));
      CHECK(job.layout.global_batch == 64);
      const parallel::ParallelLayout& sizes = job.layout.sizes;
      std::string text = parallel::stages_of(*job.model, job.layout).text();
      for (const int size : {sizes.tensor, sizes.context, sizes.pipeline, sizes.expert,
                             sizes.expert_tensor, job.states.zero}) {
        text += " " + std::to_string(size);
      }
      text += " " + std::to_string(job.layout.micro_batch) + model::name_of(job.recompute);
      CHECK(seen.insert(text).second);
    }
  }
  CHECK(seen.size() == possible.count);
}

TEST_CASE("candidates that break a rule of options are left out, the others are searched") {
  TrainingSearch asked = search();
  asked.space.base.states.optimizer_instances = 2;
  std::size_t told = 0;
  double bounded = 0;
  asked.progress = [&](const SearchProgress& done) {
    CHECK(done.candidates > 0);
    CHECK(done.simulated >= told);
    told = done.simulated;
    CHECK(done.bounded >= bounded);
    CHECK(done.bounded < 1 + 1e-9);
    bounded = done.bounded;
  };
  const TrainingFound found = search_training(asked);
  CHECK(told > 0);
  CHECK(bounded == 1);
  asked.progress = nullptr;
  REQUIRE(found.best.size() == asked.best);
  CHECK(found.best.front().step.step_us == ranked(asked).front().step.step_us);
  for (const FoundStep& step : found.best) {
    CHECK(step.job.layout.sizes.group_size(parallel::GroupKind::data_context) % 2 == 0);
  }
  asked.space.expert = {1};
  asked.space.pipeline = {16};  // without replicas
  asked.space.virtual_pipeline = {1};
  asked.space.fewer_in_last = {0};
  CHECK_THROWS_WITH(search_training(asked), ContainsSubstring("--optimizer-instances 2"));
}

TEST_CASE("candidates of too few tokens to draw by counts are left out, the others are searched") {
  TrainingSearch asked = search_of_four_layers();
  asked.space.base.layout.sequence_length = 256;
  asked.space.recompute.resize(1);
  asked.space.zero = {1};
  asked.space.tensor = {1, 2};  // 128 tokens per rank with 2 and one sequence; counts start at 256
  asked.max_loss = 1;
  training::DrawnRouting drawn;
  drawn.router = routing::parse_router("topk", 8, 8);
  drawn.fidelity = routing::Fidelity::counts;
  asked.space.routings = {drawn};
  const TrainingFound found = search_training(asked);
  CHECK(found.counts.undrawn > 0);
  CHECK(found.counts.undrawn < found.counts.candidates / 2);
  CHECK(found.counts.an_undrawn.find("counts start at 256") != std::string::npos);
  REQUIRE(!found.best.empty());
  CHECK(found.best.front().step.step_us == ranked(asked).front().step.step_us);
  asked.space.tensor = {2};
  asked.space.micro_batch = {1};
  CHECK_THROWS_WITH(search_training(asked), ContainsSubstring("counts start at 256"));
}

TEST_CASE("layouts that share weights are searched beside those that do not, in any order") {
  for (const auto& zero : {std::vector{1, 3}, std::vector{3, 2, 1}, std::vector{2, 0}}) {
    TrainingSearch asked = search();
    asked.space.zero = zero;
    asked.space.recompute.resize(2);
    const TrainingFound found = search_training(asked);
    const std::vector<FoundStep> by_speed = ranked(asked);
    CHECK(found.counts.violations == 0);
    CHECK(found.best.front().step.step_us == by_speed.front().step.step_us);
    CHECK(found.best.front().job.states.zero == by_speed.front().job.states.zero);
  }
}

TEST_CASE("ZeRO 2 is searched under a pipeline where that is asked for") {
  TrainingSpace space = search().space;
  REQUIRE(space.zero == std::vector{1, 2});
  const auto stages = [&](bool under_pipeline) {
    std::set<int> found;
    for (const TrainingFamily& family : candidates_of(space).families) {
      for (const TrainingJob& job : family.jobs()) {
        if ((job.layout.sizes.pipeline > 1) == under_pipeline) found.insert(job.states.zero);
      }
    }
    return found;
  };
  CHECK(stages(false) == std::set{1, 2});
  CHECK(stages(true) == std::set{1});
  space.zero_under_pipeline = true;
  CHECK(stages(true) == std::set{1, 2});
}

TEST_CASE("a candidate that is simulated for its speed is not simulated again as a twin") {
  TrainingSearch asked = search();
  asked.space.tensor = asked.space.expert_tensor = asked.space.virtual_pipeline = {1};
  asked.space.pipeline = {2};
  asked.space.fewer_in_last = {0};
  asked.space.expert = {8};
  asked.space.micro_batch = {1};
  asked.space.recompute.resize(1);
  asked.space.zero_under_pipeline = true;
  const TrainingFound found = search_training(asked);
  CHECK(found.counts.candidates == 2);  // ZeRO 1 and 2: the slower is a twin of the faster
  REQUIRE(found.best.size() == 1);
  CHECK(found.best.front().twins.count == 1);
  CHECK(found.counts.simulated == 2);
}

TEST_CASE("where nothing fits, the smallest job is named; a speed nobody reaches is not") {
  TrainingSearch asked = search();
  asked.memory_share = 0.05;
  const TrainingFound none = search_training(asked);
  CHECK(none.best.empty());
  REQUIRE(none.smallest.has_value());
  CHECK(none.smallest_memory.count > 0);
  CHECK(none.counts.too_large == none.counts.candidates);
  CHECK(none.counts.priced == 0);
  TrainingSearch fast = search();
  fast.min_speed = 1e9;
  const TrainingFound slow = search_training(fast);
  CHECK(slow.best.empty());
  CHECK(!slow.smallest.has_value());
}

TEST_CASE("on another number of GPUs usual lists become those of it, typed ones stay") {
  TrainingSearch asked = search();
  TrainingJob one = asked.space.base;
  one.layout.sizes.gpus = 1;
  TrainingSpace space = usual_training_space(one);
  CHECK(space.tensor == std::vector<int>{1});
  CHECK(on_gpus(space, 8).tensor == std::vector<int>{1, 2, 4, 8});
  CHECK(on_gpus(space, 8).base.layout.global_batch == 8 * 64);
  space.typed = {"tensor-parallel", "global-batch"};  // one, which is the usual list of one GPU
  CHECK(on_gpus(space, 8).tensor == std::vector<int>{1});
  CHECK(on_gpus(space, 8).expert == std::vector<int>{1, 2, 4, 8});
  CHECK(on_gpus(space, 8).base.layout.global_batch == 64);
}

TEST_CASE("no possible layout is refused with a rule") {
  TrainingSearch asked = search();
  asked.space.pipeline = {16};
  asked.space.expert = {7};
  CHECK_THROWS_AS(search_training(asked), UsageError);
}

TEST_CASE("an error that is no answer ends a search, also the one that drops nothing") {
  TrainingSearch asked = search_of_four_layers();
  asked.space.routings = {of_router("dropless"), of_router("topk")};
  asked.progress = [](const SearchProgress& done) {
    if (done.is_of_lossless) throw Error("the disk is full");
  };
  CHECK_THROWS_MATCHES(search_training(asked), Error, Catch::Matchers::Message("the disk is full"));
}
