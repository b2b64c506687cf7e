#pragma once

#include <optional>
#include <vector>

#include "kernels/base/bfloat16.cuh"
#include "kernels/layer/plan.hpp"

// The layer in fp64, one token at a time, from the formulas of Zeng et al. 2024: what a device's
// results are held to. Which rows process a token is given; all else follows from x and weights.
//   g = softmax(Wg x), m_j = copies_j g_j, w_j = m_j / sum m, out = sum_j w_j E_j(x) [+ x]
//   E(x) = Wd (silu(Wu x, the gate) (Wu x, the rest))
namespace moesim::kernels::layer {

// Weights of all experts; null for those that are not at hand. As in Buffer.
struct ReferenceWeights {
  int hidden = 0;
  int ffn = 0;
  const Bfloat16* gate = nullptr;
  std::vector<const Bfloat16*> up;
  std::vector<const Bfloat16*> down;
  int experts() const { return static_cast<int>(up.size()); }
};

// A row that processes the token: 1 copy for a kept route, s = k - |R| for an IR row.
struct ReferenceRow {
  int expert = 0;
  double copies = 1;
};

struct ReferenceToken {
  std::vector<double> x;
  std::vector<double> out_gradient;
  std::vector<ReferenceRow> rows;
};

struct ReferenceResult {
  std::vector<double> out;
  std::vector<double> x_gradient;
  std::vector<double> logit_gradient;
  double mass = 0;  // sum m
  // The vectors of each row whose products with the token make the weights' gradients.
  std::vector<std::vector<double>> activated, output, output_gradient, hidden_gradient;
};

ReferenceResult reference_token(const ReferenceWeights& weights, const ReferenceToken& token,
                                bool residual, routing::NormaliserRule normaliser);

// <out_gradient, out>, the loss whose gradient that is; sum m taken as `frozen_mass` if it is
// given.
double reference_loss(const ReferenceWeights& weights, const ReferenceToken& token, bool residual,
                      std::optional<double> frozen_mass);

// The rows of a token, from a rank's router buffers in host memory.
std::vector<ReferenceRow> rows_of_token(const routing::RouterProblem& problem,
                                        const routing::RouterBuffers& buffers, int token);

}  // namespace moesim::kernels::layer
