"""`--config FILE` and `--from FILE:ROW` in place of flags."""

import csv
import json

import pytest

from command_line import BINARY, as_json, as_rows, moesim, needs_binary, refused, succeed

pytestmark = needs_binary
HAS_YAML = bool(BINARY) and "yaml-cpp" not in moesim("simulate", "--config", "/dev/null.yaml").stderr
needs_yaml = pytest.mark.skipif(not HAS_YAML, reason="built without yaml-cpp")
SMALL = {"model": "llama2-7b-moe8", "gpus": 8, "replicas": 2, "router": "top2", "capacity-factor": 1.25,
         "sequence_length": 512, "micro-batch": 1, "mode": "prefill"}


def typed(options):
    return [word for key, value in options.items() for word in ("--" + key.replace("_", "-"), value)]


def test_json_is_the_same_as_flags(tmp_path):
    (tmp_path / "s.json").write_text(json.dumps(SMALL))
    expected = succeed("simulate", *typed(SMALL), "--format", "csv")
    assert succeed("simulate", "--config", tmp_path / "s.json", "--format", "csv") == expected
    assert succeed("simulate", "--config", tmp_path / "s.json", "--format", "csv", "--router", "top1") == succeed(
        "simulate", *typed({**SMALL, "router": "top1"}), "--format", "csv")
    (tmp_path / "s.json").write_text(json.dumps({**SMALL, "capacity-factor": [1, "1.5:2:0.5"], "router": ["top1", "top2"]}))
    assert succeed("sweep", "--config", tmp_path / "s.json", "--format", "csv") == succeed(
        "sweep", *typed({**SMALL, "capacity-factor": "1,1.5:2:0.5", "router": "top1,top2"}), "--format", "csv")


@needs_yaml
def test_yaml_is_the_same_as_flags(tmp_path):
    text = "".join(f"{key}: {value}\n" for key, value in SMALL.items())
    (tmp_path / "s.yaml").write_text("# the paper's model\n" + text + "format: csv\n")
    assert succeed("simulate", "--config", tmp_path / "s.yaml") == succeed(
        "simulate", *typed(SMALL), "--format", "csv")
    (tmp_path / "s.yml").write_text(text.replace("router: top2", "router: [top1, top2]\njobs: 1"))
    assert succeed("sweep", "--config", tmp_path / "s.yml") == succeed(
        "sweep", *typed({**SMALL, "router": "top1,top2"}))


@needs_yaml
def test_a_bad_yaml_is_named_by_line(tmp_path):
    file = tmp_path / "s.yaml"
    for text, parts in [("gpus: 8\ngpu_count: 4\n", ["line 2: gpu_count", "'moesim simulate'"]),
                        ("gpus: 8\nexpert: 4\n", ["line 2: expert", "did you mean 'experts'"]),
                        ("gpus: 8\ngpus: 4\n", ["line 2: gpus", "twice"]),
                        ("gpus: {a: 1}\n", ["line 1: gpus", "options are flat"]),
                        ("gpus:\n", ["line 1: gpus"]),
                        ("- gpus\n", ["mapping of options"]),
                        ("gpus: [1\n", ["line 2", "s.yaml"]),
                        ("config: other.yaml\n", ["line 1: config"]),
                        ("gpus: 0\n", ["--gpus"])]:
        file.write_text(text)
        refused("simulate", "--config", file, parts=parts)


def test_a_bad_json_is_named(tmp_path):
    file = tmp_path / "s.json"
    for text, parts in [('{\n "gpus": 8,\n "router_": "top1"\n}', ["s.json, line 3: router_", "did you mean 'router'"]),
                        ('{"gpus": {"n": 8}}', ["line 1: gpus", "flat"]), ("[1]", ["an object of options"]),
                        ('{"gpus": 8,}', ["s.json: line 1"]), ('{"resume": true}', ["line 1: resume"])]:
        file.write_text(text)
        refused("simulate", "--config", file, parts=parts)
    refused("simulate", "--config", tmp_path / "absent.json", parts=["absent.json"])
    (tmp_path / "x.toml").write_text("gpus = 8")
    refused("simulate", "--config", tmp_path / "x.toml", parts=[".yaml, .yml or .json"])


