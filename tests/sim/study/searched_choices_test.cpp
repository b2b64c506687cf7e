#include "sim/study/search/searched_choices.hpp"

#include <algorithm>
#include <set>

#include "sim/job/job_options.hpp"
#include "sim/study/search/same_layout.hpp"
#include "tests/sim/study/small_search.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::study;
using training::TrainingJob;

namespace {

// Two values of an option: of a list of names the first two, else 1 and 2.
std::vector<std::string> two_values(const SearchedChoice& choice) {
  if (choice.option() == "dispatcher") return {"all-to-all", "deepep"};  // documents
  if (choice.option() == "recompute") return {"none", "full"};           // none is no module
  if (choice.option() == "pipeline-parallel") return {"2", "4"};         // there are chunks
  const job::JobOption& option = job::job_option_named(choice.option());
  if (option.values.size() > 1) return {option.values[0].name, option.values[1].name};
  if (option.is_number) return {"1", "2"};
  return {"off", "on"};
}

// Two jobs of the base of a space, each with one of the values.
std::vector<TrainingJob> two_jobs(const SearchedChoice& choice, const TrainingSpace& space) {
  std::vector<TrainingJob> jobs;
  for (const std::string& value : two_values(choice)) {
    jobs.push_back(space.base);
    choice.set(value, jobs.back());
  }
  return jobs;
}

// One layout, with chunks, so that exchanges of experts can be overlapped.
TrainingSpace one_layout() {
  TrainingSpace space = search().space;
  space.base.layout.sizes.pipeline = space.base.layout.sizes.virtual_pipeline = 2;
  space.base.layout.sizes.expert = 4;
  space.base.typed.dispatcher = "all-to-all";
  space.base.states.zero = 1;
  space.fewer_in_last = {0};
  for (const auto& choice : searched_choices()) choice->keep(space.base, space);
  return space;
}

}  // namespace

TEST_CASE("every searched option of a job has a row, but for those of routing", "[unit]") {
  std::set<std::string> searched;
  for (const job::JobOption& option : job::job_options()) {
    const bool has_list = option.in_search == job::InSearch::searched;
    if (has_list && option.section != job::Section::routing) searched.insert(option.name);
  }
  std::set<std::string> rows;
  for (const auto& choice : searched_choices()) CHECK(rows.insert(choice->option()).second);
  CHECK(rows == searched);
  CHECK(searched_choice("router") == nullptr);
  CHECK_THROWS(searched_choice_named("router"));
}

TEST_CASE("values of a searched option are read and written as they are typed", "[unit]") {
  const TrainingSpace space = search().space;
  for (const auto& choice : searched_choices()) {
    INFO(choice->option());
    const std::vector<std::string> values = two_values(*choice);
    const std::vector<TrainingJob> jobs = two_jobs(*choice, space);
    CHECK(choice->text(jobs[0]) == values[0]);
    CHECK(choice->text(jobs[1]) == values[1]);
    CHECK_FALSE(choice->is_same(jobs[0], jobs[1]));
    CHECK(choice->is_same(jobs[1], jobs[1]));
    CHECK_FALSE((choice->is_default(jobs[0]) && choice->is_default(jobs[1])));
    // A job that has had the other value has nothing of it.
    TrainingJob back = jobs[1];
    choice->set(values[0], back);
    CHECK(choice->is_same(back, jobs[0]));
    CHECK((back.dispatcher == nullptr) == (jobs[0].dispatcher == nullptr));
  }
}

TEST_CASE("a search goes through the values of each searched option", "[unit]") {
  for (const auto& choice : searched_choices()) {
    INFO(choice->option());
    TrainingSpace space = one_layout();
    space.typed = {choice->option()};
    choice->clear(space);
    for (const TrainingJob& job : two_jobs(*choice, space)) choice->add(job, space);
    REQUIRE(choice->count(space) == 2);
    std::multiset<std::string> found;
    for (const TrainingFamily& family : candidates_of(space).families) {
      for (const TrainingJob& job : family.jobs()) found.insert(choice->text(job));
    }
    const std::vector<std::string> values = two_values(*choice);
    CHECK(found == std::multiset<std::string>(values.begin(), values.end()));
  }
}

TEST_CASE("layouts are told apart by the searched options that say so", "[unit]") {
  for (const auto& choice : searched_choices()) {
    INFO(choice->option());
    const std::vector<TrainingJob> jobs = two_jobs(*choice, one_layout());
    const TellsApart apart = choice->traits().tells_apart;
    CHECK(same_sizes(jobs[0], jobs[1]) == (apart != TellsApart::always));
    CHECK(same_sizes(jobs[0], jobs[1], true) == (apart == TellsApart::never));
    const bool in_graphs = differ_in_graphs(layout_key(jobs[0].layout, jobs[0], false),
                                            layout_key(jobs[1].layout, jobs[1], false));
    CHECK(in_graphs == (choice->option() == "cuda-graphs"));
    // The key of a candidate is that of its family.
    const bool of_jobs = choice->traits().chosen_for == ChosenFor::job;
    CHECK((!of_jobs || apart == TellsApart::never));
    Twins twins;
    twins.add(jobs[1], jobs[0], 0);
    REQUIRE(twins.choices.size() == searched_choices().size());
    for (std::size_t at = 0; at < twins.choices.size(); ++at) {
      const bool is_it = searched_choices()[at] == choice && apart != TellsApart::always;
      CHECK(twins.choices[at] == is_it);
    }
  }
}

TEST_CASE("a usual space has a value of each searched option, and takes those of a job", "[unit]") {
  const TrainingSpace usual = usual_training_space(search().space.base);
  for (const auto& choice : searched_choices()) {
    INFO(choice->option());
    CHECK(choice->count(usual) >= 1);
    CHECK((choice->count(usual) == 1 || choice->has_usual_values()));
    const std::vector<TrainingJob> jobs = two_jobs(*choice, usual);
    TrainingSpace space = usual;
    choice->keep(jobs[1], space);
    CHECK(choice->count(space) == 1);
    choice->add(jobs[1], space);
    CHECK(choice->count(space) == 1);  // it is there
    choice->add(jobs[0], space);
    CHECK(choice->count(space) == 2);
    // What is typed stays on other numbers of GPUs.
    space.typed = {choice->option()};
    CHECK(choice->has_values_of(on_gpus(space, 32), space));
  }
}
