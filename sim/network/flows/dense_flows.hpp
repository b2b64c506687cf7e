#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "sim/base/units.hpp"
#include "sim/network/flows/aligned_doubles.hpp"
#include "sim/network/flows/dense_kernels.hpp"
#include "sim/network/flows/flow_matrix.hpp"

namespace moesim::network {

// Max-min flows between ports, where most pairs of ports have a flow of their own size: an event
// then changes the level of nearly every link, and Transfers, which looks at the flows of every
// link that changes, slows down. Here flows lie in a matrix, and links that change little wait.
//
// Links are the rows of a linear system. In the order of levels x, with h_L the flows that L holds
// back and B_L the links that hold back the others,
//     h_L x_L + sum over B_L of x_M = c_L.
// An event takes a flow from two rows. Their levels change by about 1 / h and are fitted at once,
// with the flows that another link holds back from now on; all others change by about 1 / h^2. Each
// row counts its residual rho_L = c_L - h_L x_L - sum of x_M and its integral g_L, the bytes that L
// should have carried and did not. A row is fitted when by the next event its flows would be off by
// more than `tolerance` of time, g_L / (h_L x_L): then its level makes rho_L 0, and its service
// grows by g_L / h_L at once, which makes g_L 0. What it changes is taken from the residuals of
// the rows above it. So nothing is lost: in sum every link carries what it can, and errors do not
// grow with time. A link that holds back few flows gets the sum of the errors of the links below
// it. Result::correction is the most that one fit made up for, per flow: it tells the size of what
// was put right, and bounds nothing.
class DenseFlows {
 public:
  struct Result {
    std::int64_t events = 0;
    std::int64_t level_changes = 0;
    std::int64_t moves = 0;
    std::int64_t fillings = 0;
    double correction = 0;  // of a link's service in one fit, the most, in ps of its flows' time
  };

  // `tolerance` > 0 is in picoseconds.
  DenseFlows(FlowMatrix matrix, double tolerance);

  // Calls ended(flow, time).
  template <typename Ended>
  Result run(Ended&& ended) {
    while (const auto end = step()) ended(end->flow, Picoseconds(end->time));
    return result_;
  }

 private:
  static constexpr double never = std::numeric_limits<double>::infinity();

  std::optional<FlowMatrix::End> step();
  void admit();
  FlowMatrix::End complete(std::uint32_t link);
  void settle();
  void relax_due(double time);
  void fit(const std::uint32_t* list, std::size_t count, double time);
  DenseLinks links();
  void relax(std::uint32_t link);
  void release(std::uint32_t link, double made_up);
  void capture(std::uint32_t link);
  void hold(std::uint32_t link, std::uint32_t other, double leaves);
  double drop(std::uint32_t link, std::uint32_t other);
  void move(std::uint32_t from, std::uint32_t to);
  void update_end(std::uint32_t link);
  void find_least(std::uint32_t link);
  void measure_residuals();
  void fill();
  void saturate(std::uint32_t link, double level);
  void assign_holders();

  std::size_t side(std::uint32_t link) const { return link / width_; }
  std::uint32_t place(std::uint32_t link) const {
    return static_cast<std::uint32_t>(link % width_);
  }
  std::uint32_t across(std::uint32_t link, std::size_t other) const {
    return static_cast<std::uint32_t>((1 - side(link)) * width_ + other);
  }
  std::uint64_t* row(std::vector<std::uint64_t>& bits, std::uint32_t link) {
    return bits.data() + link * words_;
  }
  bool has(const std::vector<std::uint64_t>& bits, std::uint32_t link, std::uint32_t other) const {
    return (bits[link * words_ + other / 64] >> (other % 64) & 1U) != 0;
  }
  void flip(std::vector<std::uint64_t>& bits, std::uint32_t link, std::uint32_t other) {
    bits[link * words_ + other / 64] ^= std::uint64_t{1} << (other % 64);
  }
  double service(std::uint32_t link) const {
    return held_count_[link] == 0 ? passed_[link]
                                  : passed_[link] + level_[link] * (now_ - since_[link]);
  }
  // g: what the flows that a link holds back should have got beyond its service, in sum.
  double missed(std::uint32_t link) const { return rho_[link] * (now_ - base_) - eta_[link]; }
  // rho changes now.
  void add_residual(std::uint32_t link, double change) {
    rho_[link] += change;
    eta_[link] += change * (now_ - base_);
  }

  const DenseKernels* kernels_;
  std::size_t words_;
  std::size_t width_;  // of a side: 64 words_; links from width_ on are the second ones
  // [link]
  std::vector<double> capacity_, passed_, since_, least_;
  AlignedDoubles level_, end_;
  AlignedDoubles rho_, eta_;  // missed = rho (now - base_) - eta
  std::vector<std::uint32_t> least_at_, held_count_, flow_count_, rank_;
  std::vector<std::uint64_t> alive_, held_;     // [link, words] flows, and those it holds back
  AlignedDoubles leaves_;                       // [link, place across]
  std::vector<std::uint32_t> flow_at_;          // [first link, place of the second]
  std::vector<std::uint64_t> wanted_, filled_;  // scratch
  std::vector<std::uint32_t> due_, order_;      // scratch
  std::vector<std::uint32_t> by_level_;         // all links, nearly in order
  std::vector<double> left_, waiting_;          // scratch of fill()

  std::vector<FlowMatrix::Entry> entries_;  // by time
  std::size_t entered_ = 0;
  std::size_t active_ = 0;
  std::int64_t epoch_ = 0;
  double now_ = 0;
  double base_ = 0;
  double tolerance_ = 1;
  double overfull_ = 0;  // residual of a link that is not to be called full
  Result result_;
};

}  // namespace moesim::network
