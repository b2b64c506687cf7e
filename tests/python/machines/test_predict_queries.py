"""`moesim predict --in`: which columns are obeyed and which refused; data types; loads of experts."""

import csv
import io
import json

import pytest

from command_line import as_json, moesim, needs_binary, succeed

pytestmark = needs_binary


def ask(*words):
    return as_json("predict", *words)


def rows_of(tmp_path, text, *words):
    path = tmp_path / "queries.csv"
    path.write_text(text)
    return list(csv.DictReader(io.StringIO(succeed("predict", "--in", path, *words))))


def refused(tmp_path, text, *parts, words=()):
    path = tmp_path / "queries.csv"
    path.write_text(text)
    result = moesim("predict", "--in", path, *words)
    assert result.returncode == 2, result.stderr
    for part in parts:
        assert part in result.stderr, result.stderr


def test_each_row_takes_its_own_profile(tmp_path):
    rows = rows_of(tmp_path, "op,profile,gpus,bytes\n"
                             "all-to-all,h200-sxm,4,1MiB\n"
                             "all-to-all,h100-sxm,4,1MiB\n"
                             "all-to-all,,4,1MiB\n")
    words = ("--op", "all-to-all", "--gpus", 4, "--bytes", "1MiB")
    expected = [ask(*words, "--profile", "h200-sxm"), ask(*words, "--profile", "h100-sxm"),
                ask(*words)]
    assert [float(row["time_us"]) for row in rows] == [each["time_us"] for each in expected]
    assert len({row["time_us"] for row in rows}) == 3
    # Rows without one take that of the command line.
    rows = rows_of(tmp_path, "op,profile,m,n,k\ngemm,,512,512,512\ngemm,h200-sxm,512,512,512\n",
                   "--profile", "h100-sxm")
    assert [float(row["time_us"]) for row in rows] == [
        ask("--op", "gemm", "--m", 512, "--n", 512, "--k", 512, "--profile", name)["time_us"]
        for name in ("h100-sxm", "h200-sxm")]


def test_ends_of_ranks_are_said_where_they_differ(tmp_path):
    """All ends of 16,384 ranks would be a longer field than Python's csv reads."""
    (tmp_path / "m.csv").write_text("0,1000000,2000000\n0,0,0\n0,0,0\n")
    (far, near, uneven, copy) = rows_of(
        tmp_path, "op,profile,gpus,bytes,cluster,matrix\nall-to-all,h100-sxm,16384,1MiB,,\n"
                  "all-to-all,h100-sxm,8,1MiB,,\n"
                  f"all-to-all,,,,ideal-switch,{tmp_path / 'm.csv'}\n"
                  "memory,h100-sxm,,1MiB,,\n")
    assert far["rank_finish_us"] == near["rank_finish_us"] == copy["rank_finish_us"] == ""
    # Rank 0 sends 50e9 B/s, half of it to each while both receive: 1e6 bytes take 40 us, all 3e6 60, and 1 us on the way.
    ends = [float(end) for end in uneven["rank_finish_us"].split(";")]
    assert ends[1:] == pytest.approx([41, 61]) and max(ends) == float(uneven["time_us"]) == pytest.approx(61)
    assert "rank_finish_us" not in ask("--op", "all-gather", "--profile", "h100-sxm", "--gpus", 64, "--bytes", "1MiB")


def test_cluster_nccl_and_schedule_of_a_row_are_obeyed(tmp_path):
    rows = rows_of(tmp_path, "op,gpus,bytes,profile,nccl,cluster,schedule\n"
                             "all-to-all,8,1MiB,h100-sxm,2.23,,\n"
                             "all-to-all,16,1MiB,h100-sxm,,hgx-h200,\n"
                             "all-to-all,16,1MiB,h100-sxm,,hgx-h200,pairwise\n")
    words = ("--op", "all-to-all", "--bytes", "1MiB", "--profile", "h100-sxm")
    across = (*words, "--gpus", 16, "--cluster", "hgx-h200")
    expected = [ask(*words, "--gpus", 8, "--nccl", "2.23"), ask(*across),
                ask(*across, "--schedule", "pairwise")]
    assert [float(row["time_us"]) for row in rows] == [each["time_us"] for each in expected]


