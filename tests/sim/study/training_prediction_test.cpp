#include "sim/study/training_prediction.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "sim/base/file.hpp"
#include "sim/job/job_options.hpp"
#include "sim/scenario/document_cache.hpp"
#include "tests/support/catch.hpp"

namespace moesim::study {
namespace {

const scenario::OptionValues usual = {
    {"model", "qwen3-30b-a3b"}, {"gpus", "16"}, {"sequence-length", "2048"}};

scenario::OptionValues with(scenario::OptionValues options, const std::string& name,
                            const std::string& text) {
  options[name] = text;
  return options;
}

TrainingPrediction predicted(const scenario::OptionValues& options) {
  scenario::DocumentCache documents;
  return predict_training(options, documents);
}

}  // namespace

TEST_CASE("of published software the step is that of the job, with the band of the software") {
  const double plain_us = training::training_step(job::resolve_job(usual).job).step_us;
  const TrainingPrediction unknown = predicted(usual);
  CHECK(unknown.step.step_us == plain_us);
  CHECK(unknown.times().level == 0.8);
  const TrainingPrediction named = predicted(with(usual, "software", "megatron-bridge"));
  CHECK(named.step.step_us == plain_us);
  const StepTimes times = named.times();
  CHECK(times.level == 0.9);
  CHECK(times.p05_ms == times.low_ms);
  CHECK(times.p95_ms == times.high_ms);
  CHECK(times.low_ms < named.step_ms());
  CHECK(named.step_ms() < times.high_ms);
  CHECK(times.high_ms < unknown.times().p95_ms);
  CHECK_THROWS_WITH(predicted(with(usual, "software", "nosuch")), ContainsSubstring("--software"));
}

TEST_CASE("a cluster that is named alone has its own GPUs") {
  const TrainingPrediction made = predicted(with(usual, "cluster", "hgx-h200"));
  CHECK(made.job.typed.profile == "h200-sxm");
  REQUIRE_FALSE(made.notes.empty());
  CHECK_THAT(made.notes.front(), ContainsSubstring("--profile h200-sxm"));
}

TEST_CASE("notes of a routing are those of the command") {
  auto routed = with(with(usual, "router", "top1"), "capacity-factor", "1");
  routed = with(routed, "priority", "own-weight");
  const std::vector<std::string> notes = predicted(routed).notes;
  CHECK(std::any_of(notes.begin(), notes.end(), [](const std::string& note) {
    return note.starts_with("note: --priority own-weight");
  }));
}

TEST_CASE("of several replicas the step with the median time is predicted") {
  const auto routed = with(with(usual, "router", "topk"), "capacity-factor", "1");
  std::vector<double> times;
  for (const char* seed : {"1", "2", "3"}) {
    times.push_back(predicted(with(routed, "seed", seed)).step.step_us);
  }
  std::sort(times.begin(), times.end());
  CHECK(predicted(with(routed, "replicas", "3")).step.step_us == times[1]);
  CHECK_THROWS_WITH(predicted(with(routed, "replicas", "0")), ContainsSubstring("--replicas"));
}

// Half again as long as predicted, with a host that takes twice as long.
TEST_CASE("one's own software is applied, named or brought by the profile, and never left out") {
  uncertainty::StepSoftware software;
  const auto at = [](uncertainty::Unknown unknown) { return static_cast<std::size_t>(unknown); };
  software.unknowns[at(uncertainty::Unknown::level)] = std::log(1.5);
  software.unknowns[at(uncertainty::Unknown::host)] = std::log(2);
  software.prices_host = true;
  for (uncertainty::Scatter& scatter : software.scatters) scatter = {0.05, 5, 3};
  software.name = software.source = "mine";
  software.profile = "h100-sxm";
  software.machine = profile::Profile::load("h100-sxm").device().name;
  const std::string path = "./training_prediction_test.json";
  write_file_atomically(path, software.text());

  training::TrainingJob job = job::resolve_job(usual).job;
  const double plain_us = training::training_step(job).step_us;
  job.host.factor = 2;
  const double slow_host_us = training::training_step(job).step_us;
  CHECK(slow_host_us > 1.05 * plain_us);
  const TrainingPrediction named = predicted(with(usual, "software", path));
  CHECK(named.before_software.step_us == slow_host_us);
  CHECK(named.step.step_us > 1.2 * slow_host_us);
  CHECK(named.job.host.factor == Approx(2));
  CHECK(named.band.own == path);
  const TrainingPrediction brought = predicted(with(usual, "profile", path));
  CHECK(brought.step.step_us == named.step.step_us);
  CHECK(brought.times().high_ms == named.times().high_ms);
  CHECK_THROWS_WITH(job::resolve_job(with(usual, "profile", path)),
                    ContainsSubstring("predict_training()"));
  std::remove(path.c_str());
}

// The options of a job alone would leave the software out, without a word.
TEST_CASE("what only a prediction takes is no option of a job") {
  CHECK_THROWS_WITH(job::resolve_job(with(usual, "software", "megatron-bridge")),
                    ContainsSubstring("predict_training()"));
  CHECK_THROWS_WITH(job::resolve_job(with(usual, "replicas", "2")),
                    ContainsSubstring("predict_training()"));
}

}  // namespace moesim::study
