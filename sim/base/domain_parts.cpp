#include "sim/base/domain_parts.hpp"

#include <algorithm>
#include <numeric>

namespace moesim {

int part_in_domain(int gpus, int ranks, int domain) {
  return gpus <= domain ? ranks : std::gcd(ranks, domain);
}

bool domains_cut_groups(int gpus, int ranks, int domain) {
  return part_in_domain(gpus, ranks, domain) != std::min(ranks, domain);
}

}  // namespace moesim
