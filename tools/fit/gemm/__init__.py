"""Matrix products by data type, from published sweeps (gemm_*.csv.gz).

A model of a library of tile kernels, of how the library chooses among them, of the memory system
and of the clock under load (`tiles`), fitted in log time (`search`), then small corrections on coarse
grids (`corrections`) and trees on what is left (`boosting`)."""
from tools.fit.gemm import (boosting, corrections, fitted, parameters, search, sweeps,  # noqa: F401
                            tiles)
from tools.fit.gemm.document import curves  # noqa: F401
