#include <algorithm>
#include <cmath>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/training/drawn/block_routing.hpp"
#include "sim/training/drawn/drawn_losses.hpp"
#include "sim/training/prices/dispatched_rows.hpp"
#include "sim/training/step/step_bound.hpp"
#include "sim/training/step/step_timeline.hpp"
#include "sim/training/step/training_step.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::training;

namespace {

using Counts = std::vector<std::int64_t>;  // [expert]

constexpr int experts = 128;
constexpr std::int64_t tokens = 4096;  // of 8 experts each: 256 rows of each in balance

// 16 ranks, 8 of them an expert-parallel group, two micro-batches. A trace of one layer is that of
// all layers: eight are enough.
TrainingJob job_of(int pipeline, int micro_batches = 2) {
  TrainingJob made;
  made.profile = std::make_shared<const profile::Profile>(profile::Profile::load("h100-sxm"));
  made.cluster = std::make_shared<const cluster::Cluster>(cluster::Cluster::load("hgx-h100"));
  model::Model small = model::Model::load("qwen3-30b-a3b");
  small.layers = 8;
  made.model = std::make_shared<const model::Model>(small);
  made.layout.sizes.gpus = 16;
  made.layout.sizes.pipeline = pipeline;
  made.layout.sizes.expert = 8;
  made.layout.sequence_length = tokens;
  made.layout.global_batch = std::int64_t{micro_batches} * made.layout.sizes.data();
  made.host = {0, 0, 0};
  return made;
}

DrawnRouting recorded(std::shared_ptr<const routing::Trace> trace,
                      const char* capacity_factor = nullptr) {
  DrawnRouting made;
  made.router = routing::parse_router(capacity_factor == nullptr ? "dropless" : "topk", 0, 8);
  made.router.capacity_convention = routing::CapacityConvention::library;
  made.router.padding = routing::Padding::none;
  made.router.drops = capacity_factor != nullptr;
  if (made.router.drops) made.router.capacity_factor = Decimal::parse(capacity_factor, "test");
  made.scores.kind = routing::ScoreSource::Kind::trace;
  made.scores.trace = std::move(trace);
  return made;
}

// Experts of the first of 8 ranks have 7 `more` rows each, the others `more` fewer: the rank has
// 1 + 7 more / 256 of balance.
Counts hot_rank(std::int64_t more) {
  Counts counts(experts, 256 - more);
  std::fill_n(counts.begin(), 16, 256 + 7 * more);
  return counts;
}

// [step, rank]
std::shared_ptr<const routing::Trace> trace_of(const std::vector<std::vector<Counts>>& steps) {
  routing::TraceShape shape;
  shape.steps = static_cast<int>(steps.size());
  shape.ranks = static_cast<int>(steps.front().size());
  shape.tokens = tokens;
  shape.experts = experts;
  shape.top_k = 8;
  Counts all;
  for (const std::vector<Counts>& step : steps) {
    for (const Counts& rank : step) all.insert(all.end(), rank.begin(), rank.end());
  }
  return routing::Trace::of_counts("test", shape, all);
}

// Balanced, 1.4375 and 1.875 times balance on the first rank.
std::shared_ptr<const routing::Trace> three_steps() {
  return trace_of({{hot_rank(0)}, {hot_rank(16)}, {hot_rank(32)}});
}

TrainingStep step_of(TrainingJob job, const DrawnRouting& routing, int trace_step = 0) {
  job.routing = routing;
  job.routing->trace_step = trace_step;
  return training_step(job);
}

}  // namespace

