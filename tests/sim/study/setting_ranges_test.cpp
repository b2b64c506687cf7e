// What a program that calls the library may set wrongly, each by itself: the entry point says which
// field it is and what it may be.
#include <cmath>
#include <functional>
#include <string>

#include "sim/base/error.hpp"
#include "sim/job/job_options.hpp"
#include "sim/scenario/options.hpp"
#include "sim/study/search/prefill_search.hpp"
#include "sim/study/sweep/evaluate.hpp"
#include "sim/study/sweep/sweep.hpp"
#include "sim/study/training_prediction.hpp"
#include "tests/sim/study/small_search.hpp"
#include "tests/support/catch.hpp"

namespace moesim::study {
namespace {

using Parts = std::vector<std::string>;

// That `call` throws UsageError, whose text has the parts.
void refused(const std::function<void()>& call, const Parts& parts) {
  CAPTURE(parts);
  try {
    call();
    FAIL("nothing was thrown");
  } catch (const UsageError& error) {
    for (const std::string& part : parts) CHECK_THAT(error.what(), ContainsSubstring(part));
  }
}

scenario::Scenario small_scenario() {
  scenario::DocumentCache documents;
  return scenario::resolve({{"gpus", "8"},
                            {"sequence-length", "512"},
                            {"micro-batch", "1"},
                            {"mode", "prefill"},
                            {"replicas", "1"}},
                           documents);
}

training::TrainingJob small_job() {
  return job::resolve_job({{"model", "qwen3-30b-a3b"}, {"gpus", "16"}}).job;
}

}  // namespace

TEST_CASE("a scenario with a field outside of its range is refused by the option of the field") {
  const auto check = [](auto change, const Parts& parts) {
    scenario::Scenario scenario = small_scenario();
    change(scenario);
    routing::RoutingCache cache;
    refused([&] { evaluate(scenario, cache); }, parts);
  };
  using scenario::Scenario;
  check([](Scenario& asked) { asked.gpus = 0; }, {"--gpus 0", "from 1 to"});
  check([](Scenario& asked) { asked.replicas = -1; }, {"--replicas -1", "from 1 to 1048576"});
  check([](Scenario& asked) { asked.sequence_length = 0; }, {"--sequence-length 0"});
  check([](Scenario& asked) { asked.tokens_per_gpu = 0; }, {"--tokens-per-gpu 0"});
  check([](Scenario& asked) { asked.expert_parallel = 0; }, {"--expert-parallel 0"});
  check(
      [](Scenario& asked) {
        asked.mode = scenario::Mode::train;
        asked.zero = 4;
      },
      {"--zero 4", "from 0 to 3"});
  check([](Scenario& asked) { asked.conditions.jitter = NAN; }, {"--jitter nan", "from 0 to 1"});
  check(
      [](Scenario& asked) {
        asked.conditions.slow_gpus = {{0, 0.5}};
      },
      {"--slow-gpu 0.5", "from 1 to"});
  check([](Scenario& asked) { asked.conditions.slow_gpus = {{-1, 2}}; }, {"--slow-gpu", "-1"});
  check(
      [](Scenario& asked) {
        asked.conditions.slow_links = {{0, HUGE_VAL}};
      },
      {"--slow-link inf"});
  check([](Scenario& asked) { asked.conditions.slowdowns.compute = 0; }, {"--overlap-slowdown 0"});
  check([](Scenario& asked) { asked.profile = nullptr; }, {"--profile", "none"});
  check([](Scenario& asked) { asked.cluster = nullptr; }, {"--cluster", "none"});
  check([](Scenario& asked) { asked.model = nullptr; }, {"--model", "none"});
}

TEST_CASE("multipliers of kernels are numbers, one for each class") {
  const scenario::Scenario scenario = small_scenario();
  routing::RoutingCache cache;
  EvaluateSettings settings;
  settings.calibration.multiplier.front() = NAN;
  refused([&] { evaluate(scenario, settings, cache); }, {"Calibration::multiplier nan"});
  settings.calibration.multiplier.resize(1);
  refused([&] { evaluate(scenario, settings, cache); }, {"classes of kernels, 1"});
}

TEST_CASE("a training job with a field outside of its range is refused by its name") {
  const auto check = [](auto change, const Parts& parts) {
    training::TrainingJob job = small_job();
    change(job);
    refused([&] { training::training_step(job); }, parts);
    refused([&] { predict_training(job, {}); }, parts);
  };
  using training::TrainingJob;
  check([](TrainingJob& job) { job.layout.sizes.gpus = 0; }, {"--gpus 0", "from 1 to"});
  check([](TrainingJob& job) { job.layout.sizes.tensor = -2; }, {"--tensor-parallel -2"});
  check([](TrainingJob& job) { job.layout.sizes.expert = 0; }, {"--expert-parallel 0"});
  check([](TrainingJob& job) { job.layout.sequence_length = 0; }, {"--sequence-length 0"});
  check([](TrainingJob& job) { job.layout.micro_batch = 0; }, {"--micro-batch 0"});
  check([](TrainingJob& job) { job.layout.global_batch = -16; }, {"--global-batch -16"});
  check([](TrainingJob& job) { job.host.launch_us = NAN; }, {"--launch-us nan", "from 0 to 1000"});
  check([](TrainingJob& job) { job.host.sync_us = -1; }, {"--host-read-us -1"});
  check([](TrainingJob& job) { job.host.step_us = HUGE_VAL; }, {"--step-overhead-ms inf"});
  check([](TrainingJob& job) { job.host.factor = NAN; }, {"HostCosts::factor nan"});
  check([](TrainingJob& job) { job.states.zero = 7; }, {"--zero 7", "from 0 to 3"});
  check([](TrainingJob& job) { job.states.optimizer_instances = 0; }, {"--optimizer-instances 0"});
  check([](TrainingJob& job) { job.capacity_factor = NAN; }, {"--capacity-factor nan"});
  check([](TrainingJob& job) { job.expert_load = -1; }, {"--expert-load -1"});
  check([](TrainingJob& job) { job.choices = -1; }, {"--top-k -1", "from 0 to 128"});
  check([](TrainingJob& job) { job.hidden_share = 1.5; }, {"hidden_share 1.5", "from 0 to 1"});
  check([](TrainingJob& job) { job.exchange_sms = -1; }, {"exchange_sms -1"});
  check([](TrainingJob& job) { job.ranks_per_domain = -1; }, {"--ranks-per-domain -1"});
  check([](TrainingJob& job) { job.redundant_experts = -1; }, {"--redundant-experts -1"});
  check([](TrainingJob& job) { job.forced_groups = training::KeptGroups{0, 1}; }, {"groups 0"});
  check([](TrainingJob& job) { job.model = nullptr; }, {"--model", "none"});
  check([](TrainingJob& job) { job.profile = nullptr; }, {"--profile", "none"});
  check([](TrainingJob& job) { job.cluster = nullptr; }, {"--cluster", "none"});
}

TEST_CASE("settings of predictions, sweeps and searches are refused by their names") {
  refused([] { predict_training(small_job(), {"", 0, {}, nullptr}); }, {"--replicas 0"});
  const auto of_sweep = [](auto change, const Parts& parts) {
    SweepSettings settings;
    change(settings);
    refused([&] { sweep({}, settings); }, parts);
  };
  of_sweep([](SweepSettings& asked) { asked.jobs = 0; }, {"--jobs 0", "from 1 to 4096"});
  of_sweep([](SweepSettings& asked) { asked.seconds_of_pass = NAN; }, {"seconds_of_pass nan"});
  of_sweep([](SweepSettings& asked) { asked.baseline_of.resize(2); }, {"baseline_of", "2"});
  const auto of_search = [](auto change, const Parts& parts) {
    TrainingSearch training = search();
    change(training);
    refused([&] { search_training(training); }, parts);
    PrefillSearch prefill;
    change(prefill);
    refused([&] { search_prefill(prefill); }, parts);
  };
  of_search([](auto& asked) { asked.best = 0; }, {"--best 0", "from 1 to 1000"});
  of_search([](auto& asked) { asked.memory_share = 1.5; }, {"--memory-share 1.5", "0.01 to 1"});
  of_search([](auto& asked) { asked.max_loss = NAN; }, {"--max-loss nan", "from 0 to 1"});
  of_search([](auto& asked) { asked.min_speed = -1; }, {"--min-speed -1"});
  of_search([](auto& asked) { asked.jobs = 0; }, {"--jobs 0"});
}

}  // namespace moesim::study
