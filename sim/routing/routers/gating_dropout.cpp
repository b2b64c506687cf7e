// gating-dropout: top-k; in training a layer skips the all-to-all with a probability, and routes
// among each GPU's own experts (Liu et al. 2022). Parameter: that probability, below 1.
#include "sim/base/random.hpp"
#include "sim/routing/groups/chooser.hpp"
#include "sim/routing/groups/tile_chooser.hpp"
#include "sim/routing/routers/router_reading.hpp"
#include "sim/routing/routers/router_table.hpp"

namespace moesim::routing {

namespace {

const Decimal& probability(const RouterConfig& config) { return config.parameters[0]; }

// With probability P all GPUs skip the exchange; a token is then routed among its own GPU's
// experts, which may be fewer than k.
class DropoutChooser final : public Chooser {
 public:
  explicit DropoutChooser(const KindShape& shape)
      : shape_(shape), tile_(shape.experts, shape.kernels) {}

  KeepingRules rules(const RouterContext& context) const override {
    KeepingRules rules{shape_.config, shape_.experts};
    if (!skips(context)) return rules;
    const int own = shape_.experts / shape_.ranks;
    rules.config = shape_.config.among_own(own);
    rules.capacity_experts = own;
    rules.exchanged = false;
    rules.own_experts_only = true;
    return rules;
  }

  void choose(const GroupLogits& logits, const RouterContext& context, Choices& out) override {
    const bool skipped = skips(context);
    const KeepingRules kept = rules(context);
    const int own = shape_.experts / shape_.ranks;
    if (skipped) out.reference_mass.resize(whole(logits));
    std::int64_t begin = 0;
    for (int rank = 0; rank < logits.ranks(); ++rank) {
      const LocalExperts local =
          local_experts(kept.config, shape_.experts, shape_.ranks, rank, context.place);
      out.table.append_chosen(logits.tokens(rank), [&](std::int64_t token, const ChoiceOutput& to) {
        logits.fill_tile(rank, token, tile_.tile());
        if (skipped) {
          tile_.find_softmax();
          tile_.best(rank * own, (rank + 1) * own, kept.config.choices(), to);
          tile_.best_mass(shape_.config.top_k, out.reference_mass.data() + begin + token);
        } else {
          tile_.find_best(kept.config.choices(), to);
        }
        if (local.wanted > 0) {
          tile_.best(local.first, local.last, local.wanted, out.table.local_output(token));
        }
      });
      out.table.set_local_places(local.wanted);
      begin += logits.tokens(rank);
    }
  }

 private:
  static std::size_t whole(const GroupLogits& logits) {
    return static_cast<std::size_t>(logits.all_tokens()) + tile_tokens;
  }

  // One random draw for all GPUs.
  bool skips(const RouterContext& context) const {
    Stream stream({context.seed, Purpose::skipped_exchange, context.replica, context.layer, 0});
    return stream.uniform() < probability(shape_.config).to_double();
  }

  KindShape shape_;
  TileChooser tile_;
};

void read(const RouterReading& in, RouterConfig& config) {
  in.expect(1, 1, "gating-dropout:P, such as gating-dropout:0.3");
  config.top_k = in.k_beside();
  config.parameters[0] = in.number(in.parts[1]);
  if (probability(config) >= Decimal(1)) {
    in.refuse("a probability of 1 or more would never exchange a token: give 0 to below 1");
  }
}

std::string name(const RouterConfig& config) {
  return "gating-dropout:" + probability(config).text();
}

// Only in training: dropout is a regularisation (Liu et al. 2022).
void infer(RouterConfig& config) { config.parameters[0] = Decimal(0); }

std::unique_ptr<KindRouter> make(const KindShape& shape) {
  return make_chosen_router(shape, std::make_unique<DropoutChooser>(shape));
}

}  // namespace

constinit const RouterDescriptor gating_dropout_router{
    .head = "gating-dropout",
    .form = "gating-dropout:P",
    .short_form = "gating-dropout",
    .help = "topk; in training layers skip the exchange with probability P",
    .chooses_top_k = true,
    .can_rectify = true,
    .skips_exchange = true,
    .no_counts = "layers that skip the exchange have other shares of experts",
    .read = read,
    .name = name,
    .infer = infer,
    .make = make,
    .price = top_k_gate};

}  // namespace moesim::routing
