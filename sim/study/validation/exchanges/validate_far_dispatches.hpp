#pragma once

#include <string>
#include <vector>

#include "sim/profile/dispatcher.hpp"
#include "sim/study/validation/exchanges/dispatch_samples.hpp"
#include "sim/study/validation/tables/band_points.hpp"
#include "sim/study/validation/tables/validation.hpp"

namespace moesim::study {

// How fast a law's errors grow with the distance from what was measured. The figures are fitted to
// hidden sizes, or numbers of SMs, up to one of them or from one on, and predict those beyond, each
// kind of GPU and stage by itself. The growth (profile::ErrorGrowth) with which the document's
// bands then hold 90 % is found on all other kinds and stages, and the bands of one are made with
// it. Verdicts name what all of them together show, to be compared with the shipped growth.
void leave_far_out(const profile::Dispatcher& dispatcher,
                   const std::vector<DispatchSample>& samples, Validation& validation);

// One left-out value, and how many factors of two it lies beyond.
struct FarCase {
  double octaves = 0;
  std::vector<BandPoint> points;  // with the band of what was measured
};

// The growth per root of a factor of two with which 90 % of the points lie inside, each case of the
// same weight; 0 where they do without.
double error_growth(const std::vector<FarCase>& cases);

}  // namespace moesim::study
