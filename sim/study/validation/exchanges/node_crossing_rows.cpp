#include "sim/study/validation/exchanges/node_crossing_rows.hpp"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <utility>

#include "sim/base/formats/csv.hpp"
#include "sim/base/formats/gzip.hpp"
#include "sim/base/units.hpp"

namespace moesim::study {
namespace {

using profile::Collective;

constexpr int node_gpus = 8;
constexpr const char* simai = "SimAI";

struct Known {
  const char* system;  // how the table's name begins
  const char* profile;
  const char* cluster;
  double gb_per_s;  // line rate of a GPU's share of the NICs
  bool inside_known;
};
constexpr std::array known{
    Known{"p6-b300", "b200-sxm", "hgx-b200", 100, true},       // 16 EFA of 400 Gb/s a node
    Known{"p5.48xlarge", "h100-sxm", "hgx-h100", 50, true},    // 32 EFA of 100 Gb/s
    Known{"H100 (8/node)", "h100-sxm", "hgx-h100", 50, true},  // ConnectX-7 of 400 Gb/s
    Known{"RTX 6000D", "rtx-pro-6000", "hgx-h100", 25,
          false},  // assumed: its largest sizes need 22
    Known{simai, "h100-sxm", "hgx-h100", 50, true},
};

// The number of the machine in the table, added if it is new; nothing for machines not known.
std::optional<std::size_t> machine_of(CrossingTable& table, const std::string& name) {
  for (const Known& each : known) {
    if (name.rfind(each.system, 0) != 0) continue;
    for (std::size_t number = 0; number < table.machines.size(); ++number) {
      if (table.machines[number].system == each.system) return number;
    }
    CrossingMachine machine{
        each.system, std::make_shared<profile::Profile>(profile::Profile::load(each.profile)),
        cluster::Cluster::load(each.cluster), each.inside_known};
    machine.cluster.nic = Bandwidth::gigabytes(each.gb_per_s);
    machine.cluster.nic_per_gpu = machine.cluster.nic;
    table.machines.push_back(std::move(machine));
    return table.machines.size() - 1;
  }
  return std::nullopt;
}

bool starts(const std::string& text, const char* with) { return text.rfind(with, 0) == 0; }

// Microseconds of a row of busbw or algbw in GB/s, or of latency.
double time_of(const CsvTable& table, std::size_t at, const CrossingRow& row) {
  const std::string metric = table.text(at, "metric");
  const double value = table.positive(at, "value");
  if (starts(metric, "latency")) return value;
  const double share = starts(metric, "busbw") ? 1 - 1.0 / row.gpus : 1;
  return row.bytes * share / value / 1e3;
}

// The setting of a row of the RTX machine: the one whose latencies are listed is predicted; its
// busbw is the same measurement with fewer digits.
std::string setting_of(const std::string& metric) {
  if (metric == "algbw (AR on, DDP on)") return "adaptive routing";
  if (metric == "algbw (P2P disabled, AR off)") return "P2P disabled";
  if (metric == "busbw (spcx plugin, AR off)") return "spcx plugin";
  return "";
}

void read_nccl(const std::string& file, CrossingTable& table) {
  const CsvTable csv = CsvTable::parse(read_plain_or_packed(file), file);
  for (std::size_t at = 0; at < csv.lines.size(); ++at) {
    const std::string library = csv.text(at, "library");
    const bool torch = library == "Torch AtA (NCCL)";
    if (!starts(library, "nccl-tests") && !torch) continue;
    if (csv.text(at, "internode") != "yes") continue;
    const std::string metric = csv.text(at, "metric");
    if (metric == "busbw oop (AR off)") continue;
    const auto machine = machine_of(table, csv.text(at, "system"));
    if (!machine) continue;
    CrossingRow row;
    row.machine = *machine;
    row.nodes = static_cast<int>(csv.positive(at, "nodes"));
    row.gpus = static_cast<int>(csv.positive(at, "gpus"));
    const bool peak = starts(csv.text(at, "size_bytes"), "peak");
    row.bytes = peak ? 8 * bytes_per_gib : csv.positive(at, "size_bytes");
    // Two digits of a bandwidth below 1 GB/s say less than the law.
    if (csv.text(at, "unit") == "GB/s" && csv.positive(at, "value") < 1) continue;
    row.time_us = time_of(csv, at, row);
    row.setting = setting_of(metric);
    if (row.nodes > 1) table.rows.push_back(row);
  }
}

void read_simai(const std::string& file, Collective kind, CrossingTable& table) {
  const CsvTable csv = CsvTable::parse(read_plain_or_packed(file), file);
  const std::array<std::pair<const char*, int>, 4> columns{{{"2Node-16GPU(NIC )", 2},
                                                            {"4Node-32GPU(NIC)", 4},
                                                            {"32Node-256GPU(NIC)", 32},
                                                            {"64Node-512GPU(NIC)", 64}}};
  const std::size_t machine = machine_of(table, simai).value();
  const double rate = table.machines[machine].cluster.nic_per_gpu.bytes_per_second / 1e6;
  for (std::size_t at = 0; at < csv.lines.size(); ++at) {
    for (const auto& [column, nodes] : columns) {
      if (csv.text(at, column).empty()) continue;
      CrossingRow row;
      row.machine = machine;
      row.kind = kind;
      row.nodes = nodes;
      row.gpus = nodes * node_gpus;
      row.bytes = csv.positive(at, "Size");
      const double ranks = row.gpus;
      const double nic_bytes = kind == Collective::all_to_all
                                   ? row.bytes * (ranks - node_gpus) / ranks
                                   : row.bytes * (ranks - 1) / ranks / node_gpus;
      row.time_us = nic_bytes / (rate * csv.positive(at, column));
      table.rows.push_back(row);
    }
  }
}

}  // namespace

CrossingTable load_crossings(const std::string& folder) {
  CrossingTable table;
  const auto there = [&](const std::string& name) {
    const std::string file = folder + "/" + name;
    return std::filesystem::exists(file) || std::filesystem::exists(file + ".gz");
  };
  if (there("internode_alltoall.csv")) read_nccl(folder + "/internode_alltoall.csv", table);
  if (there("simai_ata_ratio.csv")) {
    read_simai(folder + "/simai_ata_ratio.csv", Collective::all_to_all, table);
  }
  if (there("simai_nic_ratio.csv")) {
    read_simai(folder + "/simai_nic_ratio.csv", Collective::all_gather, table);
  }
  return table;
}

}  // namespace moesim::study
