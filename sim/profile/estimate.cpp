#include "sim/profile/estimate.hpp"

namespace moesim::profile {

const char* name_of(Origin origin) {
  switch (origin) {
    case Origin::measured:
      return "measured";
    case Origin::published:
      return "published";
    case Origin::datasheet:
      return "datasheet";
    case Origin::derived:
      return "derived";
    case Origin::assumed:
      return "assumed";
  }
  return "assumed";
}

const char* name_of(Support support) {
  switch (support) {
    case Support::measured_point:
      return "measured point";
    case Support::interpolated:
      return "interpolated";
    case Support::extrapolated:
      return "extrapolated";
  }
  return "extrapolated";
}

std::string describe(const Estimate& estimate) {
  return std::string(name_of(estimate.origin)) + ", " + name_of(estimate.support);
}

}  // namespace moesim::profile