def test_a_list_is_modules_of_one_recomputation_and_values_are_one_text(tmp_path):
    file = tmp_path / "s.json"

    def config(recompute):
        file.write_text('{"model": "qwen3-30b-a3b", "gpus": 64,\n "recompute": ' + json.dumps(recompute) + "}")
        return "--config", file, "--format", "csv"

    typed_words = ("train", "--model", "qwen3-30b-a3b", "--gpus", 64, "--format", "csv", "--recompute")
    assert succeed("train", *config(["layernorm", "moe_act"])) == succeed(*typed_words, "layernorm,moe_act")
    assert succeed("train", *config("none/moe_act")) == succeed(*typed_words, "none/moe_act")
    for values, other in ((["none", "moe_act"], "none"), (["moe_act", "full:block:2"], "full:block:2"),
                          (["moe_act", "layernorm,mlp"], "layernorm,mlp")):
        for command in ("train", "recommend"):
            refused(command, *config(values), parts=["s.json, line 2: recompute", f"'{other}' is no module",
                                                     f'as one text, "{"/".join(values)}"'])


def test_a_json_is_read_as_typed_options_are(tmp_path):
    file = tmp_path / "s.json"
    expected = succeed("simulate", *typed({**SMALL, "tokens-per-gpu": 512}), "--format", "csv")
    file.write_text(json.dumps({**SMALL, "tokens-per-gpu": 0}).replace(": 0}", ": 5.12e2}"))
    assert succeed("simulate", "--config", file, "--format", "csv") == expected
    file.write_text('{"gpus": 8,\n "gpus": 16}')
    refused("simulate", "--config", file, parts=["line 1: gpus", "twice"])
    # The first mention is a value.
    file.write_text('{\n"model": "resume",\n\n"resume": 3}')
    refused("simulate", "--config", file, parts=["line 4: resume"])


def test_switches_and_other_commands(tmp_path):
    (tmp_path / "r.json").write_text(json.dumps(
        {"gpus": 8, "tokens-per-gpu": 256, "replicas": 1, "router": "top2", "losses": True}))
    assert "z-loss" in succeed("route", "--config", tmp_path / "r.json")
    (tmp_path / "p.json").write_text(json.dumps({"profile": "h100-sxm", "op": "gemm", "m": 4096, "n": 4096, "k": 4096}))
    assert succeed("predict", "--config", tmp_path / "p.json") == succeed(
        "predict", "--profile", "h100-sxm", "--op", "gemm", "--m", 4096, "--n", 4096, "--k", 4096)
    job = {"model": "qwen3-30b-a3b", "gpus": 64, "pipeline_parallel": 2}
    (tmp_path / "t.json").write_text(json.dumps(job))
    assert succeed("train", "--config", tmp_path / "t.json") == succeed("train", *typed(job))


def test_a_row_of_a_sweep_is_that_scenario_again(tmp_path):
    out = tmp_path / "sweep.csv"
    succeed("sweep", *typed({**SMALL, "router": "top1,top2+fr+ir,dropless", "capacity-factor": "1,2"}), "--out", out)
    rows = list(csv.DictReader(out.open()))
    for number, row in enumerate(rows, 1):
        again = as_rows("simulate", "--from", f"{out}:{number}")[0]
        assert again == row
    other = as_json("simulate", "--from", f"{out}:1", "--capacity-factor", "1.5", "--micro-batch", 2)
    assert (other["router"], other["capacity_factor"], other["tokens_per_gpu"]) == ("top1", 1.5, 1024)
    other = as_json("simulate", "--from", f"{out}:1", "--router", "top2")
    assert (other["router"], other["gpus"]) == ("top2", 8)
    routed = as_json("route", "--from", f"{out}:1")
    assert routed["failed"] == pytest.approx(float(rows[0]["failed"]))
    refused("simulate", "--from", f"{out}:99", parts=["no row 99", f"{len(rows)} rows"])
    refused("simulate", "--from", f"{out}:0", parts=["no row 0"])
    refused("simulate", "--from", out, parts=["FILE:ROW"])
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    refused("simulate", "--from", f"{tmp_path / 'x.csv'}:1", parts=["no column"])


def test_what_followed_from_a_replaced_option_is_left_out(tmp_path):
    out = tmp_path / "sweep.csv"
    succeed("sweep", *typed({**SMALL, "router": "top1", "capacity-factor": "1,2", "mode": "train"}), "--out", out)

    def simulated(number, *words):
        return as_json("simulate", "--from", f"{out}:{number}", *words)

    # The row's 8 sequences were those of 8 GPUs; its capacity factor 1 is what top-1 needs, 2 is typed.
    assert simulated(1, "--gpus", 16)["global_batch"] == 16
    assert simulated(1, "--gpus", 16, "--global-batch", 32)["global_batch"] == 32
    assert simulated(1, "--router", "top2")["capacity_factor"] == 2
    assert simulated(2, "--router", "top4", "--top-k", 4)["capacity_factor"] == 2
    succeed("sweep", *typed({**SMALL, "global-batch": 32, "mode": "train"}), "--out", out)
    assert simulated(1, "--gpus", 16)["global_batch"] == 32


