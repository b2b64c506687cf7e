#pragma once

#include <span>
#include <vector>

namespace moesim::routing {

// The gradient of the loss by the router's logits through the combination o = sum_j w_j E_j(x) over
// the rows that process a token, w_j = m_j / G, G = sum_j m_j (Zeng et al. 2024, straight-through).

// A row that processes the token: the mass of a kept route is g_j, of an IR row s g_h.
struct ProcessedRow {
  int expert = 0;
  double mass = 0;
  double upstream = 0;  // u_j = <dL/do, E_j(x)>
};

enum class Normaliser {
  differentiated,    // dL/da_l = [l in R] w_l (u_l - v), 0 for a single row
  straight_through,  // G a constant: dL/da_l = [l in R] w_l u_l - g_l v, so all experts learn
};

// dL/da_l of one token for all experts: `probabilities` is g over all of them, v = sum_j w_j u_j.
// An expert with two rows (repeated by IR) gets the sum of both. No rows, or no mass: zeros.
std::vector<double> logit_gradient(std::span<const double> probabilities,
                                   std::span<const ProcessedRow> rows, Normaliser normaliser);

}  // namespace moesim::routing
