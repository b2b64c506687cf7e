#pragma once

namespace moesim::routing {

// part / whole; 0 if whole is 0.
inline double share(double part, double whole) { return whole > 0 ? part / whole : 0.0; }

// How a share of the tokens grows with the share x of failed routes: 1 - (1 - x)^a where one failed
// route is sufficient, x^a where all routes have to fail.
struct Growth {
  bool all = false;
  double exponent = 1;  // a

  double operator()(double failed) const;
};

// The law through one point: `found` of the tokens at `failed` of the routes. `independent`: the
// exponent for independent failures, used where no route or every route failed.
Growth fit_growth(bool all, double failed, double found, double independent);

}  // namespace moesim::routing