def test_decoding_is_said_not_to_be_modelled():
    refused("simulate", "--mode", "decode", parts=["decode is not modelled", "train, prefill"])
    refused("sweep", "--mode", "prefill,decode", parts=["decode is not modelled"])
    refused("simulate", "--mode", "prefil", parts=["did you mean 'prefill'"])


def test_what_a_row_sets_beyond_the_command_is_named(tmp_path):
    steps = tmp_path / "steps.csv"
    succeed("train", "--model", "qwen3-30b-a3b", "--gpus", 64, "--expert-parallel", 8, "--pipeline-parallel", 2,
            "--micro-batch", "1,2", "--global-batch", 128, "--out", steps)
    result = moesim("route", "--from", f"{steps}:2", "--replicas", 1)
    assert result.returncode == 0
    note, = [line for line in result.stderr.splitlines() if "--from" in line]
    assert "no option for these of the row" in note and "--pipeline-parallel 2" in note
    assert "--from" not in moesim("train", "--from", f"{steps}:2").stderr
    sweep = tmp_path / "sweep.csv"
    words = ("--model", "llama2-7b-moe8", "--gpus", 8, "--router", "top2", "--replicas", 1, "--mode", "prefill")
    succeed("sweep", *words, "--out", sweep)
    # Nobody typed the row's options without effect.
    assert "has no effect" not in moesim("simulate", "--from", f"{sweep}:1").stderr
    assert "--weights has no effect" in moesim("simulate", "--from", f"{sweep}:1", "--weights", "raw").stderr


def test_options_of_a_row_without_effect_are_no_news(tmp_path):
    path = tmp_path / "own.csv"
    # The row has the groups of micro-batches of the interleaved schedule too, and what IR does.
    succeed("train", "--model", "mixtral-8x7b", "--gpus", 32, "--global-batch", 64, "--pipeline-parallel", 2,
            "--expert-parallel", 8, "--router", "topk+ir", "--capacity-factor", 1, "--ir-duplicates", "exclude",
            "--format", "csv", "--out", path)
    few = ("--tensor-parallel", 1, "--expert-parallel", 8, "--virtual-pipeline", 1, "--context-parallel", 1)
    for words in (("train",), ("train", "--router", "topk"), ("recommend", *few), ("recommend", *few, "--router", "topk")):
        result = moesim(*words, "--from", f"{path}:1")
        assert result.returncode == 0 and "no effect" not in result.stderr, result.stderr
    for words, option in ((("--micro-batch-group", 4), "micro-batch-group"),
                          (("--router", "topk", "--ir-duplicates", "exclude"), "ir-duplicates")):
        result = moesim("train", "--from", f"{path}:1", *words)
        assert result.returncode == 0 and f"note: --{option} has no effect" in result.stderr
        assert result.stderr.count("no effect") == 1


def test_a_refused_row_is_refused_again_for_the_same_reason(tmp_path):
    rows = tmp_path / "rows.csv"
    scenario = ("--model", "gpt-l16-h2560-moe16", "--gpus", 8, "--sequence-length", 256, "--micro-batch", 1,
                "--replicas", 2, "--jobs", 1)
    succeed("sweep", *scenario, "--dedup", "gpu,none", "--out", rows)
    refused("simulate", "--from", f"{rows}:1", parts=["--dedup gpu", "router top2"])
    succeed("simulate", "--from", f"{rows}:2")


def test_a_refused_row_leaves_out_what_neither_applies_nor_is_the_reason(tmp_path):
    rows = tmp_path / "rows.csv"
    succeed("sweep", "--model", "gpt-l16-h2560-moe16", "--gpus", 8, "--sequence-length", 256, "--micro-batch", 1,
            "--replicas", 2, "--router", "dropless", "--capacity-factor", "1,2", "--expert-parallel", "3,8", "--out", rows)
    found = list(csv.DictReader(rows.open()))
    assert [row["status"] for row in found] == ["refused", "ok"]
    assert "--expert-parallel" in found[0]["reason"]
    assert [row["capacity_factor"] for row in found] == ["", ""]