@pytest.mark.parametrize(("header", "parts"), [
    ("op,profil,m,n,k", ["column profil", "did you mean 'profile'?"]),
    ("op,m,n,k,wanted_us", ["column wanted_us", "no such parameter", "note or id"]),
    ("op,m,n,k,kv-heads,kv_heads", ["a second column of kv-heads"]),
    ("op,m,n,k,op", ["a second column of op"])])
def test_unknown_columns_are_refused(header, parts, tmp_path):
    row = ",".join("gemm" if name == "op" else "64" for name in header.split(","))
    refused(tmp_path, f"{header}\n{row}\n", "queries.csv: line 1", *parts)


def test_a_cell_that_its_operation_does_not_take_is_refused(tmp_path):
    refused(tmp_path, "op,m,n,k,gpus\ngemm,64,64,64,\ngemm,64,64,64,8\n",
            "line 3, column gpus", "gemm takes no gpus")
    refused(tmp_path, "op,m,n,k,profile\ngemm,64,64,64,h300\n", "line 2", "h300")


def test_a_row_that_cannot_be_answered_leaves_the_others(tmp_path):
    path = tmp_path / "queries.csv"
    path.write_text("op,m,n,k,profile\ngemm,64,64,64,h100-sxm\ngemm,64,64,64,l40s\ngemm,128,64,64,h100-sxm\n")
    result = moesim("predict", "--in", path)
    assert result.returncode == 0
    assert "1 of 3 queries were refused; the first: " in result.stderr and "queries.csv: line 3: " in result.stderr
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [row["status"] for row in rows] == ["ok", "refused", "ok"]
    assert rows[1]["time_us"] == "" and "l40s" in rows[1]["reason"]
    assert float(rows[0]["time_us"]) > 0 and rows[0]["reason"] == ""
    entries = json.loads(moesim("predict", "--in", path, "--format", "json").stdout)
    assert entries[1]["status"] == "refused" and "time_us" not in entries[1]
    assert entries[2]["time_us"] == float(rows[2]["time_us"]) and entries[2]["status"] == "ok"
    assert "refused: " in moesim("predict", "--in", path, "--format", "table").stdout
    # None is answered: that is an error.
    path.write_text("op,m,n,k,profile\ngemm,64,64,64,l40s\n")
    result = moesim("predict", "--in", path)
    assert result.returncode == 1 and "queries.csv: line 2: " in result.stderr
    # All are: no more columns than before.
    path.write_text("op,m,n,k\ngemm,64,64,64\n")
    assert "status" not in moesim("predict", "--in", path).stdout


@pytest.mark.parametrize(("header", "row", "part"), [
    ("op,gpus,bytes", "all-to-all,1,64MiB", "one rank is a copy on the device"),
    ("op,gpus,bytes", "all-reduce,0,64MiB", "column gpus: 0 is too small"),
    ("op,gpus,bytes", "all-to-all,8,0", "column bytes: 0 is too small"),
    ("op,gpus,bytes,cluster", "all-to-all,1,64MiB,hgx-h100", "one rank is a copy"),
    ("op,gpus,bytes,nccl", "all-to-all,8,64MiB,1.2.3", "1.2.3"),
    ("op,gpus,bytes,cluster", "all-to-all,2000000,64MiB,hgx-h100", "is beyond the 1048576"),
    ("op,gpus,bytes,cluster", "all-to-all,1900000000,64MiB,hgx-h100", "is beyond the 1048576"),
    ("op,m,n,k", "gemm,64,64,0", "column k: 0 is too small"),
    ("op,m,n,k", "gemm,64,99999999999999999999,64", "column n: 99999999999999999999 is too large"),
    ("op,rows,hidden,ffn,experts", "expert-ffn,0,4096,14336,8", "column rows: 0 is too small"),
    ("op,batch,sequence,heads,kv_heads,head_dim", "attention,1,4096,30,4,128", "no multiple"),
    ("op,dispatcher,tokens,hidden,k,experts,gpus", "dispatch,deepep,4096,7168,8,6,8", "there are 6"),
    ("op,dispatcher,tokens,hidden,k,experts,gpus", "dispatch,deepep,4096,7168,8,256,1", "at least two"),
    ("op,dispatcher,tokens,hidden,k,experts,gpus", "dispatch,deepep,4096,7168,8,256,12",
     "multiple of 8"),
    # Names that are known, and exclude each other.
    ("op,kernel,dtype,rows,hidden,ffn,experts", "expert-ffn,separate,fp8,64,4096,14336,8", "priced in bf16 alone"),
    ("op,dispatcher,sms,tokens,hidden,k,experts,gpus", "dispatch,low-latency,20,128,7168,8,256,8", "take what they find"),
    ("op,dispatcher,tokens,hidden,k,experts,gpus", "dispatch,all-to-all,128,7168,8,256,8", "ask --op all-to-all"),
    ("op,gpus,bytes,cluster,nccl", "all-to-all,16,64MiB,hgx-h100,2.20", "leave it out on a cluster")])
