#pragma once

#include <set>

#include "kernels/base/device_buffer.hpp"
#include "kernels/exchange/arguments.hpp"
#include "kernels/measure/devices/device.hpp"
#include "kernels/routing/router.hpp"

namespace moesim::kernels::measure::cuda {

// The router of a point: params router ("top2+fr"), tokens, experts, capacity_factor, priority.
routing::RouterProblem problem_of(const PointSpec& spec);

// The routes of random logits on the device, and the same downloaded.
class RoutedTokens {
 public:
  RoutedTokens(const PointSpec& spec, std::uint64_t seed, cudaStream_t stream);

  const routing::RouterProblem& problem() const { return problem_; }
  const routing::DeviceRouter& router() const { return router_; }
  const float* logits() const { return logits_.data(); }
  std::size_t rows() const;  // experts x capacity
  // Fills all results with a byte that none of them is.
  void poison(cudaStream_t stream);
  // "" if the device's routes, as they stand, are those of the CPU reference from these logits.
  std::string check(const std::vector<float>& logits);
  // The row of a token's choice, -1 if it failed; of what download() fetched.
  std::int64_t row(std::size_t token, int choice) const;
  float weight(std::size_t token, int choice) const;
  void download();
  // Where the rows of the routes are, without IR.
  exchange::RouteMap map() const;
  // Those whose rows are compared: the first, the last and two between.
  std::set<std::size_t> checked_tokens() const;
  // "" if each row of `token` in `rows` is its row of `tokens`, both bf16 of `width` on the device;
  // of the routes that download() fetched.
  std::string check_permuted(const std::uint16_t* tokens, const std::uint16_t* rows,
                             std::size_t width, std::size_t token) const;

 private:
  routing::RouterProblem problem_;
  DeviceBuffer<unsigned char> memory_;
  routing::DeviceRouter router_;
  DeviceBuffer<float> logits_;
  std::vector<unsigned char> host_;
  routing::RouterBuffers at_;  // in `host_`
};

}  // namespace moesim::kernels::measure::cuda
