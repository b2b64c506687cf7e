"""The quality experiment: its router is moesim's, its gradient the paper's, its runs repeat."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest

from command_line import needs_binary, succeed

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools" / "quality"))
torch = pytest.importorskip("torch", reason="python3-torch is not installed")

import experiment  # noqa: E402
import tiny_moe  # noqa: E402
from rectified_router import Rules, route, softmax  # noqa: E402

ROUTERS = ("top1", "top1+fr", "top1+ir", "top2", "top2+fr", "top2+fr+ir")


def random_logits(shape, seed):
    """Normal logits with equal ones among them: rounded rows, a row all equal."""
    logits = np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * 1.5
    logits[0, :4] = np.round(logits[0, :4])
    logits[-1, 3] = 0
    return logits


@needs_binary
@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("experts, tokens, local", [(8, 128, 1), (8, 37, 2), (32, 128, 4), (6, 50, 3)])
def test_routes_are_those_of_moesim(router, experts, tokens, local, tmp_path):
    source, target = tmp_path / "logits.npy", tmp_path / "routes.npy"
    logits = random_logits((experts // local, tokens, experts), experts + tokens)
    np.save(source, logits)
    for factor in ("0.5", "1", "2.2"):
        succeed("route", "--router", router, "--capacity-factor", factor, "--logits", source,
                "--out", target)
        routes = np.load(target)
        rectified = routes["slot"] == -2
        ours = route(torch.from_numpy(logits), Rules.parse(router, factor, local))
        theirs = routes[~rectified]
        assert (theirs["expert"] == ours.chosen.numpy().ravel()).all()
        assert (theirs["slot"] == ours.slots().numpy().ravel()).all()
        acts = ours.missing.numpy() > 0
        assert acts.any() == ("ir" in router) or factor == "2.2"  # at 2.2 all may fit
        # Rows of IR stand in (rank, token) order too.
        assert (np.argwhere(acts) == np.stack([routes["rank"], routes["token"]], 1)[rectified]).all()
        assert (routes["expert"][rectified] == ours.near.numpy()[acts]).all()


def test_softmax_is_one():
    logits = torch.from_numpy(random_logits((2, 64, 32), 1))
    torch.testing.assert_close(softmax(logits), logits.softmax(-1), rtol=2e-6, atol=1e-9)
    assert softmax(torch.tensor([[[0.0, -200.0]]])).tolist() == [[[1.0, 0.0]]]


def layer_gradient(router, straight_through):
    """dL/da [token, expert] by autograd, and by the two formulas of the straight-through
    normaliser: dL/da_l = [l in R] w_l (u_l - v), or [l in R] w_l u_l - g_l v."""
    torch.manual_seed(3)
    shape = tiny_moe.Shape(vocabulary=2, hidden=6, ffn=5, experts=4)
    layer = tiny_moe.MoeLayer(shape).double()
    layer.gate.weight.data *= 3
    x = torch.randn(16, 6, dtype=torch.double)
    upstream = torch.randn(16, 6, dtype=torch.double)
    control = tiny_moe.Control(Rules.parse(router, "1", 1), 4, straight_through)
    kept_logits = []
    record = control.record

    def hold(logits, routing):
        logits.retain_grad()
        kept_logits.append(logits)
        record(logits, routing)
    control.record = hold
    (layer(x, control) * upstream).sum().backward()
    routing = control.routings[0]
    g = kept_logits[0].detach().softmax(-1)
    outputs = torch.stack([layer.experts(x, [16 if other == expert else 0 for other in range(4)])
                           for expert in range(4)], 1).detach()  # [token, expert, h]
    u = (outputs * upstream[:, None]).sum(2)
    mass = torch.zeros_like(g)
    chosen, kept = routing.chosen.flatten(0, 1), routing.kept.flatten(0, 1)
    mass.scatter_add_(1, chosen, g.gather(1, chosen) * kept)
    near, missing = routing.near.flatten()[:, None], routing.missing.flatten()[:, None]
    mass.scatter_add_(1, near, g.gather(1, near) * missing)
    weight = mass / mass.sum(1, keepdim=True).clamp(min=1e-30)
    v = (weight * u).sum(1, keepdim=True)
    expected = weight * u - g * v if straight_through else weight * (u - v)
    return kept_logits[0].grad, expected


@pytest.mark.parametrize("straight_through", [True, False])
@pytest.mark.parametrize("router", ROUTERS)
def test_gradient_of_the_gate_is_the_formula(router, straight_through):
    found, expected = layer_gradient(router, straight_through)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    # One row of weight 1: nothing to learn.
    alone = router in ("top1", "top1+ir") and not straight_through
    assert (found.abs().max() < 1e-12) == alone


class Noise:
    """Text of no meaning in the corpus's place."""
    symbols, train, held_out = 11, 1, 2

    @staticmethod
    def sample(_, count, length, random):
        return random.integers(0, Noise.symbols, (count, length + 1))


