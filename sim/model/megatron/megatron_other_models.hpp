#pragma once

#include <string>

#include "sim/model/megatron/megatron_arguments.hpp"

namespace moesim::model {

// Throws UsageError naming the argument that makes other layers than a model here can have, and
// which: Mamba, sparse attention, an encoder.
void refuse_other_models(const MegatronArguments& arguments);

// A note that layers which another program makes (--spec) are not read; "" for Megatron-LM's own.
std::string spec_note(const MegatronArguments& arguments);

// Takes these arguments for asked, where a typed model stands in their place.
void mark_other_models(const MegatronArguments& arguments);

}  // namespace moesim::model
