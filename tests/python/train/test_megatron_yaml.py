"""--megatron FILE: keys and values of a YAML."""

import pytest
from command_line import as_json, moesim, needs_binary
from megatron_files import KEYS, of_keys, write, YAML

pytestmark = needs_binary


def test_keys_of_a_transformer_config_are_its_arguments(tmp_path):
    """As Megatron-LM's --yaml-cfg, Megatron-Bridge and NeMo name them."""
    arguments = YAML.replace("  --", "  ")
    keys = (arguments.replace("num-experts:", "num_moe_experts:").replace("swiglu: true", "gated_linear_unit: true")
            .replace("  group-query-attention: true\n", ""))
    keys += "  fp8: hybrid\n  fp8_recipe: tensorwise\n  add_bias_linear: False\n  share_embeddings_and_output_weights: False\n"
    assert "num_moe_experts" in keys and "gated_linear_unit" in keys and "group-query-attention" not in keys
    by_arguments = YAML + "  --fp8-format: hybrid\n  --fp8-recipe: tensorwise\n  --disable-bias-linear: true\n" \
                          "  --untie-embeddings-and-output-weights: true\n"
    assert as_json("train", "--megatron", write(tmp_path, keys, "run.yaml"), "--gpus", 64) == \
        as_json("train", "--megatron", write(tmp_path, by_arguments, "run.yaml"), "--gpus", 64)
    assert as_json("train", "--megatron", write(tmp_path, keys, "run.yaml"), "--gpus", 64)["precision"] == "fp8-current"


@pytest.mark.parametrize("yes, no", [
    ("true", "false"), ("TRUE", "FALSE"), ("True", "False"), ("yes", "no"), ("YES", "NO"), ("Yes", "No"), ("on", "off"),
    ("ON", "OFF"), ("On", "Off"), ("true", "~"), ("true", "null"), ("true", "NULL"), ("true", "None"),
])
def test_booleans_of_a_yaml_are_those_of_pyyaml(tmp_path, yes, no):
    text = YAML.replace(": true", f": {yes}").replace(": null", f": {no}")
    text += f"  --overlap-moe-expert-parallel-comm: {no}  # not\n  add_bias_linear: {no}\n  --fp8-output-proj: {no}\n"
    path = write(tmp_path, text, "run.yaml")
    assert as_json("train", "--megatron", path, "--gpus", 64) == \
        as_json("train", "--megatron", write(tmp_path, YAML, "run.yaml"), "--gpus", 64)
    off = write(tmp_path, text.replace(f"use-distributed-optimizer: {yes}", f"use-distributed-optimizer: {no}"), "off.yaml")
    assert as_json("train", "--megatron", off, "--gpus", 64)["zero"] == 0


@pytest.mark.parametrize("value", ["'no'", '"off"', "nO", "y", "n", "offs"])
def test_other_values_of_a_yaml_are_no_booleans(tmp_path, value):
    path = write(tmp_path, YAML.replace("--fp8-format: null", f"--fp8-format: {value}"), "run.yaml")
    assert as_json("train", "--megatron", path, "--gpus", 64)["precision"] == "fp8-delayed"


def test_a_key_without_a_value_is_not_set(tmp_path):
    blank = write(tmp_path, YAML.replace("--", "").replace("fp8-format: null", "fp8_format:"), "blank.yaml")
    assert as_json("train", "--megatron", blank, "--gpus", 64)["precision"] == "bf16"


def test_a_key_with_two_values_is_noted(tmp_path):
    read, said = of_keys(tmp_path, KEYS.replace("model:", "a:") + "b:\n  num_layers: 24\n")
    assert "--num-layers is given twice, as 48 (line 6) and as 24 (line " in said
    assert read["step_ms"] < 0.7 * of_keys(tmp_path, KEYS)[0]["step_ms"]
    assert "given twice" not in of_keys(tmp_path, KEYS + "tokenizer:\n  vocab_size: 32000\n")[1]


def test_the_model_of_a_file_with_a_vision_tower_is_the_language_model(tmp_path):
    tower = "vision_config:\n  num_layers: 24\n  hidden_size: 1152\n  num_attention_heads: 16\n"
    read, said = of_keys(tmp_path, KEYS + tower)
    assert read == of_keys(tmp_path, KEYS)[0]
    assert "arguments left out: 3 of vision_config (line " in said


NEMO = """
name: megatron_gpt
trainer:
  devices: 8
  num_nodes: 4
  precision: bf16
model:
  mcore_gpt: True
  micro_batch_size: 1
  global_batch_size: 256
  tensor_model_parallel_size: 2
  sequence_parallel: True
  encoder_seq_length: 4096
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 14336
  num_attention_heads: 32
  num_query_groups: 8
  bias: false
  activation: fast-swiglu
  share_embeddings_and_output_weights: False
  activations_checkpoint_granularity: full
  activations_checkpoint_method: block
  activations_checkpoint_num_layers: 3
  vocab_size: 32000
  optim:
    name: distributed_fused_adam
"""


def test_keys_of_nemo_1_have_counterparts(tmp_path):
    words = ("torchrun --nproc-per-node 8 --nnodes 4 pretrain.py --micro-batch-size 1 --global-batch-size 256 --sequence-parallel "
             "--tensor-model-parallel-size 2 --seq-length 4096 --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 "
             "--num-attention-heads 32 --group-query-attention --num-query-groups 8 --disable-bias-linear --swiglu "
             "--untie-embeddings-and-output-weights --recompute-granularity full --recompute-method block "
             "--recompute-num-layers 3 --vocab-size 32000 --use-distributed-optimizer --bf16\n")
    read = as_json("train", "--megatron", write(tmp_path, NEMO, "run.yaml"))
    typed = as_json("train", "--megatron", write(tmp_path, words))
    assert read == {**typed, "model": read["model"]}
    assert (read["gpus"], read["zero"]) == (32, 1)
    half = write(tmp_path, NEMO.replace("precision: bf16", "precision: 16-mixed"), "run.yaml")
    assert "--fp16 is priced as --bf16" in moesim("train", "--megatron", half).stderr


def test_a_reference_to_the_key_beside_it(tmp_path):
    """As OmegaConf has it: ${.width} is of the section of the key that has it."""
    text = KEYS.replace("  hidden-size: 2048", "  width: 2048\n  hidden-size: ${.width}")
    assert "${.width}" in text
    given, _ = of_keys(tmp_path, KEYS)
    assert of_keys(tmp_path, "other:\n  width: 4096\n" + text)[0] == given
    # By its full name from elsewhere.
    data = KEYS.replace("  seq-length: 4096\n", "") + "data:\n  seq-length: ${model.long}\n"
    assert of_keys(tmp_path, data.replace("  swiglu", "  long: 4096\n  swiglu").replace("  gated", "  long: 4096\n  gated"))[0] == given
