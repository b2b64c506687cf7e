"""`moesim validate exchanges` on the public tables, or the excerpts of them that are shipped: bars and bands."""

import re

import pytest

from command_line import moesim, needs_binary
from public_tables import FOLDERS, all_exchanges, folder_of, validated, validation_of

pytestmark = needs_binary


def test_the_bars_on_the_public_tables_hold():
    code, document = validation_of(folder_of("nccl_intranode.csv.gz"))
    judged = {each["text"]: each["met"] for each in document["verdicts"] if each["met"] is not None}
    bars = {text: met for text, met in judged.items()
            if "between nodes" not in text and "; wanted" not in text}
    assert sum(text.startswith(("h100_sxm: ", "a100_sxm: ")) for text in bars) == 4
    assert all(bars.values()), bars
    assert code == (0 if all(judged.values()) else 5)
    # The bars, restated here so that they cannot be loosened with the program.
    found = {row["subject"]: 100 * row["median_error"] for row in document["rows"]}
    for system, large, small in (("h100_sxm", 2.5, 12), ("a100_sxm", 2.5, 4)):
        subject = f"{system}: all-to-all, 8 GPUs from 2 and 4, "
        assert float(found[subject + "from 1 MiB"]) <= large
        assert float(found[subject + "below 1 MiB, least"]) <= small


# Tables of at least 20 points whose 90 % bands do not hold 85 to 95 % of the points of runs or machines left
# out, judged or not, and what they hold: a list to be shortened. Of the shipped excerpts, and of all public
# tables.
MISSED = {"all-to-all: 8 GPUs from 2 and 4 by the law, each machine left out": 96,
          "all-to-all: 4 GPUs from 2 by the law, each machine left out": 99,
          "all-gather: 8 GPUs from 2 and 4 by the law, each machine left out": 100,
          "reduce-scatter: 8 GPUs from 2 and 4 by the law, each machine left out": 100,
          "all-reduce: sizes above 1/4 of the largest": 98,
          "reduce-scatter: sizes above 1/4 of the largest": 100,
          "all-to-all by predict: 4 times the GPUs": 84,
          "all-to-all by predict, another NCCL: 2 times the GPUs": 96,
          # One machine is judged by the errors of one other.
          "all-gather by predict: 2 times the GPUs": 100,
          "all-gather by predict, another NCCL: 2 times the GPUs": 100,
          "reduce-scatter by predict: 2 times the GPUs": 100,
          "reduce-scatter by predict, another NCCL: 2 times the GPUs": 100,
          # Eight GPUs of one box, whose rings cross two root complexes, by machines with NVLink.
          "all-gather by predict, over PCIe: 2 times the GPUs": 81,
          "reduce-scatter by predict, over PCIe: 2 times the GPUs": 81,
          "all-to-all by predict: more nodes than were measured": 100,
          "all-gather by predict: more nodes than were measured": 97,
          # Runs judged by themselves do not show another day, which these bands hold too.
          "all-to-all on a cluster: sizes above": 99,
          "all-to-all on a cluster: sizes between": 97,
          "all-reduce on a cluster: sizes above": 100,
          "all-gather on a cluster: other NVLink": 97,
          "all-gather on a cluster: sizes above": 100,
          "all-gather on a cluster: other GPU counts": 97,
          "all-gather on a cluster: sizes below": 97,
          "reduce-scatter on a cluster: other NVLink": 96,
          "reduce-scatter on a cluster: sizes above": 99,
          "reduce-scatter on a cluster: sizes below": 98}
MISSED_IN_EXCERPTS = {"all-reduce: 8 GPUs from 2 and 4 by the law, each machine left out": 100,
                      "all-reduce by predict, over PCIe: 2 times the GPUs": 76}
MISSED_IN_ALL = {"all-reduce by predict, over PCIe: 2 times the GPUs": 95,
                 "DeepEP low-latency dispatch, 2 nodes with the figures of 1": 100,
                 "TensorRT-LLM one-sided dispatch, GB200, EP 8 from fewer": 100,
                 "TensorRT-LLM one-sided combine, GB200, EP 8 from fewer": 80}


TABLES = dict(zip(FOLDERS, ("all", "excerpts")))  # which may be one folder


@pytest.mark.parametrize("folder", TABLES, ids=TABLES.values())
def test_bands_hold_what_they_have_not_seen(folder):
    if not (folder / "nccl_intranode.csv.gz").exists():
        pytest.skip(f"the public tables are not in {folder}")
    document = validated(folder)
    missed, judged, names = {}, 0, []
    for each in document["verdicts"]:
        if "; wanted 85 to 95 %" not in each["text"] or "sizes above 1/16" in each["text"] \
                or "sizes above 1/64" in each["text"] or "rings between" in each["text"]:
            continue
        table, rest = each["text"].split(": 90 % band: ")
        inside, points = map(int, rest.split(" inside")[0].split(" of "))
        groups = int(rest.split("; wanted 85 to 95 %; ")[1].split(" group")[0])
        names.append(table)
        holds = 0.85 <= inside / points <= 0.95
        if points >= 20 and groups >= 9:
            judged += 1
            assert each["met"] == holds, each
        else:
            assert each["met"] is None, each
        if points >= 20 and not holds:
            missed[table] = round(100 * inside / points)
    are_all = any("DeepEP" in name for name in names)
    assert missed == MISSED | (MISSED_IN_ALL if are_all else MISSED_IN_EXCERPTS)
    assert judged >= 8


