"""moesim from Python: the results of the command as dictionaries, pandas tables and numpy arrays.

    import moesim
    step = moesim.simulate(router="top2+fr+ir", capacity_factor=1, mode="prefill")
    grid = moesim.sweep(router=["top1", "top2"], capacity_factor=[1, 1.25, 2], mode="prefill")
    loss = moesim.route(logits, router="top2", capacity_factor=[1, 1.25])
    steps = moesim.train(model="qwen3-30b-a3b", gpus=64, pipeline_parallel=[1, 2], expert_parallel=8)
    best = moesim.recommend(model="qwen3-30b-a3b", gpus=64, profile="h100-sxm")
    times = moesim.predict(op="all-to-all", profile="h100-sxm", gpus=[8, 16], bytes=["1MiB", "64MiB"])

Keyword arguments are the options of the command, with _ for - and a list for several values;
`moesim simulate --help` and `moesim train --help` list them. Times are in ms, shares in 0..1, as in the CSVs. Notes and
warnings of the command become MoesimWarning, its errors MoesimError. Each call runs the command
once; nothing is kept between calls.
"""

from __future__ import annotations

import csv
import io
import itertools
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

__all__ = ["MoesimError", "MoesimWarning", "binary", "predict", "recommend", "route", "routes", "run",
           "simulate", "sweep", "train", "version"]

# Options whose one value is a list already, of modules.
SETS = ("recompute", "offload")
# Parameters of predict() of which a list is one value.
LISTS = ("rows_per_expert", "placement")

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


def predict(queries: Any = None, **options: Option) -> pandas.DataFrame:
    """The time of operations and exchanges (time_us with its band, busbw_gb_per_s), a row for each
    combination of the options; or for each of `queries`, a pandas table or a list of dictionaries
    of parameters (op, profile, gpus, bytes, ...), with the options as those of all. Of several, rows
    without an answer have a `status` and a `reason`. `rank_finish_us` is missing where all ranks of
    an exchange end together, at time_us; else it has their ends, separated by semicolons."""
    lists = {name: list(value.tolist() if hasattr(value, "tolist") else value)
             for name, value in options.items() if name not in LISTS and _is_list(value)}
    if queries is None and not lists:
        return _table(_run(["predict", *_words(options), "--format", "csv"]))
    one = {name: value for name, value in options.items() if name not in lists and value is not None}
    given = [{}] if queries is None else _records(queries)
    rows = [{**query, **one, **dict(zip(lists, values))}
            for query in given for values in itertools.product(*lists.values())]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "queries.csv"
        with open(path, "w", encoding="utf-8", newline="") as file:
            names = dict.fromkeys(name for row in rows for name in row)
            writer = csv.DictWriter(file, list(names))
            writer.writerow({name: name.replace("_", "-") for name in names})
            writer.writerows({name: _text(value) for name, value in row.items()} for row in rows)
        return _table(_run(["predict", "--in", str(path), "--format", "csv"]))


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


def _is_list(value: Any) -> bool:
    value = value.tolist() if hasattr(value, "tolist") else value
    return isinstance(value, (list, tuple, set, range))


def _records(queries: Any) -> List[Dict[str, Any]]:
    """Rows by names of parameters; a missing cell (None, NaN) is left empty."""
    rows = queries.to_dict("records") if hasattr(queries, "to_dict") else list(queries)
    return [{name: "" if value is None or value != value else value for name, value in row.items()}
            for row in rows]


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
