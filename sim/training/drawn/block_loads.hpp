#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/routing/jobs/routing_job.hpp"
#include "sim/training/job/expert_copies.hpp"
#include "sim/training/job/training_job.hpp"
#include "sim/training/prices/dispatched_rows.hpp"
#include "sim/training/prices/moe_load.hpp"

namespace moesim::training {

// A load over balance, rounded to 1/1024 of it.
double rounded_load(double load);

// What one block of ranks gets of a drawn layer. In names "block" is one of ranks
// (sim/GLOSSARY.md).
struct BlockLoad {
  MoeLoad load;
  double expert = 1;             // rows of the busiest expert over balance
  std::vector<double> computed;  // [rank], over balance
};

// Whether what a dispatcher sends is counted token by token where recorded tokens are routed, in
// the place of profile::CopiesLaw: where it sends a token once to a rank or domain, and domains
// hold equal parts of a group. `block`: block_routing(job). Precondition: job.routing.
bool counts_copies(const TrainingJob& job, const routing::RoutingJob& block);

// The loads of the blocks of a drawn layer, and the rows that they come from. Keeps references to
// the job and its routing.
class BlockLoads {
 public:
  // `job`: the routing of all blocks, one after another; `sums`: all sources of a block were drawn
  // as one.
  BlockLoads(const TrainingJob& asked, const routing::RoutingJob& job, bool sums);

  // The load of a block; `copies`: where copies of experts are placed; null: there are none.
  BlockLoad load_of(const routing::LayerRouting& routing, std::size_t block,
                    const ExpertCopies* copies) const;
  // The load of a block of ranks that compute so many rows over balance, evenly among their
  // experts.
  MoeLoad load_of_ranks(const std::vector<double>& computed) const;
  // [expert], of all sources of a block.
  std::vector<double> expert_rows(const routing::LayerRouting& routing, std::size_t block) const;

 private:
  // What some sources send: [expert], and the most that one of them sends.
  struct SentRows {
    std::vector<double> to_expert;
    double most = 0;
  };
  // The rows of one block of ranks.
  struct BlockRows {
    BlockRows(std::size_t ranks, std::size_t experts)
        : received(ranks), rectified(ranks), of_expert(experts) {}
    std::vector<double> received, rectified;  // [rank of a group], of all groups
    std::vector<double> of_expert;            // [expert]
    double exchanged = 0;                     // the most that a rank sends or receives
    double inside = 0;            // in its domain; both as MoeLoad has them, times balance
    double rectified_by_one = 0;  // the most by a rank, of one group
    double padded = 0;            // slots of a rank, empty ones too; 0: not padded
  };

  SentRows sent_rows(const routing::LayerRouting& routing, std::size_t first,
                     std::size_t sources) const;
  // [rank of a group]
  std::vector<double> received_rows(const std::vector<double>& to_expert,
                                    const ExpertCopies* copies) const;
  // The rows of a group whose sources differ, as in BlockRows.
  struct LeavingRows {
    double exchanged = 0;
    double inside = 0;
  };
  // `first`: the first source of the group.
  LeavingRows leaving_rows(const routing::LayerRouting& routing, std::size_t first) const;
  BlockRows rows_of(const routing::LayerRouting& routing, std::size_t block,
                    const ExpertCopies* copies) const;
  double padded_rows(const routing::LayerRouting& routing, std::size_t first_source) const;
  std::size_t source_of(std::size_t gpu) const;  // of a block
  // What the GPUs of a block send, as DispatchedRows takes it.
  std::vector<std::vector<double>> sent_rows_of(const routing::LayerRouting& routing,
                                                std::size_t block,
                                                const ExpertCopies* copies) const;

  DispatchedLoad dispatched_load(const routing::LayerRouting& routing, std::size_t block,
                                 const ExpertCopies* copies) const;

  const TrainingJob& asked_;
  const routing::RoutingJob& job_;
  bool sums_;
  bool sources_differ_;  // recorded ones: rows that a source keeps are not sent
  std::optional<DispatchedRows> dispatcher_;  // of a job with one
};

}  // namespace moesim::training
