// Recorded routing: what a trace file has to hold, and that it drives the router to the letter.
#include "sim/routing/traces/trace.hpp"

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/formats/npy.hpp"
#include "sim/base/random.hpp"
#include "sim/routing/groups/group_router.hpp"
#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "sim/routing/simulation/trace_routing.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::routing;

namespace {

using Json = nlohmann::json;
using Shape = std::vector<std::int64_t>;

// Test programs run side by side: each has a folder of its own.
const std::string place = "trace_test." + std::to_string(getpid());
const std::string from_trace = "trace:" + place;

// Gone at the end.
struct Folder {
  std::string path = place;
  Folder() { std::filesystem::create_directory(path); }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(const Folder&) = delete;
  void write(const Json& document) const {
    write_file_atomically(path + "/trace.json", document.dump());
  }
  std::string npy(const std::string& name) const { return path + "/" + name; }
};

Json document(const std::string& kind, const std::vector<std::string>& axes, int tokens,
              int experts, int top_k) {
  return {{"format", "moesim trace 1"},
          {"name", "test"},
          {"model", "none"},
          {"source", "this test"},
          {"licence", "Apache-2.0"},
          {"origin", "synthetic"},
          {"kind", kind},
          {"axes", axes},
          {"tokens", tokens},
          {"experts", experts},
          {"top_k", top_k},
          {"array", kind + ".npy"}};
}

RoutingJob job_of(const std::string& routing, const std::string& router, int gpus, int experts,
                  std::int64_t tokens, int layers) {
  RoutingJob job;
  job.router = parse_router(router, 0);
  job.scores = parse_score_source(routing, "--routing");
  job.experts = experts;
  job.gpus = gpus;
  job.expert_parallel = std::min(gpus, experts);
  job.gpus_per_domain = 8;
  job.tokens_per_gpu = tokens;
  job.layers = layers;
  return job;
}

std::vector<float> random_logits(std::size_t count) {
  Stream stream(StreamKey{7, Purpose::test_data, 0, 0, 0});
  std::vector<float> logits(count);
  for (float& logit : logits) logit = static_cast<float>(stream.normal());
  return logits;
}

// Two steps, two ranks, two layers of 40 tokens (not a whole number of tiles) and 4 experts.
constexpr int tokens = 40;
constexpr int experts = 4;
constexpr std::size_t each = std::size_t{tokens} * experts;

void write_logits(const Folder& folder) {
  folder.write(
      document("logits", {"step", "rank", "layer", "token", "expert"}, tokens, experts, 2));
  write_npy_float32(folder.npy("logits.npy"), {2, 2, 2, tokens, experts}, random_logits(8 * each));
}

// The logits of a step, rank and layer of write_logits().
std::vector<float> logits_of(std::size_t step, std::size_t rank, std::size_t layer) {
  const std::vector<float> all = random_logits(8 * each);
  const auto begin =
      all.begin() + static_cast<std::ptrdiff_t>((step * 4 + rank * 2 + layer) * each);
  return {begin, begin + static_cast<std::ptrdiff_t>(each)};
}

void refused(const std::string& routing, const std::vector<std::string>& parts) {
  INFO(routing);
  try {
    parse_score_source(routing, "--routing");
    FAIL("not refused");
  } catch (const UsageError& error) {
    for (const std::string& part : parts) CHECK_THAT(error.what(), ContainsSubstring(part));
  }
}

}  // namespace

