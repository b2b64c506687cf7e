#include "sim/routing/jobs/routing_job.hpp"

#include <fmt/format.h>

#include <span>

#include "sim/base/digest.hpp"
#include "sim/routing/scores/score_model.hpp"

namespace moesim::routing {

namespace {

// Two files of one name may differ (one was edited between two loads): their contents count.
std::uint64_t digest(const ScoreSource& source) {
  if (source.trace != nullptr) return source.trace->digest();
  if (source.model != nullptr) return source.model->digest();
  Digest digest;
  if (source.popularity != nullptr) {
    for (const std::vector<double>& layer : *source.popularity) digest.add(std::span(layer));
  }
  return digest.value();
}

}  // namespace

std::string RoutingJob::logits_key() const {
  return fmt::format("{}|{:x}|{:x}|{}|{}|{}|{}|{}|{}|{}|{}", scores.name(), digest(scores),
                     order == nullptr ? 0 : order->digest(), experts, gpus, expert_parallel,
                     gpus_per_domain, tokens_per_gpu, layers, seed, name_of(fidelity));
}

std::string RoutingJob::key() const {
  return fmt::format(
      "{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}", logits_key(), count_copies, router.name(),
      router.top_k, router.has_capacity(), name_of(router.dialect), router.capacity_factor.text(),
      name_of(router.capacity_convention), name_of(router.capacity_scope), router.min_capacity,
      name_of(router.priority), router.fill_in ? name_of(router.fill_order) : "",
      router.rectification == Rectification::none ? "" : name_of(router.ir_duplicates));
}

}  // namespace moesim::routing
