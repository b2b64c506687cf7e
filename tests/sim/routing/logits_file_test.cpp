#include "sim/routing/groups/logits_file.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <limits>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/npy.hpp"
#include "sim/routing/routers/router_name.hpp"
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
  route_logits(make("top2+fr+ir", "2"), NpyArray::load(in_path), out_path);
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

TEST_CASE("logits files that cannot be routed say why and leave no output") {
  const Cleanup cleanup;
  const auto refused = [](const RouterConfig& config, const std::string& part) {
    CHECK_THROWS_WITH(route_logits(config, NpyArray::load(in_path), out_path),
                      ContainsSubstring(part));
    CHECK_THROWS_AS(read_file(out_path), UsageError);
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
  CHECK(route_logits(make("top1", "1"), NpyArray::load(in_path), out_path).routes().empty());
  write_npy_float32(in_path, {1, 1, 4}, {0, 1, 2, 3});
  CHECK_THROWS_AS(
      route_logits(make("top1", "1"), NpyArray::load(in_path), "no_such_folder/out.npy"), Error);
}