TEST_CASE("recorded logits are routed as they are, step by replica, rank by GPU, layer by layer") {
  const Folder folder;
  write_logits(folder);
  for (const char* router : {"top1", "top2+fr+ir", "top2+ir"}) {
    RoutingJob job = job_of(from_trace, router, 4, experts, tokens, 3);
    job.expert_parallel = 2;
    for (const int replica : {0, 1, 2}) {
      const ReplicaRouting routed = simulate_routing(job, replica);
      for (int layer = 0; layer < 3; ++layer) {
        // Replica 2 is step 0 again, layer 2 layer 0, and GPUs 2 and 3 are ranks 0 and 1.
        const auto step = static_cast<std::size_t>(replica % 2);
        const std::vector<float> first = logits_of(step, 0, static_cast<std::size_t>(layer % 2));
        const std::vector<float> second = logits_of(step, 1, static_cast<std::size_t>(layer % 2));
        const std::vector<RankLogits> ranks{{first, tokens}, {second, tokens}};
        const RoutedGroup group = route_group(job.router, experts, ranks);
        const LayerRouting& result = routed.layers[static_cast<std::size_t>(layer)];
        CHECK(result.loss.failed == group.loss.failed);
        CHECK(result.loss.residual_loss == group.loss.residual_loss);
        for (std::size_t at = 0; at < group.kept_rows.size(); ++at) {
          CHECK(result.kept_rows[at] == group.kept_rows[at]);
          CHECK(result.kept_rows[at + group.kept_rows.size()] == group.kept_rows[at]);
        }
      }
    }
  }
}

TEST_CASE("more tokens than recorded are refused, or repeated where that is said") {
  const Folder folder;
  write_logits(folder);
  CHECK_THROWS_WITH(
      check(job_of(from_trace, "top1", 2, experts, tokens + 1, 2)),
      ContainsSubstring("40 tokens per GPU") && ContainsSubstring("--routing trace-repeat:"));
  const RoutingJob job = job_of("trace-repeat:" + place, "top1", 2, experts, 100, 2);
  std::vector<float> repeated;
  while (repeated.size() < 100 * experts) {
    const std::vector<float> once = logits_of(1, 1, 0);
    repeated.insert(repeated.end(), once.begin(), once.end());
  }
  repeated.resize(100 * experts);
  const RankLogits ranks[] = {{repeated, 100}};
  const RoutedGroup alone = route_group(job.router, experts, ranks);
  const ReplicaRouting routed = simulate_routing(job, 1);
  for (std::size_t expert = 0; expert < experts; ++expert) {
    CHECK(routed.layers[0].kept_rows[experts + expert] == alone.kept_rows[expert]);
  }
  // Fewer tokens are the first ones.
  const std::vector<float> all = logits_of(0, 0, 0);
  const RankLogits some[] = {{std::span<const float>(all).first(24 * experts), 24}};
  const RoutedGroup fewer = route_group(job.router, experts, some);
  const ReplicaRouting cut = simulate_routing(job_of(from_trace, "top1", 2, experts, 24, 2), 0);
  CHECK(cut.layers[0].kept_rows[0] == fewer.kept_rows[0]);
}

TEST_CASE("a trace that does not fit its job is refused with what to choose") {
  const Folder folder;
  write_logits(folder);
  const auto wrong = [](const RoutingJob& job, const std::string& part) {
    CHECK_THROWS_AS(check(job), UsageError);
    CHECK_THROWS_WITH(check(job), ContainsSubstring(place) && ContainsSubstring(part));
  };
  wrong(job_of(from_trace, "top1", 2, 8, tokens, 2), "--experts 4");
  wrong(job_of(from_trace, "top1", 2, experts, tokens, 1), "2 MoE layers, the model 1");
  wrong(job_of(from_trace, "top1", 1, experts, tokens, 2), "--gpus 2 or a multiple");
}

namespace {

// One step, rank and layer: expert 0 first for 4 of 6 tokens, expert 1 for 2; 1, 2 or 3 second.
void write_choices(const Folder& folder, bool probabilities) {
  Json text = document("choices", {"token", "choice"}, 6, 4, 2);
  if (probabilities) text["probabilities"] = "probabilities.npy";
  folder.write(text);
  write_npy_int64(folder.npy("choices.npy"), {6, 2}, {0, 1, 0, 2, 1, 2, 0, 3, 1, 3, 0, 1});
  // Tokens 1 and 3 are the surest of the four on expert 0.
  write_npy_float32(folder.npy("probabilities.npy"), {6, 2},
                    {0.4F, 0.3F, 0.8F, 0.1F, 0.5F, 0.5F, 0.9F, 0.05F, 0.6F, 0.2F, 0.3F, 0.3F});
}

}  // namespace

