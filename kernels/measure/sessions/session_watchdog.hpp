#pragma once

#include <atomic>
#include <string>
#include <utility>

#include "kernels/measure/ranks/group.hpp"
#include "kernels/measure/timing/watchdog.hpp"

namespace moesim::kernels::measure {

// What watches a rank of a session. `Options`: those of the session, with the limits of the
// watchdog, on_note and give_up. `together`: while ranks have to come together; it has to live as
// long as the watchdog, as do options and group. Without a limit on the whole run.
template <class Options>
WatchdogOptions session_watchdog(const Options& options, const Group& group,
                                 const std::atomic<bool>& together, std::string who) {
  WatchdogOptions found;
  found.who = std::move(who);
  found.silence_s = options.silence_s;
  found.stall_s = options.stall_s;
  found.lost_s = options.lost_s;
  if (group.size() > 1) {
    found.lost = [&group, &together] { return together ? group.lost() : std::string(); };
  }
  found.tell = options.on_note;
  found.give_up = options.give_up;
  found.awaited = [&group] { return group.awaited(); };
  return found;
}

}  // namespace moesim::kernels::measure
