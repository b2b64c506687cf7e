#include "sim/network/schedules/exchange_schedule.hpp"

#include <utility>
#include <vector>

#include "sim/base/enum_names.hpp"

namespace moesim::network {

ExchangeTimes run(const ExchangeSchedule& schedule, const ExchangeRequest& request) {
  if (schedule.times != nullptr) return schedule.times(request);
  return times_of_plan(schedule.plan(request), request);
}

ByteMatrix bytes_on_links(const ExchangeSchedule& schedule, const ExchangeRequest& request) {
  return schedule.bytes_on_links == nullptr ? request.bytes : schedule.bytes_on_links(request);
}

const ExchangeSchedule& find_schedule(const std::string& name, std::vector<std::string> others) {
  std::vector<std::string> names = std::move(others);
  for (const ExchangeSchedule* schedule : all_schedules) {
    if (name == schedule->name) return *schedule;
    names.emplace_back(schedule->name);
  }
  refuse_name("schedule", name, names);
}

}  // namespace moesim::network
