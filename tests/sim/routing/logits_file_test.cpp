#include "sim/routing/groups/logits_file.hpp"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/formats/npy.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/routing/rules/expert_bias.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::routing;

namespace {

// Cases may run at the same time, each in a process of its own.
const std::string in_path = "logits_in." + std::to_string(::getpid()) + ".npy";
const std::string out_path = "logits_out." + std::to_string(::getpid()) + ".npy";

struct Record {
  std::int32_t rank, token, choice, expert, slot;
  float weight;
  char32_t kind[7];
};
static_assert(sizeof(Record) == 52);

std::vector<Record> read_records() {
  const std::string content = read_file(out_path);
  const std::size_t start = content.find('\n') + 1;
  std::vector<Record> records((content.size() - start) / sizeof(Record));
  std::memcpy(records.data(), content.data() + start, records.size() * sizeof(Record));
  return records;
}

std::string kind_of(const Record& record) {
  std::string text;
  for (const char32_t letter : record.kind) {
    if (letter != 0) text += static_cast<char>(letter);
  }
  return text;
}

RouterConfig make(const std::string& name, const std::string& factor) {
  RouterConfig config = parse_router(name, 0);
  config.capacity_factor = Decimal::parse(factor, "factor");
  return config;
}

RoutedGroup route_file(const RouterConfig& config,
                       const std::shared_ptr<const ExpertPlacement>& placement = nullptr) {
  return route_logits(config, group_of(NpyArray::load(in_path)), {}, placement);
}

struct Cleanup {
  ~Cleanup() {
    std::remove(in_path.c_str());
    std::remove(out_path.c_str());
  }
};

}  // namespace

// Two ranks of two tokens, four experts, C = 1. Rank 0: both tokens want 0, then 2, then 1.
TEST_CASE("logits go in, routes come out, in (rank, token, choice) order") {
  const Cleanup cleanup;
  write_npy_float32(in_path, {2, 2, 4},
                    {3, 1, 2, 0, /**/ 4, 1, 3, 0,  //
                     0, 1, 2, 3, /**/ 3, 2, 1, 0});
  write_routes(out_path, route_file(make("top2+fr+ir", "2")));
  const std::vector<Record> records = read_records();
  const std::string header = read_file(out_path).substr(0, 256);
  CHECK(header.find("[('rank', '<i4'), ('token', '<i4'), ('choice', '<i4'), ('expert', '<i4'), "
                    "('slot', '<i4'), ('weight', '<f4'), ('kind', '<U7')]") != std::string::npos);
  // Rank 0, token 0 loses both choices to the surer token 1. Both nominate expert 1, and token 1
  // comes second by g: token 0 gets the slot and, with one kept of two, an IR row at expert 0.
  REQUIRE(records.size() >= 7);
  const auto check = [&](std::size_t at, int token, int choice, int expert, int slot,
                         const std::string& kind) {
    CHECK(records[at].rank == 0);
    CHECK(records[at].token == token);
    CHECK(records[at].choice == choice);
    CHECK(records[at].expert == expert);
    CHECK(records[at].slot == slot);
    CHECK(kind_of(records[at]) == kind);
  };
  check(0, 0, 0, 0, -1, "primary");
  check(1, 0, 1, 2, -1, "primary");
  check(2, 0, 2, 1, 0, "fill");
  check(3, 0, 3, 0, -2, "ir");
  check(4, 1, 0, 0, 0, "primary");
  check(5, 1, 1, 2, 0, "primary");
  check(6, 1, 2, 1, -1, "fill");
  CHECK(records[0].weight == 0);
  CHECK(records[2].weight + records[3].weight == Approx(1));
  CHECK(records[7].rank == 1);
}

TEST_CASE("logits files that cannot be routed say why") {
  const Cleanup cleanup;
  const auto refused = [](const RouterConfig& config, const std::string& part) {
    CHECK_THROWS_WITH(route_file(config), ContainsSubstring(part));
  };
  refused(make("top1", "1"), in_path);  // absent
  write_npy_float32(in_path, {2, 2, 2, 2}, std::vector<float>(16, 0));
  refused(make("top1", "1"), "[P, S, E]");
  write_npy_float32(in_path, {3, 1, 4}, std::vector<float>(12, 0));
  refused(make("top1", "1"), "--expert-parallel");
  write_npy_float32(in_path, {1, 3, 2}, std::vector<float>(6, 0));
  refused(make("top2+fr", "2"), "--top-k");
  std::vector<float> bad(24, 0);
  bad[2 * 4 + 3] = std::numeric_limits<float>::quiet_NaN();
  write_npy_float32(in_path, {2, 3, 4}, bad);
  refused(make("top1", "1"), "rank 0, token 2");
  write_npy_float32(in_path, {0, 3, 4}, {});
  refused(make("top1", "1"), "at least one rank");
  write_npy_float32(in_path, {1, 0, 4}, {});
  CHECK(route_file(make("top1", "1")).routes().empty());
  write_npy_float32(in_path, {1, 1, 4}, {0, 1, 2, 3});
  CHECK_THROWS_AS(write_routes("no_such_folder/out.npy", route_file(make("top1", "1"))), Error);
}

