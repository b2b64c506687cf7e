// soft: every slot is a mixture of all tokens, so no token is routed (Puigcerver et al. 2023).
#include <algorithm>

#include "sim/base/error.hpp"
#include "sim/base/units.hpp"
#include "sim/routing/groups/kind_router.hpp"
#include "sim/routing/routers/router_reading.hpp"
#include "sim/routing/routers/router_table.hpp"

namespace moesim::routing {

namespace {

// There are no choices and no losses.
class SoftRouter final : public KindRouter {
 public:
  explicit SoftRouter(const KindShape& shape) : shape_(shape) {}

  void decide(const GroupLogits& logits, const RouterContext& /*context*/) override {
    const auto experts = static_cast<std::size_t>(shape_.experts);
    outcome_ = empty_outcome(shape_);
    for (int rank = 0; rank < shape_.ranks; ++rank) {
      const std::int64_t slots = shape_.config.capacity(logits.tokens(rank), shape_.experts);
      std::fill_n(outcome_.kept_rows.data() + static_cast<std::size_t>(rank) * experts, experts,
                  static_cast<std::int32_t>(slots));
      outcome_.capacity = std::max(outcome_.capacity, slots);
      outcome_.sums.tokens += logits.tokens(rank);
      outcome_.sums.slots += slots * shape_.experts;
      for (std::int64_t& asked : outcome_.demand) asked += slots;
    }
    outcome_.sums.others = outcome_.sums.slots;
    outcome_.exchanged_capacity = outcome_.capacity;
  }

  void collect(RoutedGroup& /*group*/) override {
    throw Error("a soft router has no routes to collect");
  }

 private:
  KindShape shape_;
};

void read(const RouterReading& in, RouterConfig& config) {
  in.expect(0, 0, "soft");
  config.top_k = in.k_of_one();
}

std::string name(const RouterConfig& /*config*/) { return "soft"; }

std::unique_ptr<KindRouter> make(const KindShape& shape) {
  return std::make_unique<SoftRouter>(shape);
}

// Bytes per cell of [S, E p] in addition to its GEMMs. Forward: two softmaxes read fp32 logits and
// write bf16 weights. Backward: each reads weights and their gradient and writes the gradient of
// the logits, and the two are added.
constexpr double softmax_bytes = 2 * (fp32_bytes + bf16_bytes);
constexpr double softmax_bytes_backward = 2 * (2 * bf16_bytes + fp32_bytes) + 3 * fp32_bytes;

// Logits of all slots, and their softmaxes over tokens and over slots.
GateWorkList price(const RouterConfig& /*config*/, const GateShape& shape) {
  const double cells = static_cast<double>(shape.tokens) * static_cast<double>(shape.slots);
  return {{.kind = GateWork::Kind::gemm,
           .label = "slot logits",
           .rows = shape.tokens,
           .columns = shape.slots,
           .depth = shape.hidden},
          {.label = shape.backward ? "slot softmaxes backward" : "slot softmaxes",
           .bytes = (shape.backward ? softmax_bytes_backward : softmax_bytes) * cells,
           .gating = false}};
}

}  // namespace

constinit const RouterDescriptor soft_router{
    .head = "soft",
    .form = "soft",
    .help = "experts compute mixes of all tokens",
    .mixes_tokens = true,
    .blocks = ExchangeBlocks::full,
    .no_counts = "it routes no tokens to experts",
    .no_group_scope = "its slots are of the tokens of one GPU",
    .no_one_hot = "mixes tokens by products of its own",
    .read = read,
    .name = name,
    .make = make,
    .price = price,
    .assumed = "unfused softmaxes over slots and tokens"};

}  // namespace moesim::routing
