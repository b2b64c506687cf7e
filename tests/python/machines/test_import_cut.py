"""`moesim import`: logs of jobs that were killed, or that a launcher labelled; tables with a column for each expert."""

import re

import numpy as np
import pytest
from cluster_imports import LOGS, exchanges, imported, one_node_log, refused, usual
from command_line import as_json, moesim, needs_binary

pytestmark = needs_binary


@pytest.mark.parametrize("prefix", ["[1,0]<stdout>:", "[1,0]<stdout>: ", "0: ", " 3: "])
def test_perftest_is_read_below_the_prefixes_of_launchers(tmp_path, prefix):
    plain, _ = imported(tmp_path, LOGS / "ib_write_bw.log")
    log = tmp_path / "ib_write_bw.log"
    log.write_text("".join(prefix + line for line in (LOGS / "ib_write_bw.log").read_text().splitlines(True)))
    assert imported(tmp_path, log)[0]["nic"]["efficiency"] == plain["nic"]["efficiency"]


def test_of_other_prefixes_the_error_says_how_to_take_them_off(tmp_path):
    log = tmp_path / "ib.log"
    log.write_text("".join("node-7 | " + line for line in (LOGS / "ib_write_bw.log").read_text().splitlines(True)))
    refused(tmp_path, log, parts=["ib.log: lines have 'node-7 | ' before what perftest printed", "cut -c10-"])


@pytest.mark.parametrize("kept", [1, 3, 7, 9, 12])
def test_the_last_row_of_a_killed_job_is_left_out(tmp_path, kept):
    """nccl-tests: 13 columns. The last one is cut off in any of them."""
    whole = one_node_log(tmp_path / "whole.log", usual)
    rows = whole.read_text().splitlines()[:-1]
    log = tmp_path / "killed.log"
    log.write_text("\n".join([*rows[:-1], " " + " ".join(rows[-1].split()[:kept])]))
    before = tmp_path / "before.log"
    before.write_text("\n".join(rows[:-1]) + "\n")
    document, said = imported(tmp_path, log)
    assert f"killed.log: line {len(rows)}: this row is cut off, and is left out" in said
    assert f"line {len(rows) - 1}: no 'Avg bus bandwidth' line below this row" in said
    curve = exchanges(document)["all-to-all", 1, 8]
    expected = exchanges(imported(tmp_path, before)[0])["all-to-all", 1, 8]
    assert (curve["bytes"], curve["time_us"]) == (expected["bytes"], expected["time_us"])


def test_a_cut_row_that_is_not_the_last_is_refused(tmp_path):
    lines = one_node_log(tmp_path / "whole.log", usual).read_text().splitlines()
    lines[-4] = " ".join(lines[-4].split()[:8])
    (tmp_path / "torn.log").write_text("\n".join(lines))
    refused(tmp_path, tmp_path / "torn.log", parts=[f"line {len(lines) - 3}: 8 columns instead of"])
    # Nor is the last of a run that came to its end.
    lines = one_node_log(tmp_path / "whole.log", usual).read_text().splitlines()
    lines[-2] = " ".join(lines[-2].split()[:8])
    (tmp_path / "torn.log").write_text("\n".join(lines))
    refused(tmp_path, tmp_path / "torn.log", parts=[f"line {len(lines) - 1}: 8 columns instead of"])


def test_the_last_row_of_a_killed_perftest_is_left_out(tmp_path):
    text = (LOGS / "ib_write_bw.log").read_text()
    log = tmp_path / "ib.log"
    log.write_text(text[:text.index("388.80")])
    document, said = imported(tmp_path, log)
    assert document["nic"]["efficiency"]["value"] == pytest.approx(388.4 / 400, abs=1e-4)
    assert "this row, the last, is cut off, and is left out" in said
    log.write_text(re.sub(r"388\.40\s.*", "", text))
    refused(tmp_path, log, parts=["ib.log: line", "this row is cut off"])


