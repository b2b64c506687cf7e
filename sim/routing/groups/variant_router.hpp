#pragma once

#include <memory>

#include "sim/routing/groups/chooser.hpp"
#include "sim/routing/groups/kind_router.hpp"

namespace moesim::routing {

// Routers that take the k best experts (RouterConfig::kind->takes_best) with a choice of experts
// that differs from the k best by softmax (RouterConfig::varies()):
//   sigmoid scores, each logit by itself;
//   a given bias per expert, added for the choice only: weights and losses are of the score;
//   a sampled second expert: the largest of logit + Gumbel noise without the first (DeepSpeed
//   top2gating, fairscale top2gating).
std::unique_ptr<KindRouter> make_variant_router(const KindShape& shape);
// How it chooses.
std::unique_ptr<Chooser> make_variant_chooser(const KindShape& shape);

}  // namespace moesim::routing
