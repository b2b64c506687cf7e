#include "sim/study/search/searched_choices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <variant>

#include "sim/base/error.hpp"
#include "sim/job/job_options.hpp"

namespace moesim::study {
namespace {

using model::StateRules;
using parallel::LayoutRequest;
using parallel::ParallelLayout;
using training::TrainingJob;

constexpr int most_pipeline_ranks = 32;
constexpr std::int64_t least_piece = 4096;  // tokens of a context rank

template <class Value>
using Values = std::vector<Value>;
// What is searched where nobody typed values; null: what the base has.
template <class Value>
using Usual = std::type_identity_t<Values<Value>> (*)(const TrainingJob& base);

template <class Value>
bool is_equal(const Value& one, const Value& other) {
  return one == other;
}
bool is_equal(const model::Recompute& one, const model::Recompute& other) {
  return model::name_of(one) == model::name_of(other);
}
bool is_equal(const TypedDispatcher& one, const TypedDispatcher& other) {
  return one.typed == other.typed;
}

// A choice whose values are in `list`. `get(layout, rest)`: the value of a job; `set(value, job)`
// gives a job one.
template <class Value, class Get, class Set>
class ListedChoice final : public SearchedChoice {
 public:
  ListedChoice(const ChoiceTraits& traits, Values<Value> TrainingSpace::*list, Get get, Set set,
               Usual<Value> usual)
      : SearchedChoice(traits), list_(list), get_(get), set_(set), usual_(usual) {}

  bool has_usual_values() const override { return usual_ != nullptr; }

  std::size_t count(const TrainingSpace& space) const override { return (space.*list_).size(); }
  void put(const TrainingSpace& space, std::size_t at, TrainingJob& job) const override {
    set_((space.*list_)[at], job);
  }
  void clear(TrainingSpace& space) const override { (space.*list_).clear(); }
  void append(const TrainingJob& job, TrainingSpace& space) const override {
    (space.*list_).push_back(get_(job.layout, job));
  }
  void take_usual(TrainingSpace& space) const override {
    if (usual_ != nullptr) {
      space.*list_ = usual_(space.base);
    } else {
      keep(space.base, space);
    }
  }
  bool has_values_of(const TrainingSpace& space, const TrainingSpace& other) const override {
    return std::equal((space.*list_).begin(), (space.*list_).end(), (other.*list_).begin(),
                      (other.*list_).end(),
                      [](const Value& one, const Value& each) { return is_equal(one, each); });
  }
  void take_values(const TrainingSpace& from, TrainingSpace& space) const override {
    space.*list_ = from.*list_;
  }
  bool is_same(const LayoutRequest& layout, const TrainingJob& rest, const LayoutRequest& other,
               const TrainingJob& other_rest) const override {
    return is_equal(get_(layout, rest), get_(other, other_rest));
  }

