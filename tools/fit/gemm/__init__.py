"""Matrix products by data type, from published sweeps (gemm_*.csv.gz).

A model of a library of tile kernels, of how the library chooses among them, of the memory system
and of the clock under load (`tiles`), fitted in log time (`search`), then small corrections on coarse
grids (`corrections`) and trees on what is left (`boosting`). `fitted` is the whole model, `document`
makes the curves of profiles."""
from tools.fit.gemm import (boosting, corrections, document, fitted, parameters,  # noqa: F401
                            search, sweeps, tiles)
from tools.fit.gemm.document import curves  # noqa: F401
