#include "sim/parallel/layout_rules.hpp"
#include "sim/parallel/nearest_layouts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/support/catch.hpp"

using moesim::model::ContextMethod;
using moesim::model::Model;
using moesim::parallel::check_layout;
using moesim::parallel::layout_refusal;
using moesim::parallel::LayoutRequest;
using moesim::parallel::nearest_layouts;
using moesim::parallel::parse_pipeline_layout;

namespace {

// A model of 96 layers: 32 heads, 4 key/value heads, 128 experts of 768.
const Model& qwen() {
  static const Model model = [] {
    Model made = Model::load("qwen3-30b-a3b");
    made.layers = 96;
    return made;
  }();
  return model;
}

LayoutRequest request(int gpus, int tensor, int pipeline, int expert) {
  LayoutRequest made;
  made.sizes.gpus = gpus;
  made.sizes.tensor = tensor;
  made.sizes.pipeline = pipeline;
  made.sizes.expert = expert;
  made.sequence_length = 4096;
  return made;
}

std::string refusal(const LayoutRequest& asked, const Model& model = qwen()) {
  return layout_refusal(model, asked).value_or("none");
}

}  // namespace

TEST_CASE("sizes that divide are a layout") {
  CHECK(refusal(request(256, 2, 8, 32)) == "none");
  CHECK(refusal(request(1, 1, 1, 1)) == "none");
}

TEST_CASE("each rule of a layout is named") {
  CHECK_THAT(refusal(request(100, 2, 8, 1)),
             ContainsSubstring("--gpus 100 is no multiple of --tensor-parallel 2"));
  CHECK_THAT(refusal(request(16, 1, 8, 4)),
             ContainsSubstring("--expert-parallel 4 x --pipeline-parallel 8 = 32"));
  CHECK_THAT(refusal(request(48, 1, 1, 3)), ContainsSubstring("does not divide the 128 experts"));
  LayoutRequest asked = request(768 * 5, 1, 1, 1);
  asked.sizes.expert_tensor = 5;
  CHECK_THAT(refusal(asked), ContainsSubstring("inner size 768 of an expert"));
  CHECK_THAT(refusal(request(48, 3, 1, 1)), ContainsSubstring("32 attention heads"));
  CHECK(refusal(request(16, 8, 1, 1)) == "none");  // 4 key/value heads, each on two ranks
  Model odd = qwen();
  odd.heads = 24;
  odd.kv_heads = 6;
  CHECK_THAT(refusal(request(16, 4, 1, 1), odd),
             ContainsSubstring("6 key/value heads: neither divides"));
  asked = request(16, 1, 1, 1);
  asked.sizes.context = 4;
  asked.sequence_length = 4100;
  CHECK_THAT(refusal(asked), ContainsSubstring("2 x --context-parallel = 8 pieces"));
  asked.sequence_length = 4104;
  CHECK(refusal(asked) == "none");
  asked.sizes.tensor = 4;  // 1,026 tokens per rank
  CHECK_THAT(refusal(asked), ContainsSubstring("the 1026 tokens"));
  asked = request(16, 2, 1, 1);
  asked.sequence_parallel = false;
  CHECK_THAT(refusal(asked), ContainsSubstring("need --sequence-parallel on"));
  asked = request(16, 1, 1, 2);
  asked.sizes.context = 8;
  asked.context_method = ContextMethod::all_to_all;
  CHECK_THAT(refusal(asked),
             ContainsSubstring("does not divide the 32 heads and 4 key/value heads"));
  asked.sizes.context = 4;
  CHECK(refusal(asked) == "none");
  asked.sizes.tensor = 2;  // 16 and 2 heads
  CHECK_THAT(refusal(asked), ContainsSubstring("16 heads and 2 key/value heads"));
}

TEST_CASE("a batch makes whole micro-batches") {
  LayoutRequest asked = request(64, 1, 4, 8);  // DP 16
  asked.micro_batch = 2;
  asked.global_batch = 320;
  CHECK(refusal(asked) == "none");
  CHECK(asked.micro_batches() == 10);
  asked.global_batch = 336;
  CHECK_THAT(refusal(asked),
             ContainsSubstring(
                 "--global-batch 336 is no multiple of --micro-batch 2 x data parallel 16 = 32"));
  asked.global_batch = 0;
  CHECK(asked.micro_batches() == 16);
}

TEST_CASE("a dense model has no experts to divide") {
  const Model dense = Model::load("llama2-7b");
  CHECK(refusal(request(16, 2, 4, 1), dense) == "none");
  CHECK_THAT(refusal(request(16, 2, 4, 2), dense), ContainsSubstring("has no experts"));
}