 private:
  Values<Value> TrainingSpace::*list_;
  Get get_;
  Set set_;
  Usual<Value> usual_;
};

// Members one inside the other, of a layout or of the rest of a job.
template <class... Members>
auto in_layout(Members... members) {
  return [=](auto& layout, auto&) -> auto& { return (layout.*....*members); };
}
auto in_sizes(int ParallelLayout::*size) { return in_layout(&LayoutRequest::sizes, size); }
template <class... Members>
auto in_rest(Members... members) {
  return [=](auto&, auto& rest) -> auto& { return (rest.*....*members); };
}

Values<int> powers_of_two(int most) {
  Values<int> found;
  for (int value = 1; value <= most; value *= 2) found.push_back(value);
  return found;
}

Values<int> divisors(int whole, int most) {
  Values<int> found;
  for (int value = 1; value <= std::min(whole, most); ++value) {
    if (whole % value == 0) found.push_back(value);
  }
  return found;
}

Values<int> inside_domain(const TrainingJob& base) {
  return powers_of_two(std::min({8, base.layout.sizes.gpus, base.cluster->gpus_per_domain}));
}

Values<int> context_sizes(const TrainingJob& base) {
  return powers_of_two(
      static_cast<int>(std::clamp<std::int64_t>(base.layout.sequence_length / least_piece, 1, 64)));
}

Values<int> pipeline_sizes(const TrainingJob& base) {
  return divisors(base.layout.sizes.gpus, std::min(most_pipeline_ranks, base.model->layers));
}

Values<int> expert_sizes(const TrainingJob& base) {
  return base.model->moe ? divisors(base.model->moe->experts, base.layout.sizes.gpus)
                         : Values<int>{1};
}

Values<int> expert_tensor_sizes(const TrainingJob& base) {
  return base.model->moe ? inside_domain(base) : Values<int>{1};
}

Values<int> placements(const TrainingJob& base) {
  return base.ranks_per_domain > 0 ? Values<int>{base.ranks_per_domain} : usual_placements(base);
}

class Table {
 public:
  template <class Value, class Get, class Set>
  void add(const ChoiceTraits& traits, Values<Value> TrainingSpace::*list, Get get, Set set,
           Usual<Value> usual) {
    rows_.push_back(std::make_unique<ListedChoice<Value, Get, Set>>(traits, list, get, set, usual));
  }
  // `field(layout, rest)`: where a job has the value.
  template <class Value, class Field>
  void add(const ChoiceTraits& traits, Values<Value> TrainingSpace::*list, Field field,
           Usual<Value> usual = nullptr) {
    const auto set = [field](const Value& value, TrainingJob& job) {
      field(job.layout, job) = value;
    };
    add(traits, list, field, set, usual);
  }
  SearchedChoices take() { return std::move(rows_); }

