#include "sim/study/search/training_space.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "sim/base/error.hpp"
#include "sim/scenario/expert_placements.hpp"
#include "sim/study/search/searched_choices.hpp"
#include "sim/training/step/job_rules.hpp"

namespace moesim::study {

void TypedDispatcher::apply_to(training::TrainingJob& job) const {
  job.typed.dispatcher = typed;
  job.dispatcher = document;
  job.gathers_tokens = gathers_tokens;
}

TypedDispatcher dispatcher_of(const training::TrainingJob& job) {
  return {job.typed.dispatcher, job.dispatcher, job.gathers_tokens};
}

namespace {

using parallel::LayoutRequest;
using training::TrainingJob;

template <class Value>
Value least(const std::vector<Value>& values) {
  return *std::min_element(values.begin(), values.end());
}

// The layers of a model over chunks, the last of which has `fewer` than the others; nothing where
// that does not divide evenly.
std::optional<parallel::PipelineLayout> lighter_end(int layers, int chunks, int fewer, int mtp) {
  const int padded = layers + fewer;
  if (chunks < 2 || padded % chunks != 0 || padded / chunks < fewer) return std::nullopt;
  parallel::PipelineLayout layout = parallel::even_pipeline_layout(padded, chunks, mtp);
  layout.chunks.back().layers -= fewer;
  return layout;
}

// Sets the chunks of a request; false where they are those of another number of fewer layers.
bool divide_layers(const model::Model& model, int fewer, int mtp, LayoutRequest& request) {
  const int chunks = request.shape().stages();
  request.stages.reset();
  if (chunks > model.layers) return fewer == 0;
  if (fewer > 0) {
    request.stages = lighter_end(model.layers, chunks, fewer, mtp);
    return request.stages.has_value();
  }
  if (model.layers % chunks != 0 || mtp > 0) {
    request.stages = parallel::nearly_even_pipeline_layout(model.layers, chunks, mtp);
  }
  return true;
}

// One placement of experts on each number of ranks: read once for all candidates.
class Placements {
 public:
  struct Placed {
    std::shared_ptr<const routing::ExpertPlacement> placement;
    std::string refusal;  // why there is none on as many ranks; "": there is
  };
  const Placed& of(const TrainingJob& job) {
    const int ranks = job.layout.sizes.expert;
    const auto [found, is_new] = found_.try_emplace({job.routing->placement_name, ranks});
    if (!is_new) return found->second;
    try {
      found->second.placement = scenario::parse_expert_placement(job.routing->placement_name,
                                                                 job.model->moe->experts, ranks);
    } catch (const UsageError& error) {
      found->second.refusal = error.what();
    }
    return found->second;
  }

 private:
  std::map<std::pair<std::string, int>, Placed> found_;
};

class Enumeration {
 public:
  explicit Enumeration(const TrainingSpace& space) : space_(space) {}

  TrainingCandidates run() {
    for (const int tensor : space_.tensor) {
      for (const int context : space_.context) {
        for (const int pipeline : space_.pipeline) {
          for (const int expert_tensor : space_.expert_tensor) {
            for (const int expert : space_.expert) {
              parallel::ParallelLayout layout = space_.base.layout.sizes;
              layout.tensor = tensor;
              layout.context = context;
              layout.pipeline = pipeline;
              layout.expert_tensor = expert_tensor;
              layout.expert = expert;
              layout.virtual_pipeline = 1;
              if (is_possible(layout)) add_batches(layout);
            }
          }
        }
      }
    }
    return std::move(found_);
  }

 private:
  // What the one that is told is about, least telling first: a layout that breaks a rule of options
  // has kept all those of layouts.
  enum class Rule { none, chunks, layout, option };

  void refuse(Rule rule, const std::string& text) {
    if (rule <= told_) return;
    told_ = rule;
    found_.a_refusal = text;
  }

  // Slices of an expert are exchanged all the time: between domains only where that is asked for.
  bool is_possible(const parallel::ParallelLayout& layout) const {
    const auto divides = [&](std::int64_t ranks) {
      return layout.gpus % (ranks * layout.pipeline) == 0;
    };
    const std::int64_t slices = std::int64_t{layout.expert_tensor} * layout.expert;
    const bool asked_for = space_.typed.contains("expert-tensor-parallel") &&
                           (space_.typed.contains("expert-parallel") || layout.expert == 1);
    return divides(std::int64_t{layout.tensor} * layout.context) && divides(slices) &&
           (layout.expert_tensor == 1 || asked_for ||
            slices <= space_.base.cluster->gpus_per_domain);
  }

  void add_batches(const parallel::ParallelLayout& layout) {
    for (const std::int64_t micro_batch : space_.micro_batch) {
      LayoutRequest request = space_.base.layout;
      request.sizes = layout;
      request.micro_batch = micro_batch;
      const auto possible = std::make_shared<const Layouts>(chunkings(request));
      if (!possible->empty()) add_families(possible);
    }
  }