TEST_CASE("recorded choices are taken as they are") {
  const Folder folder;
  write_choices(folder, true);
  RoutingJob job = job_of(from_trace, "top1", 1, 4, 6, 1);
  job.router.capacity_factor = Decimal::parse("1.3", "factor");  // C = ceil(1.3 * 6 / 4) = 2
  const LayerRouting layer = simulate_routing(job, 0).layers[0];
  CHECK(layer.kept_rows == std::vector<std::int32_t>{2, 2, 0, 0});
  CHECK(layer.demand == std::vector<std::int64_t>{4, 2, 0, 0});
  CHECK(layer.loss.failed == Approx(2.0 / 6));
  // token-max keeps 0.8 and 0.9 of expert 0: 0.4 and 0.3 of 3.5 are lost. Float sums.
  CHECK(layer.loss.lost_mass == Approx(0.7 / 3.5).epsilon(1e-6));
  // position keeps tokens 0 and 1: 0.9 and 0.3 are lost.
  job.router.priority = Priority::position;
  CHECK(simulate_routing(job, 0).loss.lost_mass == Approx(1.2 / 3.5).epsilon(1e-6));
  CHECK_THROWS_WITH(check(job_of(from_trace, "top1+ir", 1, 4, 6, 1)),
                    ContainsSubstring("leave +ir out"));
  CHECK_THROWS_WITH(check(job_of(from_trace, "top2+fr", 1, 4, 6, 1)),
                    ContainsSubstring("2 choices per token, top2+fr needs 3"));
  CHECK_NOTHROW(check(job_of(from_trace, "top1+fr", 1, 4, 6, 1)));
  job.router = parse_router("dropless", 2);
  CHECK(simulate_routing(job, 0).layers[0].kept_rows == std::vector<std::int32_t>{4, 4, 2, 2});
}

TEST_CASE("choices without probabilities weigh alike, and order nothing") {
  const Folder folder;
  write_choices(folder, false);
  RoutingJob job = job_of(from_trace, "top2", 1, 4, 6, 1);
  CHECK_THROWS_WITH(check(job), ContainsSubstring("--priority position, token-order or random"));
  job.router.priority = Priority::own_score;
  CHECK_THROWS_WITH(check(job), ContainsSubstring("--priority own-score"));
  job.router.priority = Priority::position;
  job.router.capacity_factor = Decimal::parse("1", "factor");  // C = 2
  // Asked for: expert 0 by 4, 1 by 4, 2 by 2, 3 by 2: 4 of 12 fail, and as much mass.
  const TokenLoss loss = simulate_routing(job, 0).loss;
  CHECK(loss.failed == Approx(4.0 / 12));
  CHECK(loss.lost_mass == Approx(4.0 / 12).epsilon(1e-6));
  job = job_of(from_trace, "top1+fr", 1, 4, 6, 1);
  job.router.priority = Priority::position;
  CHECK_THROWS_WITH(check(job), ContainsSubstring("--fill-order priority"));
  job.router.fill_order = FillOrder::priority;
  CHECK_NOTHROW(check(job));
}

