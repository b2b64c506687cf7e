"""How the two constants of the all-to-all law were chosen, and how much hangs on the choice.

    python3 -m tools.fit.choose_law --data DIR

Every machine behind NVLink switches has the same weight: the median error from 1 MiB on of 4 GPUs from 2
and of 8 GPUs from 2 and 4. Prints the best choices, and for each machine its errors under the
constants that the other machines alone would choose. The shipped constants are in gpu_count_law.py.
"""
import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from tools.fit import collective_rows, common, gpu_count_law, piecewise

PORT_SHARES = np.round(np.arange(0.62, 0.81, 0.02), 2)
EXPONENTS = (2.0, 3.0, 4.0, 5.0, 6.0)


def knots(rows):
    """One time per size: the least of the repeats below 1 MiB, else their median; never falling."""
    times = rows.groupby("size_bytes").time_us.agg(["min", "median"])
    sizes = times.index.to_numpy(float)
    chosen = np.where(sizes < common.MIB, times["min"], times["median"])
    return sizes, np.minimum.accumulate(chosen[::-1])[::-1]


def cases(table):
    """(system, GPU count, links, curves of fewer GPUs, sizes, times) of every NCCL version."""
    found = []
    rows = table[table.op_name == "alltoall"]
    for (system, _), part in rows.groupby(["system", "nccl"]):
        links = collective_rows.links(system)
        if links["kind"] == "pcie":
            continue
        for fewer, gpus in (((2,), 4), ((2, 4), 8)):
            target = part[(part.num_gpus == gpus) & (part.size_bytes >= common.MIB)]
            if len(target):
                curves = [(count, knots(part[part.num_gpus == count])) for count in fewer]
                found.append((system, gpus, links, curves, target.size_bytes, target.time_us))
    return found


def errors(found):
    """Median error in percent by (system, GPU count) under the constants of gpu_count_law."""
    pooled = {}
    for system, gpus, links, curves, sizes, times in found:
        predicted = piecewise.evaluate(*gpu_count_law.predict("all-to-all", links, curves, gpus), sizes)
        pooled.setdefault((system, gpus), []).append(np.abs(predicted / times - 1))
    return {key: 100 * np.median(np.concatenate(parts)) for key, parts in pooled.items()}


def grid(found):
    results = {}
    for share in PORT_SHARES:
        for exponent in EXPONENTS:
            gpu_count_law.PORT_SHARE, gpu_count_law.EXPONENT = float(share), exponent
            results[float(share), exponent] = errors(found)
    return pd.DataFrame(results).T.rename_axis(["port share", "exponent"])


def main():
    parser = argparse.ArgumentParser(prog="tools.fit.choose_law",
                                     description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    options = parser.parse_args()
    table = grid(cases(collective_rows.load(options.data)))
    best = table.mean(axis=1).nsmallest(5).index
    print("best choices, errors in percent by (machine, GPUs):")
    print(table.loc[best].assign(mean=table.loc[best].mean(axis=1)).round(2).to_string())
    for system in sorted({key[0] for key in table.columns}):
        own = [key for key in table.columns if key[0] == system]
        choice = table.drop(columns=own).mean(axis=1).idxmin()
        text = ", ".join(f"{gpus} GPUs {table.loc[choice, (name, gpus)]:.2f} %" for name, gpus in own)
        print(f"left out {system}: the others choose {choice}: {text}")


if __name__ == "__main__":
    main()