def test_values_without_an_answer_refuse_their_row_alone(header, row, part, tmp_path):
    path = tmp_path / "queries.csv"
    good = {"op": "memory", "bytes": "64MiB"}
    columns = header.split(",") + (["bytes"] if "bytes" not in header else [])
    pad = "," * (len(columns) - len(header.split(",")))
    other = ",".join(good.get(name, "") for name in columns)
    path.write_text(f"{','.join(columns)}\n{other}\n{row}{pad}\n{other}\n")
    result = moesim("predict", "--in", path, "--profile", "h100-sxm")
    assert result.returncode == 0, result.stderr
    assert "1 of 3 queries were refused; the first: " in result.stderr and "line 3" in result.stderr
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [each["status"] for each in rows] == ["ok", "refused", "ok"]
    assert part in rows[1]["reason"] and rows[1]["time_us"] == ""
    assert rows[0]["time_us"] == rows[2]["time_us"] and float(rows[0]["time_us"]) > 0
    # JSON has the refused numbers as they were written.
    entries = json.loads(moesim("predict", "--in", path, "--profile", "h100-sxm", "--format", "json").stdout)
    assert entries[1]["status"] == "refused" and part in entries[1]["reason"]
    assert "refused: " in moesim("predict", "--in", path, "--profile", "h100-sxm", "--format",
                                 "table").stdout


@pytest.mark.parametrize(("row", "parts"), [
    ("gemm,64,64,many,,", ["line 3, column k: 'many' is not a whole number"]),
    ("gemm,64,64,6.5,,", ["line 3, column k: '6.5' is not a whole number"]),
    ("gemm,64,64,,,", ["line 3, column k: gemm needs a value here"]),
    ("gemm,64,64,-64,,", ["line 3, column k: -64 is too small"]),
    ("gemn,64,64,64,,", ["line 3, column op", "did you mean 'gemm'?"]),
    ("memory,,,,lots,", ["line 3, column bytes: 'lots' is not a size"]),
    ("gemm,64,64,64,,bf61", ["line 3: ", "did you mean 'bf16'?"])])
def test_a_row_that_is_written_wrongly_is_an_error_of_the_file(row, parts, tmp_path):
    refused(tmp_path, f"op,m,n,k,bytes,dtype\ngemm,64,64,64,,\n{row}\n", "queries.csv", *parts)


def test_a_matrix_without_a_place_refuses_its_row_alone(tmp_path):
    matrix = tmp_path / "m16.csv"
    matrix.write_text("\n".join(",".join(["1024"] * 16) for _ in range(16)) + "\n")
    path = tmp_path / "queries.csv"
    path.write_text("op,matrix,placement,bytes,cluster\n"
                    f"all-to-all,{matrix},\"0,1\",,hgx-h100\nmemory,,,1MiB,\n")
    result = moesim("predict", "--in", path, "--profile", "h100-sxm")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [row["status"] for row in rows] == ["refused", "ok"], result.stderr
    assert "m16.csv: 16 ranks: " in rows[0]["reason"] and "2 GPUs are given for 16 ranks" in rows[0]["reason"]


