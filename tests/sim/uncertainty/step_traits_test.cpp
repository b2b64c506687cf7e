#include "sim/uncertainty/steps/step_traits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/base/file.hpp"
#include "sim/base/random.hpp"
#include "sim/uncertainty/bands/terms.hpp"
#include "sim/uncertainty/published/step_errors.hpp"
#include "sim/uncertainty/published/unmeasured_law.hpp"
#include "sim/uncertainty/software/step_software.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/training_job.hpp"

using namespace moesim;
using namespace moesim::uncertainty;

namespace {

const StepErrors& shipped() {
  static const StepErrors errors(Residuals::load("training"));
  return errors;
}

std::vector<UnmeasuredTrait> unmeasured_of(const training::TrainingJob& job) {
  const training::TrainingStep step = training::training_step(job);
  return unmeasured_traits(shipped().residuals().measured, job.profile->device().name,
                           traits_of(job, step));
}

// One software on four machines with three models each, four configurations of each; every second
// one has a trait whose parts, a third of its step, take e^`error` times what is predicted.
std::vector<Observation> with_trait(std::uint32_t run, const char* name, double error,
                                    double scatter) {
  Stream stream({12, Purpose::test_data, run, 0, 0});
  std::vector<Observation> found;
  for (int place = 0; place < 4; ++place) {
    for (int model = 0; model < 3; ++model) {
      for (int row = 0; row < 4; ++row) {
        Observation each;
        each.subject = {"software", fmt::format("machine {}", place),
                        fmt::format("model {}", model), false};
        each.configuration = fmt::format("layout {}", row);
        each.log_ratio = 0.2 + scatter * stream.normal();
        each.traits = {{"everywhere", 1, 1}};
        if (row % 2 == 0) {
          each.log_ratio += error / 3;
          each.traits.push_back({name, 1, 1.0 / 3});
        }
        found.push_back(each);
      }
    }
  }
  return found;
}

}  // namespace

TEST_CASE("a step like the measured ones has nothing that was not measured") {
  auto job = training::qwen_on_h100(64, 1, 8, 512);
  CHECK(texts_of(unmeasured_of(job)).empty());
  job.layout.sizes.virtual_pipeline = 4;
  job.layout.sizes.pipeline = 4;
  job.layout.expert_overlap = true;
  CHECK(texts_of(unmeasured_of(job)).empty());
}

TEST_CASE("linear attention is named, for no measured step has it") {
  auto job = training::qwen_on_h100(64, 1, 8, 512);
  const model::Model next = model::Model::load("qwen3-next-80b-a3b");
  job.model = std::make_shared<const model::Model>(next);
  CHECK(texts_of(unmeasured_of(job)) == "linear attention");
  const training::TrainingStep step = training::training_step(job);
  const StepTrait* const trait = trait_of(traits_of(job, step), "linear-attention");
  REQUIRE(trait != nullptr);
  CHECK(trait->share ==
        Approx(step.parts[training::at(training::TrainingPart::attention)] / step.step_us));
}

TEST_CASE("what no measured step has is named") {
  const auto text_with = [](const auto& change) {
    auto job = training::qwen_on_h100(64, 1, 8, 512);
    change(job);
    return texts_of(unmeasured_of(job));
  };
  using training::TrainingJob;
  CHECK(text_with([](TrainingJob& job) { job.layout.sizes.context = 2; }) == "context parallelism");
  CHECK(text_with([](TrainingJob& job) { job.layout.sizes.expert_tensor = 2; }) ==
        "expert-tensor parallelism");
  CHECK(text_with([](TrainingJob& job) { job.states.zero = 2; }) == "ZeRO 2");
  CHECK(text_with([](TrainingJob& job) {
          job.layout.sizes.pipeline = 4;
          job.layout.schedule = parallel::ScheduleKind::dualpipe;
        }) == "DualPipe");
  CHECK(text_with([](TrainingJob& job) {
          job.layout.sizes.pipeline = 4;
          job.layout.schedule = parallel::ScheduleKind::zb_h1;
        }) == "zero-bubble schedules");
  // 4,096 and 8,192 tokens were measured: twice that is still near.
  CHECK(text_with([](TrainingJob& job) { job.layout.sequence_length = 16384; }).empty());
  CHECK(text_with([](TrainingJob& job) { job.layout.sequence_length = 32768; }) ==
        "sequences of 32768 tokens (at most 8192 measured)");
  CHECK(text_with([](TrainingJob& job) {
          job.layout.sizes.gpus = 1024;
          job.layout.global_batch = 4096;
        }).empty());
  CHECK(text_with([](TrainingJob& job) {
          job.layout.sizes.gpus = 2048;
          job.layout.global_batch = 4096;
        }) == "2048 GPUs (at most 1024 measured)");
}

