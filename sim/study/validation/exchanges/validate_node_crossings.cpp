#include "sim/study/validation/exchanges/validate_node_crossings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "sim/base/statistics.hpp"
#include "sim/base/units.hpp"
#include "sim/network/ports/cluster_measurements.hpp"
#include "sim/network/ports/port_model.hpp"
#include "sim/study/validation/exchanges/exchange_errors.hpp"
#include "sim/study/validation/exchanges/node_crossing_rows.hpp"
#include "sim/study/validation/tables/band_points.hpp"

namespace moesim::study {
namespace {

using profile::Collective;
using profile::Estimate;
using Rows = std::vector<CrossingRow>;

constexpr const char* study_name = "exchanges";
constexpr double large = bytes_per_mib;
constexpr double bar_of_machines = 0.15;
constexpr double bar_of_nodes = 0.10;

// The two scales of the law that a machine may differ in, as multiples of the shipped ones.
struct Scales {
  double efficiency = 1;
  double start = 1;
};

cluster::Cluster scaled(cluster::Cluster cluster, const Scales& scales) {
  for (double* efficiency :
       {&cluster.nic_efficiency, &cluster.nic_efficiency_low, &cluster.nic_efficiency_high}) {
    *efficiency = std::min(*efficiency * scales.efficiency, 1.0);
  }
  cluster.nic_start.value *= scales.start;
  cluster.nic_start.low *= scales.start;
  cluster.nic_start.high *= scales.start;
  return cluster;
}

std::vector<int> members_on(int nodes, int gpus, const cluster::Cluster& cluster) {
  cluster::MeasuredExchange spread;
  spread.nodes = nodes;
  spread.gpus = gpus;
  return network::members_of(spread, cluster);
}

Estimate predict(const CrossingMachine& machine, cluster::Cluster cluster, const CrossingRow& row) {
  const std::vector<int> members = members_on(row.nodes, row.gpus, cluster);
  const auto across = [&](const cluster::Cluster& links) {
    const network::PortModel ports(machine.profile, std::make_shared<cluster::Cluster>(links));
    return ports.across(row.kind, members, row.bytes);
  };
  Estimate estimate = across(cluster).estimate;
  if (machine.inside_known) return estimate;
  const double corrected_us = estimate.time_us;
  cluster.exchanges.clear();
  const auto crossed = across(cluster);
  // Its part inside is taken for no longer than its smallest, which the start of rings holds.
  const bool grouped = row.kind == Collective::all_to_all;
  const double inside_us =
      grouped ? machine.profile->collective(row.kind, row.gpus / row.nodes, 1).time_us : 0;
  const double time_us =
      (inside_us + crossed.start_us + crossed.stream_us) * corrected_us / crossed.estimate.time_us;
  estimate.time_us_p05 *= time_us / estimate.time_us;
  estimate.time_us_p95 *= time_us / estimate.time_us;
  estimate.time_us = time_us;
  return estimate;
}

// Mean over machines of the mean |log error|.
double misfit(const CrossingTable& table, const Rows& rows, const Scales& scales) {
  std::map<std::size_t, std::vector<double>> errors;
  for (const CrossingRow& row : rows) {
    const CrossingMachine& machine = table.machines[row.machine];
    const Estimate estimate = predict(machine, scaled(machine.cluster, scales), row);
    errors[row.machine].push_back(std::abs(std::log(estimate.time_us / row.time_us)));
  }
  double sum = 0;
  for (const auto& [machine, list] : errors) {
    double total = 0;
    for (const double error : list) total += error;
    sum += total / static_cast<double>(list.size());
  }
  return sum / static_cast<double>(errors.size());
}

// Fits over a grid: the efficiency in steps of 2 %, the start in steps of a quarter of an octave.
Scales fitted(const CrossingTable& table, const Rows& rows) {
  Scales best;
  double least = INFINITY;
  for (int efficiency = -9; efficiency <= 2; ++efficiency) {
    for (int start = -4; start <= 4; ++start) {
      const Scales scales{1 + 0.02 * efficiency, std::exp2(0.25 * start)};
      const double found = misfit(table, rows, scales);
      if (found >= least) continue;
      least = found;
      best = scales;
    }
  }
  return best;
}

// One table of predictions, by size.
struct Region {
  Comparison errors;
  std::vector<BandPoint> points;

