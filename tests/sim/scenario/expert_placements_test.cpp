#include "sim/scenario/expert_placements.hpp"

#include <unistd.h>

#include <filesystem>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using moesim::scenario::parse_expert_placement;

namespace {

using Order = std::vector<std::uint16_t>;

// A CSV of its own, gone at the end.
struct Table {
  std::string path = "expert_placements_test." + std::to_string(getpid()) + ".csv";
  explicit Table(const std::string& text) { write_file_atomically(path, text); }
  ~Table() { std::filesystem::remove(path); }
  Table(const Table&) = delete;
};

}  // namespace

TEST_CASE("placements by name and by load come to an order of experts") {
  CHECK(parse_expert_placement("contiguous", 6, 3) == nullptr);
  CHECK(parse_expert_placement("round-robin", 6, 3)->expert_at(0) == Order{0, 3, 1, 4, 2, 5});
  // Layer 0: 100 goes to rank 0, 90 to rank 1, which is the less loaded one for the first 2 too;
  // the last has room on rank 0 alone. Layer 1 counts experts 2 and 3 alone, one to each rank.
  const Table counts("layer,expert,count\n0,0,100\n0,1,90\n0,2,2\n0,3,2\n1,2,5\n1,3,4\n");
  const auto balanced = parse_expert_placement("balanced:" + counts.path, 4, 2);
  CHECK(balanced->expert_at(0) == Order{0, 3, 1, 2});
  const Order second = balanced->expert_at(1);
  CHECK((second[0] == 2 || second[1] == 2) == !(second[0] == 3 || second[1] == 3));
  CHECK_THROWS_WITH(parse_expert_placement("balanced:" + counts.path, 2, 2),
                    ContainsSubstring("it counts 4 experts, the job has 2"));
}

TEST_CASE("a table of experts and ranks is read, or refused with what is wrong") {
  const auto parse = [](const std::string& text, int experts = 4, int ranks = 2) {
    const Table table(text);
    return parse_expert_placement(table.path, experts, ranks);
  };
  CHECK(parse("expert,rank\n0,1\n1,0\n2,1\n3,0\n")->expert_at(5) == Order{1, 3, 0, 2});
  const auto layers = parse("layer,expert,rank\n1,0,1\n1,1,0\n0,0,0\n0,1,1\n", 2);
  CHECK(layers->expert_at(0) == Order{0, 1});
  CHECK(layers->expert_at(1) == Order{1, 0});
  const auto refused = [&](const std::string& text, const char* why) {
    CHECK_THROWS_WITH(parse(text), ContainsSubstring(why));
  };
  refused("expert,rank\n0,1\n1,0\n2,1\n", "expert 3 of 4 is missing");
  refused("expert,rank\n0,1\n1,0\n2,1\n3,1\n", "rank 0 has 1 experts");
  refused("expert,rank\n0,1\n0,0\n1,0\n2,1\n3,1\n", "line 3: layer 0, expert 0 is there twice");
  refused("expert,rank\n0,2\n", "line 2");
  refused("expert,gpu\n0,1\n", "rank");
  CHECK_THROWS_WITH(scenario::check_expert_placement("scattered"),
                    ContainsSubstring("choose contiguous, round-robin"));
  CHECK_NOTHROW(scenario::check_expert_placement("round-robin"));
}
