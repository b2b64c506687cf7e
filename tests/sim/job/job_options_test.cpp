#include "sim/job/job_options.hpp"

#include <algorithm>
#include <set>

#include "sim/base/error.hpp"
#include "sim/job/documents.hpp"
#include "sim/scenario/options.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::job;
using scenario::OptionValues;
using training::TrainingJob;

namespace {

const OptionValues usual{{"model", "qwen3-30b-a3b"}, {"gpus", "64"}, {"pipeline-parallel", "2"}};

// Another value than the default for every option that has no list of its values, so that it can be
// beside `usual`.
const OptionValues others{{"model", "mixtral-8x7b"},    {"gpus", "128"},
                          {"tensor-parallel", "2"},     {"sequence-parallel", "off"},
                          {"context-parallel", "2"},    {"pipeline-parallel", "4"},
                          {"virtual-pipeline", "2"},    {"pipeline-layout", "Et*20|t*28L"},
                          {"expert-parallel", "4"},     {"expert-tensor-parallel", "2"},
                          {"sequence-length", "2048"},  {"micro-batch", "2"},
                          {"global-batch", "1024"},     {"pipeline-schedule", "zb-h1"},
                          {"micro-batch-group", "4"},   {"ep-overlap", "on"},
                          {"gather-precision", "bf16"}, {"profile", "h200-sxm"},
                          {"cluster", "hgx-h200"},      {"dispatcher", "deepep"},
                          {"expert-load", "1.25"},      {"redundant-experts", "32"},
                          {"optimizer-instances", "2"}, {"ranks-per-domain", "4"},
                          {"launch-us", "3.5"},         {"host-read-us", "7"},
                          {"step-overhead-ms", "11"}};

OptionValues with(OptionValues values, const std::string& name, const std::string& value) {
  values[name] = value;
  return values;
}

// The last of the values that an option lists, or that of `others`.
std::string other_value(const JobOption& option) {
  if (const auto found = others.find(option.name); found != others.end()) return found->second;
  return option.values.empty() ? "" : option.values.back().name;
}

// What an option needs beside it.
OptionValues beside(const JobOption& option) {
  if (option.name == "attention-precision" || option.name == "dispatch-precision" ||
      option.name == "head-precision") {
    return with(usual, "precision", "fp8-block");
  }
  if (option.name == "cuda-graphs") return with(usual, "dispatcher", "deepep");
  if (option.name == "precision") return with(usual, "profile", "b200-sxm");
  if (option.name == "micro-batch-group") return with(usual, "virtual-pipeline", "2");
  return usual;
}

}  // namespace

TEST_CASE("every option of a job changes its own value") {
  for (const JobOption& option : job_options()) {
    if (option.set == nullptr) continue;
    CAPTURE(option.name);
    REQUIRE(option.value);
    const OptionValues without = beside(option);
    const std::string text = other_value(option);
    REQUIRE_FALSE(text.empty());
    const Cell plain = option.value(resolve_job(without).job);
    const TrainingJob changed = resolve_job(with(without, option.name, text)).job;
    CHECK(option.value(changed) != plain);
    // A rare column is there exactly where the value is another.
    CHECK(option.in_rows_of(changed));
    if (option.rare) CHECK_FALSE(option.in_rows_of(resolve_job(without).job));
  }
}

TEST_CASE("every option that moves a scenario's routing is one of a training step too") {
  // What a job has by its own options, and what only a scenario has.
  const std::set<std::string> of_job = {
      "model",   "cluster",         "gpus",  "mode",          "micro-batch", "expert-parallel",
      "experts", "sequence-length", "dedup", "tokens-per-gpu"};
  for (const scenario::Option& option : scenario::scenario_options()) {
    if (option.affects != scenario::Affects::routing || of_job.contains(option.name)) continue;
    CAPTURE(option.name);  // of a router: routing_options in drawn_routing.cpp
    CHECK(job_option_named(option.name).section == Section::routing);
  }
}

TEST_CASE("options whose values are numbers take ranges of them") {
  for (const JobOption& option : job_options()) {
    CAPTURE(option.name);
    if (option.set == nullptr) {  // of routing, which a scenario has too
      const auto& scenarios = scenario::scenario_options();
      const auto same = std::find_if(scenarios.begin(), scenarios.end(),
                                     [&](const auto& known) { return known.name == option.name; });
      if (same != scenarios.end()) CHECK(option.is_number == same->is_number());
      continue;
    }
    const OptionValues values = with(beside(option), option.name, other_value(option));
    const Cell value = option.value(resolve_job(values).job);
    const bool is_number =
        std::holds_alternative<std::int64_t>(value) || std::holds_alternative<double>(value);
    CHECK(option.is_number == is_number);
  }
  for (const char* const name : {"rank-capacity", "trace-step"}) {
    CHECK(job_option_named(name).is_number);
  }
}

