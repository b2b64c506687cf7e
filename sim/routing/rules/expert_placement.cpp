#include "sim/routing/rules/expert_placement.hpp"

#include <fmt/format.h>

#include <span>

#include "sim/base/digest.hpp"
#include "sim/base/error.hpp"

namespace moesim::routing {

ExpertPlacement::ExpertPlacement(std::vector<std::vector<std::uint16_t>> expert_at,
                                 const std::string& what)
    : expert_at_(std::move(expert_at)) {
  if (expert_at_.empty()) throw UsageError(fmt::format("{}: it places no experts", what));
  for (std::size_t layer = 0; layer < expert_at_.size(); ++layer) {
    const std::vector<std::uint16_t>& placed = expert_at_[layer];
    constexpr std::uint16_t nowhere = 0xffff;
    std::vector<std::uint16_t> position_of(experts(), nowhere);
    for (std::size_t position = 0; position < placed.size(); ++position) {
      const std::uint16_t expert = placed[position];
      if (expert < position_of.size() && position_of[expert] == nowhere) {
        position_of[expert] = static_cast<std::uint16_t>(position);
        continue;
      }
      throw UsageError(fmt::format("{}: layer {} has expert {} twice, or too many of them", what,
                                   layer, expert));
    }
    if (placed.size() != experts()) {
      throw UsageError(fmt::format("{}: layer {} has {} experts, the first one {}", what, layer,
                                   placed.size(), experts()));
    }
    position_of_.push_back(std::move(position_of));
  }
}

std::uint64_t ExpertPlacement::digest() const {
  Digest digest;
  for (const std::vector<std::uint16_t>& placed : expert_at_) digest.add(std::span(placed));
  return digest.value();
}

}  // namespace moesim::routing
