#pragma once

#include <vector>

#include "sim/profile/moe_exchange_law.hpp"

namespace moesim::profile {

// What the GPUs of an exchange send, for dispatchers whose load is other than balanced_load().

// Copies of the tokens of one source, where a token goes once to each place that has any of its
// experts. The experts of a token are taken for independent, but that none is chosen twice: of T
// tokens, n_e to expert e, T (1 - product of (1 - n_e / T)) go to a place, times what that is off
// for equal n_e.
class CopiesLaw {
 public:
  // `places` hold as many neighbouring experts of `traffic` each.
  CopiesLaw(const MoeTraffic& traffic, int places);

  // The copies of `tokens` that go to the place with the experts from `rows` on: n_e of each.
  double to_place(double tokens, const double* rows) const;
  int places() const { return places_; }
  int experts() const { return experts_; }  // of a place

 private:
  int places_, experts_;
  double correction_;
};

// [source GPU], each with a number for each place; several may refer to the same numbers.
template <typename Value>
using SentBy = std::vector<const Value*>;

// What the busiest GPU, port and NIC do, of a token that is sent once per place: `to_gpu` [GPU]
// and, of a group that crosses domains, `to_domain` [domain]. Rows per node: on dispatch each GPU
// stages its rows for every node and, as the one in a source's place, forwards to the GPUs of its
// own; it copies what it forwards or receives, whichever is more. On combine it copies what it
// received to the forwarding GPU, and what comes to it into sums. Leaves `tokens` and `expert_rows`
// 0. Value: int32_t or double.
template <typename Value>
DispatchLoad load_of_copies(const DispatchGroup& group, DispatcherStage stage,
                            const SentBy<Value>& to_gpu, const SentBy<Value>& to_domain);

// The same where every row is sent: `rows` [expert], `experts` of them, each on `slices` GPUs of a
// domain. Leaves `tokens` 0.
template <typename Value>
DispatchLoad load_of_rows(const DispatchGroup& group, int experts, int slices,
                          const SentBy<Value>& rows);

}  // namespace moesim::profile