def test_a_nic_of_another_rate_is_asked_for(tmp_path):
    log = tmp_path / "ib.log"
    text = (LOGS / "ib_write_bw.log").read_text()
    for rate, is_asked in (("196.00", True), ("290.00", False)):
        log.write_text(re.sub(r"38\d\.\d\d|37\d\.\d\d", rate, text))
        _, said = imported(tmp_path, log)
        assert (f"{rate[:-1]} Gbit/s of the 400 of cluster 'hgx-h100': is its nic.gbit_per_s that of these NICs?" in said) \
            == is_asked


WIDE = """step,layer,e0,e1,e2,e3
10,0,70,0,30,100
10,3,0,50,50,100
20,0,100,100,0,0
20,3,50,50,50,50
"""


@pytest.mark.parametrize("name", ["e{}", "expert_{}", "expert{}"])
def test_a_table_may_have_a_column_for_each_expert(tmp_path, name):
    table = tmp_path / "counts.csv"
    table.write_text(re.sub(r"e(\d)", lambda match: name.format(match[1]), WIDE))
    result = moesim("import", table, "--experts", 4, "--top-k", 2, "--out", tmp_path / "trace")
    assert result.returncode == 0, result.stderr
    assert np.load(tmp_path / "trace" / "counts.npy").tolist() == [
        [[[70, 0, 30, 100], [0, 50, 50, 100]]], [[[100, 100, 0, 0], [50, 50, 50, 50]]]]
    assert "warning" not in result.stderr and "100 tokens per rank" in result.stderr
    few = moesim("import", table, "--experts", 3, "--top-k", 2, "--out", tmp_path / "few")
    assert few.returncode == 2 and f"column {name.format(3)}: --experts is 3" in few.stderr


def test_columns_of_experts_begin_with_0(tmp_path):
    """Numbered from 1 they would have an expert 0 that no token ever chooses."""
    table = tmp_path / "counts.csv"
    table.write_text("layer,e1,e2,e3,e4\n0,10,10,10,10\n")
    result = moesim("import", table, "--experts", 5, "--top-k", 2, "--out", tmp_path / "trace")
    assert result.returncode == 2 and "its columns of experts begin with e1: number them from 0" in result.stderr


def test_counts_that_are_no_tokens_are_named_by_their_row(tmp_path):
    table = tmp_path / "counts.csv"
    table.write_text(WIDE.replace("10,0,70", "10,0,71"))
    result = moesim("import", table, "--experts", 4, "--top-k", 2, "--out", tmp_path / "trace")
    assert result.returncode == 2
    assert "line 2: the counts of step 10, rank 0, layer 0 add up to 201, which is no number of tokens of --top-k 2" in result.stderr
    assert "padding" in result.stderr


def test_more_experts_than_the_table_has_are_doubted(tmp_path):
    table = tmp_path / "counts.csv"
    table.write_text(WIDE)
    result = moesim("import", table, "--experts", 8, "--top-k", 2, "--out", tmp_path / "trace")
    assert result.returncode == 0
    assert "has experts 0 to 3, --experts is 8: the other 4 have no tokens at all: is --experts right?" in result.stderr


def test_a_domain_is_no_slower_where_its_log_ends_early(tmp_path):
    """The curve of the profile says how much more of the links 256 MiB use than the largest size that was measured."""
    def said_at(size):
        answer = as_json("predict", "--profile", "h100-sxm", "--cluster", "hgx-h100", "--op", "all-to-all", "--gpus", 8,
                         "--bytes", size)
        return 1.1 * answer["time_us"]
    sizes = [2**power for power in range(20, 30)]
    times = {size: said_at(size) for size in sizes}
    shares = {}
    for end in (2**24, 2**25, 2**27, 2**28):
        log = one_node_log(tmp_path / f"{end}.log", times.__getitem__, [size for size in sizes if size <= end])
        shares[end] = imported(tmp_path, log)[0]["domain"]["efficiency"]
    full = shares.pop(2**28)["value"]
    assert full == pytest.approx(7 / 8 * 2**28 / times[2**28] / 1e3 / 450, rel=1e-2)
    for end, share in shares.items():
        assert share["value"] == pytest.approx(full, rel=1e-2), end
        assert share["low"] <= full <= share["high"] and "by the model" in share["origin"]