  std::vector<LayoutRequest> chunkings(const LayoutRequest& request) {
    std::vector<LayoutRequest> possible;
    for (const bool overlap : space_.expert_overlap) {
      for (const int chunks : space_.virtual_pipeline) {
        const bool lacks_pipeline = chunks > 1 && request.sizes.pipeline == 1;
        if (lacks_pipeline && !space_.typed.contains("virtual-pipeline")) continue;
        std::set<std::string> divisions;  // of layers that do not divide evenly
        for (const int fewer : space_.fewer_in_last) {
          LayoutRequest each = request;
          each.sizes.virtual_pipeline = chunks;
          each.expert_overlap = overlap;
          if (!divide_layers(*space_.base.model, fewer, space_.mtp_depths, each)) continue;
          // One layer more in all chunks but the last is one fewer in the last.
          if (each.stages && !divisions.insert(each.stages->text()).second) continue;
          ++found_.combinations;
          if (const auto refusal = parallel::layout_refusal(*space_.base.model, each)) {
            ++found_.refused;
            refuse(lacks_pipeline ? Rule::chunks : Rule::layout, *refusal);
          } else {
            possible.push_back(each);
          }
        }
      }
    }
    return possible;
  }

  using Layouts = std::vector<LayoutRequest>;

  // Of each combination of what families have in common.
  void add_families(const std::shared_ptr<const Layouts>& possible) {
    TrainingJob job = space_.base;
    choose_common(searched_choices().begin(), possible, job);
  }

  void choose_common(SearchedChoices::const_iterator choice,
                     const std::shared_ptr<const Layouts>& possible, TrainingJob& job) {
    const auto of_families = [](const auto& each) {
      return each->traits().chosen_for == ChosenFor::family;
    };
    choice = std::find_if(choice, searched_choices().end(), of_families);
    if (choice == searched_choices().end()) {
      add_families(possible, job);
      return;
    }
    for (std::size_t at = 0; at < (*choice)->count(space_); ++at) {
      (*choice)->put(space_, at, job);
      choose_common(choice + 1, possible, job);
    }
  }

  void add_families(const std::shared_ptr<const Layouts>& possible, TrainingJob job) {
    job.layout.sizes = possible->front().sizes;
    const auto base = std::make_shared<const TrainingJob>(job);
    for (std::size_t routing = 0; routing < space_.routings.size(); ++routing) {
      job.routing = space_.routings[routing];
      const std::optional<std::string> misplaced = place_experts(job);
      const auto drawn = std::make_shared<const std::optional<training::DrawnRouting>>(job.routing);
      for (const model::Recompute& recompute : space_.recompute) {
        job.recompute = recompute;
        std::optional<std::string> refusal = misplaced;
        if (!refusal) refusal = training::expert_load_refusal(job);
        if (!refusal) refusal = training::graphs_refusal(job);
        if (refusal) {
          refuse(Rule::option, *refusal);
        } else {
          add_family(job, {base, possible, drawn, routing, recompute}, *possible);
        }
      }
    }
  }

  // On as many ranks as the layout has; or why that cannot be.
  std::optional<std::string> place_experts(TrainingJob& job) {
    if (!job.routing) return std::nullopt;
    const Placements::Placed& placed = placements_.of(job);
    job.routing->placement = placed.placement;
    return placed.refusal.empty() ? std::optional<std::string>() : placed.refusal;
  }

  // `family`: without jobs, of the routing and recomputation of `job`.
  void add_family(TrainingJob job, TrainingFamily family, const Layouts& possible) {
    const bool experts_again = job.recompute.recomputes_experts();
    TrainingFamily reducing = family;  // gradients in each pass
    TrainingFamily sharing = family;   // weights too, which each pass gathers
    for (std::size_t at = 0; at < possible.size(); ++at) {
      job.layout = possible[at];
      job.layout.recomputes_experts = experts_again;
      if (job.layout.expert_overlap && experts_again) {
        if (told_ < Rule::option) {
          refuse(Rule::option, parallel::layout_refusal(*job.model, job.layout).value_or(""));
        }
        continue;
      }
      for (const int zero : space_.zero) {
        if (zero >= 2 && job.layout.sizes.pipeline > 1 && !space_.zero_under_pipeline) continue;
        job.states.zero = zero;
        if (const auto refusal = training::option_refusal(job)) {
          refuse(Rule::option, *refusal);
        } else {
          (zero < 2 ? family : zero == 2 ? reducing : sharing).add(at, zero);
        }
      }
    }
    for (TrainingFamily* each : {&family, &reducing, &sharing}) {
      found_.count += each->size();
      if (each->size() > 0) found_.families.push_back(std::move(*each));
    }
  }

