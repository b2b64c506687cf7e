#include "sim/study/search/same_layout.hpp"

#include <algorithm>

#include "sim/study/search/searched_choices.hpp"
#include "sim/study/sweep/counted_loss.hpp"

namespace moesim::study {

using training::TrainingJob;

namespace {

// The choices that tell layouts apart, layouts' own first: those differ most often.
std::vector<const SearchedChoice*> choices_of_keys(bool chunks_tell_apart) {
  std::vector<const SearchedChoice*> chosen;
  for (const auto& choice : searched_choices()) {
    const TellsApart apart = choice->traits().tells_apart;
    const bool counts =
        apart == TellsApart::always || (apart == TellsApart::with_chunks && chunks_tell_apart);
    if (counts) chosen.push_back(choice.get());
  }
  std::stable_partition(chosen.begin(), chosen.end(), [](const SearchedChoice* choice) {
    return choice->traits().chosen_for == ChosenFor::layout;
  });
  return chosen;
}

// Whether two keys are the same but for one choice; null: without such a one.
bool same_but_for(const SearchedChoice* left_out, const LayoutKey& one, const LayoutKey& other) {
  static const std::vector<const SearchedChoice*> layouts = choices_of_keys(false);
  static const std::vector<const SearchedChoice*> chunks = choices_of_keys(true);
  for (const SearchedChoice* choice : one.chunks_tell_apart ? chunks : layouts) {
    if (choice == left_out) continue;
    if (!choice->is_same(*one.layout, *one.rest, *other.layout, *other.rest)) return false;
  }
  return true;
}

}  // namespace

bool operator==(const LayoutKey& one, const LayoutKey& other) {
  return same_but_for(nullptr, one, other);
}

LayoutKey layout_key(const parallel::LayoutRequest& layout, const TrainingJob& rest,
                     bool chunks_tell_apart) {
  return {&layout, &rest, chunks_tell_apart};
}

std::string router_text(const TrainingJob& job) {
  if (!job.routing) return "";
  const routing::RouterConfig& router = job.routing->router;
  return router.name() + (router.drops ? " " + router.capacity_factor.text() : "");
}

bool same_sizes(const TrainingJob& one, const TrainingJob& other, bool chunks_tell_apart) {
  return layout_key(one.layout, one, chunks_tell_apart) ==
         layout_key(other.layout, other, chunks_tell_apart);
}

bool same_layout(const TrainingJob& one, const TrainingJob& other, bool chunks_tell_apart) {
  return router_text(one) == router_text(other) && same_sizes(one, other, chunks_tell_apart);
}

bool differ_in_graphs(const LayoutKey& one, const LayoutKey& other) {
  static const SearchedChoice& graphs = searched_choice_named("cuda-graphs");
  return !graphs.is_same(*one.rest, *other.rest) && same_but_for(&graphs, one, other);
}

bool ChosenLayouts::outdo(const LayoutKey& key, double loss) const {
  const auto outdoes = [&](const Chosen& other) {
    return key == other.key && !loses_clearly_less(loss, other.loss);
  };
  return std::any_of(chosen_.begin(), chosen_.end(), outdoes) ||
         std::any_of(as_fast_.begin(), as_fast_.end(), outdoes);
}

std::optional<std::size_t> ChosenLayouts::add(const LayoutKey& key, double loss, double step_us) {
  for (std::size_t place = 0; place < chosen_.size(); ++place) {
    const Chosen& other = chosen_[place];
    if (differ_in_graphs(key, other.key) && step_us <= (1 + same_time) * other.step_us &&
        !loses_clearly_less(loss, other.loss)) {
      as_fast_.push_back({key, loss, step_us});
      return place;
    }
  }
  chosen_.push_back({key, loss, step_us});
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
  split |= !chunks && parallel::stages_of(*twin.model, twin.layout).text() !=
                          parallel::stages_of(*best.model, best.layout).text();
  choices.resize(searched_choices().size());
  for (std::size_t at = 0; at < choices.size(); ++at) {
    const SearchedChoice& choice = *searched_choices()[at];
    const bool counts = choice.traits().tells_apart != TellsApart::always;
    if (counts && !choice.is_same(twin, best)) choices[at] = true;
  }
  routing |= router_text(twin) != router_text(best);
}

}  // namespace moesim::study
