#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/study/logs/link_evidence.hpp"

namespace moesim::study {

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

// Throws UsageError naming the file where a share is above 1 by more than rounding. `measured` and
// `line` say what is compared.
void check_line_rate(const std::string& file, double share, const std::string& measured,
                     const std::string& line);

}  // namespace moesim::study
