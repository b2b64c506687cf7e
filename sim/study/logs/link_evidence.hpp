#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/profile/profile.hpp"
#include "sim/study/logs/link_fit.hpp"

namespace moesim::study {

// A figure of a link that a log shows.
struct Evidence {
  double value = 0;  // a share of the line rate, or us
  std::string from;  // "RDMA_Write BW test on mlx5_0"
  std::string file;
  // The value as the fastest and slowest runs show it, where there were several; 0: there were not.
  double low = 0;
  double high = 0;
  std::string nic = "";  // of a single transfer: "mlx5_0"; "": not stated
};

// All that the logs of an import say of a cluster's links.
struct LinkEvidence {
  std::vector<cluster::MeasuredExchange> exchanges;  // those of the base that stay, and new ones
  std::vector<Evidence> nic_rates;                   // shares that single transfers reach
  std::vector<Evidence> nic_latency;                 // us of the NICs alone
  std::vector<Evidence> copies;                      // shares that copies from GPU to GPU reach
  std::string gpu;                                   // "H100"; "": not stated
};

// "all-to-all of 16 GPUs on 2 nodes".
std::string described(const cluster::MeasuredExchange& measured);
// The runs that an exchange was measured in: "nccl-tests on H100, a.log" of the origin "measured:
// nccl-tests on H100, a.log".
std::string runs_of(const cluster::MeasuredExchange& measured);
// " (by the model with profile h100-sxm)"; "" without a profile.
std::string by_model(const std::shared_ptr<const profile::Profile>& profile);

std::vector<double> values(const std::vector<Evidence>& found);
std::string files(const std::vector<Evidence>& found);   // "a.log, b.log"
std::string origin(const std::vector<Evidence>& found);  // "measured: ...": of a figure

// A figure of a document, with four decimals.
double rounded(double value);

// A share with the scatter of the largest size's runs, to which it is in inverse proportion.
Evidence with_runs(Evidence share, const cluster::MeasuredExchange& measured);
// share_of() of the values, and wide enough for the runs of each.
FittedShare efficiency_of(const std::vector<Evidence>& found);

}  // namespace moesim::study
