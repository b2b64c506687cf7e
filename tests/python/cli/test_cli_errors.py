"""Bad input: one clear error, the right exit code, an empty stdout and nothing half-written."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from command_line import BINARY, expect_error, moesim, needs_binary, SMALL, succeed

pytestmark = needs_binary
PROFILES = Path(__file__).resolve().parents[3] / "profiles"


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
    (["--seq-len", "4096"], ["did you mean '--sequence-length'?"]),
    (["--gpus", "1.5e0"], ["--gpus: '1.5e0' is not a whole number"]),
    (["--gpus", "1e99"], ["--gpus: 1", "too large"]),
]


def test_a_sweep_of_layouts_is_one_of_train():
    expect_error(moesim("sweep", "--tensor-parallel", "1,2"), 2, "--tensor-parallel: moesim layout, train",
                 "sweep does not; moesim train takes lists and ranges as well")


@pytest.mark.parametrize(("options", "parts"), BAD_OPTIONS, ids=lambda value: " ".join(value))
def test_bad_option(options, parts):
    expect_error(moesim("simulate", *options), 2, *parts)


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


@pytest.mark.parametrize(("name", "content", "parts"), [
    ("notes.txt", "hello", ["a chart takes the CSV of a sweep", "of validate or of explain with traces",
                            "a profile"]),
    ("routes.json", '[{"router": "top2", "failed": 0}, {"router": "top2", "failed": 0}]',
     ["the JSON of moesim route of several scenarios (2)", "route one value of each option"]),
    ("steps.json", '[{"router": "top2", "step_ms": 1}]', ["the JSON of steps", "--out FILE.csv"]),
    ("numbers.json", "[1, 2]", ["neither the JSON of moesim route"]),
    ("data.json", "{}", ["neither the JSON of moesim route", "a chart takes"]),
    ("simulated.json", '{"step_ms": 1}', ["the JSON of steps", "--out FILE.csv"]),
    ("explained.json", '{"simulated_ms": 1, "measured_ms": 1, "multiplier": 1, "terms": []}',
     ["moesim explain of a step's time alone", "give explain traces"]),
    ("predicted.json", '[{"op": "gemm", "time_us": 1}]', ["moesim predict", "moesim plot h100-sxm"]),
    ("layout.json", '{"gpus": 8, "pipeline_parallel": 1, "data_parallel": 8}', ["moesim layout", "--timeline FILE"]),
    ("options.json", '{"options": [], "columns": []}', ["moesim options"]),
    ("cluster.json", '{"format": "moesim cluster 2"}', ["a document 'moesim cluster 2'", "a profile"]),
    ("counts.csv", "a,b\n1,2\n", ["a chart takes the CSV of moesim sweep"])])
def test_plot_of_a_wrong_file_says_what_it_takes(tmp_path, name, content, parts):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    (tmp_path / name).write_text(content)
    expect_error(moesim("plot", tmp_path / name, cwd=tmp_path), 2, name, *parts)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_plot_of_no_file_says_so(tmp_path):
    expect_error(moesim("plot", "nosuch.csv", cwd=tmp_path), 2, "nosuch.csv")
    expect_error(moesim("plot", "nosuch.json", cwd=tmp_path), 2, "nosuch.json", "no such file")
    expect_error(moesim("plot", "nosuch", cwd=tmp_path), 2, "unknown profile 'nosuch'")


def test_the_program_without_a_command_shows_how_it_is_used():
    result = moesim()
    assert result.returncode == 2 and not result.stdout and "Usage:" in result.stderr


def test_a_layout_is_not_explained_but_by_train():
    result = moesim("explain", "--measured", "1s", "--tensor-parallel", 2)
    expect_error(result, 2, "unknown option --tensor-parallel: ", "explain does not; of training steps with layouts: "
                 "moesim train --measured")
    assert "did you mean" not in result.stderr


@pytest.mark.parametrize("words, flag", [(("--format", "csv"), "format"), (("--out", "t.csv"), "out")])
def test_a_measured_step_is_compared_in_a_table(words, flag, tmp_path):
    expect_error(moesim("train", "--measured", "12.7s", *words, cwd=tmp_path), 2, f"leave --{flag} out")


def test_unknown_command():
    expect_error(moesim("simulat"), 2, "unknown command 'simulat'", "did you mean 'simulate'?")
    expect_error(moesim("--simulate"), 2, "--simulate")
    expect_error(moesim("help", "nosuch"), 2, "nosuch")


def write_profile(folder, change):
    """A copy of a shipped profile after `change`, a function of its document."""
    document = json.loads((PROFILES / "hardware" / "a100-sxm-80gb.json").read_text())
    change(document)
    path = folder / "own.json"
    path.write_text(json.dumps(document))
    return path


def test_profile_that_is_not_json(tmp_path):
    path = tmp_path / "own.json"
    path.write_text('{"name": "x",\n  "devices": [}\n')
    expect_error(moesim("simulate", "--profile", path), 2, str(path), "line 2")


def test_profile_that_breaks_the_schema(tmp_path):
    def no_name(document):
        del document["devices"][0]["name"]
    path = write_profile(tmp_path, no_name)
    expect_error(moesim("simulate", "--profile", path), 2, str(path), "/devices/0", "name")

    def text_for_number(document):
        document["devices"][0]["sms"]["value"] = "108"
    path = write_profile(tmp_path, text_for_number)
    expect_error(moesim("simulate", "--profile", path), 2, str(path), "/devices/0/sms/value")


@pytest.mark.parametrize(("key", "where"), [
    ("scatter", "/curves/{}"), ("residual_at_measured", "/curves/{}"), ("dtype", "/curves/{}/params"),
    ("note", "/curves/{}/branches/0"), ("by", "/curves/{}/residual"), ("below", "/curves/{}/residual/regions/0"),
    ("switch_reduces", "/topology")])
def test_a_misspelt_key_of_a_profile_is_refused(key, where, tmp_path):
    """Keys that may be left out: one that is misspelt was taken for one that is not there."""
    found = []

    def misspell(document):
        at = next(place for place, curve in enumerate(document["curves"]) if curve["op"] == "all-reduce")
        found.append(where.format(at))
        part = document
        for name in found[0].split("/")[1:]:
            part = part[int(name) if name.isdigit() else name]
        part.pop(key, None)
        part[f"{key}x"] = 1

    path = write_profile(tmp_path, misspell)
    expect_error(moesim("predict", "--profile", path, "--op", "all-reduce", "--gpus", "4", "--bytes", "1MiB"), 2,
                 f"{path}: {found[0]}: unknown key '{key}x' (did you mean '{key}'?)")


@pytest.mark.parametrize(("key", "unit", "meant"), [
    ("hbm_bytes", "GB", "const bytes"), ("hbm_bytes_per_second", "GB/s", '["bytes/s","bytes/s per direction"]'),
    ("peak_bf16_flops", "TFLOP/s", "const FLOP/s")])
def test_a_figure_of_a_device_in_another_unit_is_refused(key, unit, meant, tmp_path):
    path = write_profile(tmp_path, lambda document: document["devices"][0][key].update(value=312, unit=unit))
    expect_error(moesim("simulate", "--profile", path), 2, f'{path}: /devices/0/{key}/unit: found string "{unit}"',
                 meant)


def test_an_unknown_name_within_a_document_is_told_with_file_and_key(tmp_path):
    path = write_profile(tmp_path, lambda document: document["devices"][0].update(usual_cluster="dgx-a10"))
    expect_error(moesim("train", "--profile", path, "--model", "mixtral-8x7b"), 2,
                 f"{path}: /devices/0/usual_cluster: unknown cluster 'dgx-a10' (did you mean 'dgx-a100'?)")
    path = write_profile(tmp_path, lambda document: document.update(training_products={"profile": "h10", "source": "x"}))
    expect_error(moesim("predict", "--profile", path, "--op", "memory", "--bytes", "1MiB"), 2,
                 f"{path}: /training_products/profile: unknown profile 'h10'")
    path.write_text(json.dumps({"format": "moesim-software", "version": 1, "name": "mine", "profile": "zzz",
                                "multipliers": {}, "source": "test"}))
    expect_error(moesim("simulate", "--profile", path), 2, f"{path}: /profile: unknown profile 'zzz'; shipped: ")


@pytest.mark.parametrize(("kind", "where"), [("counts", "line 1"), ("scores", "line 1, column 2"),
                                             ("trace", "line 1, column 2")])
def test_a_file_of_scores_that_is_another_thing(kind, where, tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("no numbers here\n")
    expect_error(moesim("route", "--routing", f"{kind}:{file}"), 2,
                 f"--routing '{kind}:{file}'", f"notes.txt: {where}", f"{kind}:FILE takes ")


@pytest.mark.parametrize("words", [["--fit-scores", "/nonexistent", "--out", "m.json"],
                                   ["--fit-scores", "notes.txt", "--out", "m.json"]])
def test_a_trace_that_is_none_cannot_be_fitted(words, tmp_path):
    (tmp_path / "notes.txt").write_text("no numbers here\n")
    expect_error(moesim("route", *words, cwd=tmp_path), 2, f"--fit-scores '{words[1]}'",
                 "it takes recorded routing")


def test_a_model_of_scores_is_no_csv(tmp_path):
    trace = PROFILES.parent / "traces" / "tiny-moe-top1"
    expect_error(moesim("route", "--fit-scores", trace, "--out", "m.csv", cwd=tmp_path), 2,
                 "--out: m.csv", ".json")
    assert not list(tmp_path.iterdir())


def test_documents_of_the_wrong_kind(tmp_path):
    model = PROFILES / "models" / "llama2-7b.json"
    expect_error(moesim("simulate", "--profile", model), 2, str(model))
    expect_error(moesim("simulate", "--profile", tmp_path / "absent.json"), 2, "absent.json")
    expect_error(moesim("simulate", "--profile", f"{tmp_path}/"), 2, str(tmp_path))


@pytest.mark.parametrize("command", [
    ["simulate", *SMALL], ["sweep", *SMALL], ["route", *SMALL], ["doctor"],
    ["predict", "--op", "gemm", "--m", "64", "--n", "64", "--k", "64"]])
def test_unwritable_output(command, tmp_path):
    expect_error(moesim(*command, "--out", tmp_path / "no" / "x.csv"), 1, "x.csv", "cannot write")
    expect_error(moesim(*command, "--out", tmp_path), 1, str(tmp_path), "cannot write")
    assert not list(tmp_path.iterdir())


def test_unwritable_output_is_noticed_before_the_work(tmp_path):
    # Work of hours, refused at once.
    long_work = ["sweep", "--seed", "1:1000:1", "--replicas", "1000"]
    expect_error(moesim(*long_work, "--out", tmp_path / "no" / "x.csv", timeout=20), 1, "x.csv")
    expect_error(moesim("simulate", "--replicas", "100000", "--timeline", tmp_path / "no" / "t.json",
                        timeout=20), 1, "t.json")


needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")


@needs_full
@pytest.mark.parametrize("command", [["simulate", *SMALL], ["sweep", *SMALL], ["route", *SMALL],
                                     ["simulate", "--help"], ["--version"], ["doctor"]])
def test_full_disk(command):
    with open("/dev/full", "w", encoding="utf-8") as full:
        result = moesim(*command, stdout=full)
    assert result.returncode == 1
    assert "No space left on device" in result.stderr
    if "--help" not in command and "--version" not in command:
        expect_error(moesim(*command, "--out", "/dev/full"), 1, "/dev/full", "No space left")


def test_a_failure_leaves_the_old_result_alone(tmp_path):
    out = tmp_path / "old.csv"
    out.write_text("precious\n")
    expect_error(moesim("simulate", "--router", "top9", "--out", out), 2)
    expect_error(moesim("sweep", "--capacity-factor", "1,-2", "--out", out), 2)
    assert out.read_text() == "precious\n"
    assert list(tmp_path.iterdir()) == [out]


BAD_QUERIES = [
    ("op,m,n,k\ngemm,64,64,64\ngemm,64,-1,64\n", ["line 3, column n", "-1"]),
    ("op,m,n,k\ngemm,64,,64\n", ["line 2, column n", "needs a value"]),
    ("op,m,n,k\ngem,64,64,64\n", ["line 2, column op", "did you mean 'gemm'?"]),
    ("op,gpus,bytes\nall-to-all,8,64 apples\n", ["line 2, column bytes", "64 apples"]),
    ("m,n,k\n64,64,64\n", ["no column 'op'"]),
    ("op,m,n,k\ngemm,64\n", ["line 2"]),
    ("", ["line 1"]),
]


@pytest.mark.parametrize(("text", "parts"), BAD_QUERIES)
def test_bad_query(text, parts, tmp_path):
    queries = tmp_path / "queries.csv"
    queries.write_text(text)
    expect_error(moesim("predict", "--in", queries), 2, str(queries), *parts)


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


def test_a_question_that_the_profile_cannot_answer(tmp_path):
    def no_cluster(document):
        del document["devices"][0]["usual_cluster"]
    # No exchange of one GPU, and none beyond a node where no cluster is known.
    for profile, gpus in (("a100-sxm-80gb", "1"), (write_profile(tmp_path, no_cluster), "1024")):
        result = moesim("predict", "--profile", profile, "--op", "all-to-all", "--gpus", gpus,
                        "--bytes", "1MiB")
        assert result.returncode in (1, 2) and not result.stdout
        assert gpus in result.stderr


def test_routing_a_bad_logits_file(tmp_path):
    logits = tmp_path / "logits.npy"
    logits.write_bytes(b"no array")
    out = tmp_path / "routes.npy"
    expect_error(moesim("route", "--logits", logits, "--out", out), 2, str(logits))
    expect_error(moesim("route", "--logits", logits), 2, str(logits))
    expect_error(moesim("route", "--logits", tmp_path / "absent.npy", "--out", out), 2, "absent.npy")
    expect_error(moesim("route", "--router", "dense"), 2, "dense")
    assert not out.exists()


def test_resume_without_a_place_to_resume_from(tmp_path):
    expect_error(moesim("sweep", *SMALL, "--resume"), 2, "--resume", "--out")
    out = tmp_path / "x.csv"
    (tmp_path / "x.csv.partial").write_text("moesim sweep journal 1 0123456789abcdef\n")
    expect_error(moesim("sweep", *SMALL, "--resume", "--out", out), 2, "other options")
    assert not out.exists()


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


def test_shipped_documents_elsewhere(tmp_path):
    result = moesim("simulate", env={"MOESIM_PROFILES": str(tmp_path)})
    expect_error(result, 2, "unknown profile", f"none at all in {tmp_path}/hardware, as MOESIM_PROFILES says")
    doctor = moesim("doctor", "--format", "csv", env={"MOESIM_PROFILES": str(tmp_path)})
    for kind in ("hardware", "models", "clusters"):
        assert f"none in {tmp_path}/{kind}, as MOESIM_PROFILES says" in doctor.stdout
    shutil.copytree(PROFILES, tmp_path / "copy")
    assert moesim("simulate", *SMALL,
                  env={"MOESIM_PROFILES": str(tmp_path / "copy")}).returncode == 0


def test_a_study_that_is_none_is_named():
    expect_error(moesim("validate", "speed"), 2, "'speed' (did you mean 'speeds'?): give speeds, layer, ")


def test_plot_of_nothing(tmp_path):
    expect_error(moesim("plot"), 2, "plot what?")
    expect_error(moesim("plot", tmp_path / "absent.csv"), 2, "absent.csv")
    expect_error(moesim("plot", "nosuch"), 2, "unknown profile", "a100-sxm-80gb")
    sweep = tmp_path / "s.csv"
    sweep.write_text("status\nok\n")
    expect_error(moesim("plot", sweep, "--out", tmp_path / "x.gif"), 2, ".png, .pdf or .svg, of a sweep also .html")
    expect_error(moesim("plot", sweep, "--out", tmp_path / "no" / "x.png"), 1, "cannot write")


@pytest.mark.parametrize("typed, meant", [("H200", "h200-sxm"), ("h100", "h100-sxm"), ("A100", "a100-sxm-80gb")])
def test_a_name_that_is_cut_short_is_recognised(typed, meant):
    expect_error(moesim("simulate", "--profile", typed), 2, f"did you mean '{meant}'?")


@pytest.mark.parametrize("command", ["train", "layout"])
def test_prediction_depths_of_recommend_are_letters_of_a_layout_elsewhere(command):
    expect_error(moesim(command, "--model", "deepseek-v3", "--mtp", 1), 2, "unknown option --mtp: moesim recommend has it",
                 "m in --pipeline-layout, such as 'Et*30|t*31mL'")
    words = ("--gpus", 64, "--pipeline-parallel", 2, "--expert-parallel", 32)
    succeed(command, "--model", "deepseek-v3", *words, "--pipeline-layout", "Et*30|t*31mL")
    assert "--pipeline-layout, such as" not in moesim("simulate", "--mtp", 1).stderr


def test_a_command_for_one_operation_says_where_several_go():
    expect_error(moesim("predict", "--op", "all-to-all", "--gpus", 8, "--bytes", "64MiB,64MB"), 2,
                 "--bytes: '64MiB,64MB': an operation takes one value", "--in FILE")
    expect_error(moesim("predict", "--op", "all-to-all", "--gpus", "8,16", "--bytes", "64MiB"), 2,
                 "--gpus: '8,16': an operation takes one value", "--in FILE")


@pytest.mark.parametrize("name", ["steps.yaml", "steps.yml", "steps.json"])
def test_measured_steps_are_no_yaml(tmp_path, name):
    path = tmp_path / name
    path.write_text("- model: mixtral-8x7b\n  gpus: 8, of one node\n", encoding="utf-8")
    expect_error(moesim("calibrate", path), 2, name, "measured steps are a CSV: a row for each", "measured_ms")


def test_a_file_of_another_kind_is_no_unknown_name(tmp_path):
    (tmp_path / "mine.csv").write_text("")
    expect_error(moesim("simulate", "--model", "mine.csv", cwd=tmp_path), 2, "is a file, but no JSON document", "config.json")


def test_a_file_with_a_shipped_name_does_not_hide_it(tmp_path):
    (tmp_path / "mixtral-8x7b").write_text("a log of a run\n")
    (tmp_path / "h100-sxm").write_text("another\n")
    result = moesim("predict", "--profile", "h100-sxm", "--op", "gemm", "--m", 64, "--n", 64, "--k", 64, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    result = moesim("layout", "--model", "mixtral-8x7b", "--gpus", 8, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "link"])
def test_out_may_name_what_a_shell_redirects(tmp_path, name):
    """A link to an open file is no file: renaming over it would leave the redirected one empty."""
    (tmp_path / "link").symlink_to("/proc/self/fd/1")
    path = tmp_path / "rows.csv"
    path.write_text("before\n")
    command = f"{BINARY} predict --profile h100-sxm --op gemm --m 64 --n 64 --k 64 --format csv --out {name} >> rows.csv"
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    lines = path.read_text().splitlines()
    assert lines[0] == "before" and len(lines) == 3 and (tmp_path / "link").is_symlink()


def test_out_may_be_a_link_to_a_file(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "rows.csv").symlink_to("far/rows.csv")
    for _ in range(2):  # a link to nothing, and then to a file
        result = moesim("predict", "--profile", "h100-sxm", "--op", "gemm", "--m", 64, "--n", 64, "--k", 64,
                        "--out", "rows.csv", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert (tmp_path / "rows.csv").is_symlink()
        assert len((tmp_path / "far" / "rows.csv").read_text().splitlines()) == 2
