#include "sim/model/linear_attention.hpp"

#include "sim/base/numbers.hpp"
#include "sim/base/units.hpp"

namespace moesim::model {
namespace {
constexpr auto chunk = static_cast<double>(delta_rule_chunk);

}  // namespace

double LinearAttention::model_flops() const {
  return real(2 * convolution_parameters() + 8 * value_heads * value_dim * value_dim);
}

KernelWork delta_rule_work(const LinearAttention& linear, bool backward) {
  const double keys = real(linear.key_dim);
  const double values = real(linear.value_dim);
  const double state = keys * values;
  KernelWork head;
  if (backward) {
    head.flops = 16 * state + 2 * chunk * (10 * keys + 5 * values) + 4 * chunk * chunk;
    head.bytes = 40 * keys + 30 * values + 4 * chunk + 8 * state / chunk;
  } else {
    head.flops = 6 * state + 2 * chunk * (3 * keys + 2 * values) + 2 * chunk * chunk / 3;
    head.bytes = 14 * keys + 12 * values + 12 * chunk + 4 * state / chunk;
  }
  const double heads = real(linear.value_heads);
  return {heads * head.flops, heads * head.bytes};
}

double bytes_beside_delta_rule(const LinearAttention& linear, bool backward) {
  const double channels = real(linear.convolved());
  const double values = real(linear.value_width());
  const double repeated = 2 * real(linear.repeated_width());
  double elements = 0;
  if (backward) {
    const double convolution = 3 * channels;
    const double prepared = repeated + 3 * values + 2 * channels;
    const double norm = 5 * values;
    const double together = 2 * (channels + values);
    elements = convolution + prepared + norm + together;
  } else {
    const double convolution = 2 * channels;
    const double prepared = channels + values + repeated + 2 * values;
    const double norm = 3 * values;
    elements = convolution + prepared + norm;
  }
  return bf16_bytes * elements;
}

double bytes_between_context_ranks(const LinearAttention& linear, bool backward) {
  const double in = real(linear.projected());
  const double out = real(linear.value_width());
  return bf16_bytes * ((backward ? 8 : 6) * in + 4 * out);
}

}  // namespace moesim::model
