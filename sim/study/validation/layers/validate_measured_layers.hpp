#pragma once

#include <string>

#include "sim/scenario/document_cache.hpp"
#include "sim/study/validation/tables/validation.hpp"

namespace moesim::study {

// Layers that bench_layer_gpu measured (profiles/schema/measured-layer.schema.json), against what
// `profile`, measured on the same machine, makes of them: the median error at most 3 %, the worst 8
// %. Void and synthetic measurements are listed and do not count. Throws UsageError for a document
// of another device, or without a measurement that counts.
Validation validate_measured_layers(const std::string& measured, const std::string& profile,
                                    scenario::DocumentCache& documents);

}  // namespace moesim::study
