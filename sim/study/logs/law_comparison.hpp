#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/profile/profile.hpp"

namespace moesim::study {

// A measured exchange beside what would be predicted of it had nothing been measured on the
// cluster.
struct LawComparison {
  struct Point {
    double bytes = 0;
    double measured_us = 0;
    double law_us = 0;  // with its 90 % band
    double p05_us = 0;
    double p95_us = 0;
    bool is_inside() const { return p05_us <= measured_us && measured_us <= p95_us; }
  };
  cluster::MeasuredExchange measured;
  std::string profile;        // whose curves and law
  std::vector<Point> points;  // by size, all of those measured

  std::size_t inside() const;
  // "all-to-all of 16 GPUs on 2 nodes (nccl-tests on H100, a.log): the law of h100-sxm takes 1.15
  // times the measured time at 1 MiB, 1.05 times at 1 GiB; 9 of 11 sizes are inside its band": at
  // the first size from 1 MiB on, and the largest.
  std::string text() const;
  nlohmann::ordered_json json() const;
};

// Those of `imported` that `base`, from which it was made, has not, by the links of the base
// without the exchanges that it measured, with the curves of `profile` (profile_of_cluster()).
// Left out: send-receive, which no law is of, and what the profile has no curve for.
std::vector<LawComparison> law_comparisons(const cluster::Cluster& base,
                                           const cluster::Cluster& imported,
                                           const std::shared_ptr<const profile::Profile>& profile);

}  // namespace moesim::study
