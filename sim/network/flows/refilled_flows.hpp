#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "sim/base/units.hpp"
#include "sim/network/flows/aligned_doubles.hpp"
#include "sim/network/flows/flow_matrix.hpp"
#include "sim/network/flows/refill_kernels.hpp"

namespace moesim::network {

// Max-min flows in a matrix, exact to rounding: all levels that an event changes are found anew.
//
// Links are filled in the order of their levels (MaxMin says what a level is): a link's is what the
// links before it have left to it, per flow to a link after it. An event leaves the links before
// its own two as they are, and changes the order of the others little. So each is filled in its old
// turn, and a link that would get less than one across from it which had its turn before is put
// before that one. What links had left is kept for each turn, so that nothing need be undone. Only
// an event's own links pass many others: they are put in place by the old levels before.
//
// No flow is looked at when levels change. Events record the levels and how long these held; after
// some of them all flows are served at once, min(level, level across) time for each record, and
// those listed that could end next. Any other flow cannot end before its time at the levels of
// then, divided by the most by which a level has grown since.
//
// At N links a side an event takes some 1.7 N turns of N additions and serves N^2 flows, without a
// search among them. DenseFlows costs less where its tolerance is large or links are many.
class RefilledFlows {
 public:
  struct Result {
    std::int64_t events = 0;    // ends of a flow, and times at which flows enter
    std::int64_t levels = 0;    // found
    std::int64_t moves = 0;     // of a flow from one link that holds it back to another
    std::int64_t fillings = 0;  // of all levels
  };

  explicit RefilledFlows(FlowMatrix matrix);

  // Calls ended(flow, time). Throws Error if a flow ends later than simulated time reaches.
  template <typename Ended>
  Result run(Ended&& ended) {
    while (const auto end = step()) ended(end->flow, Picoseconds(end->time));
    return result_;
  }

 private:
  static constexpr double never = std::numeric_limits<double>::infinity();

  std::optional<FlowMatrix::End> step();
  bool wait(double time);
  void look_ahead();
  void list(std::size_t count);
  void admit();
  void add(const FlowMatrix::Entry& entry);
  void hold_in_order();
  FlowMatrix::End complete(std::size_t soon);
  void remove(std::uint32_t first, std::uint32_t second);
  void lift(std::size_t at, double left);
  void retire(std::uint32_t link);
  void fill(std::size_t from);

  RefillKernels::Listed serve(double horizon);
  RefillLinks links();
  SoonFlows soon();
  std::uint32_t place(std::uint32_t link) const {
    return link < width_ ? link : link - static_cast<std::uint32_t>(width_);
  }
  bool meets(std::uint32_t link, std::uint32_t other) const {
    return (link < width_) != (other < width_) &&
           (alive_[link * matrix_.words + place(other) / 64] >> (place(other) % 64) & 1U) != 0;
  }
  void flip(std::uint32_t link, std::uint32_t other) {
    alive_[link * matrix_.words + place(other) / 64] ^= std::uint64_t{1} << (place(other) % 64);
  }

  FlowMatrix matrix_;
  std::size_t width_;
  const RefillKernels* kernels_;
  // [link]
  AlignedDoubles level_, inverse_;  // inverse_: 1 / level when flows were listed
  std::vector<std::uint32_t> held_, flow_count_, order_, where_;
  std::vector<double> reciprocal_;           // [count] 1 / count, NaN for 0
  std::vector<std::uint64_t> alive_;         // [link, words] its flows
  AlignedDoubles bytes_;                     // [first, second] to send at the last listing
  AlignedDoubles left_;                      // [side, links of the other side before, place]
  std::vector<double> highest_;              // [side, links of the side before] level
  std::vector<std::uint32_t> firsts_;        // [position] first links before it
  std::size_t count_ = 0, full_ = 0;         // links in order_, and the full ones at its beginning
  AlignedDoubles records_;                   // [link / 8, record, link % 8] bytes
  std::vector<std::uint32_t> listed_;        // places in the matrix
  std::vector<std::uint32_t> soon_ends_[2];  // [side, place in the list] links
  AlignedDoubles soon_bytes_, soon_rate_, soon_wait_;
  std::size_t soon_count_ = 0;
  std::size_t record_count_ = 0;
  double aim_ = 0;      // horizon of the next listing, ps
  double horizon_ = 0;  // time that flows which are not listed need, at least, at the listed levels
  double since_ = 0;    // the listing, ps
  double growth_ = 1;   // of any level since then
  double passed_ = 0;   // ps since soonest() was called

  std::size_t entered_ = 0;
  std::size_t active_ = 0;
  std::int64_t epoch_ = 0;  // ps, from which times count
  double now_ = 0;
  Result result_;
};

}  // namespace moesim::network
