#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "sim/network/flows/max_min.hpp"
#include "sim/network/flows/tournament.hpp"

namespace moesim::network {

// Flows on links under max-min shares, in simulated time: when does each have its bytes across?
//
// The flows a link holds back all run at its level, so the link counts what each of them has
// passed, its service, and a flow that joins with b bytes to go leaves at service now + b. When a
// link's level changes its service is brought up to date, and no flow is touched but those that
// change the link that holds them back. The next event is the least of the links' next ends.
//
// Time is an integer number of picoseconds outside and, inside, a double that counts from the
// start of the busy period: ends are rounded to the nearest picosecond only when told, so errors
// do not add up. Ends closer than the rounding of these doubles (`together`) are one event.
class Transfers {
 public:
  struct Counts {
    std::int64_t events = 0;  // different times at which flows enter or end
    std::int64_t moves = 0;   // of a flow from one link that holds it back to another
    MaxMin::Counts levels;
  };
  // Flows that end at one time, in the order of their numbers.
  struct Ends {
    std::int64_t time = 0;
    std::vector<std::uint32_t> flows;
  };

  // `capacities` in bytes per picosecond; routes have at most `route_links` different links.
  Transfers(std::vector<double> capacities, std::size_t route_links);

  // `flow` is a small number not in use: it is free again once ends() has listed it and take() was
  // called. `bytes` > 0. It enters its links at `time`, or now if that is earlier: not before the
  // last ends taken.
  void enter(std::uint32_t flow, double bytes, std::int64_t time, std::span<const Hop> route);
  // The next ends if nothing else enters before; null when no flow is under way. Valid until the
  // next call of a function that is not const.
  const Ends* next();
  // Takes what next() shows. Precondition: next() was the last call and not null.
  void take();
  Counts counts() const;

 private:
  static constexpr int nowhere = -1;

  // What one link serves.
  struct Service {
    double level = MaxMin::unlimited;  // bytes per ps of each flow held back here
    double passed = 0;                 // of each, up to `since`
    double since = 0;
    double least = 0;  // of `leaves`; not known if `search`
    bool search = false;
    bool stale = false;          // listed in stale_
    std::vector<double> leaves;  // service at which a flow ends
    std::vector<std::uint32_t> flow;
    double at(double time) const { return held() ? passed + level * (time - since) : passed; }
    bool held() const { return level != MaxMin::unlimited; }
  };
  struct Flow {
    double bytes = 0;
    int held_by = nowhere;
    std::uint32_t place = 0;  // among the flows of that link
  };
  struct Entries {
    std::int64_t time;
    std::vector<std::uint32_t> flows;
  };

  void admit();
  void rewind(std::int64_t time);
  void settle(std::span<const std::uint32_t> entered);
  void move(const MaxMin::Change& change);
  void reconsider(std::uint32_t flow);
  void hold(std::uint32_t flow, int link, double bytes);
  double release(std::uint32_t flow);
  void mark_stale(int link);
  void refresh();
  void collect();
  double relative(std::int64_t time) const { return static_cast<double>(time - epoch_); }
  double together(double time) const { return 0.01 + 1e-13 * time; }

  MaxMin shares_;
  std::size_t route_links_;
  std::vector<Service> services_;  // [link]
  std::vector<Flow> flows_;
  std::vector<Hop> routes_;                                     // [flow, hop]
  std::vector<std::uint8_t> lengths_;                           // [flow]
  std::map<std::int64_t, std::vector<std::uint32_t>> waiting_;  // to enter, by time
  std::vector<Entries> passed_;  // entered since the last take(), for rewind()
  Tournament ends_;              // [link] its next end
  std::vector<int> stale_;       // links whose next end is not up to date
  std::vector<int> due_;         // scratch of collect()
  std::int64_t epoch_ = 0;
  double now_ = 0;
  double taken_ = 0;  // when ends were last taken
  double next_time_ = 0;
  bool next_known_ = false;
  Ends next_;
  std::int64_t events_ = 0;
  std::int64_t moves_ = 0;
};

}  // namespace moesim::network
