#pragma once

#include <cstddef>
#include <optional>
#include <queue>
#include <span>
#include <vector>

#include "sim/base/byte_matrix.hpp"
#include "sim/base/units.hpp"

namespace moesim::network {

// The end of an exchange: of all its members at once, or of one of them.
struct Completion {
  static constexpr int all_members = -1;
  static constexpr int nobody = -2;  // a message ended, and no member is done with it
  Picoseconds time;
  int exchange = 0;
  int member = all_members;  // index within the exchange's members
};

// Carries the exchanges of a simulation. The engine calls it in the order of simulated time:
// begin() never with a time before the last completion taken. A model in which exchanges share
// links implements the same interface: it may move completions it has announced but that were not
// taken yet, each time another exchange begins.
class Fabric {
 public:
  virtual ~Fabric() = default;

  // All members of `exchange` are ready at `now`; `alone` is how long it takes on idle links.
  virtual void begin(int exchange, Picoseconds now, Picoseconds alone) = 0;
  // An exchange by matrix is to come: `bytes` between its `members` (ranks), in their order.
  // Called before the first of them arrives. Throws std::logic_error where the model has no links.
  virtual void announce(int exchange, std::span<const int> members, ByteMatrix bytes);
  // A member of an announced exchange is there, and its messages start. It is done when it has
  // sent and received everything.
  virtual void arrive(int exchange, int member, Picoseconds now);
  // The next completion if nothing else begins before it; nothing while no exchange is under way.
  virtual std::optional<Completion> next() = 0;
  // Takes the completion that next() shows.
  virtual void take() = 0;
};

// Exchanges do not disturb each other: each takes its time alone. Completions at one time come in
// the order of their exchange numbers.
class IdleFabric final : public Fabric {
 public:
  void begin(int exchange, Picoseconds now, Picoseconds alone) override;
  std::optional<Completion> next() override;
  void take() override;

 private:
  struct Later {
    bool operator()(const Completion& a, const Completion& b) const {
      return a.time != b.time ? a.time > b.time : a.exchange > b.exchange;
    }
  };
  std::priority_queue<Completion, std::vector<Completion>, Later> under_way_;
};

}  // namespace moesim::network
