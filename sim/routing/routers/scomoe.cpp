// scomoe: a share of the tokens stays on its GPU, another in its NVLink domain, the rest goes to
// any GPU; each pool has its own C (Zeng and Xiong 2023). Parameters: the two shares, whose sum is
// at most 1.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "sim/routing/groups/kind_router.hpp"
#include "sim/routing/groups/tile_chooser.hpp"
#include "sim/routing/routers/router_reading.hpp"
#include "sim/routing/routers/router_table.hpp"

namespace moesim::routing {

namespace {

const Decimal& local_share(const RouterConfig& config) { return config.parameters[0]; }
const Decimal& node_share(const RouterConfig& config) { return config.parameters[1]; }

// SCoMoE-Seq (Zeng and Xiong 2023): a GPU's tokens are sliced by position. The first share chooses
// among the experts of its own GPU, the next among those of its NVLink domain, the rest among all;
// each pool is routed as top-k, with C = ceil(CF tokens of the pool / experts of the pool). A block
// has the slots of all pools that can use its expert: own, domain, global, in this order.
class PooledRouter final : public KindRouter {
 public:
  explicit PooledRouter(const KindShape& shape)
      : shape_(shape), tile_(shape.experts, shape.kernels) {}

  void decide(const GroupLogits& logits, const RouterContext& context) override;
  void collect(RoutedGroup& group) override;

 private:
  static constexpr std::size_t pool_count = 3;  // own GPU, domain, anywhere
  struct Pool {
    std::vector<std::int64_t> begin, end;  // [rank]: positions
    std::vector<LocalExperts> experts;     // [rank]: where its tokens may go; wanted: k
    std::vector<std::int64_t> capacity;    // [rank]
    RouterConfig config;
    ChoiceTable table;
    RouteOrders orders;
    Decision decision;
    std::vector<float> reference_mass;  // [token]
  };

  void lay_out(const GroupLogits& logits, const RouterContext& context);
  void choose(const GroupLogits& logits, Pool& pool);
  void decide_pool(const RouterContext& context, Pool& pool);
  void count_blocks();
  DecisionInput input(Pool& pool) {
    return {pool.config,
            pool.table,
            pool.orders,
            shape_.kernels,
            0,
            pool.capacity,
            pool.reference_mass.data()};
  }
  bool reaches(const Pool& pool, std::size_t rank, int expert) const {
    return pool.capacity[rank] > 0 && expert >= pool.experts[rank].first &&
           expert < pool.experts[rank].last;
  }

