#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/network/exchange/exchange_query.hpp"
#include "sim/profile/profile.hpp"

namespace moesim::tool {

// What predict answers about exchanges that a profile alone cannot: across nodes, of byte matrices,
// under a schedule. Parameters are texts as users type them:
//   cluster    shipped name or file; a byte matrix needs one. Without it, more GPUs than share one
//              domain take the cluster that the profile names
//   gpus, bytes  of a uniform exchange, bytes = nccl-tests' per-rank buffer
//   matrix     of an all-to-all, in the place of gpus and bytes
//   start      when each rank begins to send, with a matrix
//   schedule   burst, pairwise, ...; ring or tree of the other operations; two-level of equal
//              blocks with a profile: its curve inside a node, the law of NCCL between nodes
//   distinct-share  of schedule deepep: rows that cross to a node over rows bound for it
//   placement  contiguous, round-robin or a list of GPUs
//   network    auto, flows or fast
class ExchangePredictor {
 public:
  static const std::vector<std::string>& parameters();  // beside those of the operation

  // `profile` answers queries that name no cluster. It also calibrates those that do where
  // `calibrates`, which is where the user chose it; else uniform exchanges take the shipped profile
  // of the cluster's GPUs, and all others the links of the cluster's document alone.
  ExchangePredictor(std::shared_ptr<const profile::Profile> profile, bool calibrates);

  // Whether this query is about a cluster rather than the profile alone.
  bool handles(const std::string& op, const std::map<std::string, std::string>& params);
  // Whether its ranks lie in several domains; of params as answer() left them.
  bool crosses_domains(const std::map<std::string, std::string>& params);
  // Fills in params what follows from the others: gpus, cluster, schedule. Throws UsageError for
  // parameters that do not go together, unknown values and bad documents and files.
  network::ExchangePrediction answer(const std::string& op,
                                     std::map<std::string, std::string>& params);

 private:
  std::shared_ptr<const cluster::Cluster> cluster(const std::string& name);
  std::shared_ptr<const profile::Profile> profile_for(const network::ExchangeQuery& query,
                                                      const cluster::Cluster& where);

  void note_nccl(const network::ExchangeQuery& query, double time_us,
                 const std::shared_ptr<const cluster::Cluster>& where);

  std::shared_ptr<const profile::Profile> profile_;
  bool calibrates_;
  bool noted_nccl_ = false;
  std::map<std::string, std::shared_ptr<const cluster::Cluster>> clusters_;
  std::map<std::string, std::shared_ptr<const profile::Profile>> profiles_;  // by cluster document
};

}  // namespace moesim::tool