def far_of(document):
    """{axis: (fitted growth, shipped growth, share inside without it)} of dispatchers beyond what was measured."""
    found = {}
    for each in document["verdicts"]:
        told = re.fullmatch(r"DeepEP normal, (.*) beyond those of the figures: errors grow by ([\d.]+) for each root of a factor "
                            r"of two, ([\d.]+) as shipped; without it (\d+) % inside", each["text"])
        if told:
            found[told[1]] = (float(told[2]), float(told[3]), int(told[4]) / 100)
    return found


def test_the_growth_of_a_dispatcher_s_errors_is_what_left_out_sizes_show():
    folder = folder_of("deepep_normal.csv.gz")
    document = validated(folder)
    found = far_of(document)
    assert set(found) == {"hidden sizes", "numbers of SMs"}
    for fitted, shipped, without in found.values():
        assert fitted == pytest.approx(shipped, abs=0.015) and without < 0.9
    for axis in found:
        text, = [each["text"] for each in document["verdicts"]
                 if each["text"].startswith(f"DeepEP normal, {axis} beyond those of the figures: 90 % band")]
        inside, points = map(int, re.search(r"band: (\d+) of (\d+) inside", text).groups())
        assert 0.85 <= inside / points <= 0.95


def test_rows_whose_bands_were_too_narrow_or_wide_hold_85_to_95_percent():
    """Of at least 20 rows, in the table of errors: what stems from a stated source, scored on what it has not seen."""
    rows = {row["subject"]: row["note"] for row in validated(folder_of("deepep_normal.csv.gz"))["rows"]}
    for subject in ("DeepEP normal combine, 2 nodes with the figures of 1, below 512 tokens",
                    "DeepEP normal dispatch, 2 nodes with the figures of 1, from 512 tokens",
                    "DeepEP low-latency combine, 2 nodes with the figures of 1, below 512 tokens",
                    "DeepEP normal dispatch, 2 nodes, each number of SMs from others, below 512 tokens",
                    "apart: HybridEP's Torch API, each row's notify from the others"):
        inside, points = map(int, re.search(r"90 % band: (\d+) of (\d+) inside", rows[subject]).groups())
        assert points >= 20 and 0.85 <= inside / points <= 0.95, subject


def test_bands_are_counted_at_every_level():
    bands = all_exchanges()["bands"]
    tables = {}
    for row in bands:
        tables.setdefault(row["left_out"], []).append(row)
    for table, rows in tables.items():
        assert [row["level"] for row in rows] == [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1], table
        inside = [row["inside"] for row in rows]
        assert inside == sorted(inside, reverse=True) and rows[0]["groups"] >= 1
        # The constant band is chosen on the points themselves.
        assert all(row["constant_band_score"] <= 2 * row["interval_score"] for row in rows)
    assert len(tables) >= 17
    shown = succeed_with_bands()
    for level in ("90 %", "80 %", "50 %"):
        assert any(line.startswith("all-to-all: runs from other runs") and level in line for line in shown)


def succeed_with_bands():
    result = moesim("validate", "exchanges", "--data", folder_of("nccl_intranode.csv.gz"))
    assert result.returncode in (0, 5)
    return result.stdout.splitlines()


def test_curves_of_a_cluster_are_judged_by_machines_left_out():
    """Own curves, and NVLink of another rate, hold at least what the bar wants; other GPU counts not all."""
    found = {}
    for row in all_exchanges()["bands"]:
        if row["level"] == 0.9 and " on a cluster: " in row["left_out"]:
            found[tuple(row["left_out"].split(" on a cluster: "))] = row
    for kind in ("all-to-all", "all-reduce", "all-gather", "reduce-scatter"):
        for question in ("other NVLink", "another run", "sizes between", "other GPU counts",
                         "sizes below", "sizes above"):
            row = found[kind, question]
            assert row["inside"] >= 0.85 and row["points"] >= 280, (kind, question, row)
        # Before a log of one GPU count narrowed the band of others: 0.48, 0.25, 0.32, 0.28; before another
        # rate widened bytes alone: 1.41, 1.09, 1.19, 1.15.
        counts, rate = found[kind, "other GPU counts"], found[kind, "other NVLink"]
        assert counts["interval_score"] < 1.25 * counts["constant_band_score"] and counts["inside"] < 0.975
        assert rate["interval_score"] < 1.25 * rate["constant_band_score"]


def test_the_last_line_counts_tables_beside_right_bands():
    line = all_exchanges()["verdicts"][-1]
    met, tables, below, by_points, by_groups = map(int, re.findall(r"\d+", re.sub(
        r"20 points|85 to 95 %|90 %", "", line["text"])))
    assert line["met"] is None and by_groups <= met <= by_points <= tables and below < met


def test_a_sibling_beats_every_baseline():
    rows = [row for row in all_exchanges()["rows"] if "from a sibling" in row["subject"]]
    assert len(rows) == 8
    for row in rows:
        for name in ("equal_bytes_sent", "alpha_beta", "nearest_row"):
            assert row["median_error"] < row[name], (row["subject"], name)
        assert row["median_error"] < 0.025, row["subject"]


def test_the_law_beats_every_baseline_where_its_bars_are():
    for row in all_exchanges()["rows"]:
        if not row["subject"].startswith(("h100_sxm: all-to-all, 8 GPUs from 2 and 4, from",
                                          "a100_sxm: all-to-all, 8 GPUs from 2 and 4, from")):
            continue
        for name in ("equal_bytes_sent", "alpha_beta", "nearest_row"):
            assert row["median_error"] < row[name], (row["subject"], name)
