#include "sim/study/search/any_acceptable.hpp"

#include <algorithm>
#include <map>

#include "sim/study/search/spread_places.hpp"

namespace moesim::study {
namespace {

struct Family {
  double least_us = 0;
  std::vector<std::size_t> candidates;
};

std::vector<Family> families_of(const AnyAcceptable& search) {
  std::map<std::uint32_t, Family> by_number;
  for (std::size_t at = 0; at < search.candidates.size(); ++at) {
    const AnyAcceptable::Candidate& each = search.candidates[at];
    Family& family = by_number.try_emplace(each.family, Family{each.bound_us, {}}).first->second;
    family.least_us = std::min(family.least_us, each.bound_us);
    family.candidates.push_back(at);
  }
  std::vector<Family> families;
  for (auto& [number, family] : by_number) families.push_back(std::move(family));
  std::stable_sort(families.begin(), families.end(), [](const Family& one, const Family& other) {
    return one.least_us < other.least_us;
  });
  return families;
}

}  // namespace

std::size_t find_acceptable(const AnyAcceptable& search) {
  std::size_t simulated = 0;
  const std::vector<Family> families = families_of(search);
  for (const std::size_t place : spread_places(families.size())) {
    for (const std::size_t at : families[place].candidates) {
      if (simulated == AnyAcceptable::most || (search.give_up && search.give_up())) {
        return simulated;
      }
      if (!search.may_fit(at)) continue;
      ++simulated;
      if (search.is_acceptable(at)) return simulated;
    }
  }
  return simulated;
}

}  // namespace moesim::study
