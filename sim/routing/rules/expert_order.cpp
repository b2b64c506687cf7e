#include "sim/routing/rules/expert_order.hpp"

#include <fmt/format.h>

#include <span>

#include "sim/base/digest.hpp"
#include "sim/base/error.hpp"

namespace moesim::routing {

ExpertOrder::ExpertOrder(std::vector<std::vector<std::uint16_t>> expert_at, const std::string& what)
    : expert_at_(std::move(expert_at)) {
  if (expert_at_.empty()) throw UsageError(fmt::format("{}: it places no experts", what));
  for (std::size_t layer = 0; layer < expert_at_.size(); ++layer) {
    const std::vector<std::uint16_t>& order = expert_at_[layer];
    constexpr std::uint16_t nowhere = 0xffff;
    std::vector<std::uint16_t> place_of(experts(), nowhere);
    for (std::size_t place = 0; place < order.size(); ++place) {
      const std::uint16_t expert = order[place];
      if (expert < place_of.size() && place_of[expert] == nowhere) {
        place_of[expert] = static_cast<std::uint16_t>(place);
        continue;
      }
      throw UsageError(fmt::format("{}: layer {} has expert {} twice, or too many of them", what,
                                   layer, expert));
    }
    if (order.size() != experts()) {
      throw UsageError(fmt::format("{}: layer {} has {} experts, the first one {}", what, layer,
                                   order.size(), experts()));
    }
    place_of_.push_back(std::move(place_of));
  }
}

std::uint64_t ExpertOrder::digest() const {
  Digest digest;
  for (const std::vector<std::uint16_t>& order : expert_at_) digest.add(std::span(order));
  return digest.value();
}

}  // namespace moesim::routing
