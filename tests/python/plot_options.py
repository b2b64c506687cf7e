"""A small document of scenario options, in the form of `moesim options --format json`, for tests of
the plotter that need no built program. Import `small_options` to have a module use it."""

import json

import pytest

OPTIONS = ("model", "profile", "router", "weights", "mode", "routing", "gpus", "top_k",
           "capacity_factor", "capacity_convention", "fidelity", "network", "slow_gpu", "dedup")
SET_BY_ROUTERS = ("weights", "top_k")
RESULTS = ("status", "reason", "step_ms", "step_ms_p05", "step_ms_p95", "tokens_per_s_per_gpu",
           "failed", "residual_loss", "padded")


def document(options=OPTIONS, results=RESULTS):
    return {
        "options": [{"name": name.replace("_", "-"), "column": name, "type": "text",
                     "default_from_router": name in SET_BY_ROUTERS} for name in options] +
                   [{"name": "jobs", "column": None, "type": "whole"}],
        "columns": [{"name": name, "role": "option"} for name in options] +
                   [{"name": name, "role": "result"} for name in results]}


@pytest.fixture(autouse=True)
def small_options(tmp_path_factory, monkeypatch):
    path = tmp_path_factory.mktemp("options") / "options.json"
    path.write_text(json.dumps(document()))
    monkeypatch.setenv("MOESIM_OPTIONS", str(path))
    return path
