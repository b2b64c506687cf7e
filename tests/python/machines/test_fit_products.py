"""The fitters of matrix products and expert FFNs: their pieces against what they must satisfy."""

import sys
from pathlib import Path

import pytest
from public_tables import folder_of

np = pytest.importorskip("numpy", reason="numpy is not installed; the fits need it")
pd = pytest.importorskip("pandas", reason="pandas is not installed; the fits need it")
pytest.importorskip("scipy", reason="scipy is not installed; the fits need it")

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))
from tools.fit import (common, devices, expert_ffn, gemm, interpolation, noise,  # noqa: E402
                       trees)
from tools.fit.gemm.parameters import read, written  # noqa: E402
from tools.fit.gemm.tiles import Physics, log_physics  # noqa: E402


def shapes(count, seed=3):
    random = np.random.default_rng(seed)
    return pd.DataFrame({name: np.exp2(random.uniform(low, 15, count)).astype(int)
                         for name, low in (("m", 0), ("n", 5), ("k", 5))})


def test_gradient_is_the_slope_of_the_prediction():
    model = Physics(shapes(40), 108, 32)
    parameters, _ = gemm.search.start("a100", 108)
    parameters = parameters + np.random.default_rng(1).normal(0, 0.2, len(parameters))
    value, slope = model.gradient(parameters)
    assert value == pytest.approx(model.predict(*read(parameters)), rel=1e-12)
    for index in range(0, len(parameters), 7):
        high, low = parameters.copy(), parameters.copy()
        high[index] += 1e-4
        low[index] -= 1e-4
        central = (model.predict(*read(high)) - model.predict(*read(low))) / 2e-4
        # One-sided steps of 1e-4: the curvature leaves about that much.
        assert slope[:, index] == pytest.approx(central, abs=5e-3)


def test_slopes_in_single_precision_follow_those_in_double():
    rows, parameters = shapes(60), gemm.search.start("b200 fp8", 148)[0]
    parameters = parameters + np.random.default_rng(5).normal(0, 0.2, len(parameters))
    double = Physics(rows, 148, 128, 1.0).gradient(parameters)
    single = Physics(rows, 148, 128, 1.0, np.float32).gradient(parameters)
    # The choice takes differences of log times to the power 20: 1e-7 becomes a few 1e-6.
    assert single[0] == pytest.approx(double[0], abs=1e-4)
    assert single[1] == pytest.approx(double[1], abs=5e-3)
    assert gemm.parameters.shared_names(parameters)[-1] == "input_us_per_element"


def test_a_written_curve_is_read_again():
    parameters = gemm.search.start("b200 nvfp4", 148)[0]
    parameters = np.round(parameters + np.random.default_rng(6).normal(0, 0.3, len(parameters)), 6)
    empty = gemm.corrections.empty_corrections("b200 nvfp4")
    width = gemm.corrections.design(shapes(1), empty, 148, np.ones(1)).shape[1]
    curve = gemm.fitted.describe((parameters, np.zeros(width), None), "b200 nvfp4", 148)
    assert written(curve) == pytest.approx(parameters, abs=1e-9)
    rows = shapes(20)
    physics = np.exp(log_physics(rows, *read(parameters), 148, 256,
                                 gemm.sweeps.ELEMENT_BYTES["nvfp4"])[0])
    assert gemm.fitted.evaluate(curve, rows) == pytest.approx(physics, rel=1e-9)
    # With a tree: m up to 1,024 takes e^0.1 times as long, more of it e^-0.2 times.
    trees = ([0, -1, -1], [10, 0.1, -0.2])
    curve = gemm.fitted.describe((parameters, np.zeros(width), trees), "b200 nvfp4", 148)
    curve["valid"] = {name: [1, 32768] for name in "mnk"}
    assert gemm.fitted.evaluate(curve, rows) == pytest.approx(
        physics * np.exp(np.where(rows.m <= 1024, 0.1, -0.2)), rel=1e-9)
    # Where no more than 1,000 rows were measured, all take what these take.
    curve["valid"]["m"] = [1, 1000]
    assert gemm.fitted.evaluate(curve, rows) == pytest.approx(physics * np.exp(0.1), rel=1e-9)


def test_a_held_out_shape_is_seen_by_no_fit_of_its_prediction():
    rows = pd.DataFrame({"m": [1, 1, 2, 2, 3, 3, 4, 5], "n": [7, 7, 7, 8, 8, 8, 9, 9]})
    shapes_of = lambda part: set(zip(part.m, part.n))
    seen = lambda known, unseen: [shape in known for shape in zip(unseen.m, unseen.n)]
    assert common.held_out(rows, ["m", "n"], shapes_of, seen).tolist() == [0] * len(rows)
    # Rows that agree in n are left out together: each model sees 4 of the 6 shapes.
    counts = lambda known, unseen: np.full(len(unseen), len(known))
    assert common.held_out(rows, "n", shapes_of, counts).tolist() == [4] * len(rows)