TEST_CASE("a default that is no sentence is what it says") {
  const TrainingJob job = resolve_job(usual).job;
  for (const JobOption& option : job_options()) {
    if (option.set == nullptr || option.default_in_words || usual.contains(option.name)) continue;
    CAPTURE(option.name);
    const OptionValues typed = with(usual, option.name, option.default_text);
    CHECK(option.value(resolve_job(typed).job) == option.value(job));
  }
}

TEST_CASE("names, columns and Megatron-LM's arguments are of one option each") {
  std::set<std::string> names;
  std::set<std::string> columns;
  std::set<std::string> arguments;
  for (const JobOption& option : job_options()) {
    CAPTURE(option.name);
    CHECK(names.insert(option.name).second);
    CHECK(columns.insert(option.column()).second);
    CHECK_FALSE(option.help.empty());
    CHECK_FALSE(option.default_text.empty());
    for (const MegatronArgument& argument : option.megatron) {
      CHECK(arguments.insert(argument.name).second);
    }
  }
  CHECK_THROWS_AS(job_option_named("no-such-option"), Error);
}

TEST_CASE("defaults that follow from other options") {
  // 4 chunks on 2 ranks.
  OptionValues values = with(usual, "pipeline-layout", "Et*12|t*12|t*12|t*12L");
  CHECK(resolve_job(values).job.layout.sizes.virtual_pipeline == 2);
  // The ranks of an NVLink domain, of 32 of a stage: they divide 128 experts.
  CHECK(resolve_job(usual).job.layout.sizes.expert == 8);
  CHECK(resolve_job(with(usual, "ranks-per-domain", "4")).job.layout.sizes.expert == 4);
  CHECK(resolve_job(with(usual, "expert-tensor-parallel", "2")).job.layout.sizes.expert == 4);
  const TrainingJob rack = resolve_job(with(usual, "profile", "gb200")).job;
  CHECK(rack.cluster->gpus_per_domain == 72);
  CHECK(rack.layout.sizes.expert == 32);
  CHECK(rack.layout.sequence_length == rack.model->sequence_length);
}

TEST_CASE("options of a job that do not go together") {
  const auto refused = [](const std::string& name, const std::string& value,
                          const std::string& second, const std::string& other) {
    CHECK_THROWS_AS(resolve_job(with(with(usual, name, value), second, other)), UsageError);
  };
  refused("offload", "moe_act", "recompute", "full");
  refused("expert-load", "1.2", "capacity-factor", "1");
  refused("ranks-per-domain", "16", "cluster", "hgx-h100");
  refused("precision", "nvfp4", "profile", "h100-sxm");
  refused("cuda-graphs", "layers", "dispatcher", "all-to-all");
  refused("routing-draws", "balanced", "router", "top2");
}

TEST_CASE("numbers that are none, and names that are none, are refused") {
  for (const char* option : {"launch-us", "host-read-us", "step-overhead-ms", "expert-load",
                             "rank-capacity", "gpus", "redundant-experts"}) {
    for (const char* text : {"nan", "-nan", "inf", "-1", "1e99", ""}) {
      CAPTURE(option, text);
      CHECK_THROWS_AS(resolve_job(with(usual, option, text)), UsageError);
    }
  }
  CHECK_THROWS_AS(resolve_job(with(usual, "tensor_parallel", "2")), Error);
}

TEST_CASE("the machine is checked before routing is asked for") {
  OptionValues values = with(usual, "ranks-per-domain", "99");
  values["routing"] = "unknown";
  CHECK_THROWS_WITH(resolve_job(values), ContainsSubstring("--ranks-per-domain 99"));
}

TEST_CASE("of several jobs an option is idle that changes none") {
  const OptionValues asked = with(with(usual, "tensor-overlap", "on"), "micro-batch-group", "4");
  std::vector<TrainingJob> jobs = {resolve_job(asked).job};
  CHECK(idle_notes(asked, jobs) == resolve_job(asked).notes);
  CHECK(idle_notes(asked, jobs).size() == 2);
  jobs.push_back(resolve_job(with(asked, "tensor-parallel", "2")).job);
  CHECK(idle_notes(asked, jobs) ==
        std::vector<std::string>{
            "note: --micro-batch-group has no effect: only the interleaved schedule has groups"});
  CHECK(idle_notes(usual, jobs).empty());
  CHECK(idle_notes(asked, {}).empty());
}

