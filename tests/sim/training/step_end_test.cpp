#include "sim/training/step/step_end.hpp"

#include <cmath>
#include <numeric>

#include "sim/network/exchange/exchange_model.hpp"
#include "sim/profile/hidden_share.hpp"
#include "sim/training/job/rank_memory.hpp"
#include "sim/training/step/training_step.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/training_job.hpp"

using namespace moesim;
using namespace moesim::training;

TEST_CASE("gradients that are shared are reduced in every micro-batch") {
  TrainingJob shared = qwen_on_h100(16, 1, 8, 128);
  shared.overlaps_gradients = false;
  const TrainingStep once = training_step(shared);
  shared.states.zero = 2;
  const TrainingStep each = training_step(shared);
  // Messages are layers instead of buckets of 40 M.
  CHECK(part(each, TrainingPart::gradients) / part(once, TrainingPart::gradients) ==
        Approx(8).epsilon(0.2));
  CHECK(part(each, TrainingPart::parameters) == Approx(part(once, TrainingPart::parameters)));
  CHECK(each.ends[0].exchanges.size() < once.ends[0].exchanges.size());
}

namespace {

// 16 GPUs in nodes of 8, four a stage: pipeline ranks 0 and 3 have both copies of stages 0 and 3,
// on GPUs 0 to 3 and 12 to 15. Four ranks share the dense weights of a copy, one has its experts.
TrainingJob two_copies(int zero) {
  TrainingJob made = qwen_on_h100(16, 4, 4, 64);
  made.layout.schedule = parallel::ScheduleKind::dualpipe;
  made.states.zero = zero;
  made.overlaps_gradients = made.overlaps_parameters = false;
  return made;
}

// The weights of a rank's experts: 24 layers of 32 experts, three matrices of 2048 x 768 each.
constexpr double experts_held = 24.0 * 32 * 3 * 2048 * 768;

// An exchange in buckets of 40 M parameters; all eight GPUs of a node send at once.
double in_buckets_us(const TrainingJob& made, profile::Collective kind,
                     const std::vector<int>& gpus, double parameters, double bytes) {
  const double buckets = std::ceil(parameters / 40e6);
  const network::ExchangeModel network(made.profile, made.cluster);
  return buckets * network.price(kind, gpus, bytes / buckets, network::Senders{8}).time_us;
}

// The exchange of all chunks of rank 0, each in buckets of its own; `element`: bytes of a weight.
double dense_us(const TrainingJob& made, profile::Collective kind, const std::vector<int>& gpus,
                double element) {
  double time_us = 0;
  for (const model::StageParameters& chunk :
       chunk_parameters(made, chunk_contents(made), 0, made.experts())) {
    time_us += in_buckets_us(made, kind, gpus, chunk.dense, element * chunk.dense);
  }
  return time_us;
}
double experts_us(const TrainingJob& made, profile::Collective kind, const std::vector<int>& gpus,
                  double element) {
  return 2 * in_buckets_us(made, kind, gpus, experts_held / 2, element * experts_held / 2);
}

const std::vector<int> both_copies = {0, 1, 2, 3, 12, 13, 14, 15};
const std::vector<int> same_shard = {0, 12};

}  // namespace

