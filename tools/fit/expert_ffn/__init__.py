"""Expert FFNs (SwiGLU) in the fused kernels of serving engines, by data type, from published sweeps
(moe_compute_*.csv.gz).

Two grouped products over blocks of rows of one expert each, an activation between them, a sum
after (`tiles`), fitted in log time (`search`), then small corrections (`corrections`) and trees on
what is left (`boosting`). `loads` reproduces the sweeps' own rules; `fitted` is the whole model,
`document` makes the curves of profiles, `siblings` those of a machine that has no sweep."""
from tools.fit.expert_ffn import (boosting, corrections, document, fitted, loads,  # noqa: F401
                                  search, siblings, sweeps, tiles)
from tools.fit.expert_ffn.document import curves  # noqa: F401