TEST_CASE("a time of the host is the user's own where it is typed, the default's value too") {
  const auto host = [](const OptionValues& values) { return resolve_job(values).job.host; };
  CHECK(host(usual).assumes_launch);
  CHECK(host(usual).assumes_read);
  CHECK_FALSE(host(with(usual, "launch-us", "15")).assumes_launch);
  CHECK(host(with(usual, "launch-us", "14")).assumes_read);
  CHECK_FALSE(host(with(usual, "host-read-us", "20")).assumes_read);
  CHECK(host(with(usual, "host-read-us", "20")).assumes_launch);
  CHECK(host(with(usual, "launch-us", "14")).assumes_step);
  CHECK_FALSE(host(with(usual, "step-overhead-ms", "2")).assumes_step);
  CHECK(host(with(usual, "step-overhead-ms", "2")).assumes_launch);
}

// Before the layout is checked, no replica may be left to divide the batch by.
TEST_CASE("options without effect are found in a layout that cannot be") {
  OptionValues values = with(with(usual, "gpus", "8"), "tensor-parallel", "16");
  values["global-batch"] = "32";
  values["micro-batch-group"] = "4";
  CHECK(resolve_job(values).notes.size() == 1);
}

TEST_CASE("an option takes its values by themselves, and none that makes no sense") {
  const OptionValues of_routing{{"router", "topk+ir"},
                                {"top-k", "4"},
                                {"capacity-factor", "1.25"},
                                {"min-capacity", "4"},
                                {"capacity-alignment", "64"},
                                {"routing", "gaussian:0.5"},
                                {"seed", "7"},
                                {"expert-placement", "round-robin"},
                                {"rank-capacity", "1.5"},
                                {"trace-step", "3"}};
  for (const JobOption& option : job_options()) {
    if (option.is_document || option.name == "expert-bias") continue;  // the name of a file
    INFO(option.name);
    const auto found = of_routing.find(option.name);
    CHECK_NOTHROW(
        option.check_text(found != of_routing.end() ? found->second : other_value(option)));
    CHECK_THROWS_WITH(option.check_text("?!"), ContainsSubstring("--" + option.name));
  }
}

TEST_CASE("a layout needs no GPU and has the memory rules of the whole job") {
  const OptionValues values = with(with(usual, "precision", "fp8-current"), "expert-load", "1.2");
  const TrainingJob layout = resolve_layout(values, 8);
  const TrainingJob whole = resolve_job(values).job;
  CHECK_FALSE(layout.profile);
  CHECK(layout.layout.sizes.expert == whole.layout.sizes.expert);
  CHECK(layout.states.low_precision_gather == whole.states.low_precision_gather);
  CHECK(layout.expert_load == whole.expert_load);
  CHECK(resolve_layout(usual, 16).layout.sizes.expert == 16);
}

TEST_CASE("options that no job has are refused with the nearest that one has") {
  CHECK_THROWS_AS(job_option_named("tensor_parallel"), UsageError);
  CHECK_THROWS_WITH(job_option_named("tensor_parallel"),
                    ContainsSubstring("(did you mean 'tensor-parallel'?)"));
}

TEST_CASE("jobs of one cache share their documents and are those without") {
  const OptionValues routed = with(with(usual, "router", "dropless"), "dispatcher", "deepep");
  scenario::DocumentCache documents;
  const TrainingJob first = resolve_job(routed, documents).job;
  const TrainingJob second = resolve_job(with(routed, "zero", "1"), routed, documents).job;
  CHECK(first.profile == second.profile);
  CHECK(first.model == second.model);
  CHECK(first.cluster == second.cluster);
  CHECK(first.dispatcher == second.dispatcher);
  // What routing is drawn with has no documents of its own.
  CHECK(documents.model(routed.at("model")) == first.model);
  const TrainingJob alone = resolve_job(routed).job;
  CHECK(alone.profile != first.profile);
  for (const JobOption& option : job_options()) {
    if (option.value) CHECK(option.value(alone) == option.value(first));
  }
  CHECK(alone.routing->router.name() == first.routing->router.name());
}

TEST_CASE("a cache knows what the commands of steps refuse as a profile") {
  scenario::DocumentCache documents;
  CHECK_THROWS_AS(resolve_job(with(usual, "profile", "a100-sxm-80gb-deepspeed"), documents),
                  UsageError);
  CHECK(documents.profile("a100-sxm-80gb-deepspeed")->software());
}

TEST_CASE("a profile that steps and routing ask for is read once") {
  scenario::DocumentCache documents;
  CHECK(documents.calibrated_profile("h100-sxm") == documents.profile("h100-sxm"));
  CHECK(documents.profile("a100-sxm-80gb") == documents.calibrated_profile("a100-sxm-80gb"));
}
