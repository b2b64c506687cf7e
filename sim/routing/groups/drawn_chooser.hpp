#pragma once

#include <cstdint>
#include <vector>

#include "sim/routing/groups/chooser.hpp"

namespace moesim::routing {

// For routers that use no logits: each token has one expert with g = 1.
class DrawnChooser : public Chooser {
 public:
  explicit DrawnChooser(const KindShape& shape) : shape_(shape) {}

  KeepingRules rules(const RouterContext& context) const override;
  void choose(const GroupLogits& logits, const RouterContext& context, Choices& out) override;

 protected:
  // Writes the expert of each of a GPU's tokens to experts_, which has room for a complete last
  // tile.
  virtual void draw(std::int64_t tokens, std::uint32_t gpu, const RouterContext& context) = 0;

  KindShape shape_;
  std::vector<std::uint16_t> experts_;
};

}  // namespace moesim::routing
