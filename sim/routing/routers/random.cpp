// random: one uniformly random expert per token. random:balanced: a random permutation of the
// tokens over the experts.
#include <algorithm>

#include "sim/base/random.hpp"
#include "sim/routing/groups/drawn_chooser.hpp"
#include "sim/routing/routers/router_reading.hpp"
#include "sim/routing/routers/router_table.hpp"

namespace moesim::routing {

// Not in the table: random_router parses its name.
extern const RouterDescriptor random_balanced_router;

namespace {

// The first expert of the distribution: the first number of the GPU's stream.
std::size_t first_dealt(Stream& stream, std::size_t experts) {
  return static_cast<std::size_t>(std::uint64_t{stream.next_u32()} * experts >> 32);
}

class RandomChooser final : public DrawnChooser {
 public:
  using DrawnChooser::DrawnChooser;

 protected:
  void draw(std::int64_t tokens, std::uint32_t gpu, const RouterContext& context) override {
    const StreamKey key{context.seed, Purpose::random_expert, context.replica, context.layer, gpu};
    const auto experts = static_cast<std::uint64_t>(shape_.experts);
    for (std::size_t token = 0; token < static_cast<std::size_t>(tokens); token += 4) {
      const PhiloxBlock block = philox_block(key, token / 4);
      for (std::size_t word = 0; word < block.size(); ++word) {
        experts_[token + word] = static_cast<std::uint16_t>(block[word] * experts >> 32);
      }
    }
  }
};

// Tokens are distributed to the experts in turn, from a random one on, then shuffled (Fisher and
// Yates).
class DealingChooser final : public DrawnChooser {
 public:
  using DrawnChooser::DrawnChooser;

 protected:
  void draw(std::int64_t tokens, std::uint32_t gpu, const RouterContext& context) override {
    Stream stream({context.seed, Purpose::random_expert, context.replica, context.layer, gpu});
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

void read(const RouterReading& in, RouterConfig& config) {
  if (in.has_word("balanced", "random or random:balanced")) config.kind = &random_balanced_router;
  config.top_k = in.k_of_one();
}

std::string name(const RouterConfig& /*config*/) { return "random"; }
std::string balanced_name(const RouterConfig& /*config*/) { return "random:balanced"; }

std::unique_ptr<KindRouter> make(const KindShape& shape) {
  return make_chosen_router(shape, std::make_unique<RandomChooser>(shape));
}

std::unique_ptr<KindRouter> make_balanced(const KindShape& shape) {
  return make_chosen_router(shape, std::make_unique<DealingChooser>(shape));
}

std::vector<double> expert_shares(const RouterConfig& /*config*/, int experts,
                                  std::uint32_t /*layer*/) {
  return std::vector<double>(static_cast<std::size_t>(experts), 1.0 / experts);
}

// Every expert has an equal part of a GPU's tokens; the first ones also get the remainder.
class DealtCounter final : public ExactCounter {
 public:
  void count(const StreamKey& gpu, std::int64_t tokens, std::span<std::int32_t> counts) override {
    StreamKey key = gpu;
    key.purpose = Purpose::random_expert;
    Stream stream(key);
    const std::size_t experts = counts.size();
    const std::size_t first = first_dealt(stream, experts);
    const auto size = static_cast<std::int64_t>(experts);
    std::fill(counts.begin(), counts.end(), static_cast<std::int32_t>(tokens / size));
    const auto remainder = static_cast<std::size_t>(tokens % size);
    for (std::size_t at = 0; at < remainder; ++at) ++counts[(first + at) % experts];
  }
};

std::unique_ptr<ExactCounter> make_counter(const RouterConfig& /*config*/, int /*experts*/) {
  return std::make_unique<DealtCounter>();
}

}  // namespace

constinit const RouterDescriptor random_router{
    .head = "random",
    .form = "random[:balanced]",
    .help = "any expert; balanced: all experts equally often",
    .gate = false,
    .read = read,
    .name = name,
    .make = make,
    .expert_shares = expert_shares,
    .price = scoreless_gate};

constinit const RouterDescriptor random_balanced_router{.head = "random",
                                                        .form = "random:balanced",
                                                        .help = "all experts equally often",
                                                        .gate = false,
                                                        .read = read,
                                                        .name = balanced_name,
                                                        .make = make_balanced,
                                                        .make_counter = make_counter,
                                                        .price = scoreless_gate};

}  // namespace moesim::routing
