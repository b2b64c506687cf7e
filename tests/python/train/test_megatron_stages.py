"""--megatron FILE: uneven pipeline stages, virtual stages and prediction depths."""

import pytest
from command_line import as_json, expect_error, moesim, needs_binary
from megatron_files import KEYS, layout_of, SCRIPT, write, YAML

pytestmark = needs_binary

FIRST_AND_LAST = "--decoder-first-pipeline-num-layers 10 --decoder-last-pipeline-num-layers 10"
COUNTED = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"


@pytest.mark.parametrize("layers, ranks, arguments, layout", [
    (92, 8, FIRST_AND_LAST, "Et*10|(t*12|)*6t*10L"),
    (92, 8, FIRST_AND_LAST + " --num-virtual-stages-per-pipeline-rank 2", "Et*5|(t*6|)*6t*5|t*5|(t*6|)*6t*5L"),
    (92, 8, FIRST_AND_LAST + " --mtp-num-layers 1", "Et*10|(t*12|)*6t*10mL"),
    (58, 4, "--decoder-first-pipeline-num-layers 13", "Et*13|t*15|t*15|t*15L"),
    (61, 4, "--decoder-last-pipeline-num-layers 13", "Et*16|t*16|t*16|t*13L"),
    (20, 2, FIRST_AND_LAST, "Et*10|t*10L"),
    (62, 4, COUNTED, "Et*15|t*16|t*16|t*15L"),
    (46, 4, COUNTED + " --num-layers-per-virtual-pipeline-stage 4", "Ettt|(t*4|)*10tttL"),
    (63, 4, "--account-for-loss-in-pipeline-split", "Et*16|t*16|t*16|t*15L"),
    (61, 8, "--pipeline-model-parallel-layout 'Et*4,|(t*9|)*6,t*3L'", "Et*4|(t*9|)*6tttL"),
])
def test_uneven_stages_are_divided_as_megatron_core_does(tmp_path, layers, ranks, arguments, layout):
    script = (SCRIPT.replace("--num-layers 48", f"--num-layers {layers}").replace("PP=2", f"PP={ranks}")
              .replace("--lr 1e-4", arguments))
    path = write(tmp_path, script)
    assert layout_of(path) == layout
    assert "1 not understood: --warp-drive" in moesim("train", "--megatron", path).stderr


def test_uneven_stages_of_a_yaml_are_those_of_a_script(tmp_path):
    lines = ("  num_layers_in_first_pipeline_stage: 22\n  num_layers_in_last_pipeline_stage: 26\n"
             "  account_for_loss_in_pipeline_split: false\n")
    assert layout_of(write(tmp_path, YAML + lines, "run.yaml"), "--gpus", 64) == "Et*22|t*26L"
    counted = YAML.replace("num-layers: 48", "num-layers: 47") + "  account_for_embedding_in_pipeline_split: true\n"
    assert layout_of(write(tmp_path, counted, "run.yaml"), "--gpus", 64) == "Et*23|t*24L"


@pytest.mark.parametrize("arguments, why", [
    ("--decoder-first-pipeline-num-layers 49", "the model has 48 layers"),
    ("--decoder-first-pipeline-num-layers 9 --decoder-last-pipeline-num-layers 9", "30 of 48 layers are left for 0"),
    ("--decoder-first-pipeline-num-layers 9 --num-virtual-stages-per-pipeline-rank 2", "9 layers of a pipeline rank"),
    ("--decoder-first-pipeline-num-layers 8 --num-layers-per-virtual-pipeline-stage 2",
     "--num-virtual-stages-per-pipeline-rank in its place"),
    ("--decoder-last-pipeline-num-layers 8 --account-for-loss-in-pipeline-split", "not beside --decoder-first"),
    ("--account-for-loss-in-pipeline-split", "49 of 48 layers, embedding or loss are left for 2 pipeline ranks"),
    ("--account-for-loss-in-pipeline-split --pipeline-model-parallel-layout 'Et*24|t*24L'",
     "not beside --pipeline-model-parallel-layout"),
])
def test_stages_that_megatron_refuses_are_refused_with_the_argument(tmp_path, arguments, why):
    script = SCRIPT.replace("--lr 1e-4", arguments)
    expect_error(moesim("train", "--megatron", write(tmp_path, script)), 2, "run.sh:3", why)


def test_typed_sizes_divide_the_layers_anew(tmp_path):
    path = write(tmp_path, SCRIPT.replace("--lr 1e-4", "--decoder-first-pipeline-num-layers 18"))
    assert layout_of(path) == "Et*18|t*30L"
    assert layout_of(path, "--pipeline-parallel", 4) == "Et*18|t*10|t*10|t*10L"
    assert layout_of(path, "--pipeline-parallel", 1) == "Et*48L"
    assert layout_of(path, "--pipeline-layout", "Et*20|t*28L") == "Et*20|t*28L"
    chunks = write(tmp_path, SCRIPT.replace("--lr 1e-4", "--num-virtual-stages-per-pipeline-rank 4"))
    assert as_json("layout", "--megatron", chunks)["virtual_pipeline"] == 4
    assert layout_of(chunks, "--pipeline-layout", "Et*20|t*28L") == "Et*20|t*28L"


def test_multi_token_prediction_is_on_the_last_stage(tmp_path):
    script = SCRIPT.replace("--lr 1e-4", "--mtp-num-layers 1 --lr 1e-4")
    path = write(tmp_path, script)
    by_hand = as_json("train", "--megatron", path, "--pipeline-layout", "Et*24|t*24mL")
    assert as_json("train", "--megatron", path) == by_hand
    without = as_json("train", "--megatron", write(tmp_path, SCRIPT, "less.sh"))
    assert by_hand["step_ms"] > 1.01 * without["step_ms"]


def test_a_layout_as_a_list_of_lists_is_its_text(tmp_path):
    def listed(groups):
        return "  pipeline_model_parallel_layout:\n" + "".join(
            "".join(("  - - " if at == 0 else "    - ") + name + "\n" for at, name in enumerate(group)) for group in groups)

    keys = KEYS.replace("ENV_VARS:\n  CUDA_DEVICE_MAX_CONNECTIONS: 1\n", "") + "  mtp_num_layers: 1\n"
    groups = [["embedding"] + ["decoder"] * 26, ["decoder"] * 22 + ["mtp", "loss"]]
    block = write(tmp_path, keys + listed(groups), "run.yaml")
    assert layout_of(block, "--gpus", 64) == "Et*26|t*22mL"
    inline = "  pipeline_model_parallel_layout: [" + ", ".join(f"[{', '.join(group)}]" for group in groups) + "]\n"
    assert layout_of(write(tmp_path, keys + inline, "run.yaml"), "--gpus", 64) == "Et*26|t*22mL"
    wrong = write(tmp_path, keys + listed([["embedding", "encoder"], ["loss"]]), "run.yaml")
    expect_error(moesim("layout", "--megatron", wrong, "--gpus", 64), 2, "--pipeline-model-parallel-layout: 'encoder': known are")