TEST_CASE("experts of given logits may lie elsewhere: intra-GPU rectification follows") {
  const Cleanup cleanup;
  // C = 1: the second token of rank 0 fails at expert 3, and is rectified on its own GPU, where its
  // best of experts 0 and 1 is 1, of 0 and 2 expert 2.
  write_npy_float32(in_path, {2, 2, 4},
                    {0, 0, 0, 9, /**/ 0, 1, 2, 8,  //
                     9, 0, 0, 0, /**/ 0, 9, 0, 0});
  RouterConfig config = make("top1+ir", "1");
  const RoutedGroup there = route_file(config);
  REQUIRE(there.ir_expert.size() == 4);
  CHECK(there.ir_expert[1] == 1);
  const auto even_odd = std::make_shared<const ExpertPlacement>(
      std::vector<std::vector<std::uint16_t>>{{0, 2, 1, 3}}, "test");
  const RoutedGroup routed = route_file(config, even_odd);
  CHECK(routed.ir_expert == std::vector<std::int32_t>{-1, 2, -1, -1});
  CHECK(routed.expert[0] == 3);
  CHECK(routed.kept_rows == there.kept_rows);  // by the numbers of the experts
  CHECK_THROWS_WITH(route_file(parse_router("group-limited:2:1", 1), even_odd),
                    ContainsSubstring("neighbouring experts"));
  CHECK_THROWS_WITH(route_file(parse_router("hash", 1), even_odd),
                    ContainsSubstring("scores no experts"));
  // Biases lie with their experts.
  write_npy_float32(out_path, {4}, {0, 0, 20, 0});
  config = parse_router("dropless", 1);
  config.expert_bias = std::make_shared<const ExpertBias>(ExpertBias::load(out_path));
  const RoutedGroup biased = route_file(config, even_odd);
  for (std::size_t token = 0; token < 4; ++token) CHECK(biased.expert[token] == 2);
}

TEST_CASE("balance losses count the choices that the router made") {
  const Cleanup cleanup;
  write_npy_float32(in_path, {1, 2, 2}, {0, 1, /**/ 0, 2});
  const GroupOfFile group = group_of(NpyArray::load(in_path));
  RouterConfig config = make("top1", "2");
  config.score_function = ScoreFunction::sigmoid;
  const auto losses = [&] { return auxiliary_losses(config, group, route_logits(config, group)); };
  const auto sigmoid = [](double logit) { return 1 / (1 + std::exp(-logit)); };
  const double mean_second =
      (sigmoid(1) / (0.5 + sigmoid(1)) + sigmoid(2) / (0.5 + sigmoid(2))) / 2;
  CHECK(losses().balance == Approx(2 * mean_second));  // both choose the second of two
  // A bias that sends both to the first.
  write_npy_float32(out_path, {2}, {5, 0});
  config.expert_bias = std::make_shared<const ExpertBias>(ExpertBias::load(out_path));
  CHECK(losses().balance == Approx(2 * (1 - mean_second)));
  // bf16 has 8 bits: 1.0039 is 1.
  config = make("top1", "2");
  write_npy_float32(in_path, {1, 1, 2}, {0, 1.0039F});
  const GroupOfFile fine = group_of(NpyArray::load(in_path));
  config.router_dtype = RouterDtype::bf16;
  const double z = std::log(1 + std::exp(1.0));
  CHECK(auxiliary_losses(config, fine, route_logits(config, fine)).z == Approx(z * z));
}

TEST_CASE("token-max goes by a token's largest g, also where it chose another expert") {
  const Cleanup cleanup;
  // Both tokens choose expert 0 for its bias; the largest g are 0.73 and 0.62.
  write_npy_float32(in_path, {1, 2, 2}, {0, 1, /**/ 0.5, 0});
  write_npy_float32(out_path, {2}, {10, 0});
  RouterConfig config = make("top1", "1");
  config.expert_bias = std::make_shared<const ExpertBias>(ExpertBias::load(out_path));
  const RoutedGroup biased = route_file(config);
  CHECK(biased.slot[0] == 0);
  CHECK(biased.slot[1] == -1);
  // Both choose experts 2 and 3; the largest g are 0.59, of expert 0, and 0.47.
  write_npy_float32(in_path, {1, 2, 4}, {3, -3, 2, 1.9F, /**/ 0, 0, 2.6F, 2.6F});
  config = parse_router("group-limited:2:1", 2);
  config.group_score = GroupScore::topk_logits;
  config.drops = true;
  config.capacity_factor = Decimal(1);
  const RoutedGroup limited = route_file(config);
  CHECK(limited.expert[0] == 2);
  CHECK(limited.slot[0] == 0);
  CHECK(limited.slot[1] == -1);
}

TEST_CASE("Sinkhorn scales logits of any size") {
  const Cleanup cleanup;
  for (const float large : {10.0F, 80.0F, 100.0F, 1e4F}) {
    CAPTURE(large);
    write_npy_float32(in_path, {1, 3, 2}, {large, 0, /**/ 0, large, /**/ large, 0});
    const RoutedGroup routed = route_file(parse_router("sinkhorn", 1));
    CHECK(routed.expert[0] == 0);
    CHECK(routed.expert[1] == 1);
    CHECK(routed.expert[2] == 0);
    // Far below zero too.
    write_npy_float32(in_path, {1, 3, 2},
                      {-large, -2 * large, /**/ -2 * large, -large,  //
                       -large, -2 * large});
    const RoutedGroup low = route_file(parse_router("sinkhorn", 1));
    CHECK(low.expert[1] == 1);
  }
}

TEST_CASE("a group of experts with logits of -inf alone is kept last") {
  const Cleanup cleanup;
  constexpr float never = -std::numeric_limits<float>::infinity();
  write_npy_float32(in_path, {1, 1, 4}, {never, 0, never, never});
  write_npy_float32(out_path, {4}, {0, 0, 5, 0});
  RouterConfig config = parse_router("bias-balanced+groups:2:1", 1);
  config.expert_bias = std::make_shared<const ExpertBias>(ExpertBias::load(out_path));
  CHECK(route_file(config).expert[0] == 1);
}
