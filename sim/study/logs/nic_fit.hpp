#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/profile/profile.hpp"
#include "sim/study/logs/link_evidence.hpp"
#include "sim/study/logs/link_fit.hpp"

namespace moesim::study {

// What an exchange across domains says of nic.efficiency.
struct NicRate {
  const cluster::MeasuredExchange* measured = nullptr;
  double share = 1;                        // of the line rate
  std::optional<FittedEfficiency> fitted;  // of an all-to-all, by the model
  std::optional<EfficiencyBounds> bounds;  // of a ring or tree
};

// The nic.start with which the model says what was measured at the smallest size.
struct ExchangeStart {
  const cluster::MeasuredExchange* measured = nullptr;
  double value = 1;

  bool of_ring() const { return measured->operation != cluster::MeasuredOperation::all_to_all; }
  // What it says of the figure: the law takes the root of it for rings and trees.
  double figure() const;
};

// What all exchanges across domains together say of nic.efficiency.
struct NicEfficiency {
  FittedShare share;
  std::vector<Evidence> found;  // what it is measured with; empty: that of the base
  bool bounded = false;         // rings and trees moved it to the end of what they allow
  std::string bounds;           // what they allow, for notes; "": no rings or trees
};

struct NicFit {
  std::vector<ExchangeStart> starts;  // empty: no exchange has sizes that small
  FittedShare start;                  // of these
  std::vector<NicRate> rates;
  std::vector<NicRate> ring_rates;  // rings and trees, where `rates` are of all-to-alls
  NicEfficiency efficiency;
};

// Fits nic.start and nic.efficiency to the exchanges across domains of the evidence, and sets both
// in `fitted`, which has the other figures and the exchanges already. `known`: what the base or
// single transfers say of the efficiency, before any exchange. All-to-alls go before single
// transfers, and these before rings and trees, which only bound it.
NicFit fit_nics(const LinkEvidence& evidence, const cluster::Cluster& base,
                const std::shared_ptr<const profile::Profile>& profile, const NicEfficiency& known,
                cluster::Cluster& fitted);

// Shares of the line rate that single transfers reach, by NIC; "" for those that do not name one.
std::map<std::string, std::vector<double>> rates_by_nic(const std::vector<Evidence>& nic_rates);
// The efficiency of single transfers: that of the slowest NIC, for which exchanges of all wait. The
// range holds all transfers.
FittedShare efficiency_of_slowest(const std::vector<Evidence>& nic_rates);

}  // namespace moesim::study
