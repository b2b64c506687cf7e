"""Causal prefill attention, keys and values cached in bf16 or fp8, from published sweeps
(attention_*.csv.gz).

A model of FlashAttention's tiles (`tiles`) fitted in log time, then a few small smooth corrections on
coarse grids (`corrections`). `fitted` is the whole model, `document` makes the curves of profiles,
`head_sizes` those of head sizes that a machine's sweep lacks."""
from tools.fit.attention import (corrections, document, fitted, head_sizes, sweeps,  # noqa: F401
                                 tiles)
from tools.fit.attention.document import curves  # noqa: F401
