"""Evaluates a shipped profile document in Python: the second implementation that sim/profile is
compared with, operation by operation.

    python3 -m tools.fit.evaluate --profiles profiles/hardware --golden tests/golden/profile
"""
import argparse
import json
from pathlib import Path

import numpy as np
import pandas as pd

from tools.fit import attention, expert_ffn, gemm, gpu_count_law, piecewise, quantize, report

BYTES_PER_ELEMENT = 2
COLLECTIVES = ("all-to-all", "all-reduce", "all-gather", "reduce-scatter")


def knots(node):
    return np.array(node["bytes"]), np.array(node["time_us"])


def links(document):
    """How a document says its GPUs are joined, for the count law."""
    topology = document["topology"]
    if topology["kind"] == "pcie":
        return {"kind": "pcie", "group": topology["gpus_per_group"],
                "group_bytes_per_us": topology["group_bytes_per_second"] / 1e6}
    rate = document["devices"][0]["nvlink_bytes_per_second"]["value"]
    return {"kind": "nvlink-switch", "port_bytes_per_us": rate / 1e6,
            "switch_reduces": topology.get("switch_reduces", False)}


def collective_us(document, op, gpus, size):
    """Microseconds of an exchange under the profile's default NCCL version."""
    curve = next(each for each in document["curves"] if each["op"] == op and each["default"])
    branches = curve["branches"]
    for branch in branches:
        if branch["gpus"] == gpus:
            return float(piecewise.evaluate(*knots(branch), size))
    if gpus > branches[-1]["gpus"]:
        fewer = [(branch["gpus"], knots(branch)) for branch in branches]
        return float(piecewise.evaluate(*gpu_count_law.predict(op, links(document), fewer, gpus), size))
    high = next(number for number, branch in enumerate(branches) if branch["gpus"] > gpus)
    few, many = branches[high - 1], branches[high]
    sent = size * (gpus - 1) / gpus
    at_few = piecewise.evaluate(*knots(few), sent * few["gpus"] / (few["gpus"] - 1))
    at_many = piecewise.evaluate(*knots(many), sent * many["gpus"] / (many["gpus"] - 1))
    # Latencies by the count, what bytes take by the share that leaves a GPU; over PCIe peers take their
    # bytes one after another.
    by_count = (gpus - few["gpus"]) / (many["gpus"] - few["gpus"])
    one_after_another = op == "all-to-all" and links(document).get("kind") == "pcie"
    by_share = by_count if one_after_another else by_count * many["gpus"] / gpus
    few_start, many_start = (each["time_us"][0] for each in (few, many))
    return float(few_start + by_count * (many_start - few_start) +
                 (1 - by_share) * (at_few - few_start) + by_share * (at_many - many_start))


def memory_us(document, size, kernel="streaming"):
    curve = next(each for each in document["curves"]
                 if each["op"] == "memory" and each["params"]["kernel"] == kernel)
    return float(piecewise.evaluate(*knots(curve), size))


def row_move_us(document, op, tokens, hidden, k):
    curve = next(each for each in document["curves"] if each["op"] == op)
    size = BYTES_PER_ELEMENT * hidden * (tokens + tokens * k)
    return memory_us(document, size / curve["efficiency"])


class FromDocument:
    """The Machine of tools/fit/attention, as a curve carries it."""

    def __init__(self, curve):
        physics = curve["physics"]
        self.sms, self.l2_bytes = physics["sms"], physics["l2_bytes"]
        self.tile_rows, self.packs = physics["tile_rows"], physics["packs_groups"]
        self.terms = [(term["x"], np.array(term["x_knots"]), term["y"], np.array(term["y_knots"]))
                      for term in curve["corrections"]]


def of_type(document, op, dtype):
    """The curves of an operation and a data type."""
    return [each for each in document["curves"]
            if each["op"] == op and each["params"].get("dtype", "bf16") == dtype]


def no_faster_than_machine(time_us, document, dtype, flops, weights=0):
    """The time, but no less than the datasheet allows: `flops` at the peak, and `weights` (elements
    that are read) beyond the L2 at the memory's peak bandwidth."""
    figure = {name: entry["value"] for name, entry in document["devices"][0].items()
              if isinstance(entry, dict)}
    bytes_each, faster = (0.5, 6) if "fp4" in dtype else (1, 2) if dtype.startswith("fp8") else (2, 1)
    read = max(weights * bytes_each - figure["l2_bytes"], 0)
    return max(time_us, 1e6 * flops / (faster * figure["peak_bf16_flops"]),
               1e6 * read / figure["hbm_bytes_per_second"])


