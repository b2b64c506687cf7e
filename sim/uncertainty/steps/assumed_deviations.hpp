#pragma once

namespace moesim::uncertainty {

// Standard deviations of logs before a row of the software or the machine is measured. All are
// assumed but that of exchanges across NICs.
inline constexpr double exchange_deviation = 0.25;
// 56 of 60 points are within a band of 1.4 (profiles/ACCURACY.md).
inline constexpr double crossing_deviation = 0.2;
// Launches and reads: 90 % within a factor of two.
inline constexpr double host_deviation = 0.42;

}  // namespace moesim::uncertainty
