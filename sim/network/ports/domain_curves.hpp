#pragma once

#include <memory>
#include <string>

#include "sim/cluster/cluster.hpp"
#include "sim/profile/profile.hpp"

namespace moesim::network {

// The profile's curves of exchanges inside a domain, on the links of a cluster. Where the document
// says another line rate than the profile's GPU has (NVLink at 225 GB/s for an H100's 450; not for
// a difference of up to 15 %, which other ways to count the same links make), a size takes what the
// curve says of as many bytes as its links carry in that time (here twice the size): latency stays,
// what is bound by bandwidth scales. Between the public machines of 8 GPUs with line rates of 300,
// 450 and 900 GB/s that is off by 6 to 36 % from 16 MiB on and by up to 77 % below (the curves as
// they are: 38 to 233 %), and the band is wider by
// a factor of 1.5 to either side for each factor of two.
class DomainCurves {
 public:
  DomainCurves(const profile::Profile& profile, const cluster::Cluster& cluster);

  // As Profile::collective.
  profile::Estimate collective(profile::Collective kind, int gpus, double bytes) const;
  // "NVLink at 225 GB/s, measured at 450: its time for 2 times the bytes"; "" where they agree.
  std::string basis() const;

 private:
  const profile::Profile& profile_;
  const cluster::Cluster& cluster_;
  double slower_ = 1;  // line rate of the profile's GPU, NVLink or PCIe, over the cluster's
};

}  // namespace moesim::network