  KindShape shape_;
  TileChooser tile_;
  Pool pools_[pool_count];
};

void PooledRouter::lay_out(const GroupLogits& logits, const RouterContext& context) {
  const Decimal& local = local_share(shape_.config);
  const Decimal near = local + node_share(shape_.config);
  RouterConfig by_node = shape_.config;
  by_node.rectification = Rectification::node;  // its experts are those of the domain
  for (Pool& pool : pools_) {
    pool.begin.clear();
    pool.end.clear();
    pool.experts.clear();
    pool.capacity.clear();
  }
  const int own = shape_.experts / shape_.ranks;
  for (int rank = 0; rank < shape_.ranks; ++rank) {
    const std::int64_t tokens = logits.tokens(rank);
    const std::int64_t cuts[] = {0, local.floor_of_product(tokens), near.floor_of_product(tokens),
                                 tokens};
    const LocalExperts domain =
        local_experts(by_node, shape_.experts, shape_.ranks, rank, context.place);
    const LocalExperts reach[] = {
        {rank * own, (rank + 1) * own, 0}, {domain.first, domain.last, 0}, {0, shape_.experts, 0}};
    for (std::size_t index = 0; index < pool_count; ++index) {
      Pool& pool = pools_[index];
      pool.begin.push_back(cuts[index]);
      pool.end.push_back(cuts[index + 1]);
      pool.experts.push_back(reach[index]);
      const int experts = reach[index].last - reach[index].first;
      const std::int64_t pooled = cuts[index + 1] - cuts[index];
      // A pool without tokens sends nothing, not even the minimum capacity.
      pool.capacity.push_back(pooled > 0 ? shape_.config.capacity(pooled, experts) : 0);
    }
  }
}

// A tile may overlap two or three pools: each uses its own tokens.
void PooledRouter::choose(const GroupLogits& logits, Pool& pool) {
  const auto top_k = static_cast<std::size_t>(pool.config.top_k);
  std::int64_t tokens = 0;
  for (std::size_t rank = 0; rank < pool.begin.size(); ++rank) {
    tokens += pool.end[rank] - pool.begin[rank];
  }
  pool.table.reset(shape_.experts, pool.config.top_k, 0, 0, tokens);
  pool.reference_mass.assign(static_cast<std::size_t>(tokens) + tile_tokens, 0.0F);
  std::vector<std::uint16_t> expert(top_k * tile_tokens);
  std::vector<float> probability(top_k * tile_tokens);
  float mass[tile_tokens];
  for (int rank = 0; rank < shape_.ranks; ++rank) {
    const auto at_rank = static_cast<std::size_t>(rank);
    const std::int64_t first = pool.begin[at_rank];
    const std::int64_t count = pool.end[at_rank] - first;
    const LocalExperts& reach = pool.experts[at_rank];
    float* reference = pool.reference_mass.data() + pool.table.tokens();
    std::int64_t loaded = -1;
    pool.table.append_chosen(count, [&](std::int64_t done, const ChoiceOutput& to) {
      for (std::int64_t place = 0; place < tile_tokens && done + place < count; ++place) {
        const std::int64_t token = first + done + place;
        const std::int64_t tile = token / tile_tokens * tile_tokens;
        if (tile != loaded) {
          loaded = tile;
          logits.fill_tile(rank, tile, tile_.tile());
          tile_.find_softmax();
          tile_.best_mass(shape_.config.top_k, mass);
          tile_.best(reach.first, reach.last, pool.config.top_k,
                     {expert.data(), probability.data(), tile_tokens});
        }
        const auto lane = static_cast<std::size_t>(token - tile);
        reference[done + place] = mass[lane];
        for (std::size_t choice = 0; choice < top_k; ++choice) {
          const std::size_t at = choice * to.stride + static_cast<std::size_t>(place);
          to.expert[at] = expert[choice * tile_tokens + lane];
          to.probability[at] = probability[choice * tile_tokens + lane];
        }
      }
    });
  }
}

void PooledRouter::decide_pool(const RouterContext& context, Pool& pool) {
  std::vector<StreamKey> keys;
  for (int rank = 0; rank < shape_.ranks; ++rank) {
    keys.push_back({context.seed, Purpose::drop_priority, context.replica, context.layer,
                    static_cast<std::uint32_t>(context.place.first_gpu + rank)});
  }
  pool.orders.reset(pool.table, std::move(keys));
  pool.decision.decide(input(pool));
  LossSums sums = pool.decision.sums();
  sums.slots = 0;
  for (std::size_t rank = 0; rank < pool.capacity.size(); ++rank) {
    sums.slots += pool.capacity[rank] * (pool.experts[rank].last - pool.experts[rank].first);
  }
  outcome_.sums += sums;
  for (std::size_t expert = 0; expert < outcome_.demand.size(); ++expert) {
    outcome_.demand[expert] += pool.decision.demand()[expert];
  }
}

void PooledRouter::decide(const GroupLogits& logits, const RouterContext& context) {
  outcome_ = empty_outcome(shape_);
  lay_out(logits, context);
  for (Pool& pool : pools_) {
    pool.config = shape_.config;
    for (const LocalExperts& reach : pool.experts) {
      pool.config.top_k = std::min(pool.config.top_k, reach.last - reach.first);
    }
    choose(logits, pool);
    decide_pool(context, pool);
  }
  count_blocks();
}

void PooledRouter::count_blocks() {
  std::size_t block = 0;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(shape_.ranks); ++rank) {
    for (int expert = 0; expert < shape_.experts; ++expert, ++block) {
      std::int64_t rows = 0;
      for (const Pool& pool : pools_) {
        if (reaches(pool, rank, expert)) rows += pool.capacity[rank];
      }
      outcome_.kept_rows[block] = static_cast<std::int32_t>(rows);
    }
  }
  outcome_.exchanged_capacity = outcome_.capacity =
      *std::max_element(outcome_.kept_rows.begin(), outcome_.kept_rows.end());
}

void PooledRouter::collect(RoutedGroup& group) {
  clear_routes(group);
  group.capacity.assign(static_cast<std::size_t>(shape_.ranks), 0);
  for (std::size_t index = 0; index < pool_count; ++index) {
    Pool& pool = pools_[index];
    RoutedGroup part;
    part.ranks = shape_.ranks;
    part.experts = shape_.experts;
    part.top_k = part.choices = pool.config.top_k;
    part.tokens = static_cast<std::size_t>(pool.table.tokens());
    collect_routes(input(pool), pool.decision, part);
    for (std::size_t rank = 0; rank < pool.begin.size(); ++rank) {
      group.capacity[rank] += pool.capacity[rank];
      const auto first = static_cast<std::size_t>(pool.table.rank_begin(static_cast<int>(rank)));
      const auto count = static_cast<std::size_t>(pool.end[rank] - pool.begin[rank]);
      const auto begin = static_cast<std::size_t>(group.rank_begin[rank] + pool.begin[rank]);
      for (int choice = 0; choice < part.choices; ++choice) {
        const std::size_t from = static_cast<std::size_t>(choice) * part.stride + first;
        const std::size_t to = static_cast<std::size_t>(choice) * group.stride + begin;
        for (std::size_t token = 0; token < count; ++token) {
          const std::uint16_t expert = pool.table.expert(choice)[first + token];
          group.expert[to + token] = expert;
          group.probability[to + token] = pool.table.probability(choice)[first + token];
          group.weight[to + token] = part.weight[from + token];
          std::int64_t slot = part.slot[from + token];
          for (std::size_t before = 0; slot >= 0 && before < index; ++before) {
            if (reaches(pools_[before], rank, expert)) slot += pools_[before].capacity[rank];
          }
          group.slot[to + token] = static_cast<std::int32_t>(slot);
        }
      }
    }
  }
}

void read(const RouterReading& in, RouterConfig& config) {
  in.expect(2, 2, "scomoe:LOCAL:NODE, shares of the tokens such as scomoe:0.4:0.3");
  config.top_k = in.k_beside();
  config.parameters = {in.number(in.parts[1]), in.number(in.parts[2])};
  if (local_share(config) + node_share(config) > Decimal(1)) {
    in.refuse("the shares that stay on the GPU and in the NVLink domain exceed 1 together");
  }
}

std::string name(const RouterConfig& config) {
  return fmt::format("scomoe:{}:{}", local_share(config).text(), node_share(config).text());
}

bool stays_on_gpu(const RouterConfig& config) { return local_share(config) >= Decimal(1); }

std::unique_ptr<KindRouter> make(const KindShape& shape) {
  return std::make_unique<PooledRouter>(shape);
}

// Each pool with tokens selects separately.
GateWorkList price(const RouterConfig& config, const GateShape& shape) {
  const double local = local_share(config).to_double();
  const double node = node_share(config).to_double();
  const double pools = (local > 0 ? 1 : 0) + (node > 0 ? 1 : 0) + (local + node < 1 ? 1 : 0);
  return library_gate(config, shape, gate_kernels + gate_kernels_per_choice * config.choices(),
                      pools);
}

}  // namespace

constinit const RouterDescriptor scomoe_router{
    .head = "scomoe",
    .form = "scomoe:LOCAL:NODE",
    .help = "shares of the tokens that choose on their GPU, and in their NVLink domain",
    .blocks = ExchangeBlocks::pooled,
    .no_counts = "the tokens of its pools choose among different experts",
    .no_group_scope = "each of its pools has a capacity per source GPU",
    .idle_padding = "scomoe exchanges the blocks of its pools",
    .read = read,
    .name = name,
    .stays_on_gpu = stays_on_gpu,
    .make = make,
    .price = price};

}  // namespace moesim::routing
