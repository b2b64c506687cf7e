#include "kernels/measure/cuda/workloads/routed_tokens.hpp"

#include <fmt/format.h>

#include "kernels/measure/cuda/device/device_kernels.hpp"
#include "kernels/measure/cuda/workloads/rotated_workload.hpp"
#include "kernels/measure/cuda/workloads/workloads.hpp"
#include "kernels/routing/compare.hpp"
#include "sim/routing/groups/group_router.hpp"
#include "sim/routing/routers/router_name.hpp"

namespace moesim::kernels::measure::cuda {

routing::RouterProblem problem_of(const PointSpec& spec) {
  routing::RouterProblem problem;
  problem.config = ::moesim::routing::parse_router(spec.params.at("router").get<std::string>(), 0);
  problem.config.capacity_factor =
      Decimal::parse(spec.params.at("capacity_factor").get<std::string>(), "capacity_factor");
  if (spec.params.contains("priority")) {
    problem.config.priority = ::moesim::routing::parse_priority(
        spec.params.at("priority").get<std::string>(), "priority");
  }
  problem.tokens = spec.params.at("tokens");
  problem.experts = spec.params.at("experts");
  problem.most_looks = spec.params.value("most_looks", problem.most_looks);
  problem.most_listed = spec.params.value("most_listed", problem.most_listed);
  problem.check();
  return problem;
}

RoutedTokens::RoutedTokens(const PointSpec& spec, std::uint64_t seed, cudaStream_t stream)
    : problem_(problem_of(spec)),
      memory_(buffer_bytes(problem_)),
      router_(problem_, memory_.data()),
      logits_(static_cast<std::size_t>(problem_.tokens) *
              static_cast<std::size_t>(problem_.experts)) {
  launch_random_floats(logits_.data(), logits_.size(), seed, stream);
  poison(stream);
  router_.route(logits_.data(), stream);
  MOESIM_CUDA(cudaStreamSynchronize(stream));
}

std::size_t RoutedTokens::rows() const {
  return static_cast<std::size_t>(problem_.experts) * static_cast<std::size_t>(problem_.capacity());
}

void RoutedTokens::poison(cudaStream_t stream) {
  MOESIM_CUDA(cudaMemsetAsync(memory_.data(), 0x5a, memory_.size(), stream));
  MOESIM_CUDA(cudaMemsetAsync(router_.buffers().invalid, 0, sizeof(std::int32_t), stream));
  MOESIM_CUDA(cudaStreamSynchronize(stream));
}

void RoutedTokens::download() {
  host_ = memory_.download();
  at_ = carve(host_.data(), problem_);
}

std::int64_t RoutedTokens::row(std::size_t token, int choice) const {
  const std::int64_t place = choice * problem_.stride() + static_cast<std::int64_t>(token);
  return at_.slot[place] < 0
             ? -1
             : std::int64_t{at_.expert[place]} * problem_.capacity() + at_.slot[place];
}

float RoutedTokens::weight(std::size_t token, int choice) const {
  return at_.weight[choice * problem_.stride() + static_cast<std::int64_t>(token)];
}

std::string RoutedTokens::check(const std::vector<float>& logits) {
  download();
  const ::moesim::routing::RankLogits rank{logits, problem_.tokens};
  const auto expected = ::moesim::routing::route_group(problem_.config, problem_.experts,
                                                       {&rank, 1}, problem_.context);
  for (int expert = 0; expert < problem_.experts; ++expert) {
    const std::int64_t wanted = expected.kept_rows[static_cast<std::size_t>(expert)];
    if (at_.kept_rows[expert] != wanted) {
      return fmt::format("expert {} keeps {} rows, the reference {}", expert, at_.kept_rows[expert],
                         wanted);
    }
  }
  if (std::string wrong = routing::difference(routing::listed(problem_, at_), expected.routes());
      !wrong.empty()) {
    return wrong;
  }
  return routing::wrong_ir_rows(problem_, at_);
}

exchange::RouteMap RoutedTokens::map() const {
  const routing::RouterBuffers& at = router_.buffers();
  return {problem_.tokens,
          problem_.experts,
          problem_.choices(),
          problem_.capacity(),
          problem_.stride(),
          at.expert,
          at.slot,
          at.kept_rows,
          nullptr};
}

std::set<std::size_t> RoutedTokens::checked_tokens() const {
  const std::size_t last = static_cast<std::size_t>(problem_.tokens) - 1;
  return {0, last / 3, last / 2, last};
}

std::string RoutedTokens::check_permuted(const std::uint16_t* tokens, const std::uint16_t* rows,
                                         std::size_t width, std::size_t token) const {
  const auto expected = cuda::download(tokens + token * width, width);
  for (int choice = 0; choice < problem_.choices(); ++choice) {
    const std::int64_t at = row(token, choice);
    if (at >= 0 && cuda::download(rows + static_cast<std::size_t>(at) * width, width) != expected) {
      return fmt::format("row {} is not token {}", at, token);
    }
  }
  return "";
}

}  // namespace moesim::kernels::measure::cuda
