#include <map>
#include <set>

#include "sim/job/job_options.hpp"
#include "sim/training/step/training_step.hpp"
#include "sim/uncertainty/steps/step_traits.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using scenario::OptionValues;

namespace {

const OptionValues usual{{"model", "qwen3-30b-a3b"}, {"gpus", "64"}, {"profile", "b200-sxm"}};

// A value of an option, what it needs beside it, and the trait that a step then has
// (sim/uncertainty/steps/step_traits.cpp).
struct OptionTrait {
  const char* value;
  const char* trait;
  OptionValues beside = {};
};
const std::map<std::string, OptionTrait> deciding{
    {"gpus", {"128", "gpus"}},
    {"tensor-parallel", {"2", "tensor-parallel"}},
    {"tensor-overlap", {"on", "tensor-overlap", {{"tensor-parallel", "2"}}}},
    {"context-parallel", {"2", "context-parallel"}},
    {"pipeline-parallel", {"4", "pipeline-parallel"}},
    {"virtual-pipeline", {"2", "virtual-pipeline", {{"pipeline-parallel", "2"}}}},
    {"pipeline-schedule", {"zb-h1", "zero-bubble", {{"pipeline-parallel", "2"}}}},
    {"expert-parallel", {"4", "expert-parallel"}},
    {"expert-tensor-parallel", {"2", "expert-tensor"}},
    {"ep-overlap", {"on", "expert-overlap"}},
    {"redundant-experts", {"32", "expert-copies", {{"router", "dropless"}}}},
    {"sequence-length", {"2048", "sequence-length"}},
    {"expert-load", {"1.5", "drawn-routing"}},
    {"dispatcher", {"deepep", "dispatcher:deepep"}},
    {"zero", {"3", "zero:3"}},
    {"optimizer-instances", {"2", "optimizer-instances", {{"zero", "3"}}}},
    {"precision", {"fp8-block", "precision:fp8-block"}},
    {"recompute", {"full", "recompute:whole layers"}},
    {"offload", {"moe_act", "offload"}},
    {"optimizer-moments", {"bf16", "moment-bytes:2"}},
    {"attention-precision", {"fp8", "fp8-attention", {{"precision", "fp8-block"}}}},
    {"dispatch-precision", {"low", "low-precision-dispatch", {{"precision", "fp8-block"}}}},
    {"cuda-graphs", {"router", "cuda-graphs:router"}}};

// Whatever their value, a step has the band of measured steps: the subject of a band, which has
// levels of its own, or what no trait tells apart.
const std::set<std::string> deciding_nothing{"model",
                                             "profile",
                                             "cluster",
                                             "sequence-parallel",
                                             "context-method",
                                             "pipeline-layout",
                                             "micro-batch",
                                             "global-batch",
                                             "micro-batch-group",
                                             "gradients",
                                             "gather-precision",
                                             "head-precision",
                                             "fused-experts",
                                             "ranks-per-domain",
                                             "launch-us",
                                             "host-read-us",
                                             "step-overhead-ms"};

std::vector<uncertainty::StepTrait> traits_with(const OptionValues& values) {
  OptionValues all = usual;
  for (const auto& [option, value] : values) all[option] = value;
  const training::TrainingJob job = job::resolve_job(all).job;
  return uncertainty::traits_of(job, training::training_step(job));
}

}  // namespace

TEST_CASE("an option of a training job has a trait, or says that it decides nothing of the band") {
  for (const job::JobOption& option : job::job_options()) {
    // Options of routing are one trait, drawn routing.
    if (option.section == job::Section::routing) continue;
    CAPTURE(option.name);
    CHECK(deciding.contains(option.name) != deciding_nothing.contains(option.name));
  }
}

TEST_CASE("steps with another value of an option that decides have its trait") {
  for (const auto& [option, row] : deciding) {
    CAPTURE(option);
    OptionValues values = row.beside;
    const auto before = traits_with(values);
    values[option] = row.value;
    const auto after = traits_with(values);
    const uncertainty::StepTrait* had = uncertainty::trait_of(before, row.trait);
    const uncertainty::StepTrait* has = uncertainty::trait_of(after, row.trait);
    REQUIRE(has != nullptr);
    CHECK((had == nullptr || had->size != has->size));
  }
}