  // `group`: what was left out.
  void add(const CrossingRow& row, const Estimate& estimate, const std::string& group) {
    errors.law.add(row.time_us, estimate.time_us,
                   fmt::format("{} on {} nodes", size_text(row.bytes), row.nodes));
    points.push_back({group,
                      std::log(row.time_us / estimate.time_us),
                      {std::log(estimate.time_us_p05 / estimate.time_us),
                       std::log(estimate.time_us_p95 / estimate.time_us)}});
  }
};

struct Sizes {
  Region above;  // 1 MiB
  Region below;  // up to and with it
  Region& of(double bytes) { return bytes > large ? above : below; }
  void add_points_to(std::vector<BandPoint>& all) const {
    for (const Region* region : {&above, &below}) {
      all.insert(all.end(), region->points.begin(), region->points.end());
    }
  }
};

void report(const Sizes& sizes, const std::string& subject, Validation& validation) {
  for (const auto& [region, name] :
       {std::pair(&sizes.above, "above 1 MiB"), std::pair(&sizes.below, "up to 1 MiB")}) {
    if (region->points.empty()) continue;
    ValidationRow row = report_row(region->errors, fmt::format("{}, {}", subject, name));
    row.note += "; " + coverage_text(region->points);
    validation.rows.push_back(row);
  }
}

void judge(const Region& region, const std::string& what, double bar, Validation& validation) {
  if (region.points.empty()) return;
  const double error = region.errors.law.median_abs();
  validation.verdicts.push_back(
      {study_name,
       fmt::format("{}: {:.1f} % in the median, bar {:.0f} %", what, error * 100, bar * 100),
       error <= bar});
}

// Rows of one operation that are predicted; those of other settings are the scatter.
Rows rows_of(const CrossingTable& table, Collective kind) {
  Rows rows;
  for (const CrossingRow& row : table.rows) {
    if (row.kind == kind && row.setting.empty()) rows.push_back(row);
  }
  return rows;
}

// |another setting of the machine / this one - 1|, at equal sizes.
void add_settings(const CrossingTable& table, const CrossingRow& row, Comparison& errors) {
  for (const CrossingRow& other : table.rows) {
    if (other.setting.empty() || other.machine != row.machine || other.bytes != row.bytes) continue;
    errors.scatter.push_back(std::abs(other.time_us / row.time_us - 1));
  }
}

// Bytes through a NIC at its line rate, which is what a plain line is drawn over.
double nic_us(const CrossingTable& table, const CrossingRow& row) {
  const int own_node = row.gpus / row.nodes;
  const double outside = static_cast<double>(row.gpus - own_node) / row.gpus;
  return row.bytes * outside /
         (table.machines[row.machine].cluster.nic_per_gpu.bytes_per_second / 1e6);
}

void leave_out_machines(const CrossingTable& table, Validation& validation) {
  const Rows rows = rows_of(table, Collective::all_to_all);
  std::vector<BandPoint> points;
  for (std::size_t number = 0; number < table.machines.size(); ++number) {
    Rows others, own;
    for (const CrossingRow& row : rows) (row.machine == number ? own : others).push_back(row);
    if (others.empty() || own.empty()) continue;
    const Scales scales = fitted(table, others);
    Samples line_samples;
    for (const CrossingRow& row : others) {
      line_samples.emplace_back(nic_us(table, row), row.time_us);
    }
    const auto line = alpha_beta(line_samples);
    const CrossingMachine& machine = table.machines[number];
    Sizes sizes;
    for (const CrossingRow& row : own) {
      Region& region = sizes.of(row.bytes);
      region.add(row, predict(machine, scaled(machine.cluster, scales), row), machine.system);
      region.errors.alpha_beta.add(row.time_us, line(nic_us(table, row)), "");
      add_settings(table, row, region.errors);
    }
    const std::string what =
        fmt::format("{}: all-to-all between nodes, machine left out", machine.system);
    report(sizes, what, validation);
    judge(sizes.above, what + ", above 1 MiB", bar_of_machines, validation);
    sizes.add_points_to(points);
  }
  report_bands(study_name, "all-to-all between nodes, machines left out", points, true, validation);
}

cluster::MeasuredOperation operation_of(Collective kind) {
  return kind == Collective::all_gather ? cluster::MeasuredOperation::all_gather
                                        : cluster::MeasuredOperation::all_to_all;
}

// The curves of a machine on the numbers of nodes that are kept, as a cluster document has them.
std::vector<cluster::MeasuredExchange> curves_of(const Rows& rows,
                                                 const std::function<bool(int nodes)>& is_kept) {
  std::map<int, std::map<double, double>> by_nodes;
  std::map<int, int> gpus;
  for (const CrossingRow& row : rows) {
    if (!is_kept(row.nodes)) continue;
    by_nodes[row.nodes][row.bytes] = row.time_us;
    gpus[row.nodes] = row.gpus;
  }
  std::vector<cluster::MeasuredExchange> curves;
  for (const auto& [count, times] : by_nodes) {
    if (times.size() < 2) continue;
    cluster::MeasuredExchange curve;
    curve.operation = operation_of(rows.front().kind);
    curve.nodes = count;
    curve.gpus = gpus[count];
    for (const auto& [bytes, time_us] : times) {
      curve.bytes.push_back(bytes);
      curve.time_us.push_back(time_us);
    }
    curves.push_back(std::move(curve));
  }
  return curves;
}

// What the nearest number of nodes says: the same row, and at equal bytes sent between nodes.
void add_nearest(const CrossingRow& row, const std::vector<cluster::MeasuredExchange>& curves,
                 Comparison& errors) {
  const auto nearest =
      std::min_element(curves.begin(), curves.end(), [&](const auto& a, const auto& b) {
        const auto away = [&](const auto& curve) {
          return std::abs(std::log(static_cast<double>(curve.nodes) / row.nodes));
        };
        return away(a) < away(b);
      });
  errors.nearest_row.add(row.time_us, nearest->at(row.bytes).time_us, "");
  const double more = (1 - 1.0 / row.nodes) / (1 - 1.0 / nearest->nodes);
  errors.equal_bytes.add(row.time_us, nearest->at(row.bytes * more).time_us, "");
}

void leave_out_node_counts(const CrossingTable& table, Validation& validation) {
  const Rows rows = rows_of(table, Collective::all_to_all);
  Region all;
  std::vector<BandPoint> points;
  for (std::size_t number = 0; number < table.machines.size(); ++number) {
    Rows own;
    std::set<int> counts;
    for (const CrossingRow& row : rows) {
      if (row.machine != number) continue;
      own.push_back(row);
      counts.insert(row.nodes);
    }
    if (counts.size() < 2) continue;
    const CrossingMachine& machine = table.machines[number];
    Sizes sizes;
    for (const CrossingRow& row : own) {
      cluster::Cluster cluster = machine.cluster;
      cluster.exchanges = curves_of(own, [&](int nodes) { return nodes != row.nodes; });
      if (cluster.exchanges.empty()) continue;
      Region& region = sizes.of(row.bytes);
      region.add(row, predict(machine, cluster, row),
                 fmt::format("{}, {} nodes", machine.system, row.nodes));
      add_nearest(row, cluster.exchanges, region.errors);
    }
    const std::string what = fmt::format("{}: all-to-all on {} nodes, each left out",
                                         machine.system, fmt::join(counts, ", "));
    report(sizes, what, validation);
    all.errors.add(sizes.above.errors);
    all.points.insert(all.points.end(), sizes.above.points.begin(), sizes.above.points.end());
    sizes.add_points_to(points);
  }
  judge(all, "all-to-all between nodes, numbers of nodes left out, above 1 MiB", bar_of_nodes,
        validation);
  report_bands(study_name, "all-to-all between nodes, numbers of nodes left out", points, true,
               validation);
}

// The rows of one operation on a machine.
using MachineRows = std::map<std::size_t, Rows>;

MachineRows by_machine(const CrossingTable& table, Collective kind) {
  MachineRows machines;
  for (const CrossingRow& row : rows_of(table, kind)) machines[row.machine].push_back(row);
  return machines;
}

// The law for a machine as the others show it; of rings nothing was fitted.
CrossingMachine unseen(const CrossingTable& table, Collective kind, std::size_t number) {
  CrossingMachine machine = table.machines[number];
  if (kind != Collective::all_to_all) {
    machine.inside_known = false;
    return machine;
  }
  Rows others;
  for (const CrossingRow& row : rows_of(table, kind)) {
    if (row.machine != number) others.push_back(row);
  }
  if (!others.empty()) machine.cluster = scaled(machine.cluster, fitted(table, others));
  return machine;
}

// Each machine cut to its smaller numbers of nodes and asked for its larger ones: as `predict`
// answers with a cluster that has curves of the former.
void ask_for_more_nodes(const CrossingTable& table, Collective kind, Validation& validation) {
  std::vector<BandPoint> points;
  for (const auto& [number, own] : by_machine(table, kind)) {
    std::set<int> counts;
    for (const CrossingRow& row : own) counts.insert(row.nodes);
    const CrossingMachine machine = unseen(table, kind, number);
    for (const int most : counts) {
      CrossingMachine cut = machine;
      cut.cluster.exchanges = curves_of(own, [&](int nodes) { return nodes <= most; });
      if (cut.cluster.exchanges.empty()) continue;
      std::map<int, Sizes> asked;
      for (const CrossingRow& row : own) {
        if (row.nodes <= most) continue;
        Region& region = asked[row.nodes].of(row.bytes);
        region.add(row, predict(cut, cut.cluster, row), machine.system);
        add_nearest(row, cut.cluster.exchanges, region.errors);
      }
      for (const auto& [nodes, sizes] : asked) {
        report(sizes,
               fmt::format("{}: {} by predict, {} nodes from up to {}", machine.system,
                           name_of(kind), nodes, most),
               validation);
        sizes.add_points_to(points);
      }
    }
  }
  report_bands(study_name,
               fmt::format("{} by predict: more nodes than were measured", name_of(kind)), points,
               true, validation);
}

// Nothing of the rings' law was fitted, to these rows or to others.
void compare_rings(const CrossingTable& table, Validation& validation) {
  const Rows rows = rows_of(table, Collective::all_gather);
  std::map<int, Sizes> by_nodes;
  std::vector<BandPoint> points;
  for (const CrossingRow& row : rows) {
    Region& region = by_nodes[row.nodes].of(row.bytes);
    CrossingMachine machine = table.machines[row.machine];
    machine.inside_known = false;  // the GPU is not named, and some NVLinks carry less than 8 NICs
    region.add(row, predict(machine, machine.cluster, row), machine.system);
    Samples others;
    for (const CrossingRow& other : rows) {
      if (other.nodes != row.nodes) others.emplace_back(other.bytes, other.time_us);
    }
    if (!others.empty()) {
      region.errors.alpha_beta.add(row.time_us, alpha_beta(others)(row.bytes), "");
    }
  }
  for (const auto& [nodes, sizes] : by_nodes) {
    report(sizes, fmt::format("SimAI: rings on {} nodes, nothing fitted", nodes), validation);
    sizes.add_points_to(points);
  }
  report_bands(study_name, "rings between nodes", points, true, validation);
}

}  // namespace

void compare_node_crossings(const std::string& folder, Validation& validation) {
  const CrossingTable table = load_crossings(folder);
  if (table.rows.empty()) {
    validation.verdicts.push_back(
        {study_name,
         fmt::format("exchanges between nodes left out: internode_alltoall.csv is not in {}",
                     folder),
         std::nullopt});
    return;
  }
  leave_out_machines(table, validation);
  leave_out_node_counts(table, validation);
  compare_rings(table, validation);
  ask_for_more_nodes(table, Collective::all_to_all, validation);
  ask_for_more_nodes(table, Collective::all_gather, validation);
}

}  // namespace moesim::study