def test_trees_grow_with_the_sweep():
    assert trees.size(32106) == (25, 127, 0.3)
    assert trees.size(1290) == (8, 15, 0.4)
    assert trees.size(100)[:2] == (1, 15)
    for points in (150, 1000, 3225, 8281, 26000, 100000):
        count, leaves, _ = trees.size(points)
        assert trees.POINTS_PER_LEAF * count * leaves <= points


def test_leaves_are_medians_that_outliers_do_not_move():
    pytest.importorskip("lightgbm", reason="lightgbm is not installed; fits of trees need it")
    x = np.repeat([0.0, 1.0], 100)
    errors = np.where(x == 0, 0.1, -0.2)
    errors[::5] += 1  # of each half every fifth point
    found = trees.fit_medians(x[:, None], errors, (1, 2, 1.0), np.ones(200))
    assert found[0] == [0, -1, -1]
    assert 0 < found[1][0] < 1 and found[1][1:] == [0.1, -0.2]
    # Each tree takes up half of what is left: 1 - 1/8 of it after three.
    found = trees.fit_medians(x[:, None], errors, (3, 2, 0.5), np.ones(200))
    assert trees.evaluate(found, np.array([[0.0], [1.0]])) == pytest.approx([0.0875, -0.175])
    # Where the outliers weigh more than the others, they are the median.
    heavy = np.where(np.arange(200) % 5 == 0, 5.0, 1.0)
    assert trees.fit_medians(x[:, None], errors, (1, 2, 1.0), heavy)[1][1:] == [1.1, 0.8]


def test_trees_of_many_kernels_weigh_long_products_by_their_rows():
    rows = pd.DataFrame({"m": [128, 128, 129], "time_us": [100.0, 101.0, 101.0]})
    assert gemm.boosting.tree_importance(rows, "gb200").tolist() == [1, 6, 2]
    assert gemm.boosting.tree_importance(rows, "gb200 fp8").tolist() == [1, 3, 3]
    fewer = gemm.boosting.tree_inputs("gb200 fp8")
    more = [each for each in gemm.boosting.tree_inputs("gb200") if each not in fewer]
    assert {(each["rows"], each["columns"]) for each in more} == {(64, 32), (256, 128)}


def test_falls_are_larger_products_that_take_clearly_less_time(monkeypatch):
    rows = pd.DataFrame({"m": 8, "n": [64, 64, 64, 96, 96], "k": [32, 128, 64, 32, 64],
                         "time_us": [5.0, 5.5, 6.0, 10.0, 9.0]})
    monkeypatch.setattr(gemm.sweeps, "load", lambda data, sweep: rows)
    # 6 to 5.5 us is less than a tenth, 10 to 9 more; from one n to the next both take longer.
    assert noise.falls(None, "b200") == (pytest.approx(1 / 3), 3)
    assert noise.falls(None, "b200", "n") == (0, 2)


def test_loads_that_all_follow_a_power_law_ask_for_sizes_alone():
    rows = pd.DataFrame({"distribution": ["power_law_1.2"] * 2, "tuned": False})
    tree_inputs = expert_ffn.boosting.tree_inputs
    assert not any("kernel" in each or each["x"] == "log2_active" for each in tree_inputs(rows))
    rows.loc[1, "distribution"] = "balanced"
    assert any(each["x"] == "log2_block_padding" for each in tree_inputs(rows))
    assert not any(each["x"] == "tuned" for each in tree_inputs(rows))
    rows.loc[1, "tuned"] = True
    assert any(each["x"] == "tuned" for each in tree_inputs(rows))


def test_tuned_sizes_are_pairs_of_experts_and_ffn():
    rows = pd.DataFrame({"experts": [8, 8, 16], "ffn": [1792, 1344, 1344]})
    assert expert_ffn.sweeps.is_tuned(rows, expert_ffn.sweeps.TUNED["a100"]) == [True, False, True]


def test_host_bound_rows_are_left_out_by_their_shape():
    rows = pd.DataFrame({"m": [64, 16384], "n": [4096, 16384], "k": [4096, 16384],
                         "time_us": [1e6, 1.0]})
    assert gemm.sweeps.beyond_host(rows, "b200").tolist() == [False, True]


@pytest.mark.slow
def test_fit_finds_the_machine_that_made_the_times():
    rows = shapes(1500)
    truth, _ = gemm.search.start("a100", 108)
    truth = truth + np.random.default_rng(2).normal(0, 0.15, len(truth))
    rows["time_us"] = np.exp(log_physics(rows, *read(truth), 108, 32)[0])
    found = gemm.search.fit_physics(rows, "a100", 108)
    unseen = shapes(300, seed=9)
    expected = log_physics(unseen, *read(truth), 108, 32)[0]
    errors = np.abs(log_physics(unseen, *read(found), 108, 32)[0] - expected)
    assert np.median(errors) < 0.01
    assert np.quantile(errors, 0.9) < 0.06


