#pragma once

#include <string>
#include <vector>

#include "sim/base/enum_names.hpp"

namespace moesim::profile {

// Where a figure comes from, weakest last: a composed figure is as good as its weakest part.
enum class Origin { measured, published, datasheet, derived, assumed };
inline constexpr EnumNames<Origin, 5> origin_names{{
    {Origin::measured, "measured"},
    {Origin::published, "published"},
    {Origin::datasheet, "datasheet"},
    {Origin::derived, "derived"},
    {Origin::assumed, "assumed"},
}};
constexpr const char* name_of(Origin origin) { return name_in(origin_names, origin); }

// Whether a query lies inside what was measured. `extrapolated` is only ever returned where a
// physical law carries; everything else outside the valid range is refused with an Error.
enum class Support { measured_point, interpolated, extrapolated };
inline constexpr EnumNames<Support, 3> support_names{{
    {Support::measured_point, "measured point"},
    {Support::interpolated, "interpolated"},
    {Support::extrapolated, "extrapolated"},
}};
constexpr const char* name_of(Support support) { return name_in(support_names, support); }

// One predicted duration. Quantiles are those of the curve's cross-validated signed residuals in
// the region of the query, widened with the distance from what was measured.
struct Estimate {
  double time_us = 0;      // median prediction, microseconds
  double time_us_p05 = 0;  // 5 % quantile, microseconds
  double time_us_p95 = 0;  // 95 % quantile, microseconds
  Origin origin = Origin::measured;
  Support support = Support::interpolated;
};

// "published, interpolated" and so on: the text of the `provenance` column.
std::string describe(const Estimate& estimate);

}  // namespace moesim::profile
