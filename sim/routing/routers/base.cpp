// base: in training S/E of each GPU's tokens go to each expert, with the largest possible sum of
// logits (Lewis et al. 2021). base:greedy, and base in inference: each token goes to its best
// expert, without limit.
#include <fmt/format.h>

#include <algorithm>

#include "sim/base/units.hpp"
#include "sim/routing/groups/balanced_assignment.hpp"
#include "sim/routing/groups/chooser.hpp"
#include "sim/routing/groups/tile_chooser.hpp"
#include "sim/routing/routers/router_reading.hpp"
#include "sim/routing/routers/router_table.hpp"
#include "sim/routing/rules/routing_refusal.hpp"
#include "sim/routing/tokens/softmax.hpp"

namespace moesim::routing {

// Not in the table: base_router parses its name.
extern const RouterDescriptor base_greedy_router;

namespace {

// BASE layers (Lewis et al. 2021): in training each GPU's tokens are spread evenly over all
// experts, in inference each goes to its best expert. In both cases y = s E(x) + (1 - s) x, s =
// sigmoid(a).
class BaseChooser final : public Chooser {
 public:
  BaseChooser(const KindShape& shape, bool greedy)
      : shape_(shape), tile_(shape.experts, shape.kernels), greedy_(greedy) {}

  KeepingRules rules(const RouterContext& /*context*/) const override {
    return {shape_.config, shape_.experts};
  }

  void choose(const GroupLogits& logits, const RouterContext& /*context*/, Choices& out) override {
    gate_.clear();
    for (int rank = 0; rank < logits.ranks(); ++rank) {
      if (!greedy_) out.reference_mass.resize(whole(logits));
      choose_rank(logits, rank, out);
    }
  }

  void reweigh(RoutedGroup& group) const override {
    std::copy(gate_.begin(), gate_.end(), group.weight.begin());
  }

 private:
  static std::size_t whole(const GroupLogits& logits) {
    return static_cast<std::size_t>(logits.all_tokens()) + tile_tokens;
  }

  void choose_rank(const GroupLogits& logits, int rank, Choices& out) {
    const std::int64_t tokens = logits.tokens(rank);
    if (!greedy_) assign(logits, rank);
    const auto begin = static_cast<std::int64_t>(gate_.size());
    out.table.append_chosen(tokens, [&](std::int64_t token, const ChoiceOutput& to) {
      float* tile = tile_.tile();
      logits.fill_tile(rank, token, tile);
      tile_.find_softmax();
      tile_.best(0, shape_.experts, 1, to);
      const std::int64_t left = std::min<std::int64_t>(tile_tokens, tokens - token);
      if (!greedy_) {
        std::copy_n(to.probability, left, out.reference_mass.data() + begin + token);
        std::copy_n(assigned_->begin() + token, left, to.expert);
      }
      for (std::int64_t place = 0; place < left; ++place) {
        const std::int64_t at = std::int64_t{to.expert[place]} * tile_tokens + place;
        gate_.push_back(sigmoid(tile[at]));
      }
      if (greedy_) return;
      tile_.to_probabilities();
      for (std::int64_t place = 0; place < left; ++place) {
        to.probability[place] = tile[std::int64_t{to.expert[place]} * tile_tokens + place];
      }
    });
  }

  void assign(const GroupLogits& logits, int rank) {
    const std::int64_t tokens = logits.tokens(rank);
    const auto experts = static_cast<std::size_t>(shape_.experts);
    scores_.resize(static_cast<std::size_t>(tokens) * experts);
    for (std::int64_t first = 0; first < tokens; first += tile_tokens) {
      logits.fill_tile(rank, first, tile_.tile());
      const auto left =
          static_cast<std::size_t>(std::min<std::int64_t>(tile_tokens, tokens - first));
      for (std::size_t place = 0; place < left; ++place) {
        float* row = scores_.data() + (static_cast<std::size_t>(first) + place) * experts;
        for (std::size_t expert = 0; expert < experts; ++expert) {
          row[expert] = tile_.tile()[expert * tile_tokens + place];
        }
      }
    }
    assigned_ = &assignment_.assign(scores_, shape_.experts);
  }