def test_a_run_is_whole_and_repeats(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "HELD_OUT_BATCHES", 1)
    arm = next(arm for arm in experiment.arms() if arm.name == "top2+fr+ir")
    for folder in ("a", "b"):
        experiment.run_one(arm, 1, Noise, tmp_path / folder, steps=10)
    path = experiment.run_path(tmp_path / "a", arm, 1)
    assert path.read_bytes() == experiment.run_path(tmp_path / "b", arm, 1).read_bytes()
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["router"], row["capacity_factor"], int(row["experts_per_gpu"])) for row in rows] \
        == experiment.evaluations(arm)
    loss = {(row["router"], row["capacity_factor"], row["experts_per_gpu"]):
            float(row["residual_loss"]) for row in rows}
    assert loss["top2", "8", "1"] == 0  # C = S: nothing is dropped
    # E C = S / 2 slots: half of the tokens at best keep one of two, more than half of its mass.
    assert 0.5 <= loss["top2", "0.5", "1"] < 0.75
    assert loss["top2", "0.5", "1"] > loss["top2+ir", "0.5", "1"] >= loss["top2+ir", "0.5", "4"]
    logits = np.load(tmp_path / "a" / "logits" / "top2+fr+ir 1.npy")
    assert logits.shape == (1, 2, 8, 128, 8)  # step 10; layer, GPU, token, expert


def test_every_arm_names_a_router_of_its_own():
    names = [arm.name for arm in experiment.arms()]
    assert len(set(names)) == len(names)


def test_verdicts_follow_the_plan():
    pytest.importorskip("scipy", reason="scipy is not installed")
    from claims import MARGIN, interval, verdict
    # n = 3, standard deviation 1: half width 4.3027 / sqrt(3).
    assert interval(np.array([1.0, 2.0, 3.0])) == pytest.approx((2, 2.48414), abs=1e-4)
    for mean, half, expected, said in (
            (-0.02, 0.01, "negative", "holds"), (0.02, 0.01, "negative", "does not hold"),
            (-0.02, 0.03, "negative", "cannot tell"), (0.02, 0.01, "positive", "holds"),
            (-0.02, 0.01, "positive", "does not hold"), (0, MARGIN / 2, "small", "holds"),
            (0.02, 0.005, "small", "does not hold"), (-0.02, 0.005, "small", "does not hold"),
            (0, 2 * MARGIN, "small", "cannot tell"), (-0.5, 0.1, "not above", "holds"),
            (0.02, 0.005, "not above", "does not hold")):
        assert verdict(mean, half, expected) == said, (mean, half, expected)


def test_every_claim_speaks_of_what_is_evaluated():
    pytest.importorskip("scipy", reason="scipy is not installed")
    from claims import claims
    evaluated = {(arm.name, *one) for arm in experiment.arms()
                 for one in experiment.evaluations(arm)}
    for claim in claims():
        for term in (*claim.plus, *claim.minus):
            assert (term.arm, term.router, term.capacity_factor, term.experts_per_gpu) in evaluated


def test_upcycled_experts_start_as_the_dense_network():
    """With one FFN in every expert and nothing dropped, a token's experts agree, so the weighted sum
    is the dense model's."""
    dense = tiny_moe.TinyMoe(tiny_moe.Shape(11, experts=0))
    model = tiny_moe.TinyMoe(tiny_moe.Shape(11, experts=8))
    model.upcycle(dense)
    text = torch.from_numpy(Noise.sample(None, 8, 128, np.random.default_rng(1)))
    with torch.no_grad():
        expected = dense(text, tiny_moe.Control(None, 128))
        for router in ("top1", "top2", "top2+fr"):
            found = model(text, tiny_moe.Control(Rules.parse(router, "8"), 128))
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


def test_the_shipped_table_follows_from_the_shipped_results(tmp_path):
    pytest.importorskip("scipy", reason="scipy is not installed")
    import analyse
    folder = ROOT / "tools" / "quality"
    table = tmp_path / "claims.md"
    assert analyse.main([str(folder / "results.csv"), "--table", str(table)]) == 0
    assert table.read_text(encoding="utf-8") == (folder / "claims.md").read_text(encoding="utf-8")
