#pragma once

#include <vector>

#include "sim/profile/dispatch_copies.hpp"
#include "sim/training/job/training_job.hpp"
#include "sim/training/prices/moe_load.hpp"

namespace moesim::training {

// Where the tokens of a job go. Copies of experts count as experts.
profile::MoeTraffic dispatch_traffic(const TrainingJob& job);

// The same where all copies of an expert have its load: then they make no token go elsewhere.
profile::MoeTraffic even_traffic(const TrainingJob& job);

// How the ranks of an exchange of experts, slices among them, lie on NVLink domains: of all groups
// those that touch most. Precondition: job.cluster.
profile::DispatchGroup dispatch_spread(const TrainingJob& job);

// What rows of experts come to for the dispatcher of a job, by profile::CopiesLaw. Copies of
// experts count as experts, in what balance asks for too.
class DispatchedRows {
 public:
  // Precondition: job.dispatcher, and several ranks to an exchange. Throws Error as
  // profile::balanced_load().
  explicit DispatchedRows(const TrainingJob& job);

  // Rows that the GPUs of an exchange send to each expert, copies of experts behind the experts of
  // their rank: [GPU][expert], or of one GPU that stands for all. GPUs are ranks of an
  // expert-parallel group, each with its slices one after another.
  DispatchedLoad load_of(const std::vector<std::vector<double>>& sent) const;
  // The load of copies of tokens that were counted, in the place of the law: what each GPU sends to
  // the ranks of its expert-parallel group and to their domains, [GPU][place], GPUs as above. Not
  // for a dispatcher that sends every row.
  DispatchedLoad load_of_copies(const std::vector<std::vector<double>>& to_ranks,
                                const std::vector<std::vector<double>>& to_domains) const;
  // The load where all GPUs keep the share `kept` of the balanced rows of every expert, those of
  // one rank `busiest` times as many and the others evenly less.
  DispatchedLoad load_of(double busiest, double kept) const;

  int gpus() const { return group_.gpus; }
  int experts() const { return static_cast<int>(traffic_.experts); }

 private:
  // The loads on the way to experts, and back.
  struct Loads {
    profile::DispatchLoad there, back;
  };
  Loads loads_of(const std::vector<std::vector<double>>& sent) const;
  Loads loads_of_copies(const std::vector<std::vector<double>>& to_ranks,
                        const std::vector<std::vector<double>>& to_domains) const;
  DispatchedLoad over_even(const Loads& loads) const;

  profile::SentOnce sent_;
  profile::MoeTraffic traffic_;
  profile::DispatchGroup group_;
  double tokens_;  // of a GPU
  profile::CopiesLaw to_holders_, to_domains_;
  Loads even_;
};

}  // namespace moesim::training
