"""Makes this trace: 512 tokens a rank choose 2 of 8 experts by popularity, which drifts from step to
step as a random walk. Usage: python3 make.py [FOLDER]"""

import json
import sys
from pathlib import Path

import numpy

STEPS, RANKS, LAYERS, TOKENS, EXPERTS, TOP_K = 4, 8, 4, 512, 8, 2

folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
random = numpy.random.default_rng(2024)
popularity = random.normal(scale=0.5, size=(LAYERS, EXPERTS))
counts = numpy.zeros((STEPS, RANKS, LAYERS, EXPERTS), dtype="int32")
for step in range(STEPS):
    for rank in range(RANKS):
        for layer in range(LAYERS):
            scores = popularity[layer] + random.gumbel(size=(TOKENS, EXPERTS))
            chosen = numpy.argsort(-scores, axis=1)[:, :TOP_K]
            counts[step, rank, layer] = numpy.bincount(chosen.ravel(), minlength=EXPERTS)
    popularity += random.normal(scale=0.2, size=popularity.shape)

numpy.save(folder / "counts.npy", counts)
(folder / "trace.json").write_text(json.dumps({
    "format": "moesim trace 1", "name": "synthetic-drift", "model": "none: drawn, not recorded",
    "source": "traces/synthetic-drift/make.py", "licence": "Apache-2.0", "origin": "synthetic",
    "note": "Gumbel top-2 draws; log-popularity is a random walk over the steps",
    "kind": "counts", "axes": ["step", "rank", "layer", "expert"], "tokens": TOKENS,
    "experts": EXPERTS, "top_k": TOP_K, "array": "counts.npy"}, indent=2) + "\n")
