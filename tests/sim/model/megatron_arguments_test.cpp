#include "sim/model/megatron/megatron_arguments.hpp"

#include <map>
#include <string>

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::model;

namespace {

MegatronArguments of_script(const std::string& text) {
  return MegatronArguments::parse(text, "run.sh");
}

MegatronArguments of_yaml(const std::string& text) {
  return MegatronArguments::parse(text, "run.yaml");
}

}  // namespace

TEST_CASE("megatron arguments: overrides are keys, the last one counts") {
  const auto given = of_script(
      "torchrun train.py --lr 1 model.seq_length=8 +model.num_moe_experts=4 ++a.b.fp8=hybrid "
      "model.moe_layer_freq=[0,1] train.bf16=true ddp.fp16=false ddp.swiglu=True ddp.swiglu=null "
      "model.add_bias_linear=False data.path=/a/b x=4 x/y.z=5");
  CHECK(given.size("seq-length") == 8);
  CHECK(given.size("num-experts") == 4);
  CHECK(given.text("fp8-format") == "hybrid");
  CHECK(given.texts("moe-layer-freq") == std::vector<std::string>{"0", "1"});
  CHECK(given.has("bf16"));
  CHECK_FALSE(given.has("fp16"));
  CHECK_FALSE(given.has("swiglu"));
  CHECK(given.has("disable-bias-linear"));
  CHECK(given.texts("lr") == std::vector<std::string>{"1"});
  CHECK(given.not_asked() == std::vector<std::string>{"path"});
}

TEST_CASE("megatron arguments: values before the script are no overrides") {
  const auto given = of_script("docker run -e a.b=1 --mount x.y=2 i python train.py --bf16");
  CHECK(given.texts("mount") == std::vector<std::string>{"x.y=2", "i", "python", "train.py"});
  CHECK_FALSE(given.has("b"));
}

TEST_CASE("megatron arguments: short options are those of performance scripts alone") {
  const auto given = of_script("python setup_experiment.py -u -tp 2 -vp None -gb 8 --num_gpus 4");
  CHECK(given.size("tensor-model-parallel-size") == 2);
  CHECK_FALSE(given.has("num-virtual-stages-per-pipeline-rank"));
  CHECK(given.size("global-batch-size") == 8);
  CHECK(given.size("gpus") == 4);
  CHECK(given.has("use-distributed-optimizer"));
  CHECK(given.notes().size() == 1);
  const auto other = of_script("python -u train.py --bf16 --lr -1e-4 -tp 2");
  CHECK_FALSE(other.has("tensor-model-parallel-size"));
  CHECK(other.text("lr") == "-1e-4");
  CHECK(other.not_asked() == std::vector<std::string>{"-tp", "bf16"});
  CHECK(other.notes().empty());
  const auto recipe = of_script("torchrun train.py --recipe x model.sequence_parallel=false \"\"");
  CHECK_FALSE(recipe.has("sequence-parallel"));
  CHECK(recipe.has("use-distributed-optimizer"));
  CHECK(of_script("torchrun train.py --recipe x").not_asked() ==
        std::vector<std::string>{"recipe"});
}

TEST_CASE("megatron arguments: a recipe of precision sets what it stands for") {
  const auto given = of_yaml(
      "ddp:\n  grad_reduce_in_fp32: false\nmixed_precision: bf16-with-fp8-current-scaling-mixed\n"
      "model:\n  fp8: null\n  fp8_recipe: delayed\n");
  CHECK(given.text("fp8-format") == "hybrid");
  CHECK(given.text("fp8-recipe") == "tensorwise");
  CHECK(given.has("fp8-param-gather"));
  CHECK_FALSE(given.has("grad-reduce-in-bf16"));
  CHECK(given.not_asked() == std::vector<std::string>{"bf16", "first-last-layers-bf16"});
  const auto none = of_yaml("mixed_precision: bf16_mixed\nmodel:\n  fp8: hybrid\n  bf16: false\n");
  CHECK_FALSE(none.has("fp8-format"));
  CHECK(none.has("bf16"));
  const auto other = of_yaml("mixed_precision: mine\nbf16: true\n");
  CHECK(other.not_asked() == std::vector<std::string>{"bf16", "mixed-precision"});
}

TEST_CASE(
    "megatron arguments: a section of mixed precision is above the model, that above others") {
  const auto given = of_yaml(
      "ddp:\n  fp8_param_gather: true\nmixed_precision:\n  fp8: hybrid\n  fp8_recipe: tensorwise\n"
      "  fp8_param_gather: false\nmodel:\n  fp8: null\n  fp8_recipe: delayed\n  vocab_size: "
      "129280\n"
      "tokenizer:\n  vocab_size: 32000\n");
  CHECK(given.text("fp8-format") == "hybrid");
  CHECK(given.text("fp8-recipe") == "tensorwise");
  CHECK_FALSE(given.has("fp8-param-gather"));
  CHECK(given.size("vocab-size") == 129280);
  CHECK(given.notes().empty());
}