def attention_us(document, batch, sequence, heads, kv_heads, head_dim, dtype="bf16"):
    time_us = tiled_us(next(each for each in of_type(document, "attention", dtype)
                            if each["params"]["head_dim"] == head_dim),
                       batch, sequence, heads, kv_heads)
    return no_faster_than_machine(time_us, document, dtype, 2.0 * batch * heads * sequence**2 * head_dim)


def latent_attention_us(document, batch, sequence, heads, dtype="bf16"):
    return tiled_us(of_type(document, "latent-attention", dtype)[0], batch, sequence, heads, heads)


def tiled_us(curve, batch, sequence, heads, kv_heads):
    physics, head_dim = curve["physics"], curve["params"]["head_dim"]
    positive = [max(physics[name], 1e-300) for name in attention.tiles.PARAMETERS]
    logs = np.append(np.log(positive), physics["cache_log_us_per_token"])
    values = np.concatenate([term["values"] for term in curve["corrections"]])
    # Far more heads than were measured are priced in equal pieces, each its own launch.
    most, pieces = 16 * curve["valid"]["batch_heads"][1], 1.0
    if batch * heads > most:
        whole, batch = batch * heads, int(most / heads)
        pieces = whole / (batch * heads)
    row = pd.DataFrame([[batch, sequence, heads, kv_heads, head_dim]], columns=attention.sweeps.SHAPE)
    return pieces * float(attention.fitted.predict((logs, values), row, FromDocument(curve))[0])


def gemm_us(document, m, n, k, dtype="bf16"):
    curve = of_type(document, "gemm", dtype)[0]
    time_us = float(gemm.fitted.evaluate(curve, pd.DataFrame({"m": [m], "n": [n], "k": [k]}))[0])
    return no_faster_than_machine(time_us, document, dtype, 2.0 * m * n * k, float(n) * k)


def quantize_us(document, m, k, dtype="fp8"):
    curve = of_type(document, "quantize", dtype)[0]
    return quantize.evaluate(curve, m, k)