TEST_CASE("drawn per layer, a trace's step is the mean of its recorded steps") {
  for (const int pipeline : {1, 2}) {
    const TrainingJob job = job_of(pipeline);
    const DrawnRouting routing = recorded(three_steps(), "1");
    const TrainingStep mean = step_of(job, routing);
    CHECK(mean.imbalance == Approx((1 + 1 + 1) / 3.0).epsilon(1e-3));  // capacity cuts all to C
    double step_us = 0;
    double failed = 0;
    Bytes most;
    PartTimes parts{};
    for (const int number : {1, 2, 3}) {
      const TrainingStep one = step_of(job, routing, number);
      CHECK(one.routing->taken_steps == std::vector<int>{number});
      CHECK(one.routing->recorded_steps == 3);
      step_us += one.step_us / 3;
      failed += one.routing->loss.failed / 3;
      most = std::max(most, one.peak_memory());
      for (std::size_t part = 0; part < parts.size(); ++part) parts[part] += one.parts[part] / 3;
    }
    // 7 and 14 of 16 rows above C on an eighth of the experts: 0, 7 / 128 and 14 / 128 are lost.
    CHECK(failed == Approx(7.0 / 128).epsilon(1e-9));
    CHECK(mean.routing->loss.failed == Approx(failed).epsilon(1e-9));
    CHECK(mean.routing->taken_steps == std::vector<int>{1, 2, 3});
    CHECK(mean.step_us == Approx(step_us).epsilon(1e-9));
    CHECK(sum(mean.parts) == Approx(mean.step_us).epsilon(1e-12));
    for (std::size_t part = 0; part < parts.size(); ++part) {
      CHECK(mean.parts[part] == Approx(parts[part]).epsilon(1e-6).margin(1e-3));
    }
    CHECK(mean.peak_memory() == most);
  }
}

TEST_CASE("uneven recorded steps count, whichever is the first") {
  const TrainingJob job = job_of(2);
  const TrainingStep mean = step_of(job, recorded(three_steps()));
  CHECK(mean.imbalance == Approx((1 + 1.4375 + 1.875) / 3).epsilon(1e-9));
  const TrainingStep even = step_of(job, recorded(three_steps()), 1);
  const TrainingStep worst = step_of(job, recorded(three_steps()), 3);
  CHECK(mean.step_us > 1.1 * even.step_us);
  CHECK(mean.step_us < 0.95 * worst.step_us);
  CHECK(mean.peak_memory() == worst.peak_memory());
  const TrainingStep other =
      step_of(job, recorded(trace_of({{hot_rank(32)}, {hot_rank(0)}, {hot_rank(16)}})));
  CHECK(other.step_us == Approx(mean.step_us).epsilon(1e-12));
  // The mean of the ranks' parts, too.
  TrainingJob made = job;
  made.routing = recorded(three_steps());
  const PartTimes parts = mean_parts(made, mean);
  CHECK(sum(parts) == Approx(mean.step_us).epsilon(1e-9));
}

TEST_CASE("of many recorded steps sixteen are taken, evenly spread") {
  std::vector<std::vector<Counts>> steps;
  for (int step = 0; step < 84; ++step) steps.push_back({hot_rank(step % 32)});
  TrainingJob job = job_of(1);
  job.routing = recorded(trace_of(steps));
  const DrawnLoads loads(job);
  CHECK(loads.steps() == 16);
  double mean = 0;
  for (int at = 0; at < 16; ++at) {
    const int step = at * 84 / 16;
    CHECK(loads.figures().taken_steps[static_cast<std::size_t>(at)] == step + 1);
    CHECK(loads.at(0, 0, 0, at).computed == Approx(1 + 7 * (step % 32) / 256.0).epsilon(1e-3));
    mean += (1 + 7 * (step % 32) / 256.0) / 16;
  }
  CHECK(loads.figures().recorded_steps == 84);
  CHECK(loads.figures().mean_load == Approx(mean).epsilon(1e-3));
}

