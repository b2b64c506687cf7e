#pragma once

#include <string>

#include "sim/cluster/cluster.hpp"
#include "sim/profile/moe_exchange_law.hpp"
#include "sim/profile/profile.hpp"

namespace moesim::network {

// Where an exchange by a dispatcher takes place, and what carries its rows.
struct DispatchPlace {
  std::string device;
  profile::DispatchGroup group;
  profile::DispatchRates rates;
};

// GPUs of a cluster, as many in each of its NVLink domains as `group` says: line rates of domains
// and NICs, or of switches with less bandwidth above the NICs (dispatch_nic_rate). Efficiencies are
// the dispatcher's own, but of NICs no more than the document's. `transport`: "gpu", "proxy", or ""
// for what the cluster says. Throws UsageError for one GPU, domains of unequal numbers of GPUs,
// GPUs without NVLink, domains that nothing connects.
DispatchPlace dispatch_place(const std::string& device, const cluster::Cluster& cluster,
                             const profile::DispatchGroup& group,
                             const std::string& transport = "");
// The first `gpus` GPUs of the cluster, whose domains are full.
DispatchPlace dispatch_place(const std::string& device, const cluster::Cluster& cluster, int gpus,
                             const std::string& transport = "");

// "dispatcher deepep, 24 SMs (derived: ...); NIC written to by the GPU (...); without 40 us of
// notify", or with it, where the time has it in it.
std::string dispatch_provenance(const profile::Dispatcher& dispatcher, const DispatchPlace& place,
                                int sms, bool with_notify = false);

}  // namespace moesim::network