TEST_CASE("a precision has to be measured on the machine, where any step was") {
  const std::vector<MeasuredTraits> measured = {{"one", {{"precision:bf16", 1}}},
                                                {"other", {{"precision:fp8", 1}}}};
  const std::vector<StepTrait> fp8 = {{"precision:fp8", 1, 0.5}};
  REQUIRE(unmeasured_traits(measured, "one", fp8).size() == 1);
  CHECK(text_of(unmeasured_traits(measured, "one", fp8).front()) ==
        "products in fp8 on one (on others alone)");
  CHECK(unmeasured_traits(measured, "other", fp8).empty());
  CHECK(unmeasured_traits(measured, "another", fp8).empty());  // a machine without any step
  CHECK(text_of(unmeasured_traits(measured, "one", {{"precision:fp4", 1, 0.5}}).front()) ==
        "products in fp4");
}

TEST_CASE("the share of DualPipe holds what it hides") {
  auto job = training::qwen_on_h100(64, 4, 8, 512);
  job.layout.schedule = parallel::ScheduleKind::dualpipe;
  const training::TrainingStep step = training::training_step(job);
  const auto traits = traits_of(job, step);
  const auto found = std::find_if(traits.begin(), traits.end(),
                                  [](const StepTrait& trait) { return trait.name == "dualpipe"; });
  REQUIRE(found != traits.end());
  const double exposed = part(step, training::TrainingPart::p2p) +
                         part(step, training::TrainingPart::dispatch) +
                         part(step, training::TrainingPart::combine);
  CHECK(found->share > 1.5 * exposed / step.step_us);
  CHECK(found->share < 0.9);
}

TEST_CASE("the share of a switch holds what it hides") {
  auto job = training::qwen_on_h100(64, 1, 8, 512);
  job.layout.sizes.tensor = 2;
  const double exposed = part(training::training_step(job), training::TrainingPart::tensor);
  job.overlaps_tensor = true;
  const training::TrainingStep step = training::training_step(job);
  const std::vector<StepTrait> traits = traits_of(job, step);
  const StepTrait* overlap = trait_of(traits, "tensor-overlap");
  REQUIRE(part(step, training::TrainingPart::tensor) < 0.9 * exposed);
  CHECK(overlap->share == Approx(exposed / step.step_us).epsilon(0.05));

  auto copied = training::qwen_on_h100(64, 1, 8, 512);
  copied.offload = model::parse_offload("core_attn", "test");
  CHECK(texts_of(unmeasured_of(copied)) == "offloaded activations");
}

TEST_CASE("a load that random routing does not have is unbalanced") {
  auto job = training::qwen_on_h100(64, 1, 8, 512);
  job.expert_load = 1;
  CHECK(texts_of(unmeasured_of(job)).empty());
  job.expert_load = 3;
  CHECK(texts_of(unmeasured_of(job)) == "experts that are not balanced");
}

TEST_CASE("one replica shares no states") {
  auto job = training::qwen_on_h100(8, 1, 1, 64);
  job.layout.sizes.tensor = 8;
  job.layout.sizes.expert_tensor = 1;
  job.layout.sizes.expert = 8;
  job.states.zero = 2;
  const training::TrainingStep step = training::training_step(job);
  const std::vector<StepTrait> traits = traits_of(job, step);
  CHECK(trait_of(traits, "zero:2") == nullptr);
}

TEST_CASE("a trait that was left out tells how far its parts are off") {
  const auto of = [](const std::vector<TraitError>& errors, const std::string& name) {
    return *std::find_if(errors.begin(), errors.end(),
                         [&](const TraitError& each) { return each.trait == name; });
  };
  const auto errors = trait_errors(with_trait(1, "odd", 0.6, 0.01));
  CHECK(of(errors, "odd").error == Approx(0.6).margin(0.1));
  CHECK(of(errors, "odd").rows == 24);
  CHECK(of(errors, "odd").share == Approx(1.0 / 3));
  // What every step has cannot be left out.
  CHECK(std::none_of(errors.begin(), errors.end(),
                     [](const TraitError& each) { return each.trait == "everywhere"; }));
  CHECK(of(trait_errors(with_trait(2, "even", 0, 0.01)), "even").error == Approx(0).margin(0.1));
}

TEST_CASE("the law of unmeasured traits finds the deviation that errors were drawn with") {
  Stream stream({13, Purpose::test_data, 0, 0, 0});
  std::vector<TraitError> errors;
  for (int trait = 0; trait < 400; ++trait) {
    const double known = trait % 2 == 0 ? 0.1 : 0.5;
    errors.push_back({fmt::format("{}", trait), 1, 1, 0.3, std::hypot(0.3, known) * stream.normal(),
                      known * known});
  }
  CHECK(law_of(errors).deviation == Approx(0.3).epsilon(0.15));
  CHECK(law_of(errors).traits == 400);
}

