"""Bad options and names: one clear error, the right exit code, an empty stdout."""

import json

import pytest
from command_line import expect_error, moesim, needs_binary, SMALL, succeed

pytestmark = needs_binary

BAD_OPTIONS = [
    (["--capacity-facter", "1"], ["--capacity-facter", "did you mean '--capacity-factor'?"]),
    (["--modle", "mixtral-8x7b"], ["did you mean '--model'?"]),  # two letters swapped, not --mode
    (["--capacity-factor", "1e9"], ["has more than 9 digits before or after the point"]),
    (["--capacity-factor", "1e"], ["not a non-negative decimal number such as 1.25, below 1000000000"]),
    (["--router", "dropless", "--dispatcher", "DeepEP"], ["did you mean 'deepep'?", "also all-to-all"]),
    (["--capacity-facter=1"], ["did you mean '--capacity-factor'?"]),
    (["--capacity"], ["unknown option --capacity"]),  # no guessing of shortened names
    (["-g", "8"], ["unknown option -g"]),
    (["stray"], ["unexpected argument 'stray'"]),
    (["--gpus"], ["--gpus"]),
    (["--gpus", "--experts", "8"], ["--gpus: the value is missing"]),
    (["--gpus="], ["--gpus"]),
    (["--gpus", ""], ["--gpus"]),
    (["--gpus", "0"], ["--gpus: 0 is too small"]),
    (["--gpus", "-8"], ["--gpus: -8 is too small"]),
    (["--gpus", "eight"], ["--gpus: 'eight' is not a whole number"]),
    (["--gpus", "8.5"], ["--gpus: '8.5' is not a whole number"]),
    (["--gpus", "99999999999999999999"], ["--gpus", "too large"]),
    (["--seed", "-1"], ["--seed: -1 is too small"]),
    (["--replicas", "0"], ["--replicas: 0 is too small"]),
    (["--jobs", "0"], ["--jobs: 0 is too small"]),
    (["--jobs", "-2"], ["--jobs: -2 is too small"]),
    (["--zero", "4"], ["--zero: 4 is too large"]),
    (["--capacity-factor", "0"], ["--capacity-factor: 0"]),
    (["--capacity-factor", "-1"], ["--capacity-factor: -1 is negative"]),
    (["--capacity-factor", "abc"], ["--capacity-factor: 'abc'"]),
    (["--capacity-factor", "nan"], ["--capacity-factor: 'nan'"]),
    (["--capacity-factor", "1,2"], ["--capacity-factor", "moesim sweep"]),
    (["--experts", "12", "--expert-parallel", "8"], ["12 experts", "use one of 1, 2, 4"]),
    (["--experts", "9", "--expert-parallel", "8"], ["9 experts", "over 8 GPUs: use 1"]),
    (["--gpus", "12", "--expert-parallel", "8"], ["--gpus: 12"]),
    (["--router", "top9"], ["top9", "9 experts per token, but there are 8"]),
    (["--router", "top8+fr"], ["fill-in"]),
    (["--router", "top3+zz"], ["top3+zz"]),
    (["--router", "top2", "--top-k", "4"], ["--top-k"]),
    (["--router", "topk", "--top-k", "9"], ["9 experts per token, but there are 8"]),
    (["--expert-placement", "balanced"], ["--expert-placement 'balanced'", "balanced:FILE"]),
    (["--expert-placement", "balanced:"], ["--expert-placement 'balanced:'", "name a CSV"]),
    (["--expert-placement", "balanced:/nonexistent"],
     ["--expert-placement 'balanced:/nonexistent': /nonexistent: cannot read", "balanced:FILE takes"]),
    (["--mode", "prefil"], ["--mode", "did you mean 'prefill'?"]),
    (["--dispatch", "scatter"], ["--dispatch", "index, einsum"]),
    (["--priority", "fifo"], ["--priority"]),
    (["--routing", "uniform"], ["--routing", "gaussian"]),
    *[(["--routing", f"{kind}:/nonexistent/file"],
       [f"--routing '{kind}:/nonexistent/file'", "cannot read", f"{kind}:FILE takes {is_a}"])
      for kind, is_a in (("counts", "a CSV"), ("scores", "a model"), ("trace", "recorded routing"))],
    (["--format", "yaml"], ["--format", "table, csv, json"]),
    (["--profile", "a100-sxm-80"], ["--profile: unknown profile", "did you mean 'a100-sxm-80gb'?", "h100-sxm"]),
    (["--model", "nosuch"], ["--model: unknown model", "llama2-7b-moe8", "mixtral-8x7b"]),
    (["--model", "Qwen/Qwen3-30B-A3B"], ["--model: unknown model 'Qwen/Qwen3-30B-A3B'", "config.json", "the shipped 'qwen3-30b-a3b'"]),
    (["--model", "mistralai/Mixtral-8x7B-Instruct-v0.1"], ["config.json", "the shipped 'mixtral-8x7b'"]),
    (["--cluster", "nosuch"], ["--cluster: unknown cluster", "dgx-a100"]),
    (["--cluster", "GB200_NVL72"], ["did you mean 'gb200-nvl72'?"]),
    (["--router", "dropless", "--dispatcher", "deep-ep"], ["--dispatcher: unknown dispatcher", "did you mean 'deepep'?"]),
    (["--model", "deepseek-v3", "--experts", "250"],
     ["250 experts do not divide into 8 groups", "choose a number of groups that divides 250, or change --experts to 248 or 256"]),
    (["--jitter", "10%"], ["--jitter: '10%' is not a non-negative decimal number", "10% is 0.1"]),
    (["--jitter", "-5%"], ["--jitter: '-5%' is not a non-negative decimal number such as 1.25"]),
    (["--jitter", "-0.1"], ["--jitter: -0.1 is out of range: give 0 to"]),
    (["--jitter", "ten%"], ["--jitter: 'ten%' is not a non-negative decimal number such as 1.25"]),
    (["--profile", "/nonexistent.json"], ["--profile: /nonexistent.json: cannot read"]),
    (["--expert-bias", "/nonexistent.csv", "--router", "bias-balanced"],
     ["--expert-bias: /nonexistent.csv: cannot read"]),
    (["--global-batch", "100"], ["--global-batch: 100", "take 256 at a time: choose 256"]),
    (["--global-batch", "1000"], ["--global-batch: 1000", "take 256 at a time: choose 768 or 1024"]),
    (["--global-batch", "960"], ["choose 768 or 1024, or --micro-batch 6"]),
    (["--tokens-per-gpu", "1000"], ["--tokens-per-gpu"]),
    (["--resume"], ["unknown option --resume: ", "moesim profile, sweep and train have it, simulate does not"]),
    (["--tp", "2"], ["--tp (--tensor-parallel)", "train", "have it"]),
    (["--pp", "2"], ["--pp (--pipeline-parallel)", "moesim layout"]),
    (["--ep", "8"], ["unknown option --ep", "did you mean '--expert-parallel'?"]),
    (["--dtype", "fp8"], ["--dtype (--precision)", "train", "have it"]),
    (["--gpu", "8"], ["unknown option --gpu (did you mean '--gpus'?)"]),
    (["--gpu=8"], ["unknown option --gpu (did you mean '--gpus'?)"]),
    (["--gpu", "h100-sxm"], ["unknown option --gpu (did you mean '--profile'?)"]),
    (["--seq-len", "4096"], ["did you mean '--sequence-length'?"]),
    (["--gpus", "1.5e0"], ["--gpus: '1.5e0' is not a whole number"]),
    (["--gpus", "1e99"], ["--gpus: 1", "too large"]),
]