def expert_ffn_us(document, rows, hidden, ffn, experts, dtype="bf16"):
    curve = of_type(document, "expert-ffn", dtype)[0]
    loads = np.full(experts, rows // experts)
    loads[:rows % experts] += 1
    row = expert_ffn.fitted.query(curve, loads, hidden, ffn)
    time_us = float(expert_ffn.fitted.evaluate(curve, row)[0])
    return no_faster_than_machine(time_us, document, dtype, 6.0 * rows * hidden * ffn)


def predict_us(document, op, params):
    """Microseconds of one query; `params` as `moesim predict` names them, numbers."""
    if op in COLLECTIVES:
        return collective_us(document, op, params["gpus"], params["bytes"])
    if op == "memory":
        return memory_us(document, params["bytes"], params.get("kernel", "streaming"))
    if op in ("permute", "combine"):
        return row_move_us(document, op, params["tokens"], params["hidden"], params["k"])
    known = {"attention": (attention_us, ("batch", "sequence", "heads", "kv-heads", "head-dim")),
             "latent-attention": (latent_attention_us, ("batch", "sequence", "heads")),
             "gemm": (gemm_us, ("m", "n", "k")), "quantize": (quantize_us, ("m", "k")),
             "expert-ffn": (expert_ffn_us, ("rows", "hidden", "ffn", "experts"))}
    if op in known:
        answer, names = known[op]
        dtype = {"dtype": params["dtype"]} if "dtype" in params else {}
        return answer(document, *(params[name] for name in names), **dtype)
    raise ValueError(f"no second implementation of {op}")


def random_exchange(random, most):
    """One query of a profile that holds exchanges alone."""
    return str(random.choice(COLLECTIVES)), {"gpus": int(random.integers(2, most + 1)),
                                             "bytes": int(2 ** random.uniform(7, 31))}


def random_query(random, head_sizes):
    """One query, spread over what the operations accept, beyond the measured ranges included."""
    op = str(random.choice(
        [*COLLECTIVES, "memory", "permute", "combine", "attention", "gemm", "expert-ffn"],
        p=[0.05, 0.05, 0.025, 0.025, 0.05, 0.025, 0.025, 0.25, 0.35, 0.15]))
    size = int(2 ** random.uniform(7, 31))
    if op in COLLECTIVES:
        return op, {"gpus": int(random.integers(2, 9)), "bytes": size}
    if op == "memory":
        kernel = str(random.choice(["streaming", "activation", "normalization"]))
        return op, {"bytes": size, "kernel": kernel}
    if op == "gemm":
        return op, {name: int(2 ** random.uniform(low, 17))
                    for name, low in (("m", 0), ("n", 3), ("k", 3))}
    if op == "expert-ffn":
        return op, {"rows": int(2 ** random.uniform(3, 17)),
                    "hidden": 64 * int(random.integers(16, 128)),
                    "ffn": 16 * int(random.integers(8, 1024)),
                    "experts": int(2 ** random.uniform(0, 8))}
    if op in ("permute", "combine"):
        return op, {"tokens": int(2 ** random.uniform(0, 16)), "hidden": int(random.integers(1, 9)) * 1024,
                    "k": int(random.integers(1, 9))}
    kv_heads = int(random.choice([1, 2, 3, 4, 8, 16, 32, 48]))
    return op, {"batch": int(2 ** random.uniform(0, 8)), "sequence": int(2 ** random.uniform(0, 15)),
                "heads": kv_heads * int(random.integers(1, 9)), "kv-heads": kv_heads,
                "head-dim": int(random.choice(head_sizes))}


def refused(document, op, params, furthest=16):
    """Whether expert FFNs lie too far from all that was measured (sim/profile refuses them)."""
    if op != "expert-ffn":
        return False
    valid = of_type(document, op, params.get("dtype", "bf16"))[0]["valid"]
    asked = {**params, "rows_per_expert": params["rows"] / params["experts"]}
    return any(max(asked[name] / high, low / asked[name]) > furthest
               for name, (low, high) in valid.items())


def typed_query(random, curve):
    """One query of a curve that names its data type, or of an operation of few profiles."""
    op, dtype = curve["op"], {"dtype": curve["params"]["dtype"]}
    if op == "quantize":
        return op, {"m": int(2 ** random.uniform(0, 17)), "k": int(2 ** random.uniform(5, 17)), **dtype}
    if op == "latent-attention":
        return op, {"batch": int(2 ** random.uniform(0, 8)), "heads": int(2 ** random.uniform(0, 8)),
                    "sequence": int(2 ** random.uniform(0, 16)), **dtype}
    asked = None
    while asked != op:
        asked, params = random_query(random, [curve["params"].get("head_dim", 128)])
    return op, {**params, **dtype}


def typed_queries(document, each, seed):
    """`each` random queries of every curve of another data type than bf16, and of the operations that
    random_query does not know."""
    random, queries = np.random.default_rng(seed), []
    for curve in document["curves"]:
        other = (curve["op"] in ("gemm", "attention", "expert-ffn")
                 and curve["params"].get("dtype", "bf16") != "bf16")
        if not other and curve["op"] not in ("latent-attention", "quantize"):
            continue
        for _ in range(each):
            op, params = typed_query(random, curve)
            while refused(document, op, params):
                op, params = typed_query(random, curve)
            queries.append({"op": op, "params": params,
                            "time_us": predict_us(document, op, params)})
    return queries


def golden(document, count=200, seed=7):
    """`count` random queries with their answers, and some of every other data type."""
    random = np.random.default_rng(seed)
    head_sizes = [each["params"]["head_dim"] for each in of_type(document, "attention", "bf16")]
    most = int(document["curves"][-1]["valid"]["gpus"][1])
    queries = []
    for _ in range(count):
        op, params = (random_query(random, head_sizes) if head_sizes
                      else random_exchange(random, most))
        while refused(document, op, params):
            op, params = random_query(random, head_sizes)
        queries.append({"op": op, "params": params, "time_us": predict_us(document, op, params)})
    return queries + typed_queries(document, max(count // 40, 1), seed)


def main():
    parser = argparse.ArgumentParser(prog="tools.fit.evaluate", description=__doc__.split("\n")[0])
    parser.add_argument("--profiles", type=Path, default=Path("profiles/hardware"))
    parser.add_argument("--golden", type=Path, default=Path("tests/golden/profile"),
                        help="folder the answers are written to (default %(default)s)")
    options = parser.parse_args()
    options.golden.mkdir(parents=True, exist_ok=True)
    for document in report.documents(options.profiles):
        lines = ",\n".join(json.dumps(each) for each in golden(document))
        target = options.golden / f"{document['name']}.json"
        target.write_text(f'{{"profile": "{document["name"]}", "queries": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
