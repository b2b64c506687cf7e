"""moesim validate layer --measured: layers that were measured against a profile of the machine."""

import json
from pathlib import Path

import pytest
from command_line import moesim, needs_binary

pytestmark = needs_binary
DEVICE = "NVIDIA H100 80GB HBM3"
PROFILES = Path(__file__).resolve().parents[3] / "profiles"

# Made up: what the predictions are held against here is no measurement.
CASES = [
    ("top2", "2", "index", "forward", 2048, 0),
    ("top2", "2", "index", "backward", 2048, 0),
    ("top2+ir", "1", "index", "forward", 1024, 900),
    ("top2", "2", "einsum", "forward", 2048, 0),
    ("top2+ir", "1", "einsum", "backward", 1024, 900),
]


def point(case, time_us=1000.0, **changes):
    router, factor, dispatch, direction, capacity, ir_rows = case
    return {
        "op": "layer",
        "params": {"router": router, "capacity_factor": factor, "dispatch": dispatch,
                   "pass": direction, "dtype": "bf16", "tokens": 8192, "hidden": 4096,
                   "ffn": 11008, "experts": 8, "gpus": 1},
        "cold": {"n": 3, "median": time_us, "samples": [time_us] * 3},
        "quality": "good",
        "verify": "passed",
        "synthetic": False,
        "details": {"capacity": capacity, "kept_rows": 8 * capacity, "ir_rows": ir_rows,
                    "stages": [{"name": "experts", "time_us": 500.0}]},
        **changes,
    }


def document(points, **changes):
    return {"format": "moesim measured layer 1", "date": "2024-01-02T03:04:05Z", "device": DEVICE,
            "uuid": "", "driver": "13.0", "cuda_runtime": "13.0", "cublas": "13.0.0", "nccl": "",
            "model": "llama2-7b-moe8", "gpus": 1, "tokens": 8192, "seed": 1, "points": points,
            "missing": [], **changes}


def validate(tmp_path, content, *more):
    path = tmp_path / "layer.json"
    path.write_text(json.dumps(content))
    return moesim("validate", "layer", "--measured", str(path), *map(str, more))


def checked(result):
    rows = json.loads(result.stdout)["rows"]
    return [row for row in rows if row["role"] == "check"]


@pytest.fixture(scope="module")
def predictions(tmp_path_factory):
    """Microseconds that h100-sxm predicts for CASES."""
    result = validate(tmp_path_factory.mktemp("layers"), document([point(case) for case in CASES]),
                      "--profile", "h100-sxm", "--format", "json")
    assert result.returncode == 5, result.stderr
    rows = checked(result)
    assert len(rows) == len(CASES)
    return [1000 * row["predicted"] for row in rows]


def measured(predictions, errors):
    return document([point(case, time / (1 + error))
                     for case, time, error in zip(CASES, predictions, errors)])


def test_errors_within_both_bars_pass(tmp_path, predictions):
    errors = [0.01, -0.029, 0.02, 0.079, -0.079]
    result = validate(tmp_path, measured(predictions, errors), "--profile", "h100-sxm",
                      "--format", "json")
    assert result.returncode == 0, result.stderr
    # The median of 1, 2, 2.9, 7.9, 7.9 %.
    assert [row["error"] for row in checked(result)] == pytest.approx(errors, abs=2e-5)
    texts = [verdict["text"] for verdict in json.loads(result.stdout)["verdicts"]]
    assert "median error of 5 layers: 2.9 %" in texts[0]
    assert "worst error of 5 layers: 7.9 %" in texts[1]


@pytest.mark.parametrize("errors, unmet", [
    ([0.01, 0.01, 0.01, 0.01, 0.081], [True, False]),
    ([0.031, -0.031, 0.031, 0.0, 0.0], [False, True]),
])
def test_either_bar_missed_is_exit_code_5(tmp_path, predictions, errors, unmet):
    result = validate(tmp_path, measured(predictions, errors), "--profile", "h100-sxm",
                      "--format", "json")
    assert result.returncode == 5
    assert [verdict["met"] for verdict in json.loads(result.stdout)["verdicts"]] == unmet