  KindShape shape_;
  TileChooser tile_;
  bool greedy_;
  BalancedAssignment assignment_;
  std::vector<float> scores_;  // [token of a rank, expert]
  const std::vector<std::uint16_t>* assigned_ = nullptr;
  std::vector<float> gate_;  // [token]
};

constexpr const char* form = "base or base:greedy";

void read(const RouterReading& in, RouterConfig& config) {
  if (in.has_word("greedy", form)) config.kind = &base_greedy_router;
  config.top_k = in.k_of_one();
}

std::string name(const RouterConfig& /*config*/) { return "base"; }
std::string greedy_name(const RouterConfig& /*config*/) { return "base:greedy"; }

// BASE layers assign greedily outside training (Lewis et al. 2021, section 3.2).
void infer(RouterConfig& config) { config.kind = &base_greedy_router; }

void check(const RouterConfig& /*config*/, int experts, std::int64_t tokens) {
  if (tokens % experts == 0) return;
  throw RoutingRefusal([&](const RoutingTerms& terms) {
    return fmt::format(
        "--router base gives every expert as many tokens of a GPU, but {} tokens do not divide "
        "over {} experts: choose {}(or --sequence-length and --micro-batch) as a multiple of {}, "
        "or --router base:greedy",
        tokens, experts, terms.tokens, experts);
  });
}

std::unique_ptr<KindRouter> make(const KindShape& shape) {
  return make_chosen_router(shape, std::make_unique<BaseChooser>(shape, false));
}

std::unique_ptr<KindRouter> make_greedy(const KindShape& shape) {
  return make_chosen_router(shape, std::make_unique<BaseChooser>(shape, true));
}

constexpr double base_kernels = 4;  // arg-max, sort by expert, counts, inverse

// The auction of BASE layers in fairseq (libbase/balanced_assignment.cpp): each round has kernels
// on [E, S] tensors (bids cleared, column top-k, the highest bid per token, prices subtracted from
// the scores) and about 12 kernels on vectors of S, and the host reads two results before it
// continues. On Gaussian logits it takes 11 to 16 rounds, with a median of 13, for 8 and 64
// experts, 4,096 and 16,384 tokens and popularity biases up to 0.5: counted by running the
// algorithm.
constexpr double auction_rounds = 13;
constexpr double auction_vector_kernels = 12;
constexpr double auction_host_reads = 2;

void add_auction(const GateShape& shape, GateWorkList& list) {
  const auto tokens = static_cast<double>(shape.tokens);
  const double cells = tokens * shape.experts;
  const auto each_round = [&](const char* label, double bytes, double count) {
    list.push_back({.label = label, .bytes = bytes, .count = auction_rounds * count});
  };
  each_round("auction clear", fp32_bytes * cells, 1);
  each_round("auction select", fp32_bytes * cells, radix_passes);
  each_round("auction highest", fp32_bytes * cells, 1);
  each_round("auction prices", 2 * fp32_bytes * cells, 1);
  each_round("auction vectors", 2 * fp32_bytes * tokens, auction_vector_kernels);
  list.push_back({.kind = GateWork::Kind::host_read,
                  .label = "host read",
                  .count = auction_rounds * auction_host_reads});
}

// BASE trains its centroids only through the weight of the expert's output: the gate itself has no
// backward pass.
GateWorkList greedy_price(const RouterConfig& config, const GateShape& shape) {
  GateWorkList list;
  if (shape.backward) return list;
  if (shape.fused) return fused_gate(config, shape);
  add_gate_product(shape, list);
  add_gate_kernels(shape, base_kernels, list);
  return list;
}

GateWorkList price(const RouterConfig& config, const GateShape& shape) {
  GateWorkList list = greedy_price(config, shape);
  if (!shape.backward) add_auction(shape, list);
  return list;
}

constexpr const char* no_counts =
    "its counts are not worked out; they are those of dropless with k = 1";
constexpr const char* no_one_hot = "sorts tokens, it has no one-hot masks";
constexpr const char* idle_weights = "base weighs by the sigmoid of the logit";

}  // namespace

constinit const RouterDescriptor base_router{
    .head = "base",
    .form = "base[:greedy]",
    .help =
        "as many tokens to each expert, for the largest sum of scores; greedy, and in prefill: "
        "the best expert",
    .shuffles_tokens = true,
    .gated_output = true,
    .capacity = CapacityRule::equal_shares,
    .blocks = ExchangeBlocks::full,
    .no_counts = "which expert a token gets depends on all tokens of its GPU",
    .no_one_hot = no_one_hot,
    .no_unequal_tokens =
        "sends exactly S / E tokens from each GPU to each expert, in blocks that are equal because "
        "all GPUs hold S tokens",
    .for_unequal_tokens = "choose --router base:greedy, which sends what comes",
    .idle_weights = idle_weights,
    .read = read,
    .name = name,
    .infer = infer,
    .check = check,
    .make = make,
    .price = price,
    .assumed = "assignment by fairseq's auction, 13 rounds"};

constinit const RouterDescriptor base_greedy_router{.head = "base",
                                                    .form = "base:greedy",
                                                    .help = "the best expert, without limit",
                                                    .gated_output = true,
                                                    .capacity = CapacityRule::none,
                                                    .no_counts = no_counts,
                                                    .no_one_hot = no_one_hot,
                                                    .idle_weights = idle_weights,
                                                    .read = read,
                                                    .name = greedy_name,
                                                    .infer = infer,
                                                    .make = make_greedy,
                                                    .price = greedy_price};

}  // namespace moesim::routing
