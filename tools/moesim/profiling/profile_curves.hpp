#pragma once

#include <string>

#include "sim/profile/profile.hpp"

namespace moesim::tool {

// The curves of a profile as panels of x, y and error band, for the plotter: a JSON text
// {title, subtitle, panels: [{title, xlabel, ylabel, bytes, series: [{label, x, y, low, high,
// extrapolated}]}]}. What the profile refuses to answer is left out. `title` "": the profile's.
std::string curves_json(const profile::Profile& profile, const std::string& title);

}  // namespace moesim::tool
