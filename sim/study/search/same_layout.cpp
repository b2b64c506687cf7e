#include "sim/study/search/same_layout.hpp"

#include <algorithm>

#include "sim/study/sweep/counted_loss.hpp"

namespace moesim::study {

using training::TrainingJob;

LayoutSizes layout_sizes(const parallel::LayoutRequest& layout, const TrainingJob& rest,
                         bool chunks_tell_apart) {
  const parallel::ParallelLayout& sizes = layout.sizes;
  return {.tensor = sizes.tensor,
          .context = sizes.context,
          .pipeline = sizes.pipeline,
          .virtual_pipeline = chunks_tell_apart ? sizes.virtual_pipeline : 0,
          .expert = sizes.expert,
          .expert_tensor = sizes.expert_tensor,
          .micro_batch = layout.micro_batch,
          .expert_overlap = layout.expert_overlap,
          .precision = rest.states.precision,
          .graphs = rest.graphs,
          .dispatcher = rest.typed.dispatcher};
}

std::string router_text(const TrainingJob& job) {
  if (!job.routing) return "";
  const routing::RouterConfig& router = job.routing->router;
  return router.name() + (router.drops ? " " + router.capacity_factor.text() : "");
}

bool same_sizes(const TrainingJob& one, const TrainingJob& other, bool chunks_tell_apart) {
  return layout_sizes(one.layout, one, chunks_tell_apart) ==
         layout_sizes(other.layout, other, chunks_tell_apart);
}

bool same_layout(const TrainingJob& one, const TrainingJob& other, bool chunks_tell_apart) {
  return router_text(one) == router_text(other) && same_sizes(one, other, chunks_tell_apart);
}

bool differ_in_graphs(const LayoutSizes& one, const LayoutSizes& other) {
  LayoutSizes with_graphs = one;
  with_graphs.graphs = other.graphs;
  return one.graphs != other.graphs && with_graphs == other;
}

bool ChosenLayouts::outdo(const LayoutSizes& sizes, double loss) const {
  const auto outdoes = [&](const Chosen& other) {
    return sizes == other.sizes && !loses_clearly_less(loss, other.loss);
  };
  return std::any_of(chosen_.begin(), chosen_.end(), outdoes) ||
         std::any_of(as_fast_.begin(), as_fast_.end(), outdoes);
}

std::optional<std::size_t> ChosenLayouts::add(const LayoutSizes& sizes, double loss,
                                              double step_us) {
  for (std::size_t place = 0; place < chosen_.size(); ++place) {
    const Chosen& other = chosen_[place];
    if (differ_in_graphs(sizes, other.sizes) && step_us <= (1 + same_time) * other.step_us &&
        !loses_clearly_less(loss, other.loss)) {
      as_fast_.push_back({sizes, loss, step_us});
      return place;
    }
  }
  chosen_.push_back({sizes, loss, step_us});
  return std::nullopt;
}

void Twins::add_as_fast(training::Graphs graphs) {
  const auto place = std::lower_bound(as_fast.begin(), as_fast.end(), graphs);
  if (place == as_fast.end() || *place != graphs) as_fast.insert(place, graphs);
}

void Twins::add(const TrainingJob& twin, const TrainingJob& best, double slower) {
  ++count;
  slowest = std::max(slowest, slower);
  const bool chunks = twin.layout.sizes.virtual_pipeline != best.layout.sizes.virtual_pipeline;
  virtual_stages |= chunks;
  split |= !chunks && parallel::stages_of(*twin.model, twin.layout).text() !=
                          parallel::stages_of(*best.model, best.layout).text();
  recompute |= model::name_of(twin.recompute) != model::name_of(best.recompute);
  placement |= twin.ranks_per_domain != best.ranks_per_domain;
  zero |= twin.states.zero != best.states.zero;
  routing |= router_text(twin) != router_text(best);
}

}  // namespace moesim::study