  const TrainingSpace& space_;
  Placements placements_;
  TrainingCandidates found_;
  Rule told_ = Rule::none;  // that found_.a_refusal is of
};

}  // namespace

TrainingJob TrainingFamily::job(std::size_t at) const {
  TrainingJob made = *base_;
  made.layout = layout(at);
  made.layout.recomputes_experts = recompute_.recomputes_experts();
  made.states.zero = members_[at].zero;
  made.recompute = recompute_;
  made.routing = *drawn_;
  return made;
}

std::vector<TrainingJob> TrainingFamily::jobs() const {
  std::vector<TrainingJob> all;
  for (std::size_t at = 0; at < size(); ++at) all.push_back(job(at));
  return all;
}

std::vector<model::Recompute> usual_recompute(const model::Model& model) {
  std::vector<const char*> texts = {"none", "moe_act", "layernorm,moe_act"};
  if (!model.moe) texts = {"none", "layernorm"};
  if (model.latent) texts.insert(texts.end(), {"mla_up_proj", "layernorm,moe_act,mla_up_proj"});
  texts.push_back("full");
  std::vector<model::Recompute> found;
  for (const char* text : texts) found.push_back(model::parse_recompute(text, "recompute"));
  return found;
}

std::vector<int> usual_placements(const TrainingJob& base) {
  const cluster::Cluster& cluster = *base.cluster;
  const int gpus = base.layout.sizes.gpus;
  const int full = cluster.gpus_per_domain;
  std::vector<int> found = {0};
  if (full <= cluster.gpus_per_node || gpus <= full) return found;
  const auto domains = [&](int each) { return (gpus + each - 1) / each; };
  TrainingJob job = base;
  job.ranks_per_domain = 0;
  const int usual = job.placed_ranks();
  const auto add = [&](int each) {
    const int most = cluster.max_gpus();
    const bool fits = most == 0 || domains(each) * full <= most;
    const bool is_new = each != usual && std::find(found.begin(), found.end(), each) == found.end();
    if (fits && is_new) found.push_back(each);
  };
  add(full);
  for (int count = domains(full); count <= domains(usual); ++count) {
    const int share = gpus / count;
    if (gpus % count == 0 && share % cluster.gpus_per_node == 0) add(share);
  }
  return found;
}

TrainingSpace usual_training_space(const TrainingJob& base) {
  TrainingSpace space;
  space.base = base;
  space.fewer_in_last = {0, 1, 2, 3};
  space.routings = {base.routing};
  for (const auto& choice : searched_choices()) choice->take_usual(space);
  return space;
}

TrainingSpace on_gpus(const TrainingSpace& space, int gpus) {
  TrainingSpace other = space;
  other.base.layout.sizes.gpus = gpus;
  if (!space.typed.contains("global-batch")) {
    other.base.layout.global_batch =
        space.base.layout.global_batch * gpus / space.base.layout.sizes.gpus;
  }
  const TrainingSpace usual = usual_training_space(space.base);
  const TrainingSpace widened = usual_training_space(other.base);
  for (const auto& choice : searched_choices()) {
    const bool is_usual =
        !space.typed.contains(choice->option()) && choice->has_values_of(space, usual);
    if (is_usual) choice->take_values(widened, other);
  }
  return other;
}

TrainingCandidates candidates_of(const TrainingSpace& space) { return Enumeration(space).run(); }

std::vector<std::string> nearest_possible(const TrainingSpace& space) {
  TrainingSpace small = space;  // without what the rules of batches and sizes do not depend on
  small.recompute.resize(1);
  small.zero.resize(1);
  small.precision.resize(1);
  small.ranks_per_domain.resize(1);
  const parallel::LayoutRequest& base = space.base.layout;
  const std::int64_t gpus = base.sizes.gpus;
  std::vector<std::string> found;
  // Sequences that all replicas take at once, of most replicas: then fewer can take them too.
  const std::int64_t ranks =
      std::int64_t{least(space.tensor)} * least(space.context) * least(space.pipeline);
  const std::int64_t step = std::max<std::int64_t>(gpus / ranks, 1) * least(space.micro_batch);
  const std::int64_t below = base.global_batch / step * step;
  for (const std::int64_t batch : {below, below + step}) {
    small.base.layout.global_batch = batch;
    if (batch > 0 && candidates_of(small).count > 0) {
      found.push_back(fmt::format("--global-batch {}", batch));
    }
  }
  small.base.layout.global_batch = base.global_batch;
  const std::int64_t node = space.base.cluster->gpus_per_node;
  const std::int64_t most = space.base.cluster->max_gpus();
  for (std::int64_t away = 1; away * node * 4 <= gpus; ++away) {
    for (const std::int64_t other : {gpus / node + away, gpus / node - away}) {
      if (other < 1 || (most > 0 && other * node > most)) continue;
      if (candidates_of(on_gpus(small, static_cast<int>(other * node))).count == 0) continue;
      found.push_back(fmt::format("--gpus {}", other * node));
      return found;
    }
  }
  return found;
}

}  // namespace moesim::study