TEST_CASE("DualPipe's two copies of a stage reduce gradients and gather weights together") {
  using profile::Collective;
  const TrainingJob made = two_copies(1);
  const auto both = [&](Collective kind, double element) {
    return dense_us(made, kind, both_copies, element) + experts_us(made, kind, same_shard, element);
  };
  const TrainingStep step = training_step(made);
  const RankEnd& end = step.ends[0];
  CHECK(end.parts[at(TrainingPart::gradients)] == Approx(both(Collective::reduce_scatter, 4)));
  CHECK(end.parts[at(TrainingPart::parameters)] == Approx(both(Collective::all_gather, 2)));
  // 14.5 GB over one NIC of 50 GB/s: half of it goes out.
  CHECK(end.parts[at(TrainingPart::gradients)] > 4 * experts_held / 2 / 50e3);
  CHECK(step.ends[1].parts[at(TrainingPart::gradients)] > 0.9 * 4 * experts_held / 2 / 50e3);
  CHECK(training_step(two_copies(0)).ends[0].parts[at(TrainingPart::gradients)] ==
        Approx(both(Collective::all_reduce, 4)));
  // One copy, folded: nothing but the dense weights of four ranks.
  TrainingJob folded = two_copies(1);
  folded.layout.schedule = parallel::ScheduleKind::dualpipe_v;
  CHECK(training_step(folded).ends[0].parts[at(TrainingPart::gradients)] < 10e3);
  // A quarter of the last backward pass hides some of it.
  TrainingJob hiding = two_copies(1);
  hiding.overlaps_gradients = true;
  const TrainingStep hidden = training_step(hiding);
  CHECK(hidden.ends[0].parts[at(TrainingPart::gradients)] < end.parts[at(TrainingPart::gradients)]);
  CHECK(hidden.ends[0].parts[at(TrainingPart::gradients)] >
        0.5 * end.parts[at(TrainingPart::gradients)]);
  // With so few micro-batches that costs more than the smaller bubble saves.
  folded.overlaps_gradients = true;
  CHECK(hidden.step_us > training_step(folded).step_us);
}

TEST_CASE("shards that a copy of a stage reduced itself go to the other once per step") {
  using profile::Collective;
  const TrainingJob made = two_copies(2);
  const auto between = [&](Collective kind, double element) {
    return dense_us(made, kind, same_shard, element / 4) +
           experts_us(made, kind, same_shard, element);
  };
  const TrainingStep step = training_step(made);
  CHECK(step.ends[0].parts[at(TrainingPart::gradients)] ==
        Approx(between(Collective::reduce_scatter, 4)));
  // Each of a rank's two stages sees 8 of 16 micro-batches, and reduces in each.
  const double inside = dense_us(made, Collective::reduce_scatter, {0, 1, 2, 3}, 4);
  CHECK(part(step, TrainingPart::gradients) > 8 * inside);
  CHECK(step.ends[0].parts[at(TrainingPart::parameters)] ==
        Approx(training_step(two_copies(1)).ends[0].parts[at(TrainingPart::parameters)]));
  // ZeRO 3: passes gather and reduce inside a copy.
  const TrainingStep all = training_step(two_copies(3));
  CHECK(all.ends[0].parts[at(TrainingPart::gradients)] ==
        Approx(between(Collective::reduce_scatter, 4)));
  CHECK(all.ends[0].parts[at(TrainingPart::parameters)] ==
        Approx(between(Collective::all_gather, 2)));
}

TEST_CASE("an optimizer instance has ranks of both copies of a stage") {
  using profile::Collective;
  TrainingJob made = two_copies(1);
  made.states.optimizer_instances = 2;
  // Two ranks of each copy share; of a quarter of the gradients, ranks 0 and 2 have the same one.
  CHECK(training_step(made).ends[0].parts[at(TrainingPart::gradients)] ==
        Approx(dense_us(made, Collective::reduce_scatter, {0, 1, 12, 13}, 4) +
               experts_us(made, Collective::reduce_scatter, same_shard, 4) +
               dense_us(made, Collective::all_reduce, {0, 2}, 1)));
}

TEST_CASE("shared weights are gathered twice and reduced in every micro-batch") {
  TrainingJob shared = qwen_on_h100(32, 1, 8, 32 * 4);
  shared.overlaps_gradients = shared.overlaps_parameters = false;
  const TrainingStep once = training_step(shared);
  shared.states.zero = 3;
  const TrainingStep each = training_step(shared);
  // Four micro-batches; messages are layers instead of buckets of 40 M.
  CHECK(part(each, TrainingPart::parameters) / part(once, TrainingPart::parameters) ==
        Approx(2 * 4).epsilon(0.2));
  CHECK(part(each, TrainingPart::gradients) / part(once, TrainingPart::gradients) ==
        Approx(4).epsilon(0.2));
  CHECK(each.peak_memory() < once.peak_memory());
  CHECK(std::accumulate(each.parts.begin(), each.parts.end(), 0.0) == Approx(each.step_us));
  // A quarter of the computation beside them hides them, where they overlap.
  shared.overlaps_gradients = shared.overlaps_parameters = true;
  const TrainingStep hidden = training_step(shared);
  CHECK(hidden.step_us < each.step_us);
  CHECK(hidden.step_us >
        each.step_us - 0.26 * part(each, TrainingPart::experts) -
            0.26 * part(each, TrainingPart::attention) - 0.26 * part(each, TrainingPart::head) -
            0.26 * part(each, TrainingPart::router) - 0.26 * part(each, TrainingPart::dispatch) -
            0.26 * part(each, TrainingPart::combine) - 1);
}

