"""predict and plot of a profile of software on hardware: times are multiplied by its factors."""

import json

import pytest
from command_line import as_json, needs_binary, succeed

pytestmark = needs_binary
FACTORS = {"gemm": 1.5, "attention": 1.4, "memory": 3.0, "exchange": 0.5}
QUERIES = {
    "gemm": ("gemm", "--m", 4096, "--n", 28672, "--k", 4096),
    "attention": ("attention", "--batch", 1, "--sequence", 2048, "--heads", 32, "--kv-heads", 32, "--head-dim", 128),
    "memory": ("memory", "--bytes", "1GiB"),
    "exchange": ("all-to-all", "--gpus", 8, "--bytes", "4MiB"),
}
DISPATCH = ("dispatch", "--dispatcher", "deepep", "--tokens", 4096, "--hidden", 7168, "--k", 8, "--experts", 64,
            "--gpus", 8)
TIMES = ("time_us", "time_us_p05", "time_us_p95")


def ask(profile, *query):
    return as_json("predict", "--profile", profile, "--op", *query)


@pytest.fixture
def software(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"format": "moesim-software", "version": 1, "name": "mine", "profile": "h100-sxm",
                                "multipliers": FACTORS, "source": "made up"}))
    return path


def fitted(path):
    """The same, as calibrate writes it: the level is known to 2 %, exchanges to 30 %."""
    document = json.loads(path.read_text())
    document["version"] = 2
    document["fit"] = {"machine": "NVIDIA H100 80GB HBM3", "models": ["m"], "rows": 20,
                       "variances": {"level": 0.0004, "exchange": 0.09, "covariance": 0},
                       "shares": {"products": 0.8, "memory": 0.1, "inside": 0.1, "across": 0}, "scatter": 0.01,
                       "degrees": 18, "leave_one_out": {"median_error": 0.01, "worst_error": 0.02}}
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("kind", QUERIES)
def test_a_kernel_takes_the_multiplier_of_its_class(kind, software):
    bare, mine = ask("h100-sxm", *QUERIES[kind]), ask(software, *QUERIES[kind])
    for time in TIMES:
        assert mine[time] == pytest.approx(FACTORS[kind] * bare[time])
    assert mine["provenance"] == f"{bare['provenance']}; times {FACTORS[kind]:.3f} ({kind}) by mine"
    assert mine.get("rank_finish_us", []) == pytest.approx([FACTORS[kind] * us for us in bare.get("rank_finish_us", [])])


@pytest.mark.parametrize("query", [
    DISPATCH, ("all-to-all", "--gpus", 16, "--bytes", "4MiB"),
    ("all-to-all", "--gpus", 16, "--bytes", "4MiB", "--schedule", "burst", "--cluster", "hgx-h100", "--network", "fast")])
def test_exchanges_over_a_cluster_and_of_a_dispatcher_do_too(query, software):
    bare, mine = ask("h100-sxm", *query), ask(software, *query)
    for time in TIMES:
        assert mine[time] == pytest.approx(FACTORS["exchange"] * bare[time])
    assert mine["provenance"].endswith("; times 0.500 (exchange) by mine")


def test_experts_of_separate_kernels_take_those_of_products_and_activation(software):
    ffn = ("expert-ffn", "--rows", 512, "--hidden", 4096, "--ffn", 14336, "--experts", 1, "--kernel", "separate")
    mine = ask(software, *ffn)
    parts = [ask("h100-sxm", "gemm", "--m", 512, "--n", n, "--k", k)["time_us"] for n, k in (
        (2 * 14336, 4096), (4096, 14336))]
    activation = ask("h100-sxm", "memory", "--bytes", 6 * 512 * 14336, "--kernel", "activation")["time_us"]
    assert mine["time_us"] == pytest.approx(1.5 * sum(parts) + 3 * activation)
    assert mine["provenance"].endswith("; times 1.500 (gemm) by mine; times 3.000 (memory) by mine")


def test_the_band_of_fitted_multipliers_has_the_error_of_the_fit(software):
    narrow = {kind: ask(software, *QUERIES[kind]) for kind in ("gemm", "exchange")}
    fitted(software)
    for kind, least, most in (("gemm", 1.0, 1.05), ("exchange", 1.3, 1.8)):
        wide = ask(software, *QUERIES[kind])
        assert wide["time_us"] == narrow[kind]["time_us"]
        assert least < wide["time_us_p95"] / narrow[kind]["time_us_p95"] < most
        assert least < narrow[kind]["time_us_p05"] / wide["time_us_p05"] < most


def test_a_class_without_a_multiplier_is_named():
    gemm = ask("a100-sxm-80gb-deepspeed", *QUERIES["gemm"])
    assert gemm["time_us"] == pytest.approx(1.346 * ask("a100-sxm-80gb", *QUERIES["gemm"])["time_us"])
    exchange = ask("a100-sxm-80gb-deepspeed", *QUERIES["exchange"])
    assert exchange["time_us"] == ask("a100-sxm-80gb", *QUERIES["exchange"])["time_us"]
    assert exchange["provenance"].endswith("; not scaled: a100-sxm-80gb-deepspeed has no multiplier of exchange")


def test_a_chart_says_what_its_curves_are_multiplied_by(software, tmp_path):
    pytest.importorskip("matplotlib")
    for profile in (software, "h100-sxm"):
        succeed("plot", profile, "--title", "Mine", "--out", tmp_path / "chart.svg")
        said = "times of h100-sxm, multiplied by its factors: products 1.500, attention 1.400, exchanges 0.500"
        assert (said in (tmp_path / "chart.svg").read_text()) == (profile == software)
