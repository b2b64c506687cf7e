// What holds for the router whatever the logits and options.
#include <rapidcheck.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "sim/routing/groups/group_router.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::routing;

namespace {

struct Case {
  RouterConfig config;
  int experts = 1;
  int ranks = 1;
  std::vector<std::vector<float>> logits;
  RouterContext context;

  RoutedGroup route() const { return route(config); }
  RoutedGroup route(const RouterConfig& other) const {
    std::vector<RankLogits> spans;
    for (const auto& rows : logits) {
      spans.push_back({rows, static_cast<std::int64_t>(rows.size()) / experts});
    }
    return route_group(other, experts, spans, context);
  }
  std::int64_t tokens() const {
    std::size_t count = 0;
    for (const auto& rows : logits) count += rows.size();
    return static_cast<std::int64_t>(count) / experts;
  }
  std::string text() const {
    return config.name() + " CF " + config.capacity_factor.text() + " " + name_of(config.priority) +
           " " + name_of(config.capacity_scope) + " E " + std::to_string(experts) + " P " +
           std::to_string(ranks) + " tokens " + std::to_string(tokens());
  }
};

// Whole numbers, so that ties are common and adding a constant is exact.
std::vector<float> any_logits(int tokens, int experts) {
  std::vector<float> logits;
  const int spread = *rc::gen::element(1, 3, 40);
  for (int index = 0; index < tokens * experts; ++index) {
    const int value = *rc::gen::inRange(-spread, spread + 1);
    logits.push_back(value == -spread && spread == 3 ? -std::numeric_limits<float>::infinity()
                                                     : static_cast<float>(value));
  }
  return logits;
}

Case any_case() {
  Case one;
  one.ranks = *rc::gen::inRange(1, 5);
  one.experts = one.ranks * *rc::gen::inRange(1, 4);
  RouterConfig& config = one.config;
  config.top_k = *rc::gen::inRange(1, std::min(one.experts, 4) + 1);
  config.fill_in = config.top_k < one.experts && *rc::gen::arbitrary<bool>();
  config.rectification =
      *rc::gen::element(Rectification::none, Rectification::gpu, Rectification::node);
  config.capacity_factor =
      Decimal::parse(*rc::gen::element<std::string>("0", "0.3", "1", "1.7", "2", "9"), "factor");
  config.capacity_convention =
      *rc::gen::element(CapacityConvention::paper, CapacityConvention::library);
  config.capacity_scope = *rc::gen::element(CapacityScope::source, CapacityScope::group);
  config.priority = *rc::gen::element(Priority::token_max, Priority::own_score, Priority::position,
                                      Priority::token_order, Priority::random);
  config.weights = *rc::gen::element(Weights::kept, Weights::before_drop, Weights::raw);
  config.fill_order = *rc::gen::element(FillOrder::nominee_score, FillOrder::priority);
  config.ir_duplicates = *rc::gen::element(IrDuplicates::allow, IrDuplicates::exclude);
  for (int rank = 0; rank < one.ranks; ++rank) {
    one.logits.push_back(any_logits(*rc::gen::inRange(0, 40), one.experts));
  }
  one.context.seed = *rc::gen::inRange<std::uint64_t>(0, 1000);
  one.context.place = {0, *rc::gen::element(0, 1, 2, 8)};
  return one;
}

template <typename Property>
void holds(const std::string& name, Property property) {
  REQUIRE(rc::check(name, [&] {
    const Case one = any_case();
    RC_LOG(one.text());
    property(one);
  }));
}

using RouteId = std::tuple<int, int, int>;  // rank, token, choice

std::set<RouteId> kept_primary(const RoutedGroup& group) {
  std::set<RouteId> kept;
  for (const Route& route : group.routes()) {
    if (route.kind == RouteKind::primary && route.slot >= 0) {
      kept.insert({route.rank, route.token, route.choice});
    }
  }
  return kept;
}

}  // namespace