TEST_CASE("recorded experts in other places are routed as if their columns had been moved") {
  const Folder folder;
  write_logits(folder);
  const std::vector<std::vector<std::uint16_t>> expert_at{{0, 2, 1, 3}, {3, 1, 0, 2}};
  const auto order = std::make_shared<const ExpertPlacement>(expert_at, "the test");
  RoutingJob job = job_of(from_trace, "top2+fr+ir", 2, experts, tokens, 2);
  job.router.capacity_factor = Decimal(1);
  job.expert_placement = order;
  const ReplicaRouting routed = simulate_routing(job, 1);
  for (std::size_t layer = 0; layer < 2; ++layer) {
    std::vector<std::vector<float>> moved;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      moved.push_back(logits_of(1, rank, layer));
      put_in_placement(expert_at[layer], moved.back());
    }
    const std::vector<RankLogits> ranks{{moved[0], tokens}, {moved[1], tokens}};
    const RoutedGroup reference = route_group(job.router, experts, ranks);
    CHECK(routed.layers[layer].kept_rows == reference.kept_rows);
    CHECK(routed.layers[layer].ir_rows == reference.ir_rows);
    CHECK(routed.layers[layer].loss.duplicate_ir == reference.loss.duplicate_ir);
  }
  // Choices and counts say which experts: these alone change places.
  write_choices(folder, true);
  RoutingJob chosen = job_of(from_trace, "top2", 1, 4, 6, 1);
  chosen.router = parse_router("dropless", 2);
  const std::vector<std::int32_t> plain = simulate_routing(chosen, 0).layers[0].kept_rows;
  chosen.expert_placement = order;
  CHECK(simulate_routing(chosen, 0).layers[0].kept_rows ==
        std::vector<std::int32_t>{plain[0], plain[2], plain[1], plain[3]});
  RoutingJob counted = job_of("gaussian:0", "top2", 2, 4, 8, 1);
  counted.router = parse_router("dropless", 2);
  counted.scores.kind = ScoreSource::Kind::trace;
  counted.scores.trace = Trace::of_counts("counts", {1, 2, 1, 8, 4, 2}, {8, 5, 2, 1, 0, 4, 7, 5});
  counted.expert_placement = order;
  CHECK(simulate_routing(counted, 0).layers[0].kept_rows ==
        std::vector<std::int32_t>{8, 2, 5, 1, 0, 7, 4, 5});
}

// Ranks of 8 tokens, top-2 of 4 experts: 16 routes each. C = ceil(CF * 8 / 4).
TEST_CASE("recorded counts lose exactly what lies above the capacity") {
  RoutingJob job = job_of("gaussian:0", "top2", 2, 4, 8, 1);
  job.scores.kind = ScoreSource::Kind::trace;
  job.scores.trace = Trace::of_counts("counts", {1, 2, 1, 8, 4, 2}, {8, 5, 2, 1, 0, 4, 7, 5});
  // C = 4 at CF 2: 4 + 1 and 3 + 1 of 32 are above.
  LayerRouting layer = simulate_routing(job, 0).layers[0];
  CHECK(layer.loss.failed == 9.0 / 32);
  CHECK(layer.loss.padded == 9.0 / 32);  // E C = k S
  CHECK(layer.kept_rows == std::vector<std::int32_t>{4, 4, 2, 1, 0, 4, 4, 4});
  CHECK(layer.demand == std::vector<std::int64_t>{8, 9, 9, 6});
  // The group's 8 slots per expert: 0, 1, 1 and 0 above.
  job.router.capacity_scope = CapacityScope::group;
  CHECK(simulate_routing(job, 0).loss.failed == 2.0 / 32);
  job.router.capacity_scope = CapacityScope::source;
  job.router.capacity_factor = Decimal::parse("3.5", "factor");  // C = 7
  CHECK(simulate_routing(job, 0).loss.failed == 1.0 / 32);
  job.router = parse_router("top2+fr+ir", 0);
  CHECK(simulate_routing(job, 0).loss.failed == 9.0 / 32);  // of the primary routes, as without
  job.router = parse_router("dropless", 2);
  layer = simulate_routing(job, 0).layers[0];
  CHECK(layer.loss.failed == 0);
  CHECK(layer.kept_rows == std::vector<std::int32_t>{8, 5, 2, 1, 0, 4, 7, 5});
  CHECK(layer.exchanged_capacity == 8);
  job.router = parse_router("top1", 0);
  CHECK_THROWS_WITH(check(job), ContainsSubstring("--router topk --top-k 2"));
  job.router = parse_router("top2", 0);
  job.tokens_per_gpu = 16;
  CHECK_THROWS_WITH(check(job), ContainsSubstring("--tokens-per-gpu 8"));
}

