"""The command line's contract: help, options, columns, keys, clean stdout."""

import json

import pytest
from command_line import SMALL, as_json, moesim, needs_binary, succeed
from options_document import COLUMNS, column_names, document, rows_of

pytestmark = needs_binary
COMMANDS = ("simulate", "sweep", "plot", "explain", "route", "predict", "layout", "train", "validate", "import",
            "doctor", "options")
PARTS = COLUMNS[COLUMNS.index("attention_ms"):COLUMNS.index("exchange_ms")]


def option_names():
    return [option["name"] for option in document()["options"]]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_options_defaults_and_an_example_that_works(command, tmp_path):
    text = succeed(command, "--help")
    assert text == succeed("help", command) == succeed(command, "-h")
    example = text.split("Example:\n", 1)[1].strip().split()
    assert example[:2] == ["moesim", command]
    if command == "plot":
        pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    if command == "import":
        (tmp_path / "counts.csv").write_text("layer,expert,count\n0,1,60\n0,7,60\n")
    if command in ("simulate", "sweep", "explain", "route"):
        for option in option_names():
            assert f"  --{option} " in text
        assert "[a100-sxm-80gb]" in text and "[token-max]" in text
        example += ["--replicas", "1", "--gpus", "8"]  # the same command, quicker
    if command != "validate":  # its studies have tests of their own
        succeed(*example[1:], cwd=tmp_path)


def test_overview_and_version():
    text = succeed("--help")
    assert text == succeed("help")
    for command in COMMANDS:
        assert f"  {command} " in text
    assert succeed("--version").startswith("moesim ")


def test_options_and_columns_are_a_document():
    assert column_names()[:len(COLUMNS)] == COLUMNS  # the contract: later columns follow
    assert len(set(column_names())) == len(column_names())
    columns = {column["name"]: column for column in document()["columns"]}
    assert [name for name, column in columns.items() if column["role"] == "part"] == PARTS
    for name, column in columns.items():
        assert set(column) == {"name", "type", "role", "unit", "meaning"}
        assert column["type"] in ("text", "number", "boolean")
        assert bool(column["meaning"]) == (column["role"] != "option"), name  # an option has its help
        if name.endswith("_ms"):
            assert column["unit"] == "ms"
    assert columns["failed"] == {"name": "failed", "type": "number", "role": "loss",
                                 "unit": "share", "meaning": "routes not kept, before rectification"}
    for option in document()["options"]:
        assert option["help"] and option["default"]
        assert columns[option["column"]]["role"] == "option"
        is_number = option["type"] in ("whole", "decimal")
        assert (columns[option["column"]]["type"] == "number") is is_number
        assert set(option["affects"]) <= {"routing", "step"}
        if option["type"] == "choice":
            assert len(option["values"]) > 1 and all(value["meaning"] for value in option["values"])
    assert sum(column["role"] == "option" for column in columns.values()) == len(option_names())
    for column in document()["training_columns"]:
        assert set(column) == {"name", "unit", "meaning"} and column["meaning"], column
    zero = next(option for option in document()["options"] if option["name"] == "zero")
    assert (zero["type"], zero["minimum"], zero["maximum"]) == ("whole", 0, 3)
    assert zero["affects"] == ["step"]


@pytest.mark.parametrize("router", ["top2+ir+fr", "top1", "dense"])
@pytest.mark.parametrize("mode", ["train", "prefill"])
def test_simulate_json(router, mode):
    result = as_json("simulate", *SMALL, "--router", router, "--mode", mode)
    assert list(result) == [*column_names(), "detail"]
    assert result["status"] == "ok" and result["reason"] is None
    assert result["router"] == router.replace("+ir+fr", "+fr+ir")
    assert sum(result[part] or 0 for part in PARTS) == pytest.approx(result["step_ms"], rel=1e-7)
    assert result["step_ms_p05"] <= result["step_ms"] <= result["step_ms_p95"]
    assert result["tokens_per_s_per_gpu"] == pytest.approx(512 / result["step_ms"] * 1000, rel=1e-7)
    assert result["fits_memory"] is True
    assert len(result["detail"]["replica_step_ms"]) == 3
    if router == "dense":
        assert result["failed"] is None and result["capacity_factor"] is None
    else:
        assert result["capacity_factor"] == result["top_k"]
    if "ir" in router:
        assert result["unrouted"] == 0 and result["fill_failed"] is not None


def test_formats_agree_and_repeat():
    options = ["simulate", *SMALL, "--router", "top2+fr+ir", "--capacity-factor", "1.250"]
    result = as_json(*options)
    (row,) = rows_of(succeed(*options, "--format", "csv"))
    assert row["capacity_factor"] == "1.25"
    for name in column_names():
        value = result[name]
        if value is None:
            assert row[name] == ""
        elif isinstance(value, bool):
            assert row[name] == str(value).lower()
        elif isinstance(value, (int, float)):
            assert float(row[name]) == value
        else:
            assert row[name] == value
    assert succeed(*options) == succeed(*options, "--jobs", "1")


def test_a_row_reproduces_itself():
    options = ["--router", "top1+fr+ir", "--capacity-factor", "0.75", "--experts", "16",
               "--priority", "own-score", "--dispatch", "einsum", "--global-batch", "16", "--zero",
               "3", "--checkpointing", "full", "--routing", "zipf:0.8", "--seed", "5",
               "--min-capacity", "2", "--ir-duplicates", "exclude", "--overlap", "gradient",
               "--slow-gpu", "1:1.5+3:2", "--slow-link", "0:4", "--jitter", "0.02",
               "--overlap-slowdown", "1.1:1.25"]
    first = succeed("simulate", *SMALL, *options, "--format", "csv")
    (row,) = rows_of(first)
    again = []
    for option in document()["options"]:
        value = row[option["column"]]
        if value:
            again += [f"--{option['name']}", value]
    assert succeed("simulate", *again, "--format", "csv") == first


def test_an_option_given_twice_has_its_last_value():
    result = moesim("simulate", *SMALL, "--seed", "1", "--seed", "2", "--format", "json")
    assert json.loads(result.stdout)["seed"] == 2
    assert "note: --seed is given twice" in result.stderr


def test_topk_without_a_number_has_the_models():
    (row,) = rows_of(succeed("simulate", *SMALL, "--router", "topk+ir", "--format", "csv"))
    assert (row["router"], row["top_k"]) == ("top2+ir", "2")  # llama2-7b-moe8 is top-2


def test_the_summary_says_how_tokens_travel_and_where_experts_are():
    text = succeed("simulate", *SMALL, "--router", "dropless", "--dedup", "node",
                   "--expert-placement", "round-robin")
    assert "a token is sent once to each node" in text and "experts placed round-robin" in text
    plain = succeed("simulate", *SMALL, "--router", "dropless")
    assert "sent once" not in plain and "placed" not in plain


def test_output_goes_where_it_is_sent(tmp_path):
    out = tmp_path / "one.json"
    trace = tmp_path / "trace.json"
    assert succeed("simulate", *SMALL, "--out", out, "--timeline", trace) == ""
    assert json.loads(out.read_text())["status"] == "ok"  # the format by the name
    bars = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    assert {bar["pid"] for bar in bars} == set(range(8))
    end = max(bar["ts"] + bar["dur"] for bar in bars) / 1000
    assert end == pytest.approx(json.loads(out.read_text())["step_ms"], rel=0.05)
