"""moesim from Python: the results of the command as dictionaries, pandas tables and numpy arrays.

    import moesim
    step = moesim.simulate(router="top2+fr+ir", capacity_factor=1, mode="prefill")
    grid = moesim.sweep(router=["top1", "top2"], capacity_factor=[1, 1.25, 2], mode="prefill")
    loss = moesim.route(logits, router="top2", capacity_factor=[1, 1.25])
    steps = moesim.train(model="qwen3-30b-a3b", gpus=64, pipeline_parallel=[1, 2], expert_parallel=8)
    best = moesim.recommend(model="qwen3-30b-a3b", gpus=64, profile="h100-sxm")

Keyword arguments are the options of the command, with _ for - and a list for several values;
`moesim simulate --help` and `moesim train --help` list them. Times are in ms, shares in 0..1, as in the CSVs. Notes and
warnings of the command become MoesimWarning, its errors MoesimError. Each call runs the command
once; nothing is kept between calls.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Sequence, Union

from moesim._program import MoesimError, binary, environment

# numpy and pandas are imported where they are used: the console script runs the command without.
if TYPE_CHECKING:
    import numpy
    import pandas

__all__ = ["MoesimError", "MoesimWarning", "binary", "recommend", "route", "routes", "run", "simulate",
           "sweep", "train", "version"]

# Options whose one value is a list already, of modules.
SETS = ("recompute", "offload")

Value = Union[str, int, float, bool, "os.PathLike[str]"]
Option = Union[Value, Sequence[Value], None]


class MoesimWarning(UserWarning):
    """A note or warning of the command."""


def run(*words: Any) -> str:
    """What `moesim WORDS...` writes to stdout. Raises MoesimError with the command's text if it
    fails."""
    return _run([_text(word) for word in words])


def version() -> str:
    """Version and commit of the command, as `moesim --version` says them."""
    return _run(["--version"]).strip()


def simulate(**options: Option) -> Dict[str, Any]:
    """One scenario: step_ms, its band, speed, losses, parts and memory by the names of the CSV's
    columns; "detail" has what no column holds. None: does not apply."""
    return json.loads(_run(["simulate", *_words(options), "--format", "json"]))


def sweep(**options: Option) -> pandas.DataFrame:
    """Every combination of the options, a row each. Column `status` says which were refused,
    `reason` why."""
    return _table(_run(["sweep", *_words(options), "--format", "csv"]))


def train(**options: Option) -> pandas.DataFrame:
    """Training steps under any layout, a row for each combination of the options. Of several
    column `status` says which were refused, `reason` why."""
    return _table(_run(["train", *_words(options), "--format", "csv"]))


def recommend(**options: Option) -> pandas.DataFrame:
    """The fastest layouts of a training job, the best first; column `command` repeats each. Of several
    numbers of GPUs the best of each, with its efficiency; of several profiles the best on each, with its
    speed over the first's (`speed_ratio`), and which is the `cheapest` per token."""
    return _table(_run(["recommend", *_words(options), "--format", "csv"]))


def route(logits: Any = None, **options: Option) -> pandas.DataFrame:
    """The losses of a router alone, a row for each router and capacity factor: of generated or
    recorded routing (routing="trace:FOLDER"), or of `logits`, floating-point numbers of shape
    [ranks, tokens, experts] or [tokens, experts]."""
    with tempfile.TemporaryDirectory() as folder:
        given = [] if logits is None else ["--logits", _saved(folder, logits)]
        return _table(_run(["route", *given, *_words(options), "--format", "csv"]))


def routes(logits: Any, **options: Option) -> numpy.ndarray:
    """Every route of `logits` (as for route()), a structured array in the order of rank, token and
    choice. Its fields: rank and token (of that rank), choice (0 for the best expert; k' behind
    the last for a row of IR), expert, slot (of that expert; -1: dropped, -2: a row of IR), weight
    (0 where dropped) and kind (primary, fill or ir)."""
    import numpy

    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "routes.npy")
        _run(["route", "--logits", _saved(folder, logits), *_words(options), "--out", out])
        return numpy.load(out)


def _run(words: List[str]) -> str:
    result = subprocess.run([binary(), *words], env=environment(), stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    prefix = "moesim: error: "
    lines = result.stderr.splitlines()
    if result.returncode != 0:
        errors = [line[len(prefix):] for line in lines if line.startswith(prefix)]
        message = "\n".join(errors) or result.stderr.strip()
        raise MoesimError(message or f"moesim ended with code {result.returncode}",
                          result.returncode)
    for line in lines:
        if line.startswith(("note: ", "warning: ")):
            warnings.warn(line, MoesimWarning, stacklevel=3)
    return result.stdout


def _text(value: Any, separator: str = ",") -> str:
    """A value as it is typed: lists with separators, switches as true and false."""
    if hasattr(value, "tolist"):  # of numpy and pandas
        value = value.tolist()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple, set, range)):
        return separator.join(_text(one) for one in value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, float) and len(str(value).partition(".")[2]) > 9:
        return f"{value:.9g}"  # 0.1 * 3 as 0.3: options take 9 digits behind the point
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _words(options: Mapping[str, Option]) -> List[str]:
    words: List[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if name in ("format", "out"):
            raise MoesimError(f"{name}: the result is returned: moesim.run(...) writes files", 2)
        if value is None or value is False:
            continue
        separator = "/" if name in SETS else ","
        words += [flag] if value is True else [flag, _text(value, separator)]
    return words


def _table(text: str) -> pandas.DataFrame:
    """Columns with their types: booleans, numbers, text; an empty cell is missing."""
    import pandas

    frame = pandas.read_csv(io.StringIO(text), keep_default_na=False, dtype=str)
    columns = {}
    for name in frame.columns:
        column = frame[name].where(frame[name] != "", None)
        filled = column.dropna()
        if len(filled) and filled.isin(["true", "false"]).all():
            column = column.map({"true": True, "false": False})
        elif pandas.to_numeric(filled, errors="coerce").notna().all():
            column = pandas.to_numeric(column)
        columns[name] = column
    return pandas.DataFrame(columns)


def _saved(folder: str, logits: Any) -> str:
    import numpy

    if hasattr(logits, "detach"):  # of PyTorch, on whatever device
        logits = logits.detach().float().cpu().numpy()
    array = numpy.ascontiguousarray(logits)
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        raise MoesimError(f"logits are of type {array.dtype}: give floating-point numbers", 2)
    path = str(Path(folder) / "logits.npy")
    numpy.save(path, array)
    return path
