#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sim/routing/groups/kind_router.hpp"

namespace moesim::routing {

// The rules by which the chosen routes of a group are kept.
struct KeepingRules {
  RouterConfig config;       // its k is the number of choices
  int capacity_experts = 0;  // experts that a GPU's tokens can go to: C = ceil(CF S / this)
  bool exchanged = true;
  bool own_experts_only = false;
};

// The output for the choices of a group.
struct Choices {
  ChoiceTable& table;
  // [token]: the mass of the token's k best of all experts. Empty where the choices are these
  // experts.
  std::vector<float>& reference_mass;
};

// How the tokens of a group choose their experts: the part in which kinds of router differ. Which
// routes are kept is then decided as for top-k (Decision).
class Chooser {
 public:
  Chooser() = default;
  Chooser(const Chooser&) = delete;
  Chooser& operator=(const Chooser&) = delete;
  virtual ~Chooser() = default;

  virtual void start_layer(const GroupLogits& logits, const RouterContext& context);
  virtual KeepingRules rules(const RouterContext& context) const = 0;
  // Appends all ranks of the group to the table, which has the number of choices of rules().
  virtual void choose(const GroupLogits& logits, const RouterContext& context, Choices& out) = 0;
  // Replaces the weights of the last choose() for kinds with their own weights.
  virtual void reweigh(RoutedGroup& group) const;
};

// A router that chooses, then keeps as top-k does.
std::unique_ptr<KindRouter> make_chosen_router(const KindShape& shape,
                                               std::unique_ptr<Chooser> chooser);

}  // namespace moesim::routing
