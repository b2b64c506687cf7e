"""--model with a config.json of Hugging Face's transformers."""

import json
from pathlib import Path

import pytest
from command_line import as_json, expect_error, moesim, needs_binary, succeed

pytestmark = needs_binary
FOLDER = Path(__file__).resolve().parents[2] / "data" / "hugging_face"
# Their router balances by a bias: for every layer a thousand steps are routed.
BIASED = ("deepseek-v3", "dots.llm1", "ernie-4.5-21b-a3b", "glm-4.5", "glm-4.7-flash", "kimi-k2", "ling-mini-2.0",
          "minimax-m2")
DENSE = ("llama-3-70b", "mistral-7b-v0.1", "qwen2.5-72b", "qwen3-32b")
NAMES = [path.stem for path in sorted(FOLDER.glob("*.json"))]
FEW = ("--gpus", "2", "--expert-parallel", "1", "--sequence-length", "32", "--micro-batch", "1",
       "--replicas", "1", "--format", "json")
STEP = ("--gpus", "8", "--sequence-length", "512", "--micro-batch", "1", "--replicas", "1",
       "--format", "json")


def short(folder, name):
    """A configuration with its dense layers and two more."""
    config = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    dense = [config[key] for key in ("first_k_dense_replace", "moe_layer_start_index") if key in config] or [0]
    assert config["num_hidden_layers"] > dense[0] + 2
    path = folder / f"{name}.json"
    path.write_text(json.dumps(config | {"num_hidden_layers": dense[0] + 2}), encoding="utf-8")
    return path


def test_there_are_configurations():
    assert len(list(FOLDER.glob("*.json"))) >= 29


