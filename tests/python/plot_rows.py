"""Small CSVs of sweeps over GPUs, with parts of a step, for tests of charts of any columns. Import `options` to have a module
use the options of these columns."""

import json

import pytest
from plot_options import document

PARTS = ("attention_ms", "expert_ms", "other_ms")
HEADER = ("status,profile,cluster,router,gpus,capacity_factor,global_batch,step_ms,step_ms_p05,step_ms_p95,"
          "tokens_per_s_per_gpu,residual_loss,mfu,fits_memory,provenance," + ",".join(PARTS))


@pytest.fixture(autouse=True)
def options(tmp_path_factory, monkeypatch):
    described = document(options=("profile", "cluster", "router", "gpus", "capacity_factor", "global_batch",
                                  "tensor_parallel", "fidelity"))
    for option in described["options"]:
        if option["column"] in ("cluster", "global_batch"):
            option["default"] = "what others say"
        elif option["column"] == "fidelity":
            option["default"] = "auto"
    described["columns"] += [{"name": name, "role": "part", "unit": "ms"} for name in PARTS]
    described["columns"] += [{"name": "mfu", "role": "figure", "unit": "share"}]
    described["training_columns"] = [{"name": name, "unit": unit} for name, unit in (
        ("bubble_share", "share"), ("counted_loss", "share"), ("overflow_chance", "share"), ("offloaded_gib", "GiB"),
        ("rerun_step_ms", "ms"), ("imbalance", ""))]
    path = tmp_path_factory.mktemp("options") / "options.json"
    path.write_text(json.dumps(described))
    monkeypatch.setenv("MOESIM_OPTIONS", str(path))


def row(router="top2", gpus=8, factor=1, step=100.0, loss=0.1, fits=True, profile="p", status="ok"):
    cells = [status, profile, f"c-{profile}", router, gpus, factor, 4 * gpus, step, 0.9 * step, 1.25 * step,
             1e6 / step, loss, 0.4, "true" if fits else "false", "measured", 0.5 * step, 0.4 * step, 0.1 * step]
    return ",".join(map(str, cells))


def write_csv(path, header, lines, columns):
    """The path, as a text. `columns`: {name: value of all rows, or a list of one for each} of more columns."""
    more = [values if isinstance(values, (list, tuple)) else [values] * len(lines) for values in columns.values()]
    cells = [",".join([line, *map(str, rest)]) for line, *rest in zip(lines, *more)]
    path.write_text("\n".join([",".join([header, *columns]), *cells]) + "\n")
    return str(path)


def sweep(path, lines, **columns):
    """A CSV of these rows, with more columns as write_csv() takes them."""
    return write_csv(path, HEADER, lines, columns)