TEST_CASE("megatron arguments: two values of one key are noted") {
  const auto given = of_yaml("a:\n  num_layers: 4\n  lr: 1\nb:\n  num_layers: 8\n  lr: 2\n");
  CHECK(given.size("num-layers") == 8);
  CHECK(given.notes() == std::vector<std::string>{
                             "--num-layers is given twice, as 4 (line 2) and as 8 (line 5): the "
                             "last is taken"});
  CHECK(of_yaml("a:\n  bf16: true\nb:\n  bf16: true\n").notes().empty());
}

TEST_CASE("megatron arguments: sections of another model are left out") {
  const auto given = of_yaml(
      "model:\n  num_layers: 48\n  vision_config:\n    num_layers: 24\n    a:\n      b: 1\n"
      "    list:\n    - 1\n  hidden_size: 8\nencoder:\n  hidden_size: 4\nencoder_seq: 3\n");
  CHECK(given.size("num-layers") == 48);
  CHECK(given.size("hidden-size") == 8);
  CHECK(given.left_out() ==
        std::vector<std::string>{"4 of vision_config (line 3)", "1 of encoder (line 10)"});
  CHECK(given.not_asked() == std::vector<std::string>{"encoder-seq"});
}

TEST_CASE("megatron arguments: objects of Python are the value of their key") {
  const auto given = of_yaml(
      "_target_: x.Y\nexp_avg_dtype:\n  _call_: false\n  _target_: torch.bfloat16\n"
      "main_params_dtype: torch.float32\nattention_backend:\n  _args_:\n  - 5\n  _name_: auto\n"
      "activation_func:\n  _target_: torch.nn.functional.silu\n");
  CHECK(given.text("exp-avg-dtype") == "bf16");
  CHECK(given.text("main-params-dtype") == "fp32");
  CHECK(given.text("attention-backend") == "auto");
  CHECK(given.not_asked().empty());
}

TEST_CASE("megatron arguments: lists go on over lines and in lists") {
  const auto given = of_yaml(
      "freq: [1, 0,  # two\n  1]\nbf16: true\nblock:\n- a\n- 'b'\nlayout:\n  - - e\n    - t\n  - - "
      "l\n"
      "flow: [[e, t], [l]]\n");
  CHECK(given.texts("freq") == std::vector<std::string>{"1", "0", "1"});
  CHECK(given.has("bf16"));
  CHECK(given.texts("block") == std::vector<std::string>{"a", "b"});
  CHECK(given.texts("layout") == std::vector<std::string>{"[e", "t", "[l"});
  CHECK(given.texts("flow") == std::vector<std::string>{"[e", "t]", "[l]"});
}

TEST_CASE("megatron arguments: those of Megatron-DeepSpeed and its defaults") {
  const auto given = of_script(
      "deepspeed train.py --num-experts 8 --num-layers 4 --zero-stage 2 --moe-expert-parallel-size "
      "2");
  CHECK(given.size("expert-model-parallel-size") == 2);
  CHECK(given.size("moe-router-topk") == 1);
  CHECK(given.text("moe-layer-freq") == "[0,1,0,1]");
  CHECK(given.text("moe-expert-capacity-factor") == "1");
  CHECK(given.size("expert-tensor-parallel-size") == 1);
  CHECK(given.drops_as_deepspeed());
  CHECK(given.notes().size() == 1);
  const auto other =
      of_script("torchrun train.py --num-experts 8 --num-layers 4 --expert-interval 4");
  CHECK(other.text("moe-layer-freq") == "[0,0,0,1]");
  CHECK_FALSE(other.has("moe-router-topk"));
  CHECK_FALSE(other.drops_as_deepspeed());
  const auto dense = of_script("deepspeed train.py --num-experts 1 --zero-stage 2");
  CHECK_FALSE(dense.has("num-experts"));
  // What has its counterpart beside it is left.
  CHECK(of_yaml("seq_length: 8\nencoder_seq_length: 4\n").size("seq-length") == 8);
}

TEST_CASE("megatron arguments: keys of NeMo 1 by their place") {
  const auto given = of_yaml(
      "trainer:\n  devices: 8\n  num_nodes: 2\nmodel:\n  activation: geglu\n  bias: true\n"
      "  optim:\n    name: fused_adam\nname: x\n");
  CHECK(given.size("num-gpus") == 8);
  CHECK(given.size("num-nodes") == 2);
  CHECK(given.has("quick-geglu"));
  CHECK_FALSE(given.has("disable-bias-linear"));
  CHECK_FALSE(given.has("use-distributed-optimizer"));
}

TEST_CASE("megatron arguments: fallbacks are of what the environment may have") {
  const auto given = of_script(
      "A=1\nB=\nfunction f() { local E=${1:-5}; }\nf\n"
      "if [[ 1 == 2 ]]; then X=${X:-9}; fi\n"
      "TP=${TP:-2}\nTP=${TP:-8}\n: ${PP:=4}\n"
      "train.py --num-layers ${A:-7} --seq-length ${B:-7} --lr ${C-$TP} --x ${D:+1}\n");
  const std::map<std::string, std::string> expected{{"C", "2"}, {"PP", "4"}, {"TP", "2"}};
  CHECK(given.fallbacks() == expected);
}