@pytest.mark.parametrize(("options", "parts"), BAD_OPTIONS, ids=lambda value: " ".join(value))
def test_bad_option(options, parts):
    expect_error(moesim("simulate", *options), 2, *parts)


def test_a_sweep_of_costs_is_one_of_train():
    expect_error(moesim("sweep", "--gpu-hour-price", "2"), 2, "--gpu-hour-price: moesim train",
                 "sweep does not; moesim train takes lists and ranges as well")


@pytest.mark.parametrize(("words", "start"), [
    (["sweep", "--model", "llama2-7b,nosuch"], "--model: unknown model 'nosuch'"),
    (["train", "--gpus", "8", "--model", "qwen3-30b-a3b", "--dispatcher", "nosuch"], "--dispatcher: unknown dispatcher"),
    (["train", "--gpus", "8", "--model", "qwen3-30b-a3b,nosuch"], "--model: unknown model 'nosuch'"),
    (["train", "--gpus", "8", "--model", "qwen3-30b-a3b", "--profile", "h100-sxm,nosuch"], "--profile: unknown profile 'nosuch'"),
    (["recommend", "--gpus", "8", "--model", "qwen3-30b-a3b", "--dispatcher", "deepep,nosuch"],
     "--dispatcher: unknown dispatcher 'nosuch'"),
    (["layout", "--gpus", "8", "--model", "nosuch"], "--model: unknown model"),
    (["predict", "--op", "all-to-all", "--gpus", "8", "--bytes", "1MB", "--profile", "nosuch"], "--profile: unknown profile"),
    (["simulate", "--model", "nosuch", "--profile", "nosuch"], "unknown "),  # of two flags either
    (["plot", "nosuch"], "unknown profile")])