TEST_CASE("layers that do not divide need a pipeline layout") {
  const Model deepseek = Model::load("deepseek-v3");
  LayoutRequest asked = request(256, 1, 8, 32);
  CHECK_THAT(refusal(asked, deepseek),
             ContainsSubstring("61 layers do not divide evenly over 8 pipeline chunks"));
  CHECK_THAT(refusal(asked, deepseek), ContainsSubstring("'Et*8|(t*8|)*4t*7|t*7|t*7L'"));
  // 61 is a prime: one stage is no neighbour of eight, the layout in the text is.
  CHECK(nearest_layouts(deepseek, asked).empty());
  // Where something else is wrong too, the nearest layouts say which layers each stage has.
  asked.sizes.expert = 64;
  for (const char* change : {"--gpus 512", "--pipeline-parallel 4", "--expert-parallel 32"}) {
    CAPTURE(change);
    CHECK_THAT(fmt::format("{}", fmt::join(nearest_layouts(deepseek, asked), "; ")),
               ContainsSubstring(fmt::format("{} --pipeline-layout 'Et*", change)));
  }
  asked.sizes.expert = 32;
  asked.stages = parse_pipeline_layout("Et*8|(t*8|)*6t*5L");
  CHECK(refusal(asked, deepseek) == "none");
  asked.stages = parse_pipeline_layout("Et*4|(t*4|)*14tmL");
  CHECK_THAT(
      refusal(asked, deepseek),
      ContainsSubstring("16 chunks, but --pipeline-parallel 8 x --virtual-pipeline 1 makes 8"));
  // 16 chunks are two of each rank; of 16 ranks one, but then EP 32 has too few.
  CHECK(nearest_layouts(deepseek, asked) ==
        std::vector<std::string>{"--virtual-pipeline 2",
                                 "--pipeline-parallel 4 --virtual-pipeline 4",
                                 "--pipeline-parallel 2 --virtual-pipeline 8"});
  asked.sizes.virtual_pipeline = 2;
  CHECK(refusal(asked, deepseek) == "none");
  asked.stages = parse_pipeline_layout("Et*4|(t*4|)*13t|tmL");
  CHECK_THAT(refusal(asked, deepseek), ContainsSubstring("58 decoder layers"));
}

TEST_CASE("a layout predicts no more tokens than the model") {
  LayoutRequest asked = request(16, 1, 2, 8);
  asked.stages = parse_pipeline_layout("Et*48|t*48mL");
  CHECK_THAT(refusal(asked), ContainsSubstring("has 1 'm', but qwen3-30b-a3b has 0 depths"));
}

TEST_CASE("overlap of experts has its rules") {
  LayoutRequest asked = request(64, 1, 4, 8);
  asked.expert_overlap = true;
  CHECK_THAT(refusal(asked), ContainsSubstring("--virtual-pipeline is above 1"));
  asked.sizes.virtual_pipeline = 2;
  CHECK(refusal(asked) == "none");
  asked.recomputes_experts = true;
  CHECK_THAT(refusal(asked), ContainsSubstring("no recomputation"));
  asked.recomputes_experts = false;
  asked.sizes.expert = 1;
  CHECK_THAT(refusal(asked), ContainsSubstring("--expert-parallel above 1"));
  asked.sizes.expert = 8;
  asked.stages = parse_pipeline_layout("Et*13|(t*13|)*6t*5mmL");
  CHECK_THAT(refusal(asked), ContainsSubstring("one depth of multi-token prediction, not 2"));
}

TEST_CASE("the nearest layouts that work are named, and work") {
  const auto near = [](const LayoutRequest& asked) { return nearest_layouts(qwen(), asked); };
  // 100 GPUs, TP 2 x PP 8 = 16: 96 and 112 are as near as it gets; with the GPUs that there are
  // first.
  CHECK(near(request(100, 2, 8, 1)) ==
        std::vector<std::string>{"--pipeline-parallel 2", "--gpus 96", "--gpus 112"});
  CHECK(near(request(48, 1, 1, 3)) == std::vector<std::string>{"--expert-parallel 4",
                                                               "--expert-parallel 2",
                                                               "--expert-parallel 8"});
  LayoutRequest asked = request(64, 1, 4, 8);
  asked.micro_batch = 2;
  asked.global_batch = 336;  // 10.5 x 32; 352 is 4.8 % more, 320 5 % less
  CHECK(near(asked).at(0) == "--global-batch 352");
  // Neither alone is enough: 3 divides neither the experts nor, as tensor parallelism, the heads.
  asked = request(48, 3, 1, 3);
  for (const std::string& words : near(asked)) {
    CAPTURE(words);
    CHECK_THAT(words,
               ContainsSubstring("--tensor-parallel") && ContainsSubstring("--expert-parallel"));
  }
  CHECK(near(asked).size() == 3);
  CHECK_THROWS_WITH(check_layout(qwen(), request(48, 1, 1, 3)),
                    ContainsSubstring("; nearest layouts that work: --expert-parallel 4; "));
  CHECK_NOTHROW(check_layout(qwen(), request(256, 2, 8, 32)));
}

TEST_CASE("a switch and a group that can be are among the nearest layouts") {
  LayoutRequest asked = request(16, 2, 1, 1);
  asked.sequence_parallel = false;
  const auto near_switch = nearest_layouts(qwen(), asked, nullptr, 3);
  REQUIRE_FALSE(near_switch.empty());
  CHECK(near_switch.front() == "--sequence-parallel on");
  asked.sequence_parallel = true;
  CHECK(refusal(asked) == "none");

  asked = request(16, 1, 2, 1);
  asked.sizes.virtual_pipeline = 2;
  asked.micro_batch_group = 1;  // of 8 micro-batches
  CHECK_THAT(refusal(asked), ContainsSubstring("--micro-batch-group 1: with --virtual-pipeline 2"));
  const auto near_group = nearest_layouts(qwen(), asked, nullptr, 3);
  REQUIRE_FALSE(near_group.empty());
  CHECK(near_group.front() == "--micro-batch-group 2");
  asked.micro_batch_group = 2;
  CHECK(refusal(asked) == "none");

  asked = request(16, 1, 4, 1);
  asked.sizes.virtual_pipeline = 2;
  asked.global_batch = 8;  // DP 4: 2 micro-batches
  CHECK_THAT(refusal(asked),
             ContainsSubstring("as many micro-batches as --pipeline-parallel 4, not 2"));
}