 private:
  SearchedChoices rows_;
};

// Sizes of groups of ranks, and chunks of the pipeline.
void add_sizes(Table& table) {
  using enum ChosenFor;
  table.add(
      {.option = "tensor-parallel", .heading = "TP", .chosen_for = layout, .in_every_table = true},
      &TrainingSpace::tensor, in_sizes(&ParallelLayout::tensor), inside_domain);
  table.add(
      {.option = "context-parallel", .heading = "CP", .chosen_for = layout, .in_every_table = true},
      &TrainingSpace::context, in_sizes(&ParallelLayout::context), context_sizes);
  table.add({.option = "pipeline-parallel",
             .heading = "PP",
             .chosen_for = layout,
             .in_every_table = true},
            &TrainingSpace::pipeline, in_sizes(&ParallelLayout::pipeline), pipeline_sizes);
  table.add(
      {.option = "virtual-pipeline",
       .heading = "VP",
       .chosen_for = layout,
       .tells_apart = TellsApart::with_chunks,
       .in_every_table = true,
       .is_default = [](const TrainingJob& job) { return job.layout.sizes.virtual_pipeline == 1; }},
      &TrainingSpace::virtual_pipeline, in_sizes(&ParallelLayout::virtual_pipeline),
      [](const TrainingJob&) { return Values<int>{1, 2, 3, 4, 6, 8, 12, 16}; });
  table.add(
      {.option = "expert-parallel", .heading = "EP", .chosen_for = layout, .in_every_table = true},
      &TrainingSpace::expert, in_sizes(&ParallelLayout::expert), expert_sizes);
  table.add({.option = "expert-tensor-parallel",
             .heading = "ETP",
             .chosen_for = layout,
             .in_every_table = true},
            &TrainingSpace::expert_tensor, in_sizes(&ParallelLayout::expert_tensor),
            expert_tensor_sizes);
  table.add(
      {.option = "micro-batch", .heading = "batch", .chosen_for = layout, .in_every_table = true},
      &TrainingSpace::micro_batch, in_layout(&LayoutRequest::micro_batch), [](const TrainingJob&) {
        return Values<std::int64_t>{1, 2, 4, 8};
      });
}

// Of families and jobs with such a layout, and the layout's overlap.
void add_rest(Table& table) {
  table.add({.option = "ranks-per-domain",
             .heading = "per domain",
             .tells_apart = TellsApart::never,
             .leads = true,
             .of_twins = "ranks per domain",
             .checked_with_others = true,
             .is_default = [](const TrainingJob& job) { return job.ranks_per_domain == 0; }},
            &TrainingSpace::ranks_per_domain, in_rest(&TrainingJob::ranks_per_domain), placements);
  table.add({.option = "ep-overlap", .heading = "EP overlap", .chosen_for = ChosenFor::layout},
            &TrainingSpace::expert_overlap, in_layout(&LayoutRequest::expert_overlap));
  // Which graphs can be depends on the router.
  table.add({.option = "cuda-graphs", .heading = "graphs", .checked_by_search = true},
            &TrainingSpace::graphs, in_rest(&TrainingJob::graphs));
  table.add(
      {.option = "dispatcher", .heading = "dispatcher", .leads = true}, &TrainingSpace::dispatchers,
      [](const LayoutRequest&, const TrainingJob& rest) { return dispatcher_of(rest); },
      [](const TypedDispatcher& dispatcher, TrainingJob& job) { dispatcher.apply_to(job); },
      nullptr);
  table.add({.option = "recompute",
             .heading = "recompute",
             .chosen_for = ChosenFor::job,
             .tells_apart = TellsApart::never,
             .in_every_table = true,
             .separator = '/'},
            &TrainingSpace::recompute, in_rest(&TrainingJob::recompute),
            [](const TrainingJob& base) { return usual_recompute(*base.model); });
  table.add({.option = "zero",
             .heading = "ZeRO",
             .chosen_for = ChosenFor::job,
             .tells_apart = TellsApart::never,
             .in_every_table = true},
            &TrainingSpace::zero, in_rest(&TrainingJob::states, &StateRules::zero),
            [](const TrainingJob&) {
              return Values<int>{1, 2};
            });
}

SearchedChoices declare_choices() {
  Table table;
  table.add(
      {.option = "precision", .heading = "precision", .leads = true, .checked_with_others = true},
      &TrainingSpace::precision, in_rest(&TrainingJob::states, &StateRules::precision));
  add_sizes(table);
  add_rest(table);
  return table.take();
}

}  // namespace

std::string SearchedChoice::text(const TrainingJob& job) const {
  const Cell value = job::job_option_named(option()).value(job);
  const auto* whole = std::get_if<std::int64_t>(&value);
  return whole != nullptr ? fmt::format("{}", *whole) : std::get<std::string>(value);
}

bool SearchedChoice::is_default(const TrainingJob& job) const {
  if (traits_.is_default != nullptr) return traits_.is_default(job);
  return text(job) == job::job_option_named(option()).default_text;
}

void SearchedChoice::set(const std::string& text, TrainingJob& job,
                         scenario::DocumentCache* documents) const {
  const scenario::OptionValues typed = {{option(), text}};
  job::Resolution at{typed, job, documents};
  job::job_option_named(option()).set(text, at);
}

void SearchedChoice::add(const TrainingJob& job, TrainingSpace& space) const {
  const std::string value = text(job);
  TrainingJob other = space.base;
  for (std::size_t at = 0; at < count(space); ++at) {
    put(space, at, other);
    if (text(other) == value) return;
  }
  append(job, space);
}

void SearchedChoice::keep(const TrainingJob& job, TrainingSpace& space) const {
  clear(space);
  append(job, space);
}

const SearchedChoices& searched_choices() {
  static const SearchedChoices choices = declare_choices();
  return choices;
}

const SearchedChoice* searched_choice(std::string_view option) {
  for (const auto& choice : searched_choices()) {
    if (choice->traits().option == option) return choice.get();
  }
  return nullptr;
}

const SearchedChoice& searched_choice_named(std::string_view option) {
  if (const SearchedChoice* found = searched_choice(option)) return *found;
  throw Error(fmt::format("a search has no choice of {}", option));
}

}  // namespace moesim::study