def test_note_and_id_pass_through_in_every_format(tmp_path):
    path = tmp_path / "queries.csv"
    path.write_text("id,op,m,n,k,note,profile\nq1,gemm,64,64,64,warm up,\nq2,gemm,64,64,64,,l40s\n")
    csv_rows = list(csv.DictReader(io.StringIO(succeed("predict", "--in", path))))
    entries = as_json("predict", "--in", path)
    for rows in (csv_rows, entries):
        assert [(row["id"], row["note"]) for row in rows] == [("q1", "warm up"), ("q2", "")]
    assert entries[1]["status"] == "refused"
    heading, first, second = succeed("predict", "--in", path, "--format", "table").splitlines()[:3]
    assert heading.split()[:3] == ["id", "note", "operation"]
    assert first.startswith("q1  warm up  gemm ") and second.startswith("q2           gemm ")


def test_a_grid_of_gpus_begins_with_one(tmp_path):
    path = tmp_path / "queries.csv"
    path.write_text("op,gpus,bytes\n" + "".join(f"all-to-all,{gpus},1MiB\n" for gpus in (1, 2, 4, 8)))
    result = moesim("predict", "--in", path)
    assert result.returncode == 0
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [row["status"] for row in rows] == ["refused", "ok", "ok", "ok"]
    # As the query alone says it.
    alone = moesim("predict", "--op", "all-to-all", "--gpus", 1, "--bytes", "1MiB")
    assert alone.returncode == 2 and rows[0]["reason"] in alone.stderr


def test_numbers_with_exponents_are_whole_numbers():
    answer = ask("--op", "gemm", "--m", "1e3", "--n", 512, "--k", 512)
    assert answer["params"]["m"] == 1000
    assert answer["time_us"] == ask("--op", "gemm", "--m", 1000, "--n", 512, "--k", 512)["time_us"]


def test_data_types_that_the_profile_lacks_are_refused():
    gemm = ("--op", "gemm", "--m", 512, "--n", 512, "--k", 512, "--profile", "h100-sxm")
    attention = ("--op", "attention", "--batch", 1, "--sequence", 2048, "--heads", 32,
                 "--kv-heads", 8, "--head-dim", 128, "--profile", "h100-sxm")
    ffn = ("--op", "expert-ffn", "--rows", 4096, "--hidden", 2048, "--ffn", 1024, "--experts", 8,
           "--profile", "h100-sxm")
    for words in (gemm, attention, ffn):
        for name in ("bf16", "bfloat16"):
            assert ask(*words, "--dtype", name)["time_us"] == ask(*words)["time_us"]
        result = moesim("predict", *words, "--dtype", "int8")
        assert result.returncode == 1 and "profile h100-sxm has bf16, fp8" in result.stderr
        result = moesim("predict", *words, "--dtype", "bf61")
        assert result.returncode == 2 and "did you mean 'bf16'?" in result.stderr
    result = moesim("predict", "--op", "memory", "--bytes", 64, "--dtype", "bf16")
    assert result.returncode == 2 and "dtype" in result.stderr


def test_each_data_type_answers_from_its_own_curve():
    for name in ("h100-sxm", "h200-sxm", "b200-sxm", "b300-sxm", "gb200", "gb300"):
        gemm = ("--op", "gemm", "--m", 8192, "--n", 8192, "--k", 8192, "--profile", name)
        times = {dtype: ask(*gemm, "--dtype", dtype)["time_us"] for dtype in ("bf16", "fp8")}
        assert times["bf16"] == ask(*gemm)["time_us"]
        assert 0.4 * times["bf16"] < times["fp8"] < times["bf16"]
        cast = ask("--op", "quantize", "--m", 8192, "--k", 8192, "--profile", name)
        assert cast["params"] == {"m": 8192, "k": 8192} and cast["time_us"] > 0
        latent = ask("--op", "latent-attention", "--batch", 1, "--sequence", 4096, "--heads", 128,
                     "--profile", name)
        assert latent["time_us_p05"] < latent["time_us"] < latent["time_us_p95"]


FFN = ("--op", "expert-ffn", "--hidden", 2048, "--ffn", 1024, "--profile", "h100-sxm")


