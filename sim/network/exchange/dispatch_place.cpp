#include "sim/network/exchange/dispatch_place.hpp"

#include <fmt/format.h>

#include <cstddef>

#include "sim/base/no_answer.hpp"
#include "sim/network/ports/switch_limits.hpp"

namespace moesim::network {
namespace {

using profile::Transport;

constexpr double us_per_second = 1e6;

}  // namespace

DispatchPlace dispatch_place(const std::string& device, const cluster::Cluster& cluster, int gpus,
                             const std::string& transport) {
  return dispatch_place(device, cluster, profile::DispatchGroup{gpus, cluster.gpus_per_domain},
                        transport);
}

DispatchPlace dispatch_place(const std::string& device, const cluster::Cluster& cluster,
                             const profile::DispatchGroup& group, const std::string& transport) {
  const auto refuse = [&](const std::string& why) {
    throw NoAnswer(fmt::format("dispatcher on cluster {}: {}", cluster.name, why));
  };
  const int gpus = group.gpus;
  const int in_domain = group.per_domain;
  if (gpus < 2) refuse("one GPU exchanges nothing: choose at least two");
  if (gpus > in_domain && gpus % in_domain != 0) {
    const bool full = in_domain % cluster.gpus_per_domain == 0;
    refuse(fmt::format("{} GPUs are not as many on each of its domains: choose a multiple of {}",
                       gpus, full ? in_domain : (gpus + in_domain - 1) / in_domain));
  }
  if (const int most = cluster.max_gpus(); most > 0 && gpus > most) {
    refuse(fmt::format("{} GPUs, but it has {}", gpus, most));
  }
  if (cluster.gpus_per_domain > 1 && cluster.domain.kind != "NVLink") {
    refuse(fmt::format("its GPUs reach each other over {}, and dispatchers need NVLink",
                       cluster.domain.kind));
  }
  DispatchPlace place;
  place.device = device;
  place.group = group;
  // Without NVLink every row takes a NIC; no port carries any.
  place.rates.link_bytes_per_us =
      cluster.gpus_per_domain > 1 ? cluster.domain.port.bytes_per_second / us_per_second : 1;
  if (cluster.nics_per_node > 0) {
    place.rates.nic_bytes_per_us = dispatch_nic_rate(cluster, group) / us_per_second;
    place.rates.nic_share = cluster.nic_efficiency;
    place.rates.nic_share_high = cluster.nic_efficiency_high;
  } else if (gpus > in_domain) {
    refuse("no NIC connects its domains");
  }
  const std::string& named = transport.empty() ? cluster.nic_transport : transport;
  place.rates.transport = named == "proxy" ? Transport::proxy : Transport::gpu;
  place.rates.transport_known = !named.empty();
  return place;
}

std::string dispatch_provenance(const profile::Dispatcher& dispatcher, const DispatchPlace& place,
                                int sms, bool with_notify) {
  const bool crosses = place.group.crosses();
  std::string text = fmt::format("dispatcher {}", dispatcher.name);
  if (dispatcher.usual_sms > 0) text += fmt::format(", {} SMs", sms);
  text += fmt::format(" ({})", dispatcher.on(place.device).origin);
  if (crosses) {
    const auto& nic = dispatcher.nic_of(place.rates.transport, place.rates.in_training);
    text += fmt::format("; NIC written to by {}{} ({})",
                        place.rates.transport == Transport::gpu ? "the GPU" : "a CPU proxy",
                        place.rates.transport_known ? "" : ", assumed, the band has both",
                        nic ? nic->origin : "no figures");
  }
  if (const double notify_us = dispatcher.notify_us[crosses ? 1 : 0]; notify_us > 0) {
    text += fmt::format("; {} {:g} us of notify", with_notify ? "with" : "without", notify_us);
  }
  return text;
}

}  // namespace moesim::network
