#include "sim/study/logs/link_fit.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <functional>
#include <set>
#include <utility>

#include "sim/base/enum_names.hpp"
#include "sim/base/formats/document.hpp"
#include "sim/base/kept_files.hpp"
#include "sim/base/no_answer.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/statistics.hpp"
#include "sim/cluster/measured_between.hpp"
#include "sim/network/exchange/exchange_query.hpp"
#include "sim/network/ports/cluster_measurements.hpp"
#include "sim/network/ports/port_model.hpp"
#include "sim/profile/collective.hpp"

namespace moesim::study {
namespace {

using cluster::Cluster;
using cluster::MeasuredExchange;
using cluster::MeasuredOperation;
using profile::Estimate;

constexpr double large_bytes = 16 << 20;
constexpr double full_bytes = 256 << 20;  // shipped domain.efficiency: of 256 and 512 MiB
constexpr double small_bytes = 64 << 10;
constexpr double least_spread = 0.05;

// Line rate of the NICs of one node that so many of its GPUs use.
double nics_in_use(const Cluster& cluster, int gpus) {
  std::set<int> ports;
  for (int gpu = 0; gpu < gpus; ++gpu) ports.insert(cluster.nic_of(gpu));
  const double width = static_cast<double>(cluster.nics_per_node) / cluster.ports_per_node();
  return cluster.nic.bytes_per_second * width * static_cast<double>(ports.size());
}

// Bytes that pass the links of one domain for each byte of the buffer, one direction.
double bytes_at_border(const MeasuredExchange& measured, double inside) {
  const double ranks = measured.gpus;
  switch (measured.operation) {
    case MeasuredOperation::all_to_all:
      return inside * (ranks - inside) / ranks;
    case MeasuredOperation::all_reduce:
      return 2 * (ranks - 1) / ranks;
    case MeasuredOperation::all_gather:
    case MeasuredOperation::reduce_scatter:
      return (ranks - 1) / ranks;
    case MeasuredOperation::send_receive:
      break;
  }
  return 1;
}

using Change = std::function<void(Cluster&, double)>;

// The model's question for one size of a measured curve.
class Inversion {
 public:
  Inversion(const MeasuredExchange& measured, std::size_t size, const Cluster& cluster,
            std::shared_ptr<const profile::Profile> profile, Change change)
      : measured_us_(measured.time_us[size]),
        cluster_(cluster),
        profile_(std::move(profile)),
        change_(std::move(change)) {
    std::erase_if(cluster_.exchanges, [&](const MeasuredExchange& each) {
      return crosses_domains(cluster, each.nodes);
    });
    query_.members = network::members_of(measured, cluster);
    query_.bytes = measured.bytes[size];
    const auto collective = find_in(profile::collective_names, name_of(measured.operation));
    known_ = collective && profile_;
    if (collective) query_.collective = *collective;
  }

  // Whether the model answers; not where the profile has no curve inside a domain of this exchange.
  bool is_known() const {
    if (!known_) return false;
    try {
      slower_at(1);
    } catch (const NotMeasured&) {
      return false;
    }
    return true;
  }

  // The value in `range` with which the model says what was measured, its time rising with the
  // value; an end of the range where none does. Nothing where the model does not answer.
  std::optional<double> value_in(std::pair<double, double> range) const {
    if (!is_known()) return std::nullopt;
    return value_in(range, &Estimate::time_us, measured_us_);
  }

  // The same with which one of the model's times, or of its quantiles, is so many microseconds.
  double value_in(std::pair<double, double> range, double Estimate::*time, double us) const {
    auto [low, high] = range;
    while (high / low > 1.0005) {
      const double middle = std::sqrt(low * high);
      (estimate_at(middle).*time < us ? low : high) = middle;
    }
    return low == range.first ? low : high == range.second ? high : std::sqrt(low * high);
  }

  // The model's time over the measured one.
  double slower_at(double value) const { return estimate_at(value).time_us / measured_us_; }

  Estimate estimate_at(double value) const {
    Cluster changed = cluster_;
    change_(changed, value);
    return network::predict_exchange(query_, profile_, std::make_shared<const Cluster>(changed))
        .estimate;
  }

