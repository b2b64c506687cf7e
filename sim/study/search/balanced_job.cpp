#include "sim/study/search/balanced_job.hpp"

#include "sim/training/prices/dispatched_rows.hpp"

namespace moesim::study {
namespace {

constexpr double least_rows = 0.01;
// Another draw keeps at least this share of the routes: a mean over many thousand routes.
constexpr double sure_share = 0.98;

// Whether experts are as popular with every source. A source with experts of its own may send
// nearly nothing.
bool sources_are_alike(const training::DrawnRouting& drawn) {
  using Kind = routing::ScoreSource::Kind;
  return drawn.scores.trace == nullptr && drawn.scores.kind != Kind::hot_rank &&
         drawn.scores.kind != Kind::spread_heat;
}

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
  training::MoeLoad load{.computed = padded > 0 ? padded : kept};
  // Recorded sources may keep all their rows.
  const bool sends_all = job.dispatcher || job.routing->scores.trace == nullptr;
  load.exchanged = padded > 0 && !job.dispatcher ? padded : sends_all ? kept : 0;
  if (padded == 0 && router.kind->skips_exchange) load.exchanged = 0;
  if (job.dispatcher && job.exchanging_ranks() > 1) {
    load.dispatched = sources_are_alike(*job.routing)
                          ? training::DispatchedRows(job).load_of(1, kept)
                          : training::DispatchedLoad{0, 0, 0, 0, kept};
  }
  return load;
}

}  // namespace moesim::study
