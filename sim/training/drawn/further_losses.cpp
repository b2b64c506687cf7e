#include "sim/training/drawn/further_losses.hpp"

#include <algorithm>
#include <mutex>

#include "sim/base/parallel.hpp"
#include "sim/training/drawn/block_routing.hpp"
#include "sim/training/drawn/sampled_rows.hpp"
#include "sim/training/job/stage_division.hpp"

namespace moesim::training {
namespace {

using routing::Fidelity;

constexpr int fewest_blocks = 4;

// The micro-batches of a further step, of those that the job has.
int drawn_micro_batches(const TrainingJob& job, int blocks_of_micro_batch, int steps) {
  const int all = job.layout.micro_batches();
  // What blocks lose apart is known where they drop routes, and the same where tokens are a sample.
  const bool is_sampled = takes_sample(job) || block_routing(job).fidelity == Fidelity::counts;
  if (!job.routing->router.drops && !is_sampled) return all;
  const int quarter = (all + 4 * steps - 1) / (4 * steps);
  const int fewest = (fewest_blocks + blocks_of_micro_batch - 1) / blocks_of_micro_batch;
  return std::min(all, std::max(quarter, fewest));
}

}  // namespace

std::size_t FurtherLosses::bytes() const {
  std::size_t sum = sizeof *this;
  for (const std::vector<double>& layers : of_layers) sum += layers.capacity() * sizeof(double);
  return sum;
}

FurtherLosses further_losses(const TrainingJob& job, int steps, int threads,
                             const DrawProgress& progress, routing::DrawCache* draws) {
  FurtherLosses found;
  TrainingJob further = job;
  if (job.routing->draws == RoutingDraws::per_micro_batch) {
    const StageDivision division = stage_division(job.layout.sizes);
    const int blocks = division.sets * division.blocks_per_set;
    const int micro_batches = drawn_micro_batches(job, blocks, steps);
    found.blocks_of_step = static_cast<double>(blocks) * job.layout.micro_batches();
    found.blocks_drawn = static_cast<double>(blocks) * micro_batches;
    further.layout.global_batch = micro_batches * job.layout.sequences_at_once();
  } else {
    found.blocks_of_step = found.blocks_drawn = stage_division(job.layout.sizes).blocks_per_set;
  }
  std::vector<RoutingFigures> figures(static_cast<std::size_t>(steps));
  std::mutex counting;
  std::size_t drawn = 0;
  parallel_for(figures.size(), threads, [&](std::size_t step) {
    TrainingJob one = further;
    one.routing->replica += static_cast<int>(step) + 1;
    const auto count = [&](std::size_t, std::size_t layers) {
      if (!progress) return;
      const std::lock_guard lock(counting);
      progress(++drawn, layers * figures.size());
    };
    figures[step] = DrawnLoads(one, true, draws, count).figures();
  });
  for (RoutingFigures& each : figures) {
    found.block_variance += each.block_variance / steps;
    found.of_layers.push_back(std::move(each.layer_losses));
  }
  return found;
}

}  // namespace moesim::training
