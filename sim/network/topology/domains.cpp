#include "sim/network/topology/domains.hpp"

#include <map>

namespace moesim::network {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

}  // namespace

Domains::Domains(const Topology& topology) {
  std::map<int, int> number;
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    const auto [found, added] =
        number.try_emplace(topology.domain_of[at(rank)], static_cast<int>(number.size()));
    if (added) ranks.emplace_back();
    std::vector<int>& members = ranks[at(found->second)];
    domain_of.push_back(found->second);
    local_of.push_back(static_cast<int>(members.size()));
    members.push_back(rank);
  }
}

int Domains::on_rail(int domain, int other) const {
  const std::vector<int>& members = ranks[at(domain)];
  return members[at(local_of[at(other)]) % members.size()];
}

}  // namespace moesim::network