@pytest.mark.parametrize("name", NAMES)
def test_every_configuration_is_routed_by_its_own_router(tmp_path, name):
    path = FOLDER / f"{name}.json"
    if name in BIASED:
        assert as_json("layout", "--model", path)["model"] == str(path)
        path = short(tmp_path, name)
    if name == "qwen3.5-27b":  # nor to simulate
        expect_error(moesim("simulate", "--model", path, *STEP), 2, "its linear attention is not known to a simulated step")
        return
    if name in DENSE:  # nothing to route
        result = json.loads(succeed("simulate", "--model", str(path), *STEP))
        assert result["router"] == "dense"
        return
    result = json.loads(succeed("route", "--model", str(path), *FEW))
    config = json.loads(path.read_text(encoding="utf-8"))
    config = config.get("ffn_config", config.get("text_config", config))

    def value(*keys):
        found = [config[key] for key in keys if key in config]
        return found[0][0] if isinstance(found[0], list) else found[0]
    assert result["experts"] == value("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    config.setdefault("num_experts_per_tok", 1)  # Switch Transformers'
    assert result["top_k"] == value("moe_k", "moe_topk", "moe_top_k", "num_experts_per_tok")
    assert result["model"] == str(path)


def test_a_checkpoints_folder_stands_for_its_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    expect_error(moesim("train", "--model", folder), 2, f"'{folder}' is a folder without a config.json")
    (folder / "config.json").write_text((FOLDER / "mixtral-8x7b.json").read_text(encoding="utf-8"), encoding="utf-8")
    expected = as_json("train", "--model", folder / "config.json")
    for name in (folder, "checkpoint"):
        assert as_json("train", "--model", name) == expected | {"model": str(name)}
    # A shipped name is that of the shipped document, whatever lies here.
    folder.rename(tmp_path / "qwen3-30b-a3b")
    assert as_json("layout", "--model", "qwen3-30b-a3b") == as_json("layout", "--model", "qwen3-30b-a3b", cwd="/")


def test_linear_attention_is_trained_and_not_simulated():
    path = str(FOLDER / "qwen3-next-80b-a3b.json")
    job = ("--gpus", "64", "--expert-parallel", "16", "--format", "json")
    rows = [json.loads(succeed("train", "--model", model, *job)) for model in ("qwen3-next-80b-a3b", path)]
    assert rows[0] | {"model": ""} == rows[1] | {"model": ""}
    assert "linear attention" in rows[0]["not_measured"]
    assert "; how fast the kernels of linear attention are" in succeed("train", "--model", path, *job[:-2])
    assert "linear attention" not in succeed("train", "--model", "qwen3-30b-a3b", *job[:-2])
    expect_error(moesim("simulate", "--model", path, *STEP), 2,
                 f"--model {path}: its linear attention is not known to a simulated step: use moesim train")
    sweep = moesim("sweep", "--model", path, *STEP[:-2], "--capacity-factor", "1", "--format", "csv")
    assert "its linear attention is not known to a simulated step" in sweep.stdout


def test_linear_attention_over_context_ranks_is_priced():
    job = ("--model", "qwen3-next-80b-a3b", "--cluster", "hgx-h200", "--gpus", 64, "--expert-parallel", 64,
           "--sequence-length", 32768, "--global-batch", 64, "--format", "json")
    rows = {method: json.loads(succeed("train", *job, "--context-parallel", 8, "--context-method", method))
            for method in ("ring", "all-gather")}
    # Linear attention exchanges its heads whatever keys and values do.
    assert 0 < rows["ring"]["context_exchange_ms"] < rows["all-gather"]["context_exchange_ms"]
    alone = json.loads(succeed("train", *job))
    assert rows["ring"]["memory_gib"] < alone["memory_gib"] / 2
    expect_error(moesim("train", *job, "--context-parallel", 8, "--tensor-parallel", 4), 2,
                 "--tensor-parallel 4 x --context-parallel 8 does not divide the 16 key heads of linear attention")


def test_qwen3_5_is_read_from_its_wrapper():
    """Qwen3.5-35B-A3B and -27B: the language models in text_config, with linear attention and a prediction depth."""
    job = ("--gpus", 64, "--sequence-length", 4096)
    for name, layers, more, parameters in (("qwen3.5-35b-a3b", 40, ("--expert-parallel", 16), "34.66 billion, 3.45 billion"),
                                           ("qwen3.5-27b", 64, ("--tensor-parallel", 8), "26.9 billion")):
        path = FOLDER / f"{name}.json"
        plain = moesim("train", "--model", path, *job, *more)
        assert f"note: {path}: without vision_config: the language model alone is counted" in plain.stderr
        assert f"has 1 depth of multi-token prediction, left out here: --pipeline-layout 'Et*{layers}mL'" in plain.stderr
        assert f"parameters   {parameters}" in plain.stdout
        assert "not measured: linear attention" in plain.stdout
        deep = as_json("train", "--model", path, *job, *more, "--pipeline-layout", f"Et*{layers}mL")
        assert deep["step_ms"] > as_json("train", "--model", path, *job, *more)["step_ms"]


def test_a_prediction_depth_of_qwen3_next_is_priced():
    job = ("--model", "qwen3-next-80b-a3b", "--cluster", "hgx-h200", "--gpus", 64, "--expert-parallel", 16, "--format", "json")
    without = json.loads(succeed("train", *job))
    deep = json.loads(succeed("train", *job, "--pipeline-layout", "Et*48mL"))
    assert deep["step_ms"] > without["step_ms"] and deep["memory_gib"] > without["memory_gib"]
    rows = as_json("recommend", *job[:6], "--expert-parallel", 16, "--mtp", 1)
    assert rows


def test_a_trace_with_kernels_of_linear_attention_counts_them_to_attention(tmp_path):
    """One GPU's step: three kernels of flash-linear-attention, one of flash attention; the rest of it waits."""
    names = ("chunk_gated_delta_rule_fwd_kernel_h_blockdim64", "recompute_w_u_fwd_kernel", "chunk_bwd_kernel_dqkwg",
             "void flash_fwd_kernel<Traits>(Params)")
    events = [{"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 1000.0 + 20_000 * place, "dur": 10_000.0,
               "args": {"device": 0, "stream": 7}} for place, name in enumerate(names)]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    job = ("train", "--gpus", 1, "--expert-parallel", 1, "--global-batch", 1, "--measured", trace)
    text = succeed(*job, "--model", "qwen3-next-80b-a3b")
    row = next(line for line in text.splitlines() if line.startswith("attention ") and len(line.split()) == 4)
    assert row.split()[2] == "40.00"
    assert "expected of attention: of linear attention counted FLOPs and bytes at assumed rates" in text
    assert "expected of attention" not in succeed(*job, "--model", "qwen3-30b-a3b")
    expect_error(moesim("explain", "--measured", "1s", "--model", "qwen3-next-80b-a3b"), 2,
                 "which price it (a measured step: moesim train --measured)")


def changed_qwen_next(tmp_path, left_out=(), **keys):
    config = json.loads((FOLDER / "qwen3-next-80b-a3b.json").read_text()) | keys
    path = tmp_path / "config.json"
    path.write_text(json.dumps({key: value for key, value in config.items() if key not in left_out}))
    return path


def test_sizes_of_qwen3_next_that_are_not_there_are_those_of_its_class(tmp_path):
    job = ("--gpus", 64, "--expert-parallel", 16, "--format", "json")
    usual = json.loads(succeed("train", "--model", "qwen3-next-80b-a3b", *job))
    left_out = ("head_dim", "num_key_value_heads", "shared_expert_intermediate_size")
    found = json.loads(succeed("train", "--model", changed_qwen_next(tmp_path, left_out), *job))
    assert {key: value for key, value in found.items() if key != "model"} == {
        key: value for key, value in usual.items() if key != "model"}


def test_qwen3_next_without_linear_attention_is_a_model_with_gates_alone(tmp_path):
    words = ("--gpus", 64, "--expert-parallel", 16)
    text = succeed("train", "--model", changed_qwen_next(tmp_path, full_attention_interval=1), *words)
    assert "linear attention" not in text
    heads = moesim("train", "--model", changed_qwen_next(tmp_path, linear_num_value_heads=30), *words)
    expect_error(heads, 2, "/linear_num_value_heads", "16 key heads do not divide 30 value heads")
    types = ["full_attention"] + 47 * ["linear_attention"]
    mixed = moesim("train", "--model", changed_qwen_next(tmp_path, layer_types=types), *words)
    expect_error(mixed, 2, "layer 1 breaks the pattern that all layers attend fully")


def test_a_configuration_simulates_as_the_shipped_document():
    """Mixtral: the same sizes and router, so the same times."""
    rows = [json.loads(succeed("simulate", "--model", model, *STEP))
            for model in ("mixtral-8x7b", str(FOLDER / "mixtral-8x7b.json"))]
    for key in ("step_ms", "tokens_per_s_per_gpu", "memory_gib", "failed", "router"):
        assert rows[0][key] == rows[1][key]


@pytest.mark.parametrize("model", ["deepseek-v3", FOLDER / "deepseek-v3.json"])
def test_depths_of_multi_token_prediction_are_counted_where_an_option_says_so(model):
    """num_nextn_predict_layers is mtp_depths of a document: neither trains them unasked."""
    step = ("--model", model, "--gpus", 64, "--pipeline-parallel", 1)
    left_out = f"note: {model} has 1 depth of multi-token prediction, left out here: "
    layout = "Et*61mL"
    times = {}
    for command in ("train", "layout"):
        without = moesim(command, *step, "--format", "json")
        assert f"{left_out}--pipeline-layout '{layout}' counts it" in without.stderr
        for stages in (layout, "Et*61L"):
            typed = moesim(command, *step, "--pipeline-layout", stages, "--format", "json")
            assert typed.returncode == 0 and "multi-token" not in typed.stderr
            times[command, stages] = json.loads(typed.stdout)
        times[command, ""] = json.loads(without.stdout)
    assert times["train", ""]["step_ms"] == times["train", "Et*61L"]["step_ms"]
    assert times["train", ""]["step_ms"] < times["train", layout]["step_ms"]
    several = moesim("train", *step, "--zero", "1,2", "--format", "csv")
    assert several.stderr.count(f"{left_out}m in --pipeline-layout counts it") == 1


def test_a_search_says_how_depths_are_counted():
    search = ("recommend", "--model", FOLDER / "glm-4.5.json", "--gpus", 128, "--global-batch", 512,
              "--pipeline-parallel", 8, "--expert-parallel", 16, "--tensor-parallel", 1, "--micro-batch", 1)
    assert "depth of multi-token prediction, left out here: --mtp 1 counts it" in moesim(*search).stderr
    for depths in (0, 1):
        assert "multi-token" not in moesim(*search, "--mtp", depths).stderr
    assert "multi-token" not in moesim("train", "--model", "mixtral-8x7b").stderr


@pytest.mark.slow
def test_another_k_keeps_the_kind_of_router(tmp_path):
    result = json.loads(succeed("route", "--model", short(tmp_path, "deepseek-v3"), "--top-k", "4", *FEW))
    assert result["router"].startswith("bias-balanced") and result["top_k"] == 4


def test_a_vision_tower_is_named_as_left_out():
    """Qwen3-VL-235B: its language model is Qwen3-235B."""
    path = FOLDER / "qwen3-vl-235b-a22b.json"
    line = f"note: {path}: without vision_config: the language model alone is counted"
    step = ("--gpus", 64, "--format", "json")
    seen = moesim("train", "--model", path, *step)
    assert seen.stderr.splitlines().count(line) == 1
    expected = json.loads(succeed("train", "--model", "qwen3-235b-a22b", *step))
    assert json.loads(seen.stdout) == expected | {"model": str(path)}
    for words in (("layout",), ("train", "--zero", "1,2"), ("simulate", "--gpus", 64, "--replicas", 1),
                  ("sweep", "--gpus", "64", "--replicas", 1, "--router", "dropless,topk", "--capacity-factor", 1.25),
                  ("recommend", "--gpus", 256, "--global-batch", 256, "--pipeline-parallel", 2, "--tensor-parallel", 4)):
        assert moesim(*words, "--model", path).stderr.splitlines().count(line) == 1, words
    assert "vision" not in moesim("layout", "--model", "qwen3-235b-a22b").stderr


def test_an_unknown_family_is_refused_by_name(tmp_path):
    config = json.loads((FOLDER / "mixtral-8x7b.json").read_text(encoding="utf-8"))
    config.update(model_type="jamba", architectures=["JambaForCausalLM"])
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    expect_error(moesim("simulate", "--model", path), 2, str(path), "jamba", "JambaForCausalLM",
                 "mixtral", "deepseek_v3", "glm4_moe")


@pytest.mark.parametrize(("command", "changes", "parts"), [
    ("train", {"n_group": 7, "topk_group": 3}, ("/n_group", "256 experts (n_routed_experts)", "7 groups")),
    ("route", {"n_group": 7, "topk_group": 3}, ("/n_group", "7 groups")),
    ("train", {"n_group": 64, "topk_group": 1}, ("/topk_group", "1 of 64 groups (n_group)", "hold 4", "chooses 8"))])
def test_groups_that_do_not_fit_the_experts_are_refused_when_read(command, changes, parts, tmp_path):
    config = json.loads((FOLDER / "deepseek-v3.json").read_text(encoding="utf-8"))
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config, **changes}), encoding="utf-8")
    expect_error(moesim(command, "--model", path), 2, str(path), *parts)