TEST_CASE("recorded counts are padded to the largest of each group, aligned") {
  RoutingJob job = job_of("gaussian:0", "top2", 2, 4, 8, 1);
  job.expert_parallel = 1;  // each GPU is a group
  job.scores.kind = ScoreSource::Kind::trace;
  job.scores.trace = Trace::of_counts("counts", {1, 2, 1, 8, 4, 2}, {8, 5, 2, 1, 0, 4, 7, 5});
  job.router.drops = false;
  job.router.padding = Padding::busiest;
  LayerRouting layer = simulate_routing(job, 0).layers[0];
  CHECK(layer.block_of(0) == 8);
  CHECK(layer.block_of(1) == 7);
  CHECK(layer.loss.padded == Approx(1 - 32.0 / (4 * 8 + 4 * 7)));
  job.router.capacity_alignment = 5;
  layer = simulate_routing(job, 0).layers[0];
  CHECK(layer.block_of(0) == 10);
  CHECK(layer.block_of(1) == 10);
  CHECK(layer.loss.padded == Approx(1 - 32.0 / (8 * 10)));
}

TEST_CASE("shares of fill-in follow from the recorded failures and the drawn nominees") {
  RoutingJob job = job_of("gaussian:0", "top2+fr", 2, 4, 8, 1);
  job.scores.kind = ScoreSource::Kind::trace;
  job.scores.trace = Trace::of_counts("counts", {1, 2, 1, 8, 4, 2}, {8, 5, 2, 1, 0, 4, 7, 5});
  for (const char* factor : {"0.5", "2", "2.5", "4"}) {
    for (const CapacityScope scope : {CapacityScope::source, CapacityScope::group}) {
      job.router.capacity_factor = Decimal::parse(factor, "factor");
      job.router.capacity_scope = scope;
      const LayerRouting layer = simulate_routing(job, 0).layers[0];
      const TokenLoss& loss = layer.loss;
      // 32 primary routes, 16 nominations, 8 C slots.
      const double kept = 32 * (1 - loss.failed);
      const double filled = 16 * (1 - *loss.fill_failed);
      const double slots = 8.0 * static_cast<double>(layer.capacity);
      CHECK(*loss.failed_attempted == Approx(1 - (kept + filled) / 48));
      CHECK(loss.padded == Approx(1 - (kept + filled) / slots).margin(1e-12));
    }
  }
}

TEST_CASE("a router that reads no scores is routed beside any trace") {
  const Folder folder;
  write_choices(folder, false);
  RoutingJob job = job_of(from_trace, "random", 2, 8, 64, 1);  // the trace has 4 experts, 6 tokens
  RoutingJob drawn = job_of("gaussian:0", "random", 2, 8, 64, 1);
  CHECK(simulate_routing(job, 0).layers[0].kept_rows ==
        simulate_routing(drawn, 0).layers[0].kept_rows);
}

// Gumbel-max draws from the popularity: with one choice the shares come back.
TEST_CASE("trace-repeat draws any number of tokens from recorded counts") {
  RoutingJob job = job_of("gaussian:0", "top1", 2, 4, 16384, 1);
  job.scores.kind = ScoreSource::Kind::trace_repeat;
  job.scores.trace = Trace::of_counts("counts", {1, 2, 1, 10, 4, 1}, {4, 3, 2, 1, 0, 0, 5, 5});
  const ReplicaRouting routed = simulate_routing(job, 0);
  // Rank 0 has 0.15 + 0.05 above 1/4, rank 1 0.5. Standard error below 0.004 each.
  CHECK(routed.loss.failed == Approx((0.2 + 0.5) / 2).margin(0.012));
  CHECK(routed.layers[0].kept_rows[4] == 0);
}

