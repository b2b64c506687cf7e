#include "sim/study/search/balanced_job.hpp"

namespace moesim::study {
namespace {

constexpr double least_rows = 0.01;
// Of the share of kept routes that another draw has: the mean over many thousand routes.
constexpr double sure_share = 0.98;

}  // namespace

BalancedJob::BalancedJob(const training::TrainingJob& asked) : job(asked) {
  if (!asked.routing) return;
  const routing::RouterConfig& router = asked.routing->router;
  padded = training::capacity_load(asked);
  is_exact = training::ignores_draws(asked);
  if (is_exact) {
    job = training::with_forced_balance(asked);
    job.capacity_factor = padded;
  } else {
    job.expert_load = padded > 0 ? padded : router.drops ? least_rows : 1;
  }
}

training::MoeLoad BalancedJob::least_load(const routing::TokenLoss& loss) const {
  const routing::RouterConfig& router = job.routing->router;
  const double kept = router.drops ? sure_share * (1 - loss.failed) : 1;
  if (padded > 0) return {padded, job.dispatcher ? kept : padded};
  return {kept, router.kind->skips_exchange ? 0 : kept};
}

}  // namespace moesim::study
