#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/parallel/layout_rules.hpp"

namespace moesim::parallel {

// What else a job has against a request without layout_fault(): a sentence, or nothing.
using FurtherFault = std::function<std::optional<std::string>(const LayoutRequest&)>;

// Up to `count` requests that can be, as options: "--expert-parallel 32". Of those that differ from
// `request` in one option, or else in two, the nearest by ratio. `further` may be null.
std::vector<std::string> nearest_layouts(const model::Model& model, const LayoutRequest& request,
                                         const FurtherFault& further = nullptr,
                                         std::size_t count = 3);

// Throws UsageError with the fault, of the layout or else a further one, and the nearest layouts
// that have neither.
void check_layout(const model::Model& model, const LayoutRequest& request,
                  const FurtherFault& further = nullptr);

}  // namespace moesim::parallel