TEST_CASE("instances gather inside a node and reduce across once per step") {
  TrainingJob inside = qwen_on_h100(32, 1, 1, 32 * 4);
  inside.model = std::make_shared<const model::Model>(model::Model::load("olmoe-1b-7b"));
  inside.states.zero = 3;
  const TrainingStep all = training_step(inside);
  inside.states.optimizer_instances = 4;  // 8 ranks share: one node
  const TrainingStep hybrid = training_step(inside);
  CHECK(part(hybrid, TrainingPart::parameters) < part(all, TrainingPart::parameters));
  CHECK(hybrid.step_us < all.step_us);
  CHECK(hybrid.peak_memory() > all.peak_memory());
}

TEST_CASE("without replicas there is nothing to share") {
  TrainingJob alone = qwen_on_h100(8, 1, 8, 64);
  alone.layout.sizes.context = 1;
  alone.layout.sizes.tensor = 8;
  const TrainingStep once = training_step(alone);
  alone.states.zero = 3;
  CHECK(training_step(alone).step_us == Approx(once.step_us));
}

TEST_CASE("a step ends when the last rank's reductions and the longest optimizer have") {
  // Reductions lie behind each rank's own last pass, not behind the pipeline's.
  parallel::ScheduleRun run;
  run.makespan = Picoseconds::from_us(100);
  run.ranks.resize(2);
  run.ranks[0].spans = {{Picoseconds(0), Picoseconds::from_us(100)}};
  run.ranks[1].spans = {{Picoseconds(0), Picoseconds::from_us(70)}};
  std::vector<RankEnd> ends(2);
  const auto of = [](RankEnd& end, TrainingPart part) -> double& {
    return end.parts[static_cast<std::size_t>(part)];
  };
  of(ends[0], TrainingPart::gradients) = 5;
  of(ends[0], TrainingPart::optimizer) = 20;
  of(ends[1], TrainingPart::gradients) = 50;
  of(ends[1], TrainingPart::optimizer) = 8;
  const auto gradients = static_cast<std::size_t>(TrainingPart::gradients);
  CHECK(joint_end(run, ends)[gradients] == Approx(20));  // 70 + 50 - 100
  CHECK(sum(joint_end(run, ends)) == Approx(40));        // both optimizers run at once
  of(ends[1], TrainingPart::gradients) = 10;
  CHECK(joint_end(run, ends)[gradients] == Approx(5));
}

TEST_CASE("exchanges of tokens on the same links hide no gradients") {
  // Experts over both nodes: NICs carry tokens and gradients.
  TrainingJob job = qwen_on_h100(32, 1, 16, 64);
  const auto exposed = [&] { return part(training_step(job), TrainingPart::gradients); };
  const double shared = exposed();
  // A dispatcher that takes less time hides no less, but for how rows are copied.
  job.dispatcher = std::make_shared<const profile::Dispatcher>(profile::Dispatcher::load("deepep"));
  CHECK(exposed() == Approx(shared).epsilon(0.05));
}