TEST_CASE("micro-batches take recorded steps evenly spread") {
  for (const int micro_batches : {1, 2, 3, 6, 7}) {
    TrainingJob job = job_of(1, micro_batches);
    job.routing = recorded(three_steps());
    job.routing->draws = RoutingDraws::per_micro_batch;
    const DrawnLoads loads(job);
    CHECK(loads.steps() == 1);
    for (int micro = 0; micro < micro_batches; ++micro) {
      const int step = micro * 3 / micro_batches;
      CHECK(loads.at(5, 0, micro).computed == Approx(1 + 7 * 16 * step / 256.0).epsilon(1e-9));
    }
    job.routing->trace_step = 3;
    const DrawnLoads last(job);
    CHECK(last.at(0, 0, micro_batches - 1).computed == 1.875);
    CHECK(last.figures().mean_load == 1.875);
  }
}

TEST_CASE("a step that was not recorded cannot be taken") {
  const TrainingJob job = job_of(1);
  CHECK_THROWS_WITH(step_of(job, recorded(three_steps()), 4),
                    ContainsSubstring("--trace-step is 4: test has 3 recorded steps"));
  DrawnRouting random = recorded(three_steps());
  random.scores = {};
  CHECK_THROWS_WITH(step_of(job, random, 1), ContainsSubstring("has no recorded steps"));
}

TEST_CASE("no step of several recorded ones is shorter than its bound") {
  for (const int pipeline : {1, 2, 4}) {
    TrainingJob job = job_of(pipeline, 8);
    job.layout.sizes.expert = 4;
    // Another rank of the group is hot in each layer's turn: no layer is the same for all steps.
    job.routing = recorded(three_steps());
    const auto loads = std::make_shared<const DrawnLoads>(job);
    const LayerPrices prices(job);
    const double step_us = training_step(job, loads).step_us;
    const double own = step_bound_us(job, prices, drawn_moe_layers(prices, *loads, true));
    CHECK(own <= step_us);
    CHECK(own > 0.8 * step_us);
    CHECK(step_bound_us(job, prices, drawn_moe_layers(prices, *loads, false)) < own);
  }
}

TEST_CASE("a timeline shows the recorded step whose time is nearest to the mean") {
  TrainingJob job = job_of(2);
  job.routing = recorded(three_steps());
  const TrainingStep mean = training_step(job);
  CHECK(mean.shown_step == 1);
  const TrainingStep shown = step_of(job, *job.routing, 2);
  CHECK(shown.shown_step_us == 0);
  CHECK(mean.shown_step_us == Approx(shown.step_us).epsilon(1e-12));
  Picoseconds end;
  for (const engine::TimelineEvent& event : step_timeline(job, mean)) {
    end = std::max(end, event.start + event.duration);
  }
  CHECK(end.us() == Approx(shown.step_us).epsilon(1e-6));
}

TEST_CASE("the expected loss of a trace is that of all recorded steps") {
  TrainingJob job = job_of(1);
  job.routing = recorded(three_steps(), "1");
  const std::vector<TrainingJob> jobs = {job};
  CHECK(drawn_losses(jobs, 100).front().loss.failed == Approx(7.0 / 128).epsilon(1e-9));
  job.routing->trace_step = 3;
  const std::vector<TrainingJob> last = {job};
  CHECK(drawn_losses(last, 100).front().loss.failed == Approx(14.0 / 128).epsilon(1e-9));
}

namespace {

// 16 ranks; of the second 8 the first expert rank is hot.
std::shared_ptr<const routing::Trace> sixteen_ranks() {
  std::vector<Counts> ranks(8, hot_rank(0));
  ranks.resize(16, hot_rank(32));
  return trace_of({ranks});
}

}  // namespace

TEST_CASE("a trace may have as many ranks as a stage, whatever the expert parallelism") {
  TrainingJob job = job_of(1);
  job.routing = recorded(sixteen_ranks());
  // Per layer the first group's ranks stand for all.
  const DrawnLoads first(job);
  CHECK(first.at(0, 0, 0).computed == 1);
  CHECK(first.figures().taken_ranks == 8);
  CHECK(first.figures().recorded_ranks == 16);
  // Per micro-batch each group has its own, and the one that ends last sets the step.
  job.routing->draws = RoutingDraws::per_micro_batch;
  const DrawnLoads each(job);
  CHECK(each.sets() == 2);
  CHECK(each.at(0, 0, 0).computed == 1);
  CHECK(each.at(0, 1, 0).computed == 1.875);
  CHECK(each.figures().taken_ranks == 16);
  job.layout.sizes.expert = 16;
  const DrawnLoads together(job);
  CHECK(together.at(0, 0, 0).computed == Approx((1 + 1.875) / 2).epsilon(1e-9));
}