// 90 of 100 tokens chose expert 0, 60 expert 1, 30 expert 2, 20 expert 3: so do drawn ones, within
// four standard errors, sqrt(0.25 / 16384) = 0.004 each at most.
TEST_CASE("two experts a token are drawn as often as they were recorded") {
  RoutingJob job = job_of("gaussian:0", "top2", 1, 5, 16384, 1);
  job.router = parse_router("dropless", 2);
  job.scores.kind = ScoreSource::Kind::trace_repeat;
  job.scores.trace = Trace::of_counts("counts", {1, 1, 1, 100, 5, 2}, {90, 60, 30, 20, 0});
  const std::vector<std::int64_t> demand = simulate_routing(job, 0).layers[0].demand;
  for (const auto& [expert, share] : {std::pair{0, 0.9}, {1, 0.6}, {2, 0.3}, {3, 0.2}, {4, 0.0}}) {
    CHECK(static_cast<double>(demand[static_cast<std::size_t>(expert)]) / 16384 ==
          Approx(share).margin(0.016));
  }
}

TEST_CASE("a trace per rank drives one expert per GPU only") {
  RoutingJob job = job_of("gaussian:0", "top1", 2, 2, 8, 1);
  job.scores.kind = ScoreSource::Kind::trace;
  job.scores.trace = Trace::of_counts("rows", {1, 2, 1, 8, 2, 1}, {6, 2, 3, 5}, Trace::Per::rank);
  CHECK(simulate_routing(job, 0).loss.failed == 3.0 / 16);  // C = 4
  job.experts = 4;
  CHECK_THROWS_WITH(check(job), ContainsSubstring("--expert-parallel 2 and change --experts to 2"));
}

TEST_CASE("a damaged trace is refused by file, key and place") {
  const Folder folder;
  const auto with = [&](const std::function<void(Json&)>& change, const std::string& part) {
    write_logits(folder);
    Json text = Json::parse(read_file(place + "/trace.json"));
    change(text);
    folder.write(text);
    refused(from_trace, {place + "/", part});
  };
  with([](Json& text) { text.erase("licence"); }, "'licence' is missing");
  with([](Json& text) { text["expert"] = 4; }, "did you mean 'experts'?");
  with([](Json& text) { text["kind"] = "scores"; }, "/kind");
  with(
      [](Json& text) {
        text["axes"] = {"rank", "step", "layer", "token", "expert"};
      },
      "/axes: [rank, step, layer, token, expert] instead of [step, rank, layer, token, expert]");
  with(
      [](Json& text) {
        text["axes"] = {"step", "layer", "token", "expert"};
      },
      "shape [2, 2, 2, 40, 4] instead of [step, layer, token, expert]");
  with([](Json& text) { text["experts"] = 8; }, "axis expert is 4");
  with([](Json& text) { text["tokens"] = 41; }, "tokens 41");
  with([](Json& text) { text["steps"] = {0, 10, 20}; }, "/steps: 3 numbers");
  with([](Json& text) { text["top_k"] = 5; }, "5 experts per token of 4");
  with([](Json& text) { text["array"] = "none.npy"; }, "none.npy");
  with([](Json& text) { text["per"] = "rank"; }, "/per");
  with([](Json& text) { text["probabilities"] = "p.npy"; }, "/probabilities");
}

TEST_CASE("a damaged array of a trace is refused by its place") {
  const Folder folder;
  write_logits(folder);
  const std::string name = folder.npy("logits.npy");
  std::vector<float> logits = random_logits(8 * each);
  logits[(1 * 4 + 0 * 2 + 1) * each + 5 * experts + 3] = std::nanf("");
  write_npy_float32(name, {2, 2, 2, tokens, experts}, logits);
  refused(from_trace, {name, "step 1, rank 0, layer 1, token 5, expert 3: NaN"});
  logits = random_logits(8 * each);
  logits[0] = -std::numeric_limits<float>::infinity();  // never chosen: allowed
  write_npy_float32(name, {2, 2, 2, tokens, experts}, logits);
  CHECK_NOTHROW(parse_score_source(from_trace, "--routing"));
  const std::string whole = read_file(name);
  write_file_atomically(name, whole.substr(0, whole.size() - 4));
  refused(from_trace, {name, "truncated"});
  write_npy_int64(name, {2, 2, 2, tokens, experts}, std::vector<std::int64_t>(8 * each));
  refused(from_trace, {name, "dtype '<i8' instead of '<f4'"});
}

