#include "kernels/layer/reference.hpp"

#include <algorithm>
#include <cmath>

#include "sim/routing/tokens/gradient.hpp"

namespace moesim::kernels::layer {
namespace {

using Values = std::vector<double>;

double value(Bfloat16 element) { return static_cast<double>(to_float(element)); }

// rows x columns, row-major, times a vector; and its transpose times one.
Values times(const Bfloat16* matrix, std::size_t rows, const Values& vector) {
  Values result(rows, 0);
  for (std::size_t row = 0; row < rows; ++row) {
    const Bfloat16* from = matrix + row * vector.size();
    double sum = 0;
    for (std::size_t column = 0; column < vector.size(); ++column) {
      sum += value(from[column]) * vector[column];
    }
    result[row] = sum;
  }
  return result;
}

Values transposed_times(const Bfloat16* matrix, std::size_t columns, const Values& vector) {
  Values result(columns, 0);
  for (std::size_t row = 0; row < vector.size(); ++row) {
    const Bfloat16* from = matrix + row * columns;
    for (std::size_t column = 0; column < columns; ++column) {
      result[column] += value(from[column]) * vector[row];
    }
  }
  return result;
}

double inner(const Values& left, const Values& right) {
  double sum = 0;
  for (std::size_t at = 0; at < left.size(); ++at) sum += left[at] * right[at];
  return sum;
}

void add(Values& to, const Values& values, double factor) {
  for (std::size_t at = 0; at < to.size(); ++at) to[at] += factor * values[at];
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

struct ExpertValues {
  Values hidden, activated, output;
};

ExpertValues run_expert(const ReferenceWeights& weights, int expert, const Values& x) {
  const auto ffn = static_cast<std::size_t>(weights.ffn);
  ExpertValues made;
  made.hidden = times(weights.up[static_cast<std::size_t>(expert)], 2 * ffn, x);
  for (std::size_t unit = 0; unit < ffn; ++unit) {
    const double gate = made.hidden[unit];
    made.activated.push_back(gate * sigmoid(gate) * made.hidden[ffn + unit]);
  }
  made.output = times(weights.down[static_cast<std::size_t>(expert)], x.size(), made.activated);
  return made;
}

Values probabilities(const ReferenceWeights& weights, const Values& x) {
  Values g = times(weights.gate, static_cast<std::size_t>(weights.experts()), x);
  const double most = *std::max_element(g.begin(), g.end());
  double sum = 0;
  for (double& each : g) sum += each = std::exp(each - most);
  for (double& each : g) each /= sum;
  return g;
}

// dL/dhidden from dL/doutput.
Values hidden_gradient(const ReferenceWeights& weights, int expert, const ExpertValues& made,
                       const Values& output_gradient) {
  const auto ffn = static_cast<std::size_t>(weights.ffn);
  const Values upstream =
      transposed_times(weights.down[static_cast<std::size_t>(expert)], ffn, output_gradient);
  Values gradient(2 * ffn);
  for (std::size_t unit = 0; unit < ffn; ++unit) {
    const double gate = made.hidden[unit];
    const double s = sigmoid(gate);
    gradient[unit] = upstream[unit] * made.hidden[ffn + unit] * s * (1 + gate * (1 - s));
    gradient[ffn + unit] = upstream[unit] * gate * s;
  }
  return gradient;
}

}  // namespace

ReferenceResult reference_token(const ReferenceWeights& weights, const ReferenceToken& token,
                                bool residual, routing::NormaliserRule normaliser) {
  const Values g = probabilities(weights, token.x);
  ReferenceResult result;
  result.out.assign(token.x.size(), 0);
  result.x_gradient.assign(token.x.size(), 0);
  if (residual) {
    result.out = token.x;
    result.x_gradient = token.out_gradient;
  }
  std::vector<::moesim::routing::ProcessedRow> processed;
  std::vector<ExpertValues> made;
  for (const ReferenceRow& row : token.rows) {
    made.push_back(run_expert(weights, row.expert, token.x));
    processed.push_back({row.expert, row.copies * g[static_cast<std::size_t>(row.expert)],
                         inner(token.out_gradient, made.back().output)});
    result.mass += processed.back().mass;
  }
  for (std::size_t row = 0; row < token.rows.size(); ++row) {
    const double weight = processed[row].mass / result.mass;
    const int expert = token.rows[row].expert;
    add(result.out, made[row].output, weight);
    Values upstream(token.x.size(), 0);
    add(upstream, token.out_gradient, weight);
    const Values hidden = hidden_gradient(weights, expert, made[row], upstream);
    add(result.x_gradient,
        transposed_times(weights.up[static_cast<std::size_t>(expert)], token.x.size(), hidden), 1);
    result.activated.push_back(made[row].activated);
    result.output.push_back(made[row].output);
    result.output_gradient.push_back(upstream);
    result.hidden_gradient.push_back(hidden);
  }
  result.logit_gradient =
      ::moesim::routing::logit_gradient(g, processed,
                                        normaliser == routing::NormaliserRule::differentiated
                                            ? ::moesim::routing::Normaliser::differentiated
                                            : ::moesim::routing::Normaliser::straight_through);
  add(result.x_gradient, transposed_times(weights.gate, token.x.size(), result.logit_gradient), 1);
  return result;
}

double reference_loss(const ReferenceWeights& weights, const ReferenceToken& token, bool residual,
                      std::optional<double> frozen_mass) {
  const Values g = probabilities(weights, token.x);
  double sum = 0, mass = 0;
  for (const ReferenceRow& row : token.rows) {
    const double own = row.copies * g[static_cast<std::size_t>(row.expert)];
    sum += own * inner(token.out_gradient, run_expert(weights, row.expert, token.x).output);
    mass += own;
  }
  const double whole = frozen_mass.value_or(mass);
  return (whole > 0 ? sum / whole : 0) + (residual ? inner(token.out_gradient, token.x) : 0);
}

std::vector<ReferenceRow> rows_of_token(const routing::RouterProblem& problem,
                                        const routing::RouterBuffers& buffers, int token) {
  std::vector<ReferenceRow> rows;
  for (int choice = 0; choice < problem.choices(); ++choice) {
    const std::int64_t at = choice * problem.stride() + token;
    if (buffers.slot[at] >= 0) rows.push_back({buffers.expert[at], 1});
  }
  if (problem.rectified() && buffers.ir_expert[token] != routing::no_expert) {
    const auto missing =
        static_cast<double>(problem.config.top_k) - static_cast<double>(rows.size());
    rows.push_back({buffers.ir_expert[token], missing});
  }
  return rows;
}

}  // namespace moesim::kernels::layer
