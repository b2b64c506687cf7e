#pragma once

#include <cstdint>
#include <vector>

#include "sim/routing/groups/chooser.hpp"

namespace moesim::routing {

// Of routers that look at no logit: each token has one expert, of g = 1.
class DrawnChooser : public Chooser {
 public:
  explicit DrawnChooser(const KindShape& shape) : shape_(shape) {}

  KeepingRules rules(const RouterContext& context) const override;
  void choose(const GroupLogits& logits, const RouterContext& context, Choices& out) override;

 protected:
  // The expert of each of a GPU's tokens into experts_, which has room for a last whole tile.
  virtual void draw(std::int64_t tokens, std::uint32_t gpu, const RouterContext& context) = 0;

  KindShape shape_;
  std::vector<std::uint16_t> experts_;
};

}  // namespace moesim::routing