 private:
  double measured_us_;
  Cluster cluster_;
  std::shared_ptr<const profile::Profile> profile_;
  Change change_;
  network::ExchangeQuery query_;
  bool known_ = false;
};

// The reciprocal of an efficiency is linear in time.
constexpr std::pair<double, double> inverse_efficiencies{1, 100};

// The largest size of a curve, its time against the reciprocal of nic.efficiency.
Inversion of_efficiency(const MeasuredExchange& measured, const Cluster& cluster,
                        const std::shared_ptr<const profile::Profile>& profile) {
  return {measured, measured.bytes.size() - 1, cluster, profile, [](Cluster& changed, double each) {
            changed.nic_efficiency = changed.nic_efficiency_low = changed.nic_efficiency_high =
                1 / each;
          }};
}

// Bytes per second that a ring passes through the port of every GPU, at the largest size.
double busbw_inside(const MeasuredExchange& measured, const Cluster& cluster) {
  if (measured.gpus == measured.nodes || cluster.gpus_per_domain < 2) return 0;
  return measured.bytes.back() * bytes_at_border(measured, 1) / (measured.time_us.back() * 1e-6);
}
// Below half of what all-to-alls reach inside a domain nothing but the NICs holds a ring up.
constexpr double limited_by_nics = 0.5;

struct ShippedGpu {
  std::string profile;        // its name
  std::string device;         // "NVIDIA H100 80GB HBM3"
  std::string usual_cluster;  // "" if it names none
};

std::vector<ShippedGpu> read_gpus() {
  std::vector<ShippedGpu> read;
  for (const std::string& name : shipped_names("hardware")) {
    const Document document = Document::load(find_document("hardware", name));
    if (document.root().text_or("format", "") != "moesim-profile") continue;
    const Node device = document.root().items("devices").front();
    read.push_back({name, device.text("name"), device.text_or("usual_cluster", "")});
  }
  return read;
}

// The first device of each shipped profile of hardware. Read once of a folder: they are megabytes.
const std::vector<ShippedGpu>& shipped_gpus() {
  static KeptFiles<std::vector<ShippedGpu>> kept;
  return kept.get(shipped_folder() + "/hardware", read_gpus);
}

// The first shipped profile whose GPU fits, read once of a file; null if there is none.
std::shared_ptr<const profile::Profile> shipped_profile(
    const std::function<bool(const ShippedGpu&)>& fits) {
  static KeptFiles<std::shared_ptr<const profile::Profile>> kept;
  const auto& gpus = shipped_gpus();
  const auto found = std::find_if(gpus.begin(), gpus.end(), fits);
  if (found == gpus.end()) return nullptr;
  const std::string file = find_document("hardware", found->profile);
  return kept.get(
      file, [&] { return std::make_shared<const profile::Profile>(profile::Profile::load(file)); });
}

}  // namespace

FittedShare range_of(const std::vector<double>& values, double spread) {
  const double value = median(values);
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return {value, std::min(*least, value * (1 - spread)), std::max(*most, value * (1 + spread))};
}

FittedShare share_of(const std::vector<double>& shares) {
  const FittedShare range = range_of(shares, least_spread);
  return {std::min(1.0, range.value), std::min(1.0, range.low), std::min(1.0, range.high)};
}

std::optional<double> line_share(const MeasuredExchange& measured, const Cluster& cluster) {
  const int each = measured.gpus / measured.nodes;
  const bool crosses = crosses_domains(cluster, measured.nodes);
  const int nodes_of_domain = std::max(1, cluster.gpus_per_domain / cluster.gpus_per_node);
  double bytes = 0, line = 0;  // of one domain across, or of one GPU inside
  if (crosses) {
    if (cluster.nics_per_node == 0) return std::nullopt;
    const bool alone = cluster.gpus_per_domain == 1;
    bytes = bytes_at_border(measured, alone ? 1 : each * nodes_of_domain);
    line = nics_in_use(cluster, each) * (alone ? 1.0 / each : nodes_of_domain);
    if (measured.operation == MeasuredOperation::send_receive) line = nics_in_use(cluster, 1);
  } else {
    bytes = bytes_at_border(measured, 1);
    line = cluster.domain.port.bytes_per_second;
  }
  std::optional<double> best;
  for (std::size_t size = 0; size < measured.bytes.size(); ++size) {
    if (measured.bytes[size] < large_bytes) continue;
    const double share = measured.bytes[size] * bytes / (measured.time_us[size] * 1e-6) / line;
    best = std::max(best.value_or(0), share);
  }
  return best;
}

std::optional<FittedEfficiency> nic_efficiency_of(
    const MeasuredExchange& measured, const Cluster& cluster,
    const std::shared_ptr<const profile::Profile>& profile) {
  if (measured.bytes.back() < large_bytes) return std::nullopt;
  const Inversion model = of_efficiency(measured, cluster, profile);
  const auto inverse = model.value_in(inverse_efficiencies);
  if (!inverse) return std::nullopt;
  return FittedEfficiency{1 / *inverse, model.slower_at(*inverse)};
}

double more_at_large_size(const MeasuredExchange& measured, const Cluster& cluster,
                          const std::shared_ptr<const profile::Profile>& profile) {
  const auto collective = find_in(profile::collective_names, name_of(measured.operation));
  const double bytes = measured.bytes.back();
  if (bytes >= full_bytes || !collective || !profile) return 1;
  const auto without = std::make_shared<Cluster>(cluster);
  without->exchanges.clear();
  network::ExchangeQuery query;
  query.collective = *collective;
  query.members = network::members_of(measured, cluster);
  const auto rate_at = [&](double size) {
    query.bytes = size;
    return size / network::predict_exchange(query, profile, without).estimate.time_us;
  };
  try {
    return std::max(1.0, rate_at(full_bytes) / rate_at(bytes));
  } catch (const NotMeasured&) {
    return 1;  // the profile has no curve of it
  }
}

std::optional<EfficiencyBounds> nic_efficiency_bounds(
    const MeasuredExchange& measured, const Cluster& cluster,
    const std::shared_ptr<const profile::Profile>& profile) {
  const std::optional<double> share = line_share(measured, cluster);
  if (!share) return std::nullopt;
  const double of_ring = std::min(1.0, *share * (1 + network::law_error));
  const Inversion model = of_efficiency(measured, cluster, profile);
  if (!model.is_known()) {
    const bool inside_may_limit =
        busbw_inside(measured, cluster) >
        cluster.domain.port.bytes_per_second * cluster.domain.efficiency.value * limited_by_nics;
    return EfficiencyBounds{std::min(1.0, *share), inside_may_limit ? 1 : of_ring, 1};
  }
  const bool spread = !measured.p05_us.empty();
  const double slowest_us = spread ? measured.p95_us.back() : measured.time_us.back();
  const double fastest_us = spread ? measured.p05_us.back() : measured.time_us.back();
  // Where even the best NICs leave the model too slow, the NICs are not what it has wrong: any
  // efficiency that adds nothing to its time is as likely.
  const double best_us = model.estimate_at(1).time_us_p05;
  constexpr double nothing_added = 1.001;
  const double least = 1 / model.value_in(inverse_efficiencies, &Estimate::time_us_p05,
                                          std::max(slowest_us, best_us * nothing_added));
  const double most = 1 / model.value_in(inverse_efficiencies, &Estimate::time_us_p95, fastest_us);
  return EfficiencyBounds{std::min(1.0, least), std::max(most, of_ring),
                          best_us > slowest_us ? model.slower_at(1) : 1};
}

std::optional<double> nic_start_of(const MeasuredExchange& measured, const Cluster& cluster,
                                   const std::shared_ptr<const profile::Profile>& profile) {
  if (measured.bytes.front() > small_bytes) return std::nullopt;
  return Inversion(measured, 0, cluster, profile,
                   [](Cluster& changed, double scale) {
                     changed.nic_start = {scale, scale, scale, "measured"};
                   })
      .value_in(searched_starts);
}

std::shared_ptr<const profile::Profile> profile_of_gpu(const std::string& model) {
  return shipped_profile([&](const ShippedGpu& gpu) {
    const std::vector<std::string> models = gpu_models(gpu.device);
    return std::find(models.begin(), models.end(), model) != models.end();
  });
}

std::shared_ptr<const profile::Profile> profile_of_cluster(const Cluster& cluster) {
  auto usual =
      shipped_profile([&](const ShippedGpu& gpu) { return gpu.usual_cluster == cluster.name; });
  if (usual) return usual;
  const std::vector<std::string> models = gpu_models_of(cluster);
  return models.empty() ? nullptr : profile_of_gpu(models.front());
}

std::vector<std::string> gpu_models_of(const Cluster& cluster) {
  std::vector<std::string> models = gpu_models(cluster.name);
  if (models.empty() && !cluster.source.starts_with("no product")) {
    models = gpu_models(cluster.source);
  }
  return models;
}

std::vector<std::string> gpu_models(const std::string& text) {
  static const std::set<std::string> known{
      "P100", "V100", "T4",   "A10",  "A30",  "A40",   "A100", "A800", "L4",    "L20",  "L40",
      "L40S", "H20",  "H100", "H200", "H800", "GH200", "B200", "B300", "GB200", "GB300"};
  std::vector<std::string> found;
  std::string word;
  for (const char letter : text + " ") {
    if (std::isalnum(static_cast<unsigned char>(letter)) != 0) {
      word += static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
      continue;
    }
    if (known.count(word) != 0) found.push_back(word);
    word.clear();
  }
  return found;
}

}  // namespace moesim::study
