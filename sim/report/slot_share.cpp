#include "sim/report/slot_share.hpp"

#include "sim/report/formats.hpp"

namespace moesim::report {

void SlotShares::add(const Cell& padding, const Cell& capacity) {
  padding_.push_back(padding);
  any_ = any_ || has_slots(padding, capacity);
}

std::string SlotShares::heading() const { return empty_slots_name(padding_) + " %"; }

bool SlotShares::has_slots(const Cell& padding, const Cell& capacity) {
  return !is_absent(padding) || !is_absent(capacity);
}

}  // namespace moesim::report