def test_predictions_add_up_and_grow_as_they_must(tmp_path, predictions):
    forward, backward, ir, einsum, _ = predictions
    # 4.43 TFLOP of 16,384 padded rows at the 660 TFLOP/s that an H100 sustains, and twice that
    # backward.
    assert 6716 < forward < 7600
    assert 1.8 * forward < backward < 2.5 * forward
    assert einsum > forward  # two products of 2.2 TFLOP more, and masks
    assert ir < forward  # half the rows, and 900 more
    result = validate(tmp_path, measured(predictions, [0] * 5), "--profile", "h100-sxm",
                      "--format", "json")
    rows = json.loads(result.stdout)["rows"]
    total = 0
    for row in rows:
        if row["role"] == "part":
            total += row["predicted"]
            assert (row["measured"] == 500) == row["subject"].endswith(": experts")
        else:
            assert row["predicted"] == pytest.approx(total / 1000, rel=1e-4)
            total = 0


def test_padding_takes_less_power(tmp_path):
    """Half of the rows zeros, by a profile that says what these take."""
    profile = json.loads((PROFILES / "hardware" / "h100-sxm.json").read_text())
    profile["devices"][0]["sustained_padding_share"] = {
        "value": 0.6, "unit": "ratio", "origin": "measured", "source": "made up"}
    (tmp_path / "own.json").write_text(json.dumps(profile))
    full = point(CASES[0])
    padded = point(CASES[0])
    padded["details"] = {**padded["details"], "kept_rows": 8 * 1024}
    result = validate(tmp_path, document([full, padded]), "--profile", tmp_path / "own.json",
                      "--format", "json")
    experts = [row["predicted"] for row in json.loads(result.stdout)["rows"]
               if row["subject"].endswith(": experts")]
    # What the activation between the products takes stays, 0.6 ms of 7.3.
    assert experts[0] - experts[1] == pytest.approx(0.5 * 0.4 * 4.43e12 / 660e12 * 1e6, rel=0.01)


def test_void_and_synthetic_layers_are_listed_and_do_not_count(tmp_path, predictions):
    content = measured(predictions, [0] * 5)
    content["points"][1] = point(CASES[1], verify="token 7 is off", cold=None)
    content["points"][2]["synthetic"] = True
    result = validate(tmp_path, content, "--profile", "h100-sxm", "--format", "json")
    assert result.returncode == 0
    rows = json.loads(result.stdout)["rows"]
    notes = [row["note"] for row in rows if row["role"] == "excluded"]
    assert notes == ["token 7 is off", "ranks shared a GPU"]
    assert "of 3 layers" in json.loads(result.stdout)["verdicts"][0]["text"]


@pytest.mark.parametrize("change, more, words", [
    ({}, [], ["--measured needs --profile"]),
    ({"device": "NVIDIA H200"}, ["--profile", "h100-sxm"], ["layer.json", "device", "NVIDIA H200"]),
    ({"points": []}, ["--profile", "h100-sxm"], ["layer.json", "points", "no layer"]),
    ({"model": "mixtral-8x7b"}, ["--profile", "h100-sxm"], ["layer.json", "ffn", "mixtral-8x7b"]),
    ({"gpus": "many"}, ["--profile", "h100-sxm"], ["layer.json", "gpus"]),
])
def test_documents_that_cannot_be_are_refused(tmp_path, change, more, words):
    result = validate(tmp_path, {**document([point(CASES[0])]), **change}, *more)
    assert result.returncode == 2
    assert all(word in result.stderr for word in words), result.stderr
    assert result.stdout == ""


def test_published_layers_that_miss_their_bars_end_with_5():
    result = moesim("validate", "layer", "--format", "json")
    assert result.returncode == 5, result.stderr
    verdicts = json.loads(result.stdout)["verdicts"]
    missed = [each["text"].split(":")[0] for each in verdicts if each["met"] is False]
    assert missed == ["deepep, bf16, forward", "deepep, fp8-block, forward"]
    assert verdicts[-1]["text"].startswith("all 12 passes: 2.5 % off in the median, 8.6 % at worst")


def test_the_flags_go_with_layer_alone():
    for arguments in (["speeds", "--measured", "x.json"], ["layer", "--profile", "h100-sxm"]):
        result = moesim("validate", *arguments)
        assert result.returncode == 2
        assert "--measured" in result.stderr
