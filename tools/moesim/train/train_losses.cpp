#include "tools/moesim/train/train_losses.hpp"

#include <fmt/format.h>

#include <cmath>

#include "sim/routing/simulation/trace_routing.hpp"
#include "sim/study/sweep/counted_loss.hpp"
#include "sim/study/training_loss_band.hpp"
#include "tools/moesim/train/replicas.hpp"

namespace moesim::tool {
namespace {

std::string percent(double share) { return fmt::format("{:.2f} %", 100 * share); }

// How sure a token loss is: "of another step 6.83 to 6.85 % (p05 to p95), by 4 drawn steps", which
// may leave out this step's. `with`: before it.
void add_band_line(const char* with, const std::optional<uncertainty::LossBand>& band,
                   bool is_recorded, std::vector<std::vector<std::string>>& lines) {
  constexpr double least_shown = 0.5e-4;  // of a percentage with two decimals
  if (!band || band->p95 < least_shown) return;
  lines.push_back(
      {"", fmt::format("{}of {} step {:.2f} to {:.2f} % (p05 to p95), by {} {} steps", with,
                       is_recorded ? "one" : "another", 100 * band->p05, 100 * band->p95,
                       band->steps, is_recorded ? "recorded" : "drawn")});
}

}  // namespace

std::optional<uncertainty::LossBand> requested_loss_band(
    const CommandLine& line, const training::TrainingJob& job, const training::TrainingStep& step,
    int threads, const training::DrawProgress& progress, training::SharedDraws* shared) {
  auto band = study::training_loss_band(job, step, threads, progress, shared);
  // Recorded steps are the same in all replicas.
  const int replicas =
      step.routing && step.routing->recorded_steps > 0 ? 1 : requested_replicas(line);
  if (band) band->error /= std::sqrt(static_cast<double>(replicas));
  return band;
}

void add_loss_lines(const training::TrainingJob& job, const training::TrainingStep& step,
                    const std::optional<uncertainty::LossBand>& loss_band,
                    std::vector<std::vector<std::string>>& lines) {
  const training::RoutingFigures& figures = *step.routing;
  const routing::RouterConfig& router = job.routing->router;
  const double counted = study::counted_loss(job, step);
  const std::string basis = routing::loss_basis(job.routing->scores, router);
  std::string loss =
      fmt::format("{}{}; {} of routes failed", percent(counted),
                  basis.empty() ? "" : " from " + basis, percent(figures.loss.failed));
  if (router.has_capacity() || router.pads_exchange()) {
    loss += fmt::format(", {} of slots {}", percent(figures.loss.padded),
                        router.pads_exchange() ? "padded" : "empty");
  }
  lines.push_back({"token loss", loss});
  const bool is_recorded = figures.recorded_steps > 0;
  const bool is_all = counted >= figures.loss.residual_loss;
  if (is_all) return add_band_line("", loss_band, is_recorded, lines);
  lines.push_back({"not chosen", fmt::format("{} of the weight of a token's {} best experts, {}",
                                             percent(figures.loss.residual_loss - counted),
                                             router.top_k, study::not_chosen)});
  add_band_line("both together ", loss_band, is_recorded, lines);
}

std::string kept_mfu_text(const training::TrainingJob& job, const training::TrainingStep& step) {
  const std::optional<double> kept = training::mfu_kept(job, step);
  if (!kept || step.routing->loss.failed <= 0) return "";
  return fmt::format("{:.1f} % of the peak with the kept routes alone", 100 * *kept);
}

std::vector<std::pair<std::string, Cell>> loss_cells(
    const training::TrainingJob& job, const training::TrainingStep& step,
    const std::optional<uncertainty::LossBand>& loss_band) {
  if (!step.routing) return {};
  const auto end = [&](double uncertainty::LossBand::*member) {
    return loss_band ? figure_cell((*loss_band).*member) : Cell();
  };
  return {{"mfu_kept", figure_cell(*training::mfu_kept(job, step))},
          {"residual_loss_p05", end(&uncertainty::LossBand::p05)},
          {"residual_loss_p95", end(&uncertainty::LossBand::p95)},
          {"residual_loss_error", end(&uncertainty::LossBand::error)}};
}

}  // namespace moesim::tool
