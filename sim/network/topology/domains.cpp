#include "sim/network/topology/domains.hpp"

#include <map>

#include "sim/base/numbers.hpp"

namespace moesim::network {

Domains::Domains(const Topology& topology) {
  std::map<int, int> number;
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    const auto [found, added] =
        number.try_emplace(topology.domain_of[index_of(rank)], static_cast<int>(number.size()));
    if (added) ranks.emplace_back();
    std::vector<int>& members = ranks[index_of(found->second)];
    domain_of.push_back(found->second);
    local_of.push_back(static_cast<int>(members.size()));
    members.push_back(rank);
  }
}

int Domains::on_rail(int domain, int other) const {
  const std::vector<int>& members = ranks[index_of(domain)];
  return members[index_of(local_of[index_of(other)]) % members.size()];
}

}  // namespace moesim::network