TEST_CASE("kept and failed routes are all routes") {
  holds("every route is kept or failed, and the counts say so", [](const Case& one) {
    const RoutedGroup group = one.route();
    std::int64_t kept = 0, failed = 0;
    std::map<std::pair<int, int>, int> rows;
    for (const Route& route : group.routes()) {
      if (route.kind == RouteKind::ir) continue;
      RC_ASSERT(route.slot >= slot_failed);
      ++(route.slot >= 0 ? kept : failed);
      if (route.slot >= 0) ++rows[{route.rank, route.expert}];
    }
    RC_ASSERT(kept + failed == one.tokens() * one.config.choices());
    std::int64_t counted = 0;
    for (int rank = 0; rank < one.ranks; ++rank) {
      for (int expert = 0; expert < one.experts; ++expert) {
        const std::size_t at =
            static_cast<std::size_t>(rank) * static_cast<std::size_t>(one.experts) +
            static_cast<std::size_t>(expert);
        RC_ASSERT(group.kept_rows[at] == (rows[{rank, expert}]));
        counted += group.kept_rows[at];
      }
    }
    RC_ASSERT(counted == kept);
    RC_ASSERT(group.sums.primary_kept + group.sums.filled == kept);
  });
}

TEST_CASE("slots are unique, below the capacity and without gaps") {
  holds("an expert's slots are 0 .. count - 1 in (choice, token) order", [](const Case& one) {
    const RoutedGroup group = one.route();
    const bool by_source = one.config.capacity_scope == CapacityScope::source;
    std::map<std::pair<int, int>, std::vector<std::tuple<int, int, int, int>>> slots;
    for (const Route& route : group.routes()) {
      if (route.slot < 0) continue;
      slots[{by_source ? route.rank : 0, route.expert}].push_back(
          {route.choice, route.rank, route.token, route.slot});
    }
    std::int64_t shared = 0;
    for (const std::int64_t capacity : group.capacity) shared += capacity;
    for (auto& [domain_expert, list] : slots) {
      std::sort(list.begin(), list.end());
      for (std::size_t place = 0; place < list.size(); ++place) {
        RC_ASSERT(std::get<3>(list[place]) == static_cast<int>(place));
      }
      const auto rank = static_cast<std::size_t>(domain_expert.first);
      RC_ASSERT(static_cast<std::int64_t>(list.size()) <=
                (by_source ? group.capacity[rank] : shared));
    }
  });
}

TEST_CASE("with E C = k S and no fill-in, failed routes are padded slots") {
  holds("failed = padded", [](Case one) {
    const int tokens = one.experts * *rc::gen::inRange(1, 6);
    for (auto& rows : one.logits) rows = any_logits(tokens, one.experts);
    one.config.fill_in = false;
    one.config.capacity_convention = CapacityConvention::paper;
    one.config.capacity_factor = Decimal(one.config.top_k);
    const RoutedGroup group = one.route();
    RC_ASSERT(group.sums.slots == group.sums.primary_routes);
    RC_ASSERT(group.loss.failed == group.loss.padded);
  });
}

TEST_CASE("fill-in takes free slots only and evicts no primary route") {
  holds("the primary routes kept are those kept without fill-in", [](Case one) {
    if (one.config.top_k == one.experts) return;
    one.config.fill_in = true;
    RouterConfig without = one.config;
    without.fill_in = false;
    const RoutedGroup filled = one.route();
    const RoutedGroup plain = one.route(without);
    RC_ASSERT(kept_primary(filled) == kept_primary(plain));
    RC_ASSERT(filled.loss.failed == plain.loss.failed);
    RC_ASSERT(filled.loss.padded <= plain.loss.padded);
    // With IR it may: a token that fill-in serves gets no IR row, and that expert might be better.
    if (one.config.rectification == Rectification::none) {
      RC_ASSERT(filled.loss.residual_loss <= plain.loss.residual_loss + 1e-6);
    }
    // No slot stays free while a nominee for its expert was turned away.
    for (const Route& route : filled.routes()) {
      if (route.kind != RouteKind::fill || route.slot >= 0) continue;
      std::int64_t used = 0, room = 0;
      const bool by_source = one.config.capacity_scope == CapacityScope::source;
      for (int rank = 0; rank < one.ranks; ++rank) {
        if (by_source && rank != route.rank) continue;
        const auto at = static_cast<std::size_t>(rank);
        used += filled.kept_rows[at * static_cast<std::size_t>(one.experts) +
                                 static_cast<std::size_t>(route.expert)];
        room += filled.capacity[at];
      }
      RC_ASSERT(used == room);
    }
  });
}

