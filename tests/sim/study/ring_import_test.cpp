// What logs of rings and trees across nodes say of the NICs.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/formats/document.hpp"
#include "sim/base/formats/json_text.hpp"
#include "sim/cluster/cluster.hpp"
#include "sim/network/exchange/exchange_query.hpp"
#include "sim/network/ports/cluster_measurements.hpp"
#include "sim/profile/profile.hpp"
#include "sim/study/logs/cluster_import.hpp"
#include "sim/study/logs/link_fit.hpp"
#include "tests/support/catch.hpp"

namespace moesim::study {
namespace {

using cluster::Cluster;
using profile::Collective;
using profile::Estimate;
using profile::Profile;

constexpr double mib = 1 << 20;

struct Machine {
  std::string cluster;
  std::shared_ptr<const Profile> profile;
  std::string device;  // as nccl-tests prints it
};

Machine machine_of(const std::string& name) {
  const Cluster cluster = Cluster::load(name);
  auto profile = profile_of_cluster(cluster);
  const auto models = gpu_models_of(cluster);
  if (!profile) profile = std::make_shared<Profile>(Profile::load("h100-sxm"));
  return {name, profile, "NVIDIA " + (models.empty() ? "H100" : models.front())};
}

struct Operation {
  Collective kind;
  const char* program;
  double busbw;  // over algbw, of many ranks
};
const std::vector<Operation> operations{{Collective::all_to_all, "alltoall_perf", 1},
                                        {Collective::all_reduce, "all_reduce_perf", 2},
                                        {Collective::all_gather, "all_gather_perf", 1},
                                        {Collective::reduce_scatter, "reduce_scatter_perf", 1}};

// GPUs of whole nodes.
Estimate predicted(const Machine& machine, const Cluster& cluster, Collective kind, int nodes,
                   double bytes) {
  cluster::MeasuredExchange place;
  place.nodes = nodes;
  place.gpus = nodes * cluster.gpus_per_node;
  network::ExchangeQuery query;
  query.collective = kind;
  query.members = network::members_of(place, cluster);
  query.bytes = bytes;
  return network::predict_exchange(query, machine.profile, std::make_shared<const Cluster>(cluster))
      .estimate;
}

// What nccl-tests prints for `time_us(bytes)`, 1 KiB to 1 GiB.
template <typename TimeUs>
[[nodiscard]] std::string write_log(const std::string& name, const Machine& machine,
                                    const Operation& operation, int nodes, const TimeUs& time_us) {
  const Cluster cluster = Cluster::load(machine.cluster);
  const int ranks = nodes * cluster.gpus_per_node;
  const auto path =
      std::filesystem::temp_directory_path() /
      fmt::format("moesim_{}_{}_{}_{}.log", name, machine.cluster, operation.program, nodes);
  std::ofstream log(path);
  log << "# nccl-tests version 2.17.1 nccl-headers=22703 nccl-library=22703\n"
      << "# Collective test starting: " << operation.program << "\n";
  for (int rank = 0; rank < ranks; ++rank) {
    const int local = rank % cluster.gpus_per_node;
    log << fmt::format("#  Rank {} Group 0 Pid {} on host-{} device {} [0x{:02x}] {}\n", rank,
                       4000 + rank, rank / cluster.gpus_per_node, local, local, machine.device);
  }
  log << "#\n# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n";
  for (double bytes = 1024; bytes <= 1024 * mib; bytes *= 2) {
    const double us = time_us(bytes);
    const double rate = bytes / us / 1e3;
    const std::string cells = fmt::format("{:.4f} {:.4f} {:.4f} 0", us, rate,
                                          rate * operation.busbw * (ranks - 1) / ranks);
    log << fmt::format(" {:.0f} {:.0f} half sum -1 {} {}\n", bytes, bytes / 2, cells, cells);
  }
  log << "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 1\n";
  return path.string();
}

ImportedCluster import_logs(const std::vector<std::string>& files, const std::string& base) {
  return import_cluster({files, base, "mine", "", "", 0, 256});
}

Cluster cluster_of(const ImportedCluster& imported) {
  return Cluster::read(Document::parse(json_text(imported.document), "mine"));
}

std::string notes_of(const ImportedCluster& imported) {
  std::string all;
  for (const std::string& note : imported.notes) all += note + "\n";
  return all;
}

}  // namespace

// The times are those of the model, with the cluster's own figures: its log can change nothing.
TEST_CASE("the model's own times as a log leave the all-to-alls of every cluster as they were") {
  const auto name = GENERATE(as<std::string>(), "aws-p5", "aws-p6-b300", "dgx-a100",
                             "generic-8x100g", "hgx-b200", "hgx-b300-400g", "hgx-b300", "hgx-h100",
                             "hgx-h200", "hgx-h800", "pcie-l40s", "gb200-nvl72", "gb300-nvl72");
  const Machine machine = machine_of(name);
  const Cluster base = Cluster::load(name);
  const int nodes_of_domain = std::max(1, base.gpus_per_domain / base.gpus_per_node);
  const bool no_profile = profile_of_cluster(base) == nullptr && !gpu_models_of(base).empty();
  for (const Operation& operation : operations) {
    // Without a profile of the GPU in its log nothing says how long an all-to-all takes inside.
    if (no_profile && operation.kind == Collective::all_to_all) continue;
    for (const int domains : {2, 4}) {
      const int nodes = domains * nodes_of_domain;
      try {
        predicted(machine, base, operation.kind, nodes, mib);
      } catch (const Error&) {
        continue;  // the profile has no such curve
      }
      INFO(name << ", " << operation.program << " on " << nodes << " nodes");
      const std::string log = write_log("same", machine, operation, nodes, [&](double bytes) {
        return predicted(machine, base, operation.kind, nodes, bytes).time_us;
      });
      const ImportedCluster imported = import_logs({log}, name);
      const Cluster mine = cluster_of(imported);
      CHECK(mine.nic_efficiency == Approx(base.nic_efficiency).epsilon(0.02));
      for (const int asked : {2, 3, 4}) {
        for (const double bytes : {1024.0, mib, 256 * mib}) {
          const auto all_to_all = [&](const Cluster& cluster) {
            return predicted(machine, cluster, Collective::all_to_all, asked * nodes_of_domain,
                             bytes);
          };
          const Estimate before = all_to_all(base), after = all_to_all(mine);
          INFO(bytes << " bytes on " << asked << " domains");
          CHECK(after.time_us == Approx(before.time_us).epsilon(0.02));
          CHECK(after.time_us_p05 <= before.time_us);
          CHECK(after.time_us_p95 >= before.time_us);
        }
      }
    }
  }
}

TEST_CASE("a ring that may be limited inside the node leaves the efficiency, and says so") {
  const Machine machine = machine_of("hgx-h100");
  // Busbw 380 GB/s of 8 NICs of 50 GB/s: as a ring nearly all of them, as a tree half.
  const std::string log = write_log("busbw", machine, operations[1], 2,
                                    [](double bytes) { return 40 + bytes * 2 * 15 / 16 / 380e3; });
  const ImportedCluster imported = import_logs({log}, "hgx-h100");
  const Cluster base = Cluster::load("hgx-h100"), mine = cluster_of(imported);
  CHECK(mine.nic_efficiency == base.nic_efficiency);
  CHECK(mine.nic_efficiency_low == base.nic_efficiency_low);
  CHECK(mine.efficiency_origin == base.efficiency_origin);
  CHECK_THAT(notes_of(imported),
             ContainsSubstring("nic.efficiency stays 0.950") &&
                 ContainsSubstring("all-reduce of 16 GPUs on 2 nodes, which allows 0.") &&
                 !ContainsSubstring("of the line rate"));
}

TEST_CASE("a ring that only slow NICs explain moves the efficiency to the nearest it allows") {
  const Machine machine = machine_of("hgx-h100");
  const auto gather = [&](const std::string& name, double share) {
    return write_log(name, machine, operations[2], 2,
                     [&](double bytes) { return 40 + bytes * 15 / 16 / (share * 400e3); });
  };
  const ImportedCluster imported = import_logs({gather("slow", 0.6)}, "hgx-h100");
  const Cluster mine = cluster_of(imported);
  // No NIC passes fewer bytes than a ring; the law is off by some 8 %.
  CHECK(mine.nic_efficiency_low == Approx(0.6).epsilon(0.03));
  CHECK(mine.nic_efficiency == Approx(0.6 * 1.08).epsilon(0.03));
  CHECK(mine.nic_efficiency_high >= mine.nic_efficiency);
  CHECK_THAT(notes_of(imported), ContainsSubstring("the nearest to 0.950 (of the base)"));
  CHECK(imported.document["nic"]["efficiency"]["unfitted"] ==
        ClusterBase::load("hgx-h100").json["nic"]["efficiency"]);
  // A better run of the same exchange takes its place, and the base's own figure comes back.
  const ClusterBase first{mine, imported.document};
  const ImportedCluster again =
      import_cluster({{gather("better", 0.9)}, "", "mine", "", "", 0, 256}, first);
  CHECK(again.document["nic"]["efficiency"] ==
        ClusterBase::load("hgx-h100").json["nic"]["efficiency"]);
}

TEST_CASE("rings that contradict each other set the middle") {
  const Machine machine = machine_of("hgx-h100");
  std::vector<std::string> logs;
  for (const auto& [operation, share] : {std::pair{2, 0.4}, std::pair{3, 0.8}}) {
    logs.push_back(write_log("apart", machine, operations[operation], 2, [share](double bytes) {
      return 40 + bytes * 15 / 16 / (share * 400e3);
    }));
  }
  const ImportedCluster imported = import_logs(logs, "hgx-h100");
  const Cluster mine = cluster_of(imported);
  CHECK(mine.nic_efficiency > 0.5);
  CHECK(mine.nic_efficiency < 0.65);
  CHECK(mine.nic_efficiency_low == Approx(0.4).epsilon(0.03));
  CHECK(mine.nic_efficiency_high > 0.8);
  CHECK_THAT(notes_of(imported), ContainsSubstring("no value agrees with all of these"));
}

// The law multiplies the start of rings by the root of the figure.
TEST_CASE("a start that only rings show is no square of theirs for an all-to-all") {
  const Machine machine = machine_of("hgx-h100");
  const Cluster base = Cluster::load("hgx-h100");
  const auto log_of = [&](const Operation& operation, double scale) {
    const double smallest_us = predicted(machine, base, operation.kind, 2, 1024).time_us;
    return write_log("start", machine, operation, 2, [&, smallest_us](double bytes) {
      return predicted(machine, base, operation.kind, 2, bytes).time_us + (scale - 1) * smallest_us;
    });
  };
  for (const double scale : {1.0, 1.5}) {
    const Cluster mine = cluster_of(import_logs({log_of(operations[1], scale)}, "hgx-h100"));
    INFO("small exchanges take " << scale << " times as long");
    // The start is most of 1 KiB, but not all.
    CHECK(mine.nic_start.value >= scale * 0.999);
    CHECK(mine.nic_start.value < 1.001 + (scale - 1) * 2);
    CHECK(mine.nic_start.low <= 0.5);
    CHECK(mine.nic_start.high >= 1.9);
  }
  // An all-to-all gives the figure itself, with a quarter either way.
  const Cluster direct = cluster_of(import_logs({log_of(operations[0], 1.2)}, "hgx-h100"));
  CHECK(direct.nic_start.low == Approx(0.75 * direct.nic_start.value).epsilon(0.001));
  // No start makes an all-gather inside the nodes alone take that little.
  const ImportedCluster end = import_logs({log_of(operations[2], 0.4)}, "hgx-h100");
  CHECK(cluster_of(end).nic_start.value == Approx(std::sqrt(0.05)).epsilon(0.001));
  CHECK_THAT(notes_of(end),
             ContainsSubstring("warning: ") && ContainsSubstring("at 1024 bytes, less than"));
  CHECK_THAT(notes_of(import_logs({log_of(operations[2], 1)}, "hgx-h100")),
             !ContainsSubstring("warning"));
}

}  // namespace moesim::study
