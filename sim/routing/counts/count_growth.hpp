#pragma once

namespace moesim::routing {

// part / whole; 0 of nothing.
inline double share(double part, double whole) { return whole > 0 ? part / whole : 0.0; }

// How a share of the tokens grows with the share x of routes that failed: 1 - (1 - x)^a where one
// failed route is enough, x^a where all have to fail.
struct Growth {
  bool all = false;
  double exponent = 1;  // a

  double operator()(double failed) const;
};

// The law through one point: `found` of the tokens at `failed` of the routes. `independent`: the
// exponent of failures that know nothing of each other, taken where nothing or all failed.
Growth fit_growth(bool all, double failed, double found, double independent);

}  // namespace moesim::routing
