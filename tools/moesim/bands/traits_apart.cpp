#include "tools/moesim/bands/traits_apart.hpp"

#include <algorithm>

namespace moesim::tool {
namespace {

using Traits = std::vector<uncertainty::UnmeasuredTrait>;

void add_apart(const Traits& from, const Traits& others, Traits& apart) {
  for (const uncertainty::UnmeasuredTrait& each : from) {
    const bool shared = std::any_of(others.begin(), others.end(), [&](const auto& candidate) {
      return candidate.trait.name == each.trait.name && candidate.trait.size == each.trait.size;
    });
    if (!shared) apart.push_back(each);
  }
}

}  // namespace

Traits traits_apart(const Traits& one, const Traits& other) {
  Traits apart;
  add_apart(one, other, apart);
  add_apart(other, one, apart);
  return apart;
}

}  // namespace moesim::tool
