"""Files and documents that are not what a command takes: one error that names the file and the place in it."""

import json
import shutil
from pathlib import Path

import pytest
from command_line import expect_error, moesim, needs_binary, SMALL

pytestmark = needs_binary

PROFILES = Path(__file__).resolve().parents[3] / "profiles"


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


@pytest.mark.parametrize("option", ["profile", "dispatcher"])
def test_a_list_where_one_document_belongs_is_said_with_its_flag(option):
    expect_error(moesim("simulate", f"--{option}", "1,2"), 2, f"--{option}: unknown {option} '1,2'")


def test_a_document_with_a_mistake_is_said_with_its_flag(tmp_path):
    path = tmp_path / "own.json"
    path.write_text("{")
    for option in ("profile", "model", "cluster"):
        expect_error(moesim("simulate", f"--{option}", path), 2, f"--{option}: {path}: line 1")


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


def test_a_question_that_the_profile_cannot_answer(tmp_path):
    def no_cluster(document):
        del document["devices"][0]["usual_cluster"]
    # No exchange of one GPU, and none beyond a node where no cluster is known.
    for profile, gpus in (("a100-sxm-80gb", "1"), (write_profile(tmp_path, no_cluster), "1024")):
        result = moesim("predict", "--profile", profile, "--op", "all-to-all", "--gpus", gpus,
                        "--bytes", "1MiB")
        assert result.returncode in (1, 2) and not result.stdout
        assert gpus in result.stderr


def test_documents_of_the_wrong_kind(tmp_path):
    model = PROFILES / "models" / "llama2-7b.json"
    expect_error(moesim("simulate", "--profile", model), 2, str(model))
    expect_error(moesim("simulate", "--profile", tmp_path / "absent.json"), 2, "absent.json")
    expect_error(moesim("simulate", "--profile", f"{tmp_path}/"), 2, str(tmp_path))


def test_shipped_documents_elsewhere(tmp_path):
    result = moesim("simulate", env={"MOESIM_PROFILES": str(tmp_path)})
    expect_error(result, 2, "unknown profile", f"none at all in {tmp_path}/hardware, as MOESIM_PROFILES says")
    doctor = moesim("doctor", "--format", "csv", env={"MOESIM_PROFILES": str(tmp_path)})
    for kind in ("hardware", "models", "clusters"):
        assert f"none in {tmp_path}/{kind}, as MOESIM_PROFILES says" in doctor.stdout
    shutil.copytree(PROFILES, tmp_path / "copy")
    assert moesim("simulate", *SMALL,
                  env={"MOESIM_PROFILES": str(tmp_path / "copy")}).returncode == 0


def test_a_file_of_another_kind_is_no_unknown_name(tmp_path):
    (tmp_path / "mine.csv").write_text("")
    expect_error(moesim("simulate", "--model", "mine.csv", cwd=tmp_path), 2, "--model: 'mine.csv' is a file, but no JSON document", "config.json")


def test_a_file_with_a_shipped_name_does_not_hide_it(tmp_path):
    (tmp_path / "mixtral-8x7b").write_text("a log of a run\n")
    (tmp_path / "h100-sxm").write_text("another\n")
    result = moesim("predict", "--profile", "h100-sxm", "--op", "gemm", "--m", 64, "--n", 64, "--k", 64, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    result = moesim("layout", "--model", "mixtral-8x7b", "--gpus", 8, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


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


def test_plot_of_nothing(tmp_path):
    expect_error(moesim("plot"), 2, "plot what?")
    expect_error(moesim("plot", tmp_path / "absent.csv"), 2, "absent.csv")
    expect_error(moesim("plot", "nosuch"), 2, "unknown profile", "a100-sxm-80gb")
    sweep = tmp_path / "s.csv"
    sweep.write_text("status\nok\n")
    expect_error(moesim("plot", sweep, "--out", tmp_path / "x.gif"), 2, ".png, .pdf or .svg, of a sweep also .html")
    expect_error(moesim("plot", sweep, "--out", tmp_path / "no" / "x.png"), 1, "cannot write")


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


def test_routing_a_bad_logits_file(tmp_path):
    logits = tmp_path / "logits.npy"
    logits.write_bytes(b"no array")
    out = tmp_path / "routes.npy"
    expect_error(moesim("route", "--logits", logits, "--out", out), 2, str(logits))
    expect_error(moesim("route", "--logits", logits), 2, str(logits))
    expect_error(moesim("route", "--logits", tmp_path / "absent.npy", "--out", out), 2, "absent.npy")
    expect_error(moesim("route", "--router", "dense"), 2, "dense")
    assert not out.exists()


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


@pytest.mark.parametrize("name", ["steps.yaml", "steps.yml", "steps.json"])
def test_measured_steps_are_no_yaml(tmp_path, name):
    path = tmp_path / name
    path.write_text("- model: mixtral-8x7b\n  gpus: 8, of one node\n", encoding="utf-8")
    expect_error(moesim("calibrate", path), 2, name, "measured steps are a CSV: a row for each", "measured_ms")
