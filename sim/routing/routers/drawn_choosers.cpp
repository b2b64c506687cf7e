#include <algorithm>

#include "sim/base/random.hpp"
#include "sim/routing/routers/chooser.hpp"
#include "sim/routing/tokens/drawn_experts.hpp"

namespace moesim::routing {

namespace {

// Routers that look at no logit: each token has one expert, of g = 1.
class DrawnChooser : public Chooser {
 public:
  explicit DrawnChooser(const KindShape& shape) : shape_(shape) {}

  KeepingRules rules(const RouterContext& /*context*/) const override {
    return {shape_.config, shape_.experts};
  }

  void choose(const GroupLogits& logits, const RouterContext& context, Choices& out) override {
    for (int rank = 0; rank < logits.ranks(); ++rank) {
      const auto gpu = static_cast<std::uint32_t>(context.place.first_gpu + rank);
      draw(logits.tokens(rank), gpu, context);
      out.table.append_chosen(logits.tokens(rank), [&](std::int64_t token, const ChoiceOutput& to) {
        std::copy_n(experts_.begin() + token, tile_tokens, to.expert);
        std::fill_n(to.probability, tile_tokens, 1.0F);
      });
    }
  }

 protected:
  // The expert of each of a GPU's tokens into experts_, with room for a last whole tile.
  virtual void draw(std::int64_t tokens, std::uint32_t gpu, const RouterContext& context) = 0;

  KindShape shape_;
  std::vector<std::uint16_t> experts_;
};

std::size_t whole_tiles(std::int64_t tokens) {
  return static_cast<std::size_t>(tokens + tile_tokens);
}

class RandomChooser final : public DrawnChooser {
 public:
  using DrawnChooser::DrawnChooser;

 protected:
  void draw(std::int64_t tokens, std::uint32_t gpu, const RouterContext& context) override {
    const StreamKey key{context.seed, Purpose::random_expert, context.replica, context.layer, gpu};
    experts_.assign(whole_tiles(tokens), 0);
    const auto experts = static_cast<std::uint64_t>(shape_.experts);
    if (shape_.config.balanced) {
      permute(tokens, key);
      return;
    }
    for (std::size_t token = 0; token < static_cast<std::size_t>(tokens); token += 4) {
      const PhiloxBlock block = philox_block(key, token / 4);
      for (std::size_t word = 0; word < block.size(); ++word) {
        experts_[token + word] = static_cast<std::uint16_t>(block[word] * experts >> 32);
      }
    }
  }

 private:
  // Tokens dealt to the experts in turn, from a drawn one on, then shuffled (Fisher and Yates).
  void permute(std::int64_t tokens, const StreamKey& key) {
    Stream stream(key);
    const auto experts = static_cast<std::size_t>(shape_.experts);
    const std::size_t first = first_dealt(stream, experts);
    const auto count = static_cast<std::size_t>(tokens);
    for (std::size_t token = 0; token < count; ++token) {
      experts_[token] = static_cast<std::uint16_t>((first + token) % experts);
    }
    for (std::size_t left = count; left > 1; --left) {
      const auto other = static_cast<std::size_t>(std::uint64_t{stream.next_u32()} * left >> 32);
      std::swap(experts_[left - 1], experts_[other]);
    }
  }
};

class HashChooser final : public DrawnChooser {
 public:
  explicit HashChooser(const KindShape& shape)
      : DrawnChooser(shape), hashed_(shape.config.hash_exponent, shape.experts) {}

 protected:
  void draw(std::int64_t tokens, std::uint32_t gpu, const RouterContext& context) override {
    // A token keeps its id from layer to layer.
    Stream ids({context.seed, Purpose::token_id, context.replica, 0, gpu});
    experts_.assign(whole_tiles(tokens), 0);
    for (std::size_t token = 0; token < static_cast<std::size_t>(tokens); ++token) {
      experts_[token] = hashed_.expert(ids.uniform(), context.layer);
    }
  }

 private:
  HashedIds hashed_;
};

}  // namespace

std::unique_ptr<Chooser> make_random_chooser(const KindShape& shape) {
  return std::make_unique<RandomChooser>(shape);
}

std::unique_ptr<Chooser> make_hash_chooser(const KindShape& shape) {
  return std::make_unique<HashChooser>(shape);
}

}  // namespace moesim::routing
