#include <algorithm>

#include "sim/routing/routers/balanced_assignment.hpp"
#include "sim/routing/routers/chooser.hpp"
#include "sim/routing/tokens/softmax.hpp"

namespace moesim::routing {

namespace {

// BASE layers (Lewis et al. 2021): in training each GPU's tokens are spread evenly over all
// experts, in inference each goes to its best. Either way y = s E(x) + (1 - s) x, s = sigmoid(a).
class BaseChooser final : public Chooser {
 public:
  explicit BaseChooser(const KindShape& shape)
      : shape_(shape), tile_(shape.experts, shape.kernels) {}

  KeepingRules rules(const RouterContext& /*context*/) const override {
    return {shape_.config, shape_.experts};
  }

  void choose(const GroupLogits& logits, const RouterContext& /*context*/, Choices& out) override {
    gate_.clear();
    for (int rank = 0; rank < logits.ranks(); ++rank) {
      if (!shape_.config.greedy) out.reference_mass.resize(whole(logits));
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
    if (!shape_.config.greedy) assign(logits, rank);
    const auto begin = static_cast<std::int64_t>(gate_.size());
    out.table.append_chosen(tokens, [&](std::int64_t token, const ChoiceOutput& to) {
      float* tile = tile_.tile();
      logits.fill_tile(rank, token, tile);
      tile_.find_softmax();
      tile_.best(0, shape_.experts, 1, to);
      const std::int64_t left = std::min<std::int64_t>(tile_tokens, tokens - token);
      if (!shape_.config.greedy) {
        std::copy_n(to.probability, left, out.reference_mass.data() + begin + token);
        std::copy_n(assigned_->begin() + token, left, to.expert);
      }
      for (std::int64_t place = 0; place < left; ++place) {
        const std::int64_t at = std::int64_t{to.expert[place]} * tile_tokens + place;
        gate_.push_back(sigmoid(tile[at]));
      }
      if (shape_.config.greedy) return;
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
  BalancedAssignment assignment_;
  std::vector<float> scores_;  // [token of a rank, expert]
  const std::vector<std::uint16_t>* assigned_ = nullptr;
  std::vector<float> gate_;  // [token]
};

}  // namespace

std::unique_ptr<Chooser> make_base_chooser(const KindShape& shape) {
  return std::make_unique<BaseChooser>(shape);
}

}  // namespace moesim::routing
