#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace moesim::network {

// One link of a flow's route. A flow that stands for several counts as `weight` flows there.
struct Hop {
  int link = 0;
  std::int32_t weight = 1;
};

// Max-min shares of link capacities among flows that come and go.
//
// The level x_L of a link is the rate of the flows it holds back: the root of
//     sum over its flows f of w_f min(x, m_f) = c_L,
// where m_f is the least level among the other links of f; a link that its flows cannot fill has
// an infinite level. A flow's rate is the least level of its route. These equations say that every
// flow has a saturated link on which no flow is faster, which is max-min fairness, and their
// solution in rates is unique (Bertsekas, Gallager: Data Networks, 6.5.2). x_L depends on lower
// levels only. So after flows came or went, only links are looked at whose own flows changed or
// whose flows another held back below their level, or does now, lowest first; links are evaluated
// until every one fits its equation, in whatever order, and the solution is then the one. Should
// they take too many turns, all levels are recomputed by progressive filling, as they are for large
// changes.
//
// Nothing costs as much as the sums over flows, and in a fabric of several tiers a change reaches
// nearly all links, most of them far from full. So a link without a level keeps a bound of what its
// flows have, which rises with theirs, and is evaluated when that may fill it.
class MaxMin {
 public:
  static constexpr double unlimited = std::numeric_limits<double>::infinity();

  struct Change {
    int link;
    double level_before;
  };
  struct Counts {
    std::int64_t evaluations = 0;  // of a link's level
    std::int64_t changes = 0;      // of a link's level
    std::int64_t fillings = 0;     // of all levels
  };

  // Capacities are positive; routes have at most `route_links` different links.
  MaxMin(std::vector<double> capacities, std::size_t route_links);

  // `flow` is a small number that is not in use. `route` names each link once. The levels are those
  // before the change until settle() is called.
  void add(std::uint32_t flow, std::span<const Hop> route);
  void remove(std::uint32_t flow);
  // Makes the levels right and lists the links whose level changed, each once.
  void settle();
  const std::vector<Change>& changes() const { return changes_; }

  std::size_t links() const { return capacity_.size(); }
  std::size_t flows() const { return flows_; }
  double level(int link) const { return level_[static_cast<std::size_t>(link)]; }
  // The flows over a link, in no particular order.
  const std::vector<std::uint32_t>& flows_over(int link) const {
    return users_[static_cast<std::size_t>(link)].flow;
  }
  // The link that holds a flow back; `preferred` if that is one of them.
  int bottleneck(std::uint32_t flow, int preferred) const;
  const Counts& counts() const { return counts_; }

 private:
  // The flows of one link, by place. `others` are the other links of a flow's route, and the link
  // beyond all (level unlimited) for those that its route has less than the longest.
  struct Users {
    std::vector<std::uint32_t> flow;
    std::vector<std::uint32_t> others;  // [place, other]
    std::vector<std::int32_t> weight;
    double total = 0;  // of the weights
  };
  struct Place {
    std::uint32_t link;
    std::uint32_t place;
  };
  struct Candidate {
    double key;
    std::uint32_t link;
    bool operator<(const Candidate& right) const {  // the heap's top is the lowest
      return key != right.key ? key > right.key : link > right.link;
    }
  };

  void mark(std::uint32_t link);
  void set_level(std::uint32_t link, double level);
  double rate(std::uint32_t flow) const;
  template <std::size_t known>
  void find_elsewhere(const Users& users);
  bool may_fill(std::uint32_t link) const;
  double evaluate(std::uint32_t link);
  void push(std::uint32_t link);
  bool repair();
  void spread(std::uint32_t link, double before);
  double weight_on(std::uint32_t link, std::uint32_t flow) const;
  void fill();
  void saturate(std::uint32_t link);
  void list_changes();

  std::vector<double> capacity_;
  std::vector<double> level_;  // [links + 1], the last is the link beyond all
  std::vector<double> load_;   // [link] without a level: its flows have at most this together
  std::vector<Users> users_;
  std::size_t route_links_;
  std::size_t others_;                // links of a route but one
  bool all_weigh_one_ = true;         // every flow so far, on every link
  std::vector<Place> places_;         // [flow, hop]
  std::vector<std::uint8_t> length_;  // [flow] of its route
  std::size_t flows_ = 0;
  std::size_t touched_ = 0;  // flows added and removed since settle()

  std::vector<std::uint32_t> marked_;
  std::vector<std::uint8_t> is_marked_, is_changed_;
  std::vector<Change> changes_;
  std::vector<Candidate> heap_;
  std::vector<double> elsewhere_;       // [place] at the link last evaluated: least other level
  std::vector<double> left_, waiting_;  // scratch of fill(): capacity, weights without a rate
  Counts counts_;
};

}  // namespace moesim::network