TEST_CASE("IR leaves no token unrouted") {
  holds("every token that lost a route has an IR row, unless told not to repeat", [](Case one) {
    if (one.config.rectification == Rectification::none) {
      one.config.rectification = Rectification::gpu;
    }
    const RoutedGroup group = one.route();
    RC_ASSERT(group.loss.unrouted == 0);
    std::int64_t rows = 0;
    for (std::size_t token = 0; token < group.tokens; ++token) {
      int kept = 0;
      for (int choice = 0; choice < group.choices; ++choice) {
        kept += group.slot[static_cast<std::size_t>(choice) * group.stride + token] >= 0 ? 1 : 0;
      }
      const bool has_ir = group.ir_expert[token] >= 0;
      RC_ASSERT(!has_ir || kept < one.config.top_k);
      if (one.config.ir_duplicates == IrDuplicates::allow || kept == 0) {
        RC_ASSERT(has_ir == (kept < one.config.top_k));
      }
      rows += has_ir ? 1 : 0;
    }
    std::int64_t computed = 0;
    for (const std::int32_t count : group.ir_rows) computed += count;
    RC_ASSERT(rows == computed);
    if (one.config.ir_duplicates == IrDuplicates::exclude) {
      RC_ASSERT(*group.loss.duplicate_ir == 0);
    }
  });
}

TEST_CASE("weights of a processed token sum to one") {
  holds("kept weights are a partition, failed ones are zero", [](Case one) {
    one.config.weights = Weights::kept;
    const RoutedGroup group = one.route();
    std::map<std::pair<int, int>, double> sums, masses;
    for (const Route& route : group.routes()) {
      if (route.slot == slot_failed) RC_ASSERT(route.weight == 0.0F);
      if (route.slot != slot_failed) masses[{route.rank, route.token}] += route.probability;
      sums[{route.rank, route.token}] += route.weight;
    }
    for (const auto& [token, sum] : sums) {
      if (masses[token] > 0) RC_ASSERT(std::abs(sum - 1) < 1e-6);
      RC_ASSERT(sum < 1 + 1e-6);
    }
  });
}

TEST_CASE("a constant added to a token's logits changes nothing") {
  holds("whole numbers, so the sum is exact", [](Case one) {
    const RoutedGroup before = one.route();
    for (auto& rows : one.logits) {
      const auto shift = static_cast<float>(*rc::gen::inRange(-64, 65));
      for (float& logit : rows) logit += shift;
    }
    RC_ASSERT(one.route().routes() == before.routes());
  });
}

TEST_CASE("more capacity never loses more") {
  holds("failed and residual loss fall with the capacity factor", [](Case one) {
    one.config.rectification = Rectification::none;
    one.config.fill_in = false;
    double failed = 2, residual = 2;
    for (const char* factor : {"0", "0.5", "1", "2", "4", "64"}) {
      one.config.capacity_factor = Decimal::parse(factor, "factor");
      const RoutedGroup group = one.route();
      RC_ASSERT(group.loss.failed <= failed);
      RC_ASSERT(group.loss.residual_loss <= residual + 1e-6);
      failed = group.loss.failed;
      residual = group.loss.residual_loss;
    }
    RC_ASSERT(failed == 0);
  });
}

TEST_CASE("every instruction set decides the same") {
  holds("the same bits", [](const Case& one) {
    std::vector<RankLogits> spans;
    for (const auto& rows : one.logits) {
      spans.push_back({rows, static_cast<std::int64_t>(rows.size()) / one.experts});
    }
    const std::vector<Route> expected = one.route().routes();
    for (const SimdLevel level : available_simd_levels()) {
      GroupRouter router(one.config, one.experts, one.ranks, level);
      RC_ASSERT(router.route(spans, one.context).routes() == expected);
    }
  });
}
