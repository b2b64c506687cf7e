#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sim/routing/routers/kind_router.hpp"

namespace moesim::routing {

// Under which rules the routes of a group are kept, once they are chosen.
struct KeepingRules {
  RouterConfig config;       // its k is the number of choices
  int capacity_experts = 0;  // over how many experts a GPU's tokens spread: C = ceil(CF S / this)
  bool exchanged = true;
  bool own_experts_only = false;
};

// Where a group's choices go.
struct Choices {
  ChoiceTable& table;
  // [token]: the mass of the token's k best of all experts. Left empty where the choices are those.
  std::vector<float>& reference_mass;
};

// How the tokens of a group come by their experts: the part in which kinds of router differ. What
// is kept is then decided as for top-k (Decision).
class Chooser {
 public:
  Chooser() = default;
  Chooser(const Chooser&) = delete;
  Chooser& operator=(const Chooser&) = delete;
  virtual ~Chooser() = default;

  virtual void start_layer(const GroupLogits& logits, const RouterContext& context);
  virtual KeepingRules rules(const RouterContext& context) const = 0;
  // Appends all ranks of the group to the table, which is of as many choices as rules() says.
  virtual void choose(const GroupLogits& logits, const RouterContext& context, Choices& out) = 0;
  // Replaces the weights of the last choose() where a kind has its own.
  virtual void reweigh(RoutedGroup& group) const;
};

// The experts of each token from its logits, its range of experts or the like, for choosers.
class TileChooser {
 public:
  TileChooser(int experts, const TileKernels& kernels);

  float* tile() { return tile_.data(); }
  // Of the tile as it stands: what turns logits into g. `maximum`: each token's largest logit.
  void find_softmax();
  void find_softmax(const float* maximum);
  // The same, and the `choices` best of all experts, as g.
  void find_best(int choices, const ChoiceOutput& out);
  // The `choices` best of experts [first, last), as g.
  void best(int first, int last, int choices, const ChoiceOutput& out);
  // Adds up the g of the `choices` best of all experts: 16 values.
  void best_mass(int choices, float* mass);
  // The whole tile becomes g.
  void to_probabilities();
  // Logits of `choices` rows become g.
  void to_probabilities(int choices, const ChoiceOutput& logits) const;

 private:
  int experts_;
  const TileKernels& kernels_;
  std::vector<float> tile_, scratch_, probability_;
  std::vector<std::uint16_t> expert_;
  alignas(64) float maximum_[tile_tokens] = {};
  alignas(64) float sum_[tile_tokens] = {};
};

std::unique_ptr<Chooser> make_random_chooser(const KindShape& shape);
std::unique_ptr<Chooser> make_hash_chooser(const KindShape& shape);
std::unique_ptr<Chooser> make_base_chooser(const KindShape& shape);
std::unique_ptr<Chooser> make_dropout_chooser(const KindShape& shape);
std::unique_ptr<Chooser> make_group_limited_chooser(const KindShape& shape);
std::unique_ptr<Chooser> make_bias_chooser(const KindShape& shape);

// A router that chooses, then keeps as top-k does.
std::unique_ptr<KindRouter> make_chosen_router(const KindShape& shape,
                                               std::unique_ptr<Chooser> chooser);

}  // namespace moesim::routing