TEST_CASE("a trait that was not measured widens the band by its share") {
  const Subject subject{"megatron-bridge", "NVIDIA GB200", "deepseek-v3", true, 400};
  const Band known = shipped().band(subject);
  const auto with = [&](double share) {
    return shipped().band(subject, usual_levels(), {{"context-parallel", 1, share}});
  };
  const auto same = shipped().band(subject, usual_levels(), {{"sequence-length", 4096, 0.6}});
  for (std::size_t at = 0; at < known.levels.size(); ++at) {
    const Interval before = known.levels[at].log_ratios;
    CHECK(same.levels[at].log_ratios == before);
    CHECK(with(0.6).levels[at].log_ratios.low < before.low);
    CHECK(with(0.6).levels[at].log_ratios.high > before.high);
    CHECK(with(0.6).levels[at].log_ratios.width() > with(0.1).levels[at].log_ratios.width());
    CHECK(with(0).levels[at].log_ratios == before);
  }
  CHECK(with(0.6).expected.mean == known.expected.mean);
  CHECK(same.unmeasured.empty());
  CHECK(with(0.6).unmeasured.size() == 1);
  // Two traits add in squares.
  const std::vector<UnmeasuredTrait> both = {{{"context-parallel", 1, 0.3}, 0, ""},
                                             {{"dualpipe", 1, 0.4}, 0, ""}};
  CHECK(shipped().deviation_of(both) == Approx(shipped().deviation_of(with(0.5).unmeasured)));
}

TEST_CASE("what only one of two steps has widens the band of their ratio") {
  const auto width = [](double deviation) {
    return shipped()
        .ratio_band("megatron-bridge", true, 0.3, deviation)
        .widest()
        .log_ratios.width();
  };
  CHECK(width(0) == shipped().ratio_band("megatron-bridge", true, 0.3).widest().log_ratios.width());
  CHECK(width(0.1) > width(0) * 1.01);
}

TEST_CASE("a software of one's own says what none of its steps has") {
  StepSoftware software;
  software.machine = software.measured.machine = "machine";
  const std::vector<StepTrait> asked = {
      {"context-parallel", 1, 0.4}, {"sequence-length", 8192, 0.3}, {"zero:2", 1, 0.1}};
  CHECK(software.unmeasured(asked).empty());  // an older document does not say what its steps have
  software.measured.add({{"sequence-length", 2048, 0}, {"zero:1", 1, 0}});
  software.measured.add({{"sequence-length", 1024, 0}, {"zero:2", 1, 0}});
  CHECK(texts_of(software.unmeasured(asked)) ==
        "context parallelism, sequences of 8192 tokens (at most 2048 measured)");
}

TEST_CASE("a layer alone says what its own parts have") {
  training::TrainingJob job = training::qwen_on_h100(64, 2, 8, 512);
  const auto has = [&](const char* name) {
    return trait_of(traits_of_layer(job), name) != nullptr;
  };
  for (const char* name : {"precision:bf16", "dispatcher:all-to-all", "sequence-length"}) {
    CHECK(has(name));
  }
  // Traits of the whole step: its end, its pipeline, what is recomputed.
  job.recompute.full = model::FullRecompute::uniform;
  for (const char* name : {"zero:1", "moment-bytes:4", "gpus", "pipeline-parallel",
                           "recompute:whole layers", "cuda-graphs:none"}) {
    CAPTURE(name);
    CHECK_FALSE(has(name));
  }
}

TEST_CASE("a document of residuals keeps what was measured") {
  Residuals written = summarised(with_trait(3, "odd", 0.6, 0.01));
  written.name = "traits";
  written.source = "a test";
  written.regenerate = "none";
  written.components = {0.2, 0.3, 0.1, 0.2, 0.1};
  written.unmeasured = {0.25, 12};
  const std::string path = "traits_test.json";
  write_file_atomically(path, written.text());
  const Residuals read = Residuals::load("./" + path);
  REQUIRE(read.measured.size() == 4);
  CHECK(read.measured.front().machine == "machine 0");
  CHECK(read.measured.front().most == written.measured.front().most);
  CHECK(read.unmeasured.deviation == Approx(0.25));
  CHECK(read.unmeasured.traits == 12);
  std::remove(path.c_str());
}

TEST_CASE("a job inside a node is no subject with a NIC rate") {
  training::TrainingJob job = training::qwen_on_h100(8, 1, 8, 32);
  CHECK(uncertainty::subject_of(job, "").nic_gbit_per_s == 0);
  job = training::qwen_on_h100(16, 1, 8, 32);
  CHECK(uncertainty::subject_of(job, "").nic_gbit_per_s > 0);
}
