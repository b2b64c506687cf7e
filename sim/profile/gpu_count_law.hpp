#pragma once

#include <vector>

#include "sim/profile/collective.hpp"
#include "sim/profile/node_links.hpp"
#include "sim/profile/residual.hpp"
#include "sim/profile/size_curve.hpp"

namespace moesim::profile {

// The size curve of an exchange among `gpus` of one node.
struct CountCurve {
  int gpus;
  SizeCurve curve;
};

// Bytes that leave a GPU, as a share of nccl-tests' size; `switch_reduces`: an all-reduce is added
// up on its way.
double sent_share(Collective kind, int gpus, bool switch_reduces);

// The size curve among `gpus` that were not measured, from those of fewer: at least one for
// all-to-all, two for the rings (all-gather, reduce-scatter, all-reduce), in ascending counts, all
// below `gpus`. profiles/EXCHANGES.md explains the law and quotes its errors. Throws Error where
// the curves or what is known of the links do not suffice, saying what is missing.
SizeCurve among_more_gpus(Collective kind, const NodeLinks& links,
                          const std::vector<CountCurve>& fewer, int gpus);

// The errors of that law among twice as many GPUs as were measured, by bytes: what runs of public
// machines err by whose curves were cut to the smaller counts (`moesim validate exchanges`, "by
// predict"). For a curve that carries no check of its own.
Residual errors_of_law(Collective kind, NodeLinks::Kind links);

}  // namespace moesim::profile
