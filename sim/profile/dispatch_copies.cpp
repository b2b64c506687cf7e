#include "sim/profile/dispatch_copies.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "sim/base/numbers.hpp"

namespace moesim::profile {
namespace {

double larger(const std::vector<double>& out, const std::vector<double>& in) {
  return std::max(*std::max_element(out.begin(), out.end()),
                  *std::max_element(in.begin(), in.end()));
}

// What each GPU of a group does, in rows.
struct GpuWork {
  explicit GpuWork(int gpus)
      : staged(index_of(gpus)),
        forwarded(index_of(gpus)),
        received(index_of(gpus)),
        link_out(index_of(gpus)),
        link_in(index_of(gpus)),
        nic_out(index_of(gpus)),
        nic_in(index_of(gpus)) {}
  std::vector<double> staged, forwarded, received, link_out, link_in, nic_out, nic_in;

  void set_ports(DispatchLoad& load) const {
    load.link_rows = larger(link_out, link_in);
    load.nic_rows = larger(nic_out, nic_in);
  }
};

}  // namespace

CopiesLaw::CopiesLaw(const MoeTraffic& traffic, int places)
    : places_(places), experts_(static_cast<int>(traffic.experts) / places) {
  const double share = static_cast<double>(traffic.top_k) / static_cast<double>(traffic.experts);
  const double even = distinct_places(traffic, places) / places;
  correction_ = even / (1 - std::pow(1 - share, experts_));
}

double CopiesLaw::to_place(double tokens, const double* rows) const {
  double missed = 1;
  double sum = 0;
  for (int expert = 0; expert < experts_; ++expert) {
    missed *= 1 - std::min(1.0, rows[expert] / tokens);
    sum += rows[expert];
  }
  return std::min({tokens * (1 - missed) * correction_, tokens, sum});
}

template <typename Value>
DispatchLoad load_of_copies(const DispatchGroup& group, DispatcherStage stage,
                            const SentBy<Value>& to_gpu, const SentBy<Value>& to_domain) {
  const int members = group.gpus;
  const bool gates = group.crosses();  // then rows go through the GPU in the source's place
  const int node = gates ? group.per_domain : members;
  const int nodes = members / node;
  GpuWork work(members);
  for (int source = 0; source < members; ++source) {
    const Value* to_member = to_gpu[index_of(source)];
    for (int to = 0; to < nodes; ++to) {
      const int gate = gates ? to * node + source % node : source;
      for (int member = to * node; member < (to + 1) * node; ++member) {
        const auto copies = static_cast<double>(to_member[member]);
        work.forwarded[index_of(gate)] += copies;
        work.received[index_of(member)] += copies;
        if (member == gate) continue;
        work.link_out[index_of(gate)] += copies;
        work.link_in[index_of(member)] += copies;
      }
      if (!gates) continue;
      const auto copies = static_cast<double>(to_domain[index_of(source)][to]);
      work.staged[index_of(source)] += copies;
      if (gate == source) continue;
      work.nic_out[index_of(source)] += copies;
      work.nic_in[index_of(gate)] += copies;
    }
  }
  DispatchLoad load;
  for (int member = 0; member < members; ++member) {
    const double forwarded = work.forwarded[index_of(member)];
    const double received = work.received[index_of(member)];
    double copied = std::max(forwarded, received);
    if (gates) {
      copied = stage == DispatcherStage::dispatch ? work.staged[index_of(member)] + copied
                                                  : forwarded + received;
    }
    load.copies = std::max(load.copies, copied);
  }
  work.set_ports(load);
  return load;
}

template <typename Value>
DispatchLoad load_of_rows(const DispatchGroup& group, int experts, int slices,
                          const SentBy<Value>& rows) {
  const int members = group.gpus;
  const int local = experts / (members / slices);
  GpuWork work(members);
  std::vector<double> of_expert(index_of(experts));
  for (int source = 0; source < members; ++source) {
    for (int expert = 0; expert < experts; ++expert) {
      const auto sent = static_cast<double>(rows[index_of(source)][expert]);
      of_expert[index_of(expert)] += sent;
      for (int slice = 0; slice < slices; ++slice) {
        const int owner = expert / local * slices + slice;
        work.staged[index_of(source)] += sent;
        work.received[index_of(owner)] += sent;
        if (owner == source) continue;
        const bool inside = owner / group.per_domain == source / group.per_domain;
        (inside ? work.link_out : work.nic_out)[index_of(source)] += sent;
        (inside ? work.link_in : work.nic_in)[index_of(owner)] += sent;
      }
    }
  }
  DispatchLoad load;
  load.copies = larger(work.staged, work.received);
  load.expert_rows = *std::max_element(of_expert.begin(), of_expert.end());
  work.set_ports(load);
  return load;
}

template DispatchLoad load_of_copies(const DispatchGroup&, DispatcherStage,
                                     const SentBy<std::int32_t>&, const SentBy<std::int32_t>&);
template DispatchLoad load_of_copies(const DispatchGroup&, DispatcherStage, const SentBy<double>&,
                                     const SentBy<double>&);
template DispatchLoad load_of_rows(const DispatchGroup&, int, int, const SentBy<std::int32_t>&);
template DispatchLoad load_of_rows(const DispatchGroup&, int, int, const SentBy<double>&);

}  // namespace moesim::profile
