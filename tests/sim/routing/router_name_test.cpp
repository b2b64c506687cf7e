#include <string>
#include <utility>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/routing/groups/check_router.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::routing;

TEST_CASE("names of routers reproduce themselves, and wrong ones say why") {
  const std::vector<std::pair<const char*, const char*>> names{
      {"dropless", "dropless"},
      {"expert-choice", "expert-choice"},
      {"base", "base"},
      {"base:greedy", "base:greedy"},
      {"random", "random"},
      {"random:balanced", "random:balanced"},
      {"hash", "hash:1"},
      {"hash:0.80", "hash:0.8"},
      {"soft", "soft"},
      {"scomoe:0.4:.30", "scomoe:0.4:0.3"},
      {"gating-dropout:0.3+ir+fr", "gating-dropout:0.3+fr+ir"},
      {"group-limited:8:4", "group-limited:8:4"},
      {"bias-balanced", "bias-balanced:0.001:1000"},
      {"bias-balanced:0.01:0", "bias-balanced:0.01:0"},
      {"bias-balanced+groups:8:4", "bias-balanced:0.001:1000+groups:8:4"}};
  for (const auto& [typed, printed] : names) {
    CHECK(parse_router(typed, 0, 2).name() == printed);
    CHECK(parse_router(printed, 0, 2).name() == printed);
  }
  const auto refused = [](const char* name, const char* text, int top_k = 0) {
    CHECK_THROWS_WITH(parse_router(name, top_k, 2), ContainsSubstring(text));
  };
  refused("top2+xr", "+fr, +ir or +ir@node");
  refused("dropless+ir", "+ir rectifies routes that fail");
  refused("gating-dropout:1", "below 1");
  refused("gating-dropout", "gating-dropout:P");
  refused("scomoe:0.7:0.4", "exceed 1");
  refused("group-limited:4:5", "keeps 5 of 4");
  refused("group-limited:0:0", "from 1");
  refused("base:fast", "base:greedy");
  refused("random", "one expert", 2);
  refused("hash:-1", "not a non-negative");
  refused("bias-balanced:0.1:x", "steps");
  refused("bias-balanced+groups:8", "+groups:GROUPS:KEPT");
  refused("bias-balanced+groups:4:5", "keeps 5 of 4");
  refused("bias-balanced+groups:4:2+groups:4:2", "twice");
  refused("bias-balanced+group", "or +groups");
  refused("dropless+groups:8:4", "group-limited:GROUPS:KEPT");
  refused("switch", "choose from dense, top1");
  CHECK_THROWS_WITH(parse_router("dropless", 0), ContainsSubstring("--top-k"));
}

TEST_CASE("routers that cannot be say what to change") {
  const auto refused = [](const RouterConfig& config, const char* text,
                          std::int64_t tokens = 1024) {
    CHECK_THROWS_WITH(check_router(config, 8, 4, tokens), ContainsSubstring(text));
  };
  refused(parse_router("group-limited:3:1", 2), "do not divide into 3 groups");
  refused(parse_router("group-limited:8:1", 2), "keep more groups");
  refused(parse_router("bias-balanced+groups:3:1", 2), "do not divide into 3 groups");
  refused(parse_router("base", 0), "multiple of 8, or --router base:greedy", 1001);
  refused(parse_router("top9", 0), "--top-k");
  refused(parse_router("dense", 0), "--router");
  RouterConfig pooled = parse_router("scomoe:0.5:0.2", 2);
  pooled.capacity_scope = CapacityScope::group;
  refused(pooled, "--capacity-scope");
  CHECK_NOTHROW(check_router(parse_router("base", 0), 8, 4, 1024));
}
