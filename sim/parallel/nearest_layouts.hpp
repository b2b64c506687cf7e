#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/parallel/layout_rules.hpp"

namespace moesim::parallel {

// What else a job has against a request without layout_refusal(): a sentence, or nothing.
using FurtherRefusal = std::function<std::optional<std::string>(const LayoutRequest&)>;

// Up to `count` requests that can be, as options: "--expert-parallel 32". Of those that differ from
// `request` in one option, or else in two, the nearest by ratio. `further` may be null.
std::vector<std::string> nearest_layouts(const model::Model& model, const LayoutRequest& request,
                                         const FurtherRefusal& further = nullptr,
                                         std::size_t count = 3);

// Throws UsageError with the refusal, of the layout or else a further one, and the nearest layouts
// that have neither.
void check_layout(const model::Model& model, const LayoutRequest& request,
                  const FurtherRefusal& further = nullptr);

}  // namespace moesim::parallel
