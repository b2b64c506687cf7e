#pragma once

#include <algorithm>
#include <compare>

namespace moesim::training {

// What a dispatcher's busiest GPU, port, NIC and expert do for one MoE layer and micro-batch, over
// what balance asks of them (profile::balanced_load): as a token is sent once to each place that
// has several of its experts, less than rows say.
struct DispatchedLoad {
  double sent_copies = 1;      // by the SMs of a GPU, on the way to experts
  double returned_copies = 1;  // on the way back
  double link_rows = 1;
  double nic_rows = 1;
  double expert_rows = 1;

  auto operator<=>(const DispatchedLoad&) const = default;
};

// Rows of one MoE layer and micro-batch over balance, which is k per token of a rank. 1: balanced.
struct MoeLoad {
  double computed = 1;  // by the experts of the busiest rank
  // Sent or received by the busiest rank, whichever is more. Where sources are known to differ,
  // without the rows that it keeps, over those that balance does not keep; where they also lie in
  // several domains, without the rows that stay in its domain.
  double exchanged = 1;
  double rectified = 0;  // that the busiest rank computes for others of its domain (+ir@node)
  DispatchedLoad dispatched{};  // of a job with a dispatcher
  // What the busiest rank sends to or receives from others of its domain, counted in the same way,
  // where such sources lie in several domains and that is more; else 0.
  double inside = 0;

  auto operator<=>(const MoeLoad&) const = default;
};

// Every figure of two loads by a function of two numbers, such as the larger.
template <typename Choice>
MoeLoad combined(const MoeLoad& one, const MoeLoad& other, Choice of) {
  const DispatchedLoad& left = one.dispatched;
  const DispatchedLoad& right = other.dispatched;
  return {of(one.computed, other.computed),
          of(one.exchanged, other.exchanged),
          of(one.rectified, other.rectified),
          {of(left.sent_copies, right.sent_copies), of(left.returned_copies, right.returned_copies),
           of(left.link_rows, right.link_rows), of(left.nic_rows, right.nic_rows),
           of(left.expert_rows, right.expert_rows)},
          of(one.inside, other.inside)};
}

inline MoeLoad most_of(const MoeLoad& one, const MoeLoad& other) {
  return combined(one, other, [](double left, double right) { return std::max(left, right); });
}

inline MoeLoad least_of(const MoeLoad& one, const MoeLoad& other) {
  return combined(one, other, [](double left, double right) { return std::min(left, right); });
}

// No more rows on a rank than `most`, which are kept; what of a dispatcher is of copies and experts
// stays.
inline MoeLoad limited(MoeLoad load, double most) {
  load.computed = std::min(load.computed, most);
  load.exchanged = std::min(load.exchanged, most);
  load.inside = std::min(load.inside, most);
  load.rectified = std::min(load.rectified, most);
  return load;
}

}  // namespace moesim::training