TEST_CASE("more recorded ranks than a stage has are refused, with GPUs that are enough") {
  TrainingJob job = job_of(2);
  job.routing = recorded(sixteen_ranks());
  CHECK_THROWS_WITH(training_step(job),
                    ContainsSubstring("it has 16 ranks, each pipeline stage of the job 8 GPUs: "
                                      "choose --gpus 32 or a multiple"));
  job.layout.sizes.gpus = 32;
  job.layout.global_batch = 32;
  CHECK_NOTHROW(training_step(job));
  job = job_of(1);
  job.layout.sizes.gpus = 8;
  job.layout.global_batch = 8;
  job.routing = recorded(sixteen_ranks());
  CHECK_THROWS_WITH(training_step(job),
                    ContainsSubstring("it has 16 ranks, the job 8 GPUs: choose --gpus 16"));
}

TEST_CASE("the expected loss of a trace of more ranks than experts' is that of the first group") {
  TrainingJob job = job_of(1);
  job.routing = recorded(sixteen_ranks(), "1");
  const std::vector<TrainingJob> jobs = {job};
  CHECK(drawn_losses(jobs, 100).front().loss.failed == 0);
  CHECK(training_step(job).routing->loss.failed == 0);
}

namespace {

// `to_rank` [rank]: rows of a source for each of 8 expert ranks of 16 experts.
Counts to_ranks(const std::vector<std::int64_t>& to_rank) {
  Counts counts;
  for (const std::int64_t rows : to_rank) counts.insert(counts.end(), 16, rows / 16);
  return counts;
}

// Each of 8 sources has 18,432 of its 32,768 rows for its own rank, 2,048 for each other.
std::shared_ptr<const routing::Trace> own_experts() {
  std::vector<Counts> ranks;
  for (std::size_t source = 0; source < 8; ++source) {
    std::vector<std::int64_t> rows(8, 2048);
    rows[source] = 18432;
    ranks.push_back(to_ranks(rows));
  }
  return trace_of({ranks});
}

// One rank in each half of the group has 18,432 rows of every source of the other half.
std::shared_ptr<const routing::Trace> other_half() {
  std::vector<Counts> ranks;
  for (std::size_t source = 0; source < 8; ++source) {
    std::vector<std::int64_t> rows(8, 2048);
    rows[source < 4 ? 4 : 0] = 18432;
    ranks.push_back(to_ranks(rows));
  }
  return trace_of({ranks});
}

MoeLoad load_of(const TrainingJob& job, std::shared_ptr<const routing::Trace> trace) {
  TrainingJob made = job;
  made.routing = recorded(std::move(trace));
  return DrawnLoads(made).at(0, 0, 0);
}

}  // namespace

TEST_CASE("rows that a recorded source keeps for its own rank are not sent") {
  TrainingJob job = job_of(1);
  const MoeLoad own = load_of(job, own_experts());
  CHECK(own.computed == 1);
  // 7 x 2,048 of 32,768 leave, where balance has 7 / 8 leave.
  CHECK(own.exchanged == Approx(7 * 2048 / 32768.0 * 8 / 7).epsilon(1e-3));
  CHECK(own.inside == 0);
  // Four to a node: 4 x 2,048 leave it, where balance has half leave.
  job.ranks_per_domain = 4;
  const MoeLoad apart = load_of(job, own_experts());
  CHECK(apart.exchanged == Approx(4 * 2048 / 32768.0 * 2).epsilon(1e-3));
  CHECK(apart.inside == 0);
  // The hot rank gets 4 x 18,432 from the other node, 3 x 2,048 from its own.
  const MoeLoad across = load_of(job, other_half());
  CHECK(across.exchanged == Approx(4 * 18432 / 32768.0 * 2).epsilon(1e-3));
  CHECK(across.inside == 0);
}