def test_expert_ffn_takes_the_rows_of_each_expert(tmp_path):
    even = ask(*FFN, "--rows", 4096, "--experts", 8)
    listed = ask(*FFN, "--rows-per-expert", ",".join(["512"] * 8))
    assert listed["time_us"] == pytest.approx(even["time_us"], rel=1e-9)
    # All rows on one expert: one set of weights to read, and full tiles.
    skewed = ask(*FFN, "--rows-per-expert", "4096,0,0,0,0,0,0,0")
    assert skewed["time_us"] < even["time_us"]
    # Seven experts with one row each leave most of a tile empty.
    assert ask(*FFN, "--rows-per-expert", "4089,1,1,1,1,1,1,1")["time_us"] > skewed["time_us"]
    assert listed["params"]["rows-per-expert"] == ",".join(["512"] * 8)
    (row,) = rows_of(tmp_path, "op,hidden,ffn,rows_per_expert,profile\n"
                               "expert-ffn,2048,1024,4096;0;0;0;0;0;0;0,h100-sxm\n")
    assert float(row["time_us"]) == skewed["time_us"]


def test_separate_products_are_those_of_a_step():
    def parts(rows):
        words = ("--profile", "h100-sxm")
        return (ask("--op", "gemm", "--m", rows, "--n", 2048, "--k", 2048, *words)["time_us"] +
                ask("--op", "memory", "--bytes", 3 * 2 * rows * 1024, "--kernel", "activation",
                    *words)["time_us"] +
                ask("--op", "gemm", "--m", rows, "--n", 2048, "--k", 1024, *words)["time_us"])

    answer = ask(*FFN, "--kernel", "separate", "--rows-per-expert", "512,0,80,512")
    assert answer["time_us"] == pytest.approx(2 * parts(512) + parts(80), rel=1e-9)
    assert answer["time_us_p05"] < answer["time_us"] < answer["time_us_p95"]
    assert ask(*FFN, "--kernel", "separate", "--rows", 1024, "--experts", 2)["time_us"] == \
        pytest.approx(2 * parts(512), rel=1e-9)


@pytest.mark.parametrize(("words", "part"), [
    (("--rows-per-expert", "5,-1"), "rows-per-expert"), (("--rows-per-expert", "5,x"), "'x'"),
    (("--rows-per-expert", "5,6", "--experts", 3), "experts 3, but rows-per-expert has 2"),
    (("--rows-per-expert", "5,6", "--rows", 12), "rows 12, but rows-per-expert has 11"),
    (("--rows-per-expert", "0,0", "--kernel", "separate"), "no expert has a row"),
    (("--rows", 5), "experts is missing"), (("--rows", 5, "--experts", 1, "--kernel", "fast"),
                                            "fused, separate, batched")])
def test_bad_loads(words, part):
    result = moesim("predict", *FFN, *words)
    assert result.returncode == 2 and part in result.stderr, result.stderr


@pytest.mark.parametrize("op", ["all-to-all", "all-reduce", "all-gather", "reduce-scatter"])
@pytest.mark.parametrize("size", ["4KiB", "1MiB", "256MiB"])
def test_a_node_answers_the_same_with_and_without_its_cluster(op, size):
    words = ("--op", op, "--gpus", 8, "--bytes", size)
    alone = ask(*words, "--profile", "h200-sxm")
    for more in (("--cluster", "hgx-h200"), ("--cluster", "hgx-h200", "--profile", "h200-sxm")):
        answer = ask(*words, *more)
        for key in ("time_us", "time_us_p05", "time_us_p95"):
            assert answer[key] == alone[key]
    assert "profile h200-sxm" in ask(*words, "--cluster", "hgx-h200")["provenance"]


def test_a_cluster_whose_profile_does_not_know_its_node_answers_by_its_links():
    answer = ask("--op", "all-to-all", "--gpus", 8, "--bytes", "1MiB", "--cluster", "pcie-l40s")
    assert answer["params"]["schedule"] == "burst"
    result = moesim("predict", "--op", "all-to-all", "--gpus", 8, "--bytes", "1MiB", "--profile",
                    "l40s")
    assert result.returncode != 0 and "not measured" in result.stderr
