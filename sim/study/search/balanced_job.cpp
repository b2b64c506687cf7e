#include "sim/study/search/balanced_job.hpp"

#include <cmath>
#include <cstdint>

namespace moesim::study {
namespace {

constexpr double least_rows = 0.01;
// Of the share of kept routes that another draw has: the mean over many thousand routes.
constexpr double sure_share = 0.98;

// Where C is that of each source, blocks of C rows over balance; else 0.
double padded_rows(const training::TrainingJob& job) {
  const routing::RouterConfig& router = job.routing->router;
  if (!router.pads_exchange() || router.capacity_scope != routing::CapacityScope::source) return 0;
  const std::int64_t tokens = std::llround(job.tokens_per_rank());
  const int experts = job.model->moe->experts;
  return static_cast<double>(router.capacity(tokens, experts) * experts) /
         (job.experts_per_token() * job.tokens_per_rank());
}

}  // namespace

BalancedJob::BalancedJob(const training::TrainingJob& asked) : job(asked) {
  if (!asked.routing) return;
  const routing::RouterConfig& router = asked.routing->router;
  padded = padded_rows(asked);
  is_exact =
      padded > 0 && !asked.dispatcher && router.rectification == routing::Rectification::none;
  if (is_exact) {
    job = training::with_forced_balance(asked);
    job.capacity_factor = padded;
  } else {
    job.expert_load = padded > 0 ? padded : router.drops ? least_rows : 1;
  }
}

training::MoeLoad BalancedJob::least_load(const routing::TokenLoss& loss) const {
  const double kept = job.routing->router.drops ? sure_share * (1 - loss.failed) : 1;
  return {padded > 0 ? padded : kept, padded > 0 && !job.dispatcher ? padded : kept};
}

}  // namespace moesim::study
