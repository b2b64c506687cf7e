"""Router logits and route logs of other programs: what `moesim import` makes of them, what a trace
says by itself, and `route --logits` at several capacity factors; expected figures by NumPy."""

import json

import pytest

from command_line import as_json, as_rows, moesim, needs_binary, refused, succeed, trace_document

np = pytest.importorskip("numpy", reason="NumPy is not installed")
pytestmark = needs_binary


def failed(chosen, factor, experts):
    """Share of routes beyond ceil(factor S / E) of one GPU; chosen [tokens, k]."""
    slots = -(-round(factor * 100) * len(chosen) // (100 * experts))
    counts = np.bincount(chosen.ravel(), minlength=experts)
    return np.maximum(counts - slots, 0).sum() / chosen.size


def best(logits, k):
    return np.argsort(-logits, axis=-1, kind="stable")[..., :k]


def to_bfloat16(values):
    """The upper 16 bits, rounded to nearest even."""
    bits = values.astype("float32").view("uint32")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("uint16")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16", "bits"])
@pytest.mark.parametrize("shape", [(48, 8), (3, 48, 8), (2, 3, 48, 8)])
def test_logits_of_every_type_and_shape_become_a_trace(tmp_path, dtype, shape):
    logits = np.random.default_rng(1).normal(size=shape)
    if dtype in ("bfloat16", "bits"):
        bits = to_bfloat16(logits)
        expected = (bits.astype("uint32") << 16).view("float32")
        np.save(tmp_path / "logits.npy", bits if dtype == "bits" else bits.view("V2"))
    else:
        np.save(tmp_path / "logits.npy", logits.astype(dtype))
        expected = logits.astype(dtype).astype("float32")
    bits = ("--dtype", "bfloat16") if dtype == "bits" else ()
    result = moesim("import", tmp_path / "logits.npy", "--top-k", 2, *bits, "--out", tmp_path / "t")
    assert result.returncode == 0, result.stderr
    kind = np.load(tmp_path / "t" / "logits.npy")
    ranks = shape[0] if len(shape) > 2 else 1
    layers = shape[1] if len(shape) > 3 else 1
    assert kind.shape == (1, ranks, layers, 48, 8)
    assert (kind.reshape(expected.shape) == expected).all()
    # Experts, GPUs, tokens and layers are the trace's.
    row = as_json("route", "--routing", f"trace:{tmp_path / 't'}", "--router", "top2",
                  "--capacity-factor", 1, "--replicas", 1)
    assert row["experts"] == 8 and row["tokens_per_gpu"] == 48 and row["model"] is None
    assert row["gpus"] == (ranks if ranks > 1 else 32)
    assert len(row["detail"]["layers"]) == layers
    each = best(expected, 2).reshape(-1, 48, 2)
    assert row["failed"] == pytest.approx(np.mean([failed(one, 1, 8) for one in each]))


def test_axes_in_any_order_and_sequences(tmp_path):
    """As transformers gives them: [layer, sequence, token, expert]."""
    logits = np.random.default_rng(2).normal(size=(2, 3, 16, 8)).astype("float32")
    np.save(tmp_path / "logits.npy", logits)
    succeed("import", tmp_path / "logits.npy", "--axes", "layer,sequence,token,expert", "--top-k", 2,
            "--out", tmp_path / "t")
    assert (np.load(tmp_path / "t" / "logits.npy")[0, 0] == logits.reshape(2, 48, 8)).all()
    np.save(tmp_path / "turned.npy", np.ascontiguousarray(logits.transpose(2, 0, 3, 1)))
    succeed("import", tmp_path / "turned.npy", "--axes", "token,layer,expert,sequence", "--top-k", 2,
            "--out", tmp_path / "same")
    assert (np.load(tmp_path / "same" / "logits.npy") == np.load(tmp_path / "t" / "logits.npy")).all()
    start = ("import", tmp_path / "logits.npy", "--out", tmp_path / "u")
    refused(*start, parts=["--top-k is missing"])
    refused(*start, "--top-k", 2, "--axes", "layer,token,expert", parts=["--axes names 3"])
    refused(*start, "--top-k", 2, "--axes", "layer,layer,token,expert", parts=["at most once"])
    refused(*start, "--top-k", 9, parts=["9 experts per token of 8"])
    np.save(tmp_path / "whole.npy", logits.astype("int32"))
    refused("import", tmp_path / "whole.npy", "--top-k", 2, "--out", tmp_path / "u",
            parts=["--axes is missing", "logits are floating point"])
    logits[1, 2, 3, 4] = np.nan
    np.save(tmp_path / "logits.npy", logits)
    refused(*start, "--top-k", 2, parts=["rank 1, layer 2, token 3, expert 4: NaN"])


def test_a_step_takes_the_sizes_of_a_trace(tmp_path):
    logits = np.random.default_rng(4).normal(size=(4, 256, 8)).astype("float32")
    np.save(tmp_path / "logits.npy", logits)
    succeed("import", tmp_path / "logits.npy", "--top-k", 2, "--out", tmp_path / "t")
    words = ("simulate", "--routing", f"trace:{tmp_path / 't'}", "--router", "top2", "--replicas", 1,
             "--capacity-factor", 1, "--format", "json")
    result = moesim(*words)
    assert "--experts 8 --gpus 4 --tokens-per-gpu 256" in result.stderr
    row = json.loads(result.stdout)
    assert (row["gpus"], row["tokens_per_gpu"], row["sequence_length"]) == (4, 256, 256)
    typed = json.loads(succeed(*words, "--gpus", 8, "--sequence-length", 128, "--micro-batch", 1))
    assert (typed["gpus"], typed["tokens_per_gpu"]) == (8, 128)


def test_route_logs_of_megatron(tmp_path):
    random = np.random.default_rng(5)
    chosen = np.array([[[random.permutation(8)[:2] for _ in range(24)] for _ in range(2)]
                       for _ in range(6)]).reshape(3, 2, 2, 24, 2)  # step, rank, layer, token, choice
    for rank in range(2):
        with open(tmp_path / f"rank{rank}.jsonl", "w") as file:
            for step in range(3):
                for layer in range(2):
                    file.write(json.dumps({"step": step, "stage": "pre_dispatch", "block": "decoder",
                                           "layer": 3 + 2 * layer, "rank": rank, "num_tokens": 24,
                                           "topk": 2, "top_indices": chosen[step, rank, layer].tolist()})
                               + "\n")
                file.write(json.dumps({"step": step, "block": "mtp", "mtp_idx": 0, "layer": 3,
                                       "rank": rank, "top_indices": [[0, 1]]}) + "\n")
    files = [tmp_path / "rank1.jsonl", tmp_path / "rank0.jsonl"]
    result = moesim("import", *files, "--experts", 8, "--out", tmp_path / "t")
    assert result.returncode == 0 and "6 records of prediction depths left out" in result.stderr
    assert (np.load(tmp_path / "t" / "choices.npy") == chosen).all()
    assert trace_document(tmp_path / "t")["layers"] == [3, 5] and trace_document(tmp_path / "t")["top_k"] == 2
    row = as_json(*result.stderr.split("try: moesim ")[1].split(), "--capacity-factor", 1)
    assert row["failed"] == pytest.approx(
        np.mean([failed(one, 1, 8) for one in chosen.reshape(-1, 24, 2)]))
    # Tokens one after another, 36 to a step.
    succeed("import", *files, "--experts", 8, "--tokens", 36, "--out", tmp_path / "u")
    assert (np.load(tmp_path / "u" / "choices.npy")[1, 0, 1] ==
            chosen[:, 0, 1].reshape(72, 2)[36:]).all()
    refused("import", *files, "--out", tmp_path / "v", parts=["--experts is missing"])
    refused("import", *files, "--experts", 4, "--out", tmp_path / "v",
            parts=["rank1.jsonl, line 1", "--experts 4 are 0 to 3"])
    refused("import", *files, "--experts", 8, "--tokens", 100, "--out", tmp_path / "v", parts=["--tokens: 100"])
    with open(files[0], "a") as file:
        file.write('{"step": 3, "block": "decoder", "layer": 3, "rank": 1, "top_indices": [[0, 1]]}\n')
    refused("import", *files, "--experts", 8, "--out", tmp_path / "v", parts=["1 to 24 tokens", "--tokens N"])
    refused("import", *files, "--experts", 8, "--tokens", 8, "--out", tmp_path / "v", parts=["cut short"])
    files[0].write_text("{}\n")
    refused("import", *files, "--experts", 8, "--out", tmp_path / "v", parts=["line 1", "top_indices"])
    files[0].write_text("[1]\n")
    refused("import", *files, "--experts", 8, "--out", tmp_path / "v", parts=["line 1: no JSON object"])


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("each", [1, 5])
def test_route_logs_of_vllm(tmp_path, normalised, each):
    logits = np.random.default_rng(6).normal(size=(2, 20, 8))
    chosen = best(logits, 2)
    g = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    weights = np.take_along_axis(g, chosen, -1)
    logged = weights / weights.sum(-1, keepdims=True) if normalised else weights
    with open(tmp_path / "routes.jsonl", "w") as file:
        file.write('{"type": "meta", "model_id": "m", "top_k": 2}\n')
        for token in range(0, 20, each):
            for layer in range(2):
                part = slice(token, token + each)
                ids, values = chosen[layer, part].tolist(), logged[layer, part].tolist()
                file.write(json.dumps({"type": "route", "layer": layer, "token_idx": token,
                                       "topk_ids": ids if each > 1 else ids[0],
                                       "topk_weights": values if each > 1 else values[0]}) + "\n")
    result = moesim("import", tmp_path / "routes.jsonl", "--experts", 8, "--out", tmp_path / "t")
    assert result.returncode == 0, result.stderr
    assert (np.load(tmp_path / "t" / "choices.npy")[0, 0] == chosen).all()
    has = (tmp_path / "t" / "probabilities.npy").exists()
    assert has == (not normalised) and ("without" in result.stderr) == normalised
    if has:
        np.testing.assert_allclose(np.load(tmp_path / "t" / "probabilities.npy")[0, 0], weights, rtol=1e-6)


def test_arrays_of_choices(tmp_path):
    """What vLLM returns of a request: routed_experts [token, layer, choice]."""
    chosen = best(np.random.default_rng(7).normal(size=(40, 3, 8)), 2)
    np.save(tmp_path / "routed.npy", chosen.astype("int16"))
    words = ("import", tmp_path / "routed.npy", "--axes", "token,layer,choice")
    succeed(*words, "--experts", 8, "--out", tmp_path / "t")
    assert (np.load(tmp_path / "t" / "choices.npy")[0, 0] == chosen.transpose(1, 0, 2)).all()
    refused(*words, "--out", tmp_path / "u", parts=["--experts is missing"])
    refused(*words, "--experts", 8, "--top-k", 3, "--out", tmp_path / "u", parts=["2 choices", "--top-k says 3"])
    chosen[5, 1] = 4
    np.save(tmp_path / "routed.npy", chosen)
    refused(*words, "--experts", 8, "--out", tmp_path / "u", parts=["layer 1, token 5", "twice"])


def losses(logits, chosen):
    flat, first = logits.reshape(-1, logits.shape[-1]).astype(float), chosen[..., :1]
    g = np.exp(flat) / np.exp(flat).sum(1, keepdims=True)
    shares = [np.bincount(part.ravel(), minlength=flat.shape[1]) / part.size for part in (first, chosen)]
    return [flat.shape[1] * (share * g.mean(0)).sum() for share in shares] + [
        (np.log(np.exp(flat).sum(1)) ** 2).mean()]


def test_every_loss_of_logits_at_several_capacity_factors(tmp_path):
    logits = np.random.default_rng(8).normal(size=(2, 100, 8)).astype("float16")
    np.save(tmp_path / "logits.npy", logits)
    words = ("route", "--logits", tmp_path / "logits.npy", "--router", "top1,top2", "--capacity-factor", "0.5:2:0.5")
    rows = as_rows(*words)
    assert [(row["router"], float(row["capacity_factor"])) for row in rows] == [
        (router, factor) for router in ("top1", "top2") for factor in (0.5, 1, 1.5, 2)]
    for row in rows:
        chosen = best(logits.astype(float), int(row["router"][3]))
        assert float(row["failed"]) == pytest.approx(
            np.mean([failed(one, float(row["capacity_factor"]), 8) for one in chosen]))
        found = [float(row[name]) for name in ("balance_loss", "balance_loss_all_choices", "z_loss")]
        assert found == pytest.approx(losses(logits, chosen), rel=2e-5)
        assert row["experts"] == "8" and row["tokens_per_gpu"] == "100" and row["routing"] == ""
    assert [row["failed"] for row in as_json(*words)] == pytest.approx(
        [float(row["failed"]) for row in rows])
    table = succeed(*words)
    assert len(table.splitlines()) == 9 and "token loss %" in table and "z loss" in table
    succeed(*words, "--out", tmp_path / "losses.csv")
    assert (tmp_path / "losses.csv").read_text() == succeed(*words, "--format", "csv")
    refused(*words, "--out", tmp_path / "routes.npy", parts=["of one router", ".csv"])
    # One rank as [S, E]; a router without a softmax has no losses of training.
    np.save(tmp_path / "one.npy", logits[0].astype("float64"))
    row = as_json("route", "--logits", tmp_path / "one.npy", "--router", "expert-choice", "--capacity-factor", 1)
    assert row["z_loss"] is None and row["expert_parallel"] == 1
    np.save(tmp_path / "four.npy", np.zeros((2, 2, 4, 8), "float32"))
    refused("route", "--logits", tmp_path / "four.npy", parts=["[P, S, E]", "moesim import"])


def test_generated_routing_at_several_capacity_factors():
    words = ("route", "--gpus", 8, "--tokens-per-gpu", 256, "--replicas", 2, "--router", "top2,top2+fr")
    rows = as_rows(*words, "--capacity-factor", "1,2", "--losses")
    for row in rows:
        alone = as_json(*words[:-2], "--router", row["router"], "--capacity-factor", row["capacity_factor"], "--losses")
        assert float(row["residual_loss"]) == pytest.approx(alone["residual_loss"])
        assert float(row["z_loss"]) == pytest.approx(alone["detail"]["auxiliary_losses"]["z"])
    assert len(rows) == 4