TEST_CASE("what stays in a domain takes its links' time where that is longer") {
  TrainingJob job = job_of(1);
  job.ranks_per_domain = 4;
  // Each has 18,432 rows for its neighbour, 2,048 for each other.
  std::vector<Counts> ranks;
  for (std::size_t source = 0; source < 8; ++source) {
    std::vector<std::int64_t> rows(8, 2048);
    rows[source ^ 1U] = 18432;
    ranks.push_back(to_ranks(rows));
  }
  const MoeLoad near = load_of(job, trace_of({ranks}));
  CHECK(near.exchanged == Approx(4 * 2048 / 32768.0 * 2).epsilon(1e-3));
  CHECK(near.inside == Approx((18432 + 2 * 2048) / 32768.0 * 8 / 3).epsilon(1e-3));
  const ExchangePrices prices(job);
  const auto us = [&](MoeLoad load) {
    return prices.dispatch_us(profile::DispatcherStage::dispatch, load);
  };
  MoeLoad without = near;
  without.inside = 0;
  CHECK(us(near) >= us(without));
  MoeLoad much = near;
  much.inside = 100;
  CHECK(us(much) > 5 * us(near));
}

TEST_CASE("recorded sources that are alike exchange as before") {
  for (const int per_domain : {0, 4}) {
    TrainingJob job = job_of(1);
    job.ranks_per_domain = per_domain;
    const MoeLoad one = load_of(job, trace_of({{hot_rank(32)}}));
    const MoeLoad eight = load_of(job, trace_of({std::vector<Counts>(8, hot_rank(32))}));
    CHECK(one.exchanged == 1.875);
    CHECK(eight == one);
  }
}

TEST_CASE("the bound of recorded sources holds where they keep their rows") {
  TrainingJob job = job_of(1);
  job.routing = recorded(own_experts());
  const TrainingStep step = training_step(job);
  TrainingJob alike = job;
  alike.routing = recorded(trace_of({{hot_rank(0)}}));
  const double balanced_us = training_step(alike).step_us;
  CHECK(step.step_us < 0.97 * balanced_us);
  const LayerPrices prices(job);
  const DrawnLoads loads(job);
  CHECK(step_bound_us(job, prices, drawn_moe_layers(prices, loads, true)) <= step.step_us);
}

namespace {

TrainingJob dispatched_job(const char* dispatcher) {
  TrainingJob job = job_of(1);
  job.dispatcher =
      std::make_shared<const profile::Dispatcher>(profile::Dispatcher::load(dispatcher));
  return job;
}

// 8 ranks; a token's 8 experts are neighbours on one expert rank, which tokens of a source take in
// turn from its own on, `ahead` of them further.
std::shared_ptr<const routing::Trace> neighbours_chosen(std::size_t ahead = 0) {
  routing::TraceShape shape;
  shape.ranks = 8;
  shape.tokens = tokens;
  shape.experts = experts;
  shape.top_k = 8;
  std::vector<std::uint16_t> choices;
  for (std::size_t source = 0; source < 8; ++source) {
    for (std::size_t token = 0; token < static_cast<std::size_t>(tokens); ++token) {
      const std::size_t rank = (source + ahead + token) % 8;
      for (std::size_t choice = 0; choice < 8; ++choice) {
        choices.push_back(static_cast<std::uint16_t>(rank * 16 + token / 8 % 2 * 8 + choice));
      }
    }
  }
  return routing::Trace::of_choices("test", shape, std::move(choices), {});
}

}  // namespace