def test_an_unknown_name_is_answered_with_its_flag(words, start):
    result = moesim(*words)
    assert result.returncode == 2 and result.stderr.startswith(f"moesim: error: {start}"), result.stderr


@pytest.mark.parametrize("command", ["train", "layout"])
@pytest.mark.parametrize(("typed", "meant"), [
    ("--tp", "--tensor-parallel"), ("--ep", "--expert-parallel"), ("--pp", "--pipeline-parallel"),
    ("--dtype", "--precision"), ("--gbs", "--global-batch"), ("--etp", "--expert-tensor-parallel")])
def test_short_names_are_answered_with_the_name_meant(command, typed, meant):
    expect_error(moesim(command, typed, "2"), 2, f"unknown option {typed}", f"did you mean '{meant}'?")


@pytest.mark.parametrize("typed, meant", [("H200", "h200-sxm"), ("h100", "h100-sxm"), ("A100", "a100-sxm-80gb")])
def test_a_name_that_is_cut_short_is_recognised(typed, meant):
    expect_error(moesim("simulate", "--profile", typed), 2, f"did you mean '{meant}'?")


@pytest.mark.parametrize("words", [("simulate", "--router", "dense", "--gpus", "8", "--replicas", "1", "--mode",
                                    "prefill", "--tokens-per-gpu", "4.096e3", "--format", "json")])
def test_whole_numbers_may_have_an_exponent(words):
    result = moesim(*words)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["tokens_per_gpu"] == 4096


def test_a_refused_row_has_the_number_of_an_exponent(tmp_path):
    out = tmp_path / "rows.csv"
    result = moesim("sweep", "--gpus", "1.2e1,8", "--expert-parallel", "8", "--replicas", "1", "--mode", "prefill",
                    "--sequence-length", "1:2e2:1e2", "--micro-batch", "1", "--out", out)
    assert result.returncode == 0, result.stderr
    lines = out.read_text().splitlines()
    at = lines[0].split(",").index("status")
    assert [line.split(",")[at] for line in lines[1:]].count("refused") == 2


def test_the_program_without_a_command_shows_how_it_is_used():
    result = moesim()
    assert result.returncode == 2 and not result.stdout and "Usage:" in result.stderr


def test_unknown_command():
    expect_error(moesim("simulat"), 2, "unknown command 'simulat'", "did you mean 'simulate'?")
    expect_error(moesim("--simulate"), 2, "--simulate")
    expect_error(moesim("help", "nosuch"), 2, "nosuch")


def test_a_study_that_is_none_is_named():
    expect_error(moesim("validate", "speed"), 2, "'speed' (did you mean 'speeds'?): give speeds, layer, ")


def test_a_layout_is_not_explained_but_by_train():
    result = moesim("explain", "--measured", "1s", "--tensor-parallel", 2)
    expect_error(result, 2, "unknown option --tensor-parallel: ", "explain does not; of training steps with layouts: "
                 "moesim train --measured")
    assert "did you mean" not in result.stderr


