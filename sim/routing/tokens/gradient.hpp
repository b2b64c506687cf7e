#pragma once

#include <span>
#include <vector>

namespace moesim::routing {

// What the router's logits get from the loss through the combine o = sum_j w_j E_j(x) over the
// rows that process a token, w_j = m_j / G, G = sum_j m_j (Zeng et al. 2024, straight-through).

// A row that processes the token: a kept route has mass g_j, an IR row s g_h.
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
// An expert that has two rows (IR repeated it) gets the sum of both. No rows, or no mass: zeros.
std::vector<double> logit_gradient(std::span<const double> probabilities,
                                   std::span<const ProcessedRow> rows, Normaliser normaliser);

}  // namespace moesim::routing
