#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/cluster/cluster.hpp"

namespace moesim::study {

// A figure of a link that a log shows.
struct Evidence {
  double value = 0;  // a share of the line rate, or us
  std::string from;  // "RDMA_Write BW test on mlx5_0"
  std::string file;
  // As the fastest and slowest runs show it, where there were several; 0: as the value.
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

// Sets nic.latency_us, nic.start, nic.efficiency and domain.efficiency of the document of a
// cluster, with origins that name the files, and adds a line to `notes` for each. For each figure
// what all-to-alls say goes before others. nic.efficiency of single links is that of the slowest
// NIC, for which exchanges of all wait, a NIC's own repeats counting as their median; it goes
// before rings and trees, which only bound it (EfficiencyBounds): where they do not allow it, nor
// that of the base, the nearest value that they do is set, and its "unfitted" keeps the other for a
// later import. So no figure depends on what an earlier import of the same logs left in the base.
// Throws UsageError for an exchange faster than the line rate of its NICs.
void write_links(const LinkEvidence& evidence, const cluster::Cluster& base,
                 nlohmann::ordered_json& document, std::vector<std::string>& notes);

// "all-to-all of 16 GPUs on 2 nodes".
std::string described(const cluster::MeasuredExchange& measured);

// Throws UsageError naming the file where a share is above 1 by more than rounding. `measured` and
// `line` say what is compared.
void check_line_rate(const std::string& file, double share, const std::string& measured,
                     const std::string& line);

}  // namespace moesim::study