TEST_CASE("choices and counts that cannot be are refused by their place") {
  const Folder folder;
  write_choices(folder, true);
  const std::string name = folder.npy("choices.npy");
  write_npy_int64(name, {6, 2}, {0, 1, 0, 2, 1, 4, 0, 3, 1, 3, 0, 1});
  refused(from_trace, {name, "token 2, choice 1: no expert 4: they are 0 to 3"});
  write_npy_int64(name, {6, 2}, {0, 1, 0, 2, 1, 2, 0, 3, 3, 3, 0, 1});
  refused(from_trace, {name, "token 4: expert 3 is chosen twice"});
  write_choices(folder, true);
  const std::string weights = folder.npy("probabilities.npy");
  std::vector<float> values(12, 0.5F);
  values[3] = 0.6F;
  write_npy_float32(weights, {6, 2}, values);
  refused(from_trace, {weights, "token 1, choice 1: probability 0.6 is above the one"});
  values[3] = -0.1F;
  write_npy_float32(weights, {6, 2}, values);
  refused(from_trace, {weights, "is not from 0 to 1"});
  write_npy_float32(weights, {2, 6}, values);
  refused(from_trace, {weights, "shape [2, 6] instead of [6, 2]"});

  folder.write(document("counts", {"rank", "expert"}, 8, 4, 2));
  const std::string counts = folder.npy("counts.npy");
  write_npy_int64(counts, {2, 4}, {8, 5, 2, 1, 0, 4, 7, 4});
  refused(from_trace, {counts, "rank 1, layer 0: the counts add up to 15, not to 16"});
  write_npy_int64(counts, {2, 4}, {9, 4, 2, 1, 0, 4, 7, 5});
  refused(from_trace, {counts, "expert 0: a count of 9 with 8 tokens"});
  write_npy_int64(counts, {2, 4}, {8, 5, 2, 1, 0, 4, 7, 5});
  CHECK(parse_score_source(from_trace, "--routing").trace->counts(0, 1, 0)[2] == 7);
}

TEST_CASE("a trace of counts comes back as it was written") {
  const Folder folder;
  const auto trace = Trace::of_counts("x", {2, 1, 2, 3, 2, 1}, {1, 2, 0, 3, 3, 0, 2, 1});
  write_trace(place + "/new", *trace,
              {"name", "model", "source", "licence", "measured", "", {0, 50}, {0, 7}});
  const auto read = Trace::load(place + "/new");
  CHECK(read->digest() == trace->digest());
  CHECK(read->shape().steps == 2);
  CHECK(read->counts(1, 0, 1)[0] == 2);
  CHECK(Trace::load(place + "/new/trace.json")->digest() == trace->digest());
  // The same counts of two ranks in place of two steps route otherwise.
  const auto ranks = Trace::of_counts("x", {1, 2, 2, 3, 2, 1}, {1, 2, 0, 3, 3, 0, 2, 1});
  CHECK(ranks->digest() != trace->digest());
}

TEST_CASE("a trace of more tokens than sums hold is refused") {
  // 2^62 tokens times 4 are 0 in 64 bits, which no counts at all would add up to.
  CHECK_THROWS_WITH(Trace::of_counts("x", {1, 1, 1, std::int64_t{1} << 62, 4, 4}, {0, 0, 0, 0}),
                    ContainsSubstring("tokens: at most 1099511627776"));
}