def test_interpolation_weights_are_a_partition_of_one():
    random = np.random.default_rng(4)
    columns = [random.uniform(-2, 20, 200) for _ in range(3)]
    axes = ([0, 3, 7, 15], [5, 9, 16], [5, 6, 16])
    weights = interpolation.product(columns, axes).toarray()
    assert (interpolation.dense_product(columns, axes) == weights).all()
    assert weights.sum(1) == pytest.approx(np.ones(200))
    # Linear in every variable between the knots: it reproduces x y z, clamped to them.
    knots = np.einsum("a,b,c->abc", *(np.array(axis, float) for axis in axes)).ravel()
    clamped = np.prod([np.clip(x, axis[0], axis[-1]) for x, axis in zip(columns, axes)], axis=0)
    assert weights @ knots == pytest.approx(clamped)


def test_values_go_to_the_terms_whose_knots_they_are_at():
    terms = [{"x": "k", "x_knots": [0, 1], "y_knots": [0, 1, 2]},
             {"x": "m", "x_knots": [0], "y_knots": [5]}]
    found = interpolation.with_values(terms, np.arange(7.0))
    assert [term["values"] for term in found] == [[0, 1, 2, 3, 4, 5], [6]]
    assert [term["x"] for term in found] == ["k", "m"] and "values" not in terms[0]


@pytest.mark.parametrize("tokens,choices,experts", [(1, 2, 8), (3, 2, 8), (640, 8, 256)])
def test_balanced_loads_hold_every_choice(tokens, choices, experts):
    counts = expert_ffn.loads.balanced_counts(tokens, choices, experts)
    assert counts.sum() == tokens * choices
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("tokens,choices,experts,groups", [(1, 2, 8, 1), (4096, 2, 8, 4),
                                                          (777, 8, 256, 16)])
def test_power_law_loads_hold_every_choice_and_put_the_busiest_group_first(tokens, choices, experts,
                                                                           groups):
    for seed in range(5):
        random = np.random.default_rng(seed)
        counts = expert_ffn.loads.power_law_counts(tokens, choices, experts, groups, 1.2, random)
        assert counts.sum() == tokens * choices
        assert counts.min() >= 0
        uncapped = counts.max() < tokens
        by_group = counts.reshape(groups, -1).sum(1)
        assert by_group[0] == by_group.max() or not uncapped


def test_scaling_a_curve_scales_its_time():
    tiles, evaluate = expert_ffn.tiles.TILES, expert_ffn.fitted.evaluate
    curve = {"physics": {"sms": 100, "step": 64, "launch_us": 1e-9, "dram_bytes_per_us": 2e6,
                         "overlap_power": 3, "choice_power": 10, "row_bytes_per_us": 4e6,
                         "expert_us": 1e-9},
             "kernels": {"rows": tiles[:, 0].tolist(), "columns": tiles[:, 1].tolist(),
                         "step_us": [1.0] * len(tiles), "tile_us": [1.0] * len(tiles),
                         "overlap": [1.0] * len(tiles)},
             "corrections": [{"x": "log2_ffn", "y": "log2_hidden", "x_knots": [0, 1],
                              "y_knots": [0, 1], "values": [0, 0, 0, 0]}]}
    query = expert_ffn.fitted.query(curve, np.full(8, 4096), 4096, 14336)
    before = evaluate(curve, query)
    # Everything half as fast on as many SMs: twice the time.
    assert evaluate(expert_ffn.siblings.scaled(curve, 2, 2, 100), query) == pytest.approx(
        2 * before, rel=1e-9)
    # The ratio of whole products counts the SMs: at equal ratio, half the SMs change nothing.
    assert evaluate(expert_ffn.siblings.scaled(curve, 1, 1, 50), query) == pytest.approx(
        before, rel=0.01)


def test_derived_expert_curves_follow_their_law_again():
    data = folder_of("gemm_h100.csv.gz", "gemm_h200.csv.gz")
    known, evaluate = devices.all_devices(), expert_ffn.fitted.evaluate
    for dtype in ("bf16", "fp8"):
        there = common.shipped_curve("h200-sxm", "expert-ffn", dtype)
        again = expert_ffn.siblings.of_sibling(data, "h100-sxm", "h200-sxm", dtype, known)
        assert there["origin"] == "derived"
        for loads in ([2048] * 8, [9000, 100, 0, 0], [16] * 128):
            query = expert_ffn.fitted.query(there, loads, 4096, 1536)
            assert evaluate(again, query) == pytest.approx(evaluate(there, query), rel=1e-6)
            # Faster memory and about the same SMs than H100.
            ratio = evaluate(there, query) / evaluate(
                common.shipped_curve("h100-sxm", "expert-ffn", dtype), query)
            assert 0.7 < ratio < 1.05
