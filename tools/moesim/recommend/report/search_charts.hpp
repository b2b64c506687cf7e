#pragma once

#include <string>

#include "tools/moesim/recommend/best/step_order.hpp"

namespace moesim::tool {

// Throws UsageError for a name that is no picture, Error where it cannot be written.
void check_chart(const std::string& path);

// Draws the rows of a search (rendered_search() as CSV). `noise`: speeds that far below the best
// are within the noise. Throws Error where charts cannot be drawn.
void draw_front(const std::string& csv, const OrderNoise& noise, const std::string& path);

// Draws the rows of searches on several numbers of GPUs: speed and efficiency by GPUs.
void draw_scaling(const std::string& csv, const std::string& path);

// Draws the rows of searches on several machines: speed, and what tokens cost, of each.
void draw_machines(const std::string& csv, const std::string& path);

}  // namespace moesim::tool