TEST_CASE("a dispatcher sends recorded tokens as often as they have ranks") {
  TrainingJob job = dispatched_job("deepep");
  job.routing = recorded(neighbours_chosen());
  job.routing->fidelity = routing::Fidelity::tokens;
  const profile::MoeTraffic traffic = dispatch_traffic(job);
  const double even = profile::distinct_places(traffic, 8);  // ranks of a token
  const DispatchedLoad load = DrawnLoads(job).at(0, 0, 0).dispatched;
  CHECK(even > 5);
  CHECK(load.link_rows == Approx(1 / even).epsilon(0.01));
  CHECK(load.sent_copies == Approx(1 / even).epsilon(0.01));
  // Four to a node: a token goes to one of two nodes, where balance meets both nearly always.
  job.ranks_per_domain = 4;
  const DispatchedLoad apart = DrawnLoads(job).at(0, 0, 0).dispatched;
  CHECK(apart.nic_rows == Approx(1 / profile::distinct_places(traffic, 2)).epsilon(0.01));
  // Rows of a dispatcher that sends each of them, and of counts, are as before.
  job = dispatched_job("low-latency");
  job.routing = recorded(neighbours_chosen());
  job.routing->fidelity = routing::Fidelity::tokens;
  CHECK(DrawnLoads(job).at(0, 0, 0).dispatched.link_rows == 1);
  job = dispatched_job("deepep");
  job.routing = recorded(trace_of({std::vector<Counts>(8, hot_rank(0))}));
  CHECK(DrawnLoads(job).at(0, 0, 0).dispatched.link_rows == 1);
}

TEST_CASE("with slices of experts recorded rank r is on GPU r") {
  // EP 8 x ETP 2 on two nodes of 8: GPUs 2 r and 2 r + 1 hold the slices of expert rank r, and each
  // has half of its rows for its own rank.
  std::vector<Counts> ranks;
  for (std::size_t gpu = 0; gpu < 16; ++gpu) {
    std::vector<std::int64_t> rows(8, 2048);
    rows[gpu / 2] = 18432;
    ranks.push_back(to_ranks(rows));
  }
  TrainingJob job = job_of(1);
  job.layout.sizes.expert_tensor = 2;
  const MoeLoad sent = load_of(job, trace_of({ranks}));
  CHECK(sent.computed == 1);
  CHECK(sent.exchanged == Approx(4 * 2048 / 32768.0 * 2).epsilon(1e-3));  // ranks 4 to 7, 0 to 3
  job.dispatcher =
      std::make_shared<const profile::Dispatcher>(profile::Dispatcher::load("low-latency"));
  const DispatchedLoad dispatched = load_of(job, trace_of({ranks})).dispatched;
  CHECK(dispatched.nic_rows == Approx(4 * 2048 / 16384.0).epsilon(1e-3));
}

TEST_CASE("copies of recorded tokens are counted for the GPU of their rank") {
  TrainingJob job = dispatched_job("deepep");
  job.layout.sizes.expert_tensor = 2;
  // GPU g has all tokens for the expert rank of the GPU beside it, or of the other node.
  const auto load = [&](std::size_t from) {
    routing::TraceShape shape;
    shape.ranks = 16;
    shape.tokens = tokens;
    shape.experts = experts;
    shape.top_k = 8;
    std::vector<std::uint16_t> choices;
    for (std::size_t gpu = 0; gpu < 16; ++gpu) {
      for (std::size_t token = 0; token < static_cast<std::size_t>(tokens); ++token) {
        const std::size_t rank = (gpu / 2 + from) % 8;
        for (std::size_t choice = 0; choice < 8; ++choice) {
          choices.push_back(static_cast<std::uint16_t>(rank * 16 + choice));
        }
      }
    }
    TrainingJob made = job;
    made.routing = recorded(routing::Trace::of_choices("test", shape, std::move(choices), {}));
    return DrawnLoads(made).at(0, 0, 0).dispatched.nic_rows;
  };
  CHECK(load(0) == 0);
  CHECK(load(4) == Approx(2 / profile::distinct_places(dispatch_traffic(job), 2)).epsilon(0.01));
}
