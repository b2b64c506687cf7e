#pragma once

#include <nlohmann/json.hpp>

#include "sim/profile/profile.hpp"

namespace moesim::kernels::measure {

// Gives the measured branches of an exchange's curve (those without "from_curve") knots outside
// their measured sizes, an octave each, from 1 KiB to 16 GiB: the base's time of that exchange by
// the ratio of measured to base's time at the edge, as profile::carry_beyond() has it. A log from 8
// MiB on does not show latency, nor one to 2 MiB the rate of larger sizes. The key "beyond" of the
// branch has both readings of the ratio, to which bands reach. A branch of a number of GPUs that
// the base does not know stays as it is.
void go_on_beyond_sizes(const profile::Profile& base, nlohmann::ordered_json& curve);

}  // namespace moesim::kernels::measure
