#pragma once

#include <cstdint>

#include "sim/base/random.hpp"
#include "sim/routing/groups/group_logits.hpp"
#include "sim/routing/groups/kind_router.hpp"
#include "sim/routing/rules/layer_sample.hpp"

namespace moesim::routing {

// Routes `tokens` training tokens (a multiple of tile_tokens) of the layer of `stream` as the
// router does that keeps all routes: by RouterDescriptor::sample, by its chooser, or to the k best.
// `stream`: for random numbers of the sample; its seed, replica and layer are those of the job.
LayerSample sample_layer(const KindShape& shape, const GroupLogits& logits, const StreamKey& stream,
                         std::int64_t tokens);

}  // namespace moesim::routing
