#include "tools/moesim/recommend/tables/step_cells.hpp"

#include <set>

#include "sim/job/job_options.hpp"
#include "sim/study/search/searched_choices.hpp"
#include "tools/moesim/recommend/request/search_room.hpp"
#include "tools/moesim/train/train_report.hpp"

namespace moesim::tool {
namespace {

using study::FoundStep;
using study::TrainingSearch;
using training::TrainingJob;

std::string capacity_text(const TrainingJob& job) {
  const bool drops = job.routing && job.routing->router.drops;
  return drops ? job.routing->router.capacity_factor.text() : "none";
}

template <typename Routing>
std::string router_text(const Routing& routing) {
  return routing ? routing->router.name() : std::string("balanced");
}

std::set<std::string> routers_of(const study::TrainingSpace& space) {
  std::set<std::string> names;
  for (const auto& routing : space.routings) names.insert(router_text(routing));
  return names;
}

// Those of the searched choices that have a column, as the columns stand.
std::vector<const study::SearchedChoice*> in_order(const std::vector<bool>& has_column) {
  std::vector<const study::SearchedChoice*> choices;
  for (const bool leads : {true, false}) {
    for (std::size_t at = 0; at < has_column.size(); ++at) {
      const study::SearchedChoice* choice = study::searched_choices()[at].get();
      if (has_column[at] && choice->traits().leads == leads) choices.push_back(choice);
    }
  }
  return choices;
}

}  // namespace

std::vector<std::string> layout_names() {
  std::vector<std::string> names;
  for (const auto& choice : study::searched_choices()) {
    if (choice->traits().in_every_table) names.emplace_back(choice->traits().heading);
  }
  return names;
}

std::vector<std::string> layout_cells(const TrainingJob& job) {
  std::vector<std::string> cells;
  for (const auto& choice : study::searched_choices()) {
    if (choice->traits().in_every_table) cells.push_back(choice->text(job));
  }
  return cells;
}

void append(std::vector<std::string>& cells, const std::vector<std::string>& more) {
  cells.insert(cells.end(), more.begin(), more.end());
}

Extras::Extras(const TrainingSearch& search)
    : router_(routers_of(search.space).size() > 1), capacity_(search.space.routings.size() > 1) {
  for (const auto& choice : study::searched_choices()) {
    choices_.push_back(!choice->traits().in_every_table && choice->count(search.space) > 1);
  }
}

void Extras::add(const TrainingSearch& search, const TrainingJob& found,
                 const TrainingJob& found_by_this) {
  const Extras other(search);
  router_ = router_ || other.router_;
  capacity_ = capacity_ || other.capacity_;
  for (std::size_t at = 0; at < choices_.size(); ++at) {
    const study::SearchedChoice& choice = *study::searched_choices()[at];
    const bool differs = !choice.traits().in_every_table && !choice.is_same(found, found_by_this);
    if (other.choices_[at] || differs) choices_[at] = true;
  }
}

std::vector<std::string> Extras::names() const {
  std::vector<std::string> names;
  if (router_) names.emplace_back("router");
  if (capacity_) names.emplace_back("CF");
  for (const study::SearchedChoice* choice : in_order(choices_)) {
    names.emplace_back(choice->traits().heading);
  }
  return names;
}

std::vector<std::string> Extras::cells(const TrainingJob& job) const {
  std::vector<std::string> cells;
  if (router_) cells.push_back(router_text(job.routing));
  if (capacity_) cells.push_back(capacity_text(job));
  for (const study::SearchedChoice* choice : in_order(choices_)) {
    cells.push_back(choice->text(job));
  }
  return cells;
}

std::vector<bool> right_aligned(const std::vector<std::string>& names) {
  std::set<std::string> words = {"router", "gives up"};
  for (const auto& choice : study::searched_choices()) {
    const bool is_number = job::job_option_named(choice->option()).is_number;
    if (!is_number) words.insert(choice->traits().heading);
  }
  std::vector<bool> right;
  for (const std::string& name : names) right.push_back(words.count(name) == 0);
  return right;
}

// The columns that are looked for first, in their order; all others of a row of train follow.
constexpr const char* first_columns[] = {"model",
                                         "profile",
                                         "cluster",
                                         "gpus",
                                         "tensor_parallel",
                                         "context_parallel",
                                         "pipeline_parallel",
                                         "virtual_pipeline",
                                         "expert_parallel",
                                         "expert_tensor_parallel",
                                         "pipeline_layout",
                                         "micro_batch",
                                         "recompute",
                                         "zero",
                                         "dispatcher",
                                         "ep_overlap",
                                         "router",
                                         "capacity_factor",
                                         "tokens_per_s_per_gpu",
                                         "step_ms",
                                         "mfu",
                                         "residual_loss"};

NamedCells row_of(const RecommendRequest& request, const FoundStep& found) {
  const NamedCells of_train = training_row(found.job, found.step);
  NamedCells row;
  for (const char* const column : first_columns) row.add(column, of_train.cell(column));
  if (!found.step.routing) row.set("residual_loss", Cell(0.0));
  row.add("counted_loss", figure_cell(found.loss));
  row.add("memory_gib", of_train.cell("memory_gib"));
  // Rows of train have no such column: their limit is all that the GPU has.
  row.add("memory_limit_gib", figure_cell(room_gib(request.search)));
  row.add("fits_memory", found.step.peak_memory().gib() <= room_gib(request.search));
  row.add("command", request.command_of(found));
  row.add("status", std::string("ok"));
  // All that `moesim train --from` and `moesim plot` take of a row of train.
  for (std::size_t at = 0; at < of_train.names.size(); ++at) {
    if (!row.has(of_train.names[at])) row.add(of_train.names[at], of_train.cells[at]);
  }
  return row;
}

}  // namespace moesim::tool