@pytest.mark.parametrize("words, flag", [(("--format", "csv"), "format"), (("--out", "t.csv"), "out")])
def test_a_measured_step_is_compared_in_a_table(words, flag, tmp_path):
    expect_error(moesim("train", "--measured", "12.7s", *words, cwd=tmp_path), 2, f"leave --{flag} out")


def test_bad_operation():
    expect_error(moesim("predict"), 2, "--op")
    expect_error(moesim("predict", "--op", "gem"), 2, "did you mean 'gemm'?", "all-to-all")
    expect_error(moesim("predict", "--op", "gemm", "--m", "64", "--n", "64"), 2, "k is missing")
    expect_error(moesim("predict", "--op", "gemm", "--m", "64", "--n", "64", "--k", "0"), 2, "--k")
    expect_error(moesim("predict", "--op", "gemm", "--m", "64", "--n", "64", "--k", "64", "--gpus",
                        "8"), 2, "gpus")
    expect_error(moesim("predict", "--op", "all-to-all", "--gpus", "8", "--bytes", "-1"), 2,
                 "--bytes")
    expect_error(moesim("predict", "--in", "/nonexistent.csv"), 2, "/nonexistent.csv")


def test_a_command_for_one_operation_says_where_several_go():
    expect_error(moesim("predict", "--op", "all-to-all", "--gpus", 8, "--bytes", "64MiB,64MB"), 2,
                 "--bytes: '64MiB,64MB': an operation takes one value", "--in FILE")
    expect_error(moesim("predict", "--op", "all-to-all", "--gpus", "8,16", "--bytes", "64MiB"), 2,
                 "--gpus: '8,16': an operation takes one value", "--in FILE")


@pytest.mark.parametrize("command", ["train", "layout"])
def test_prediction_depths_of_recommend_are_letters_of_a_layout_elsewhere(command):
    expect_error(moesim(command, "--model", "deepseek-v3", "--mtp", 1), 2, "unknown option --mtp: moesim recommend has it",
                 "m in --pipeline-layout, such as 'Et*30|t*31mL'")
    words = ("--gpus", 64, "--pipeline-parallel", 2, "--expert-parallel", 32)
    succeed(command, "--model", "deepseek-v3", *words, "--pipeline-layout", "Et*30|t*31mL")
    assert "--pipeline-layout, such as" not in moesim("simulate", "--mtp", 1).stderr


def test_a_sweep_of_refused_scenarios_alone_has_failed(tmp_path):
    out = tmp_path / "x.csv"
    refused = ("--gpus", "12", "--expert-parallel", "8")
    result = moesim("sweep", *refused, "--out", out)
    assert result.returncode == 1
    assert "1 of 1" in result.stderr and "multiple of 8" in result.stderr
    assert "refused" in out.read_text()
    assert moesim("sweep", "--gpus", "8,12", *SMALL[2:], "--out", out).returncode == 0


def test_what_does_not_fit_says_what_would():
    result = moesim("simulate", *SMALL[2:-2], "--gpus", "8", "--replicas", "1", "--model",
                    "mixtral-8x7b", "--profile", "h100-sxm", "--zero", "0")
    assert result.returncode == 0
    assert "do not fit the 80 GiB of h100-sxm" in result.stderr
    assert "per GPU, DOES NOT FIT the 80 GiB of h100-sxm" in result.stdout
    # What is on already is not proposed, and every proposal says what it would give.
    assert "--zero 0" not in result.stderr and "--zero 3 (" in result.stderr


def test_a_smaller_micro_batch_that_fits_is_of_the_same_step():
    words = ("simulate", "--gpus", 8, "--replicas", 1, "--format", "json")
    result = moesim(*words)
    for batch in (1, 2):  # 8 sequences on each of 8 GPUs
        assert f"--micro-batch {batch} --global-batch 64 (" in result.stderr
        hinted = json.loads(succeed(*words, "--micro-batch", batch, "--global-batch", 64))
        assert hinted["fits_memory"] and hinted["global_batch"] == json.loads(result.stdout)["global_batch"]
    given = moesim(*words, "--global-batch", 128).stderr
    assert "--micro-batch 2 (" in given
    assert "--micro-batch 24 (" in moesim(*words, "--mode", "prefill", "--micro-batch", 48, "--fidelity", "counts").stderr