TEST_CASE("exchanges that recomputation repeats hide no gradients") {
  // Experts over both nodes, everything on one pipeline rank: the only pass that hides gradients is
  // the last backward pass, and NICs carry tokens and gradients.
  TrainingJob job = qwen_on_h100(32, 1, 16, 64);
  const auto hidden_us = [&] {
    job.overlaps_gradients = true;
    const double exposed = part(training_step(job), TrainingPart::gradients);
    job.overlaps_gradients = false;
    return part(training_step(job), TrainingPart::gradients) - exposed;
  };
  for (const char* modules : {"none", "full", "moe", "moe_act"}) {
    job.recompute = model::parse_recompute(modules, "test");
    const LayerPrices prices(job);
    const Passes& layer = prices.layer(true);
    const double rows_us =
        layer.forward[at(TrainingPart::dispatch)] + layer.forward[at(TrainingPart::combine)];
    const bool repeats = modules != std::string("none") && modules != std::string("moe_act");
    // Rows go back as they came, and once more forth and back.
    const double hiding_us =
        sum(layer.input_gradient) + sum(layer.weight_gradient) - (repeats ? 2 : 1) * rows_us;
    double ends_us = 0;
    for (const Passes* end : {&prices.embedding(), &prices.head()}) {
      ends_us += sum(end->input_gradient) + sum(end->weight_gradient);
    }
    CAPTURE(modules);
    CHECK(rows_us > 0);
    CHECK(hidden_us() == Approx(profile::hidden_share * (48 * hiding_us + ends_us)).epsilon(1e-6));
  }
}

TEST_CASE("exchanges are repeated with the module that they are of") {
  const auto repeated = [](const TrainingJob& asked, const char* modules, TrainingPart part) {
    TrainingJob job = asked;
    job.recompute = model::parse_recompute(modules, "test");
    return LayerPrices(job).layer(true).exchanged_again[at(part)];
  };
  TrainingJob sliced = qwen_on_h100(16, 1, 4, 64);
  sliced.model = std::make_shared<const model::Model>(model::Model::load("deepseek-v3-4layers"));
  sliced.layout.sizes.tensor = 2;
  sliced.layout.sizes.expert_tensor = 2;
  const Passes layer = LayerPrices(sliced).layer(true);
  const double shared_us = repeated(sliced, "shared_experts", TrainingPart::tensor);
  CHECK(shared_us > 0);
  CHECK(repeated(sliced, "shared_experts", TrainingPart::dispatch) == 0);
  // The shared experts and slices of the others, not what attention exchanges.
  CHECK(repeated(sliced, "moe", TrainingPart::tensor) > shared_us);
  CHECK(repeated(sliced, "moe", TrainingPart::tensor) < layer.forward[at(TrainingPart::tensor)]);
  CHECK(repeated(sliced, "moe,shared_experts", TrainingPart::tensor) ==
        repeated(sliced, "moe", TrainingPart::tensor));
  CHECK(repeated(sliced, "moe", TrainingPart::combine) == layer.forward[at(TrainingPart::combine)]);
  CHECK(repeated(sliced, "full", TrainingPart::tensor) == layer.forward[at(TrainingPart::tensor)]);
  TrainingJob pieces = qwen_on_h100(16, 1, 8, 16);
  pieces.layout.sizes.context = 8;
  pieces.layout.context_method = model::ContextMethod::all_gather;
  CHECK(repeated(pieces, "core_attn", TrainingPart::context) ==
        LayerPrices(pieces).layer(true).forward[at(TrainingPart::context)]);
  CHECK(repeated(pieces, "moe", TrainingPart::context) == 0);
}

TEST_CASE("gradients of later chunks are reduced while earlier ones compute") {
  // Two chunks of a rank: only the first one's gradients have nothing but its last pass to hide
  // them.
  TrainingJob job = qwen_on_h100(64, 4, 8, 64);
  const auto exposed = [&] {
    return training_step(job).ends[0].parts[at(TrainingPart::gradients)];
  };
  const double one = exposed();
  job.layout.sizes.virtual_pipeline = 2;
  const double two = exposed();
  CHECK(one > 0);
  CHECK(two < 0.7 * one);
}

TEST_CASE("zero bubble reduces shared gradients behind weight gradients") {
  TrainingJob job = qwen_on_h100(64, 4, 8, 128);
  job.states.zero = 3;
  const double in_turn = training_step(job).step_us;
  job.layout.schedule = parallel::ScheduleKind::zb_h1;
  const TrainingStep split = training_step(job);
  // They fill bubbles, as the weight gradients do, and no other rank waits for them.
  CHECK(split.step_us < 0.9 * in_turn);
  job.overlaps_gradients = false;
  CHECK(training_step(job).step_us > split.step_us);
}
