"""What is not known in launch scripts: notes say what is taken in its place, and no value is guessed."""

import pytest
from command_line import moesim, needs_binary, refused
from launch_scripts import layout, notes, script_of
from megatron_files import write

pytestmark = needs_binary


@pytest.mark.parametrize("text, told", [
    ("TP=1\n[ $NODES = 4 ] && TP=2\nRUN --tensor-model-parallel-size $TP",
     ["TP is 1 (line 1) or 2 (line 2), as `[ $NODES = 4 ]` (line 2) is not known: 2 is taken"]),
    ("if [ -f big ]; then\n TP=1\n OTHER=3\nelse\n TP=2\nfi\nRUN --tensor-model-parallel-size $TP",
     ["TP is 1 (line 2) or 2 (line 5), as `[ -f big ]` (line 1) is not known: 2 is taken"]),
    ("if [ $1 = a ]; then TP=2; else TP=2; fi\nRUN --tensor-model-parallel-size $TP",
     ["TP is 2 (line 1) or not set, as `[ $1 = a ]` (line 1) is not known: 2 is taken"]),
    # One that is not known does not hide one that is.
    ("TP=2\nif [ -n \"$MY_TP\" ]; then TP=$MY_TP; fi\nRUN --tensor-model-parallel-size $TP",
     ['TP is 2 (line 1) or $MY_TP (line 2), as `[ -n "$MY_TP" ]` (line 2) is not known: 2 is taken']),
    # By way of another variable.
    ("case $1 in\n a) TP=1;;\n b) TP=2;;\nesac\nA=\"--tensor-model-parallel-size $TP\"\nRUN $A",
     ["TP is 1 (line 2) or 2 (line 3), as `case $1` (line 1) is not known: 2 is taken"]),
    # A condition that depends on it is decided by the value that is taken.
    ("S=small\n[ $1 = big ] && S=big\nif [ $S = big ]; then TP=2; else TP=1; fi\nRUN --tensor-model-parallel-size $TP",
     ["S is small (line 1) or big (line 2), as `[ $1 = big ]` (line 2) is not known: big is taken"]),
    ("S=small\n[ $1 = big ] && S=big\nTP=2\nif [ $S = small ]; then TP=1; fi\nRUN --tensor-model-parallel-size $TP",
     ["S is small (line 1) or big (line 2), as `[ $1 = big ]` (line 2) is not known: big is taken"]),
    ("set_tp() { if [ $1 = $KIND ]; then TP=2; fi; }\nTP=1\nset_tp x\nRUN --tensor-model-parallel-size $TP",
     ["TP is 1 (line 2) or 2 (line 1), as `[ $1 = $KIND ]` (line 1) is not known: 2 is taken"]),
    # Of the output of a command.
    ("if X=$(more --of 4); then TP=1; else TP=2; fi\nRUN --tensor-model-parallel-size $TP",
     ["TP is 1 (line 1) or 2 (line 1), as `X=$(more --of 4)` (line 1) is not known: 2 is taken"]),
    ("TP=1\nX=$(more --of 4 | wc -l) && TP=2\nRUN --tensor-model-parallel-size $TP",
     ["TP is 1 (line 1) or 2 (line 2), as `X=$(more --of 4 | wc -l)` (line 2) is not known: 2 is taken"]),
    # Set again, and not used.
    ("TP=1\n[ $1 = a ] && TP=4\n[ $1 = a ] && PP=4\nTP=2\nRUN --tensor-model-parallel-size $TP", []),
])
def test_a_condition_that_is_not_known_is_told_of(tmp_path, text, told):
    assert notes(tmp_path, text) == told
    assert layout(tmp_path, text)["tensor_parallel"] == 2


def test_a_break_that_is_not_known_to_run_is_told_of(tmp_path):
    text = "for TP in 8 4 2; do\n  more $TP && break\ndone\nRUN --tensor-model-parallel-size $TP"
    assert notes(tmp_path, text) == ["TP is 8 (line 1) or 4 (line 1) or 2 (line 1), as `more $TP` (line 2) is not known: 2 is taken"]
    text = "TP=1\nfor TP in 8 2; do\n  more $TP || continue\n  PP=$TP\ndone\nRUN --pipeline-model-parallel-size $PP"
    assert notes(tmp_path, text) == ["PP is 8 (line 2) or 2 (line 2), as `more $TP` (line 3) is not known: 2 is taken"]


def test_what_turns_that_are_not_known_add_is_told_of(tmp_path):
    text = "N=4\nA=()\nwhile more; do\n  A+=(--micro-batch-size $N)\ndone\nRUN \"${A[@]}\""
    assert "${A[@]} (line 4) is not known: arguments in it are not read" in notes(tmp_path, text)


def test_a_command_that_trains_several_times_is_told_of(tmp_path):
    assert notes(tmp_path, "for TP in 1 2; do\nRUN --tensor-model-parallel-size $TP\ndone") == [
        "the command of line 2 trains 2 times: the last is taken"]
    nodes = "for i in 0 1; do\nbash -c \"torchrun --nproc_per_node 8 --nnodes 2 --node_rank $i pretrain_gpt.py BASE --global-batch-size 16\" &\ndone"
    assert notes(tmp_path, nodes) == []
    nodes = "for r in 0 1 2; do torchrun --nproc_per_node 8 --nnodes 3 --node_rank $r pretrain_gpt.py BASE --global-batch-size 24 & done"
    assert notes(tmp_path, nodes) == []


def test_lists_under_conditions_that_are_not_known_are_told_of(tmp_path):
    text = ("A=(BASE)\nif [ $1 = fp8 ]; then\nA+=(--fp8-format hybrid)\nfi\n"
            "[ -n \"$FULL\" ] && A+=(--recompute-granularity full)\nRUN \"${A[@]}\"")
    assert notes(tmp_path, text) == [
        "A has --fp8-format hybrid (line 3) and --recompute-granularity full (line 5), "
        'as `[ -n "$FULL" ]` (line 5) is not known: all are taken']
    read = layout(tmp_path, text)
    assert (read["precision"], read["recompute"]) == ("fp8-delayed", "full")


def test_several_commands_that_train_are_told_of(tmp_path):
    path = write(tmp_path, script_of("RUN --recompute-activations\nRUN\nold() { RUN; }"))
    told = moesim("layout", "--megatron", path).stderr
    assert "run.sh: 2 commands train (lines 1, 2): that of line 2 is taken\n" in told
    assert "arguments left out: 24 of pretrain_gpt.py (line 1), " in told
    assert "23 of pretrain_gpt.py (line 3), in a function that no command calls" in told


def test_of_commands_in_branches_that_are_not_known_the_last_is_taken(tmp_path):
    text = "if [ $1 = fp8 ]; then\nRUN --fp8-format hybrid\nelse\nRUN --micro-batch-size 4\nfi"
    read = layout(tmp_path, text)
    assert (read["precision"], read["micro_batch"]) == ("bf16", 4)
    assert notes(tmp_path, text) == ["2 commands train (lines 2, 4): that of line 4 is taken"]


def test_an_evaluation_behind_the_training_is_not_taken(tmp_path):
    text = "RUN --micro-batch-size 4\npython tools/eval_after_train.py --micro-batch-size 8 --tensor-model-parallel-size 8"
    assert layout(tmp_path, text)["micro_batch"] == 4


@pytest.mark.parametrize("end, names", [
    ("--micro-batch-size 4 $EXTRA_ARGS", ["$EXTRA_ARGS"]),
    ("--micro-batch-size 4 ${EXTRA_ARGS}", ["${EXTRA_ARGS}"]),
    ("--micro-batch-size 4 --bf16 $A --lr 1 $B > $LOG", ["$A", "$B"]),
    ("--micro-batch-size=4 $A", ["$A"]),
    ("--micro-batch-size 4 --data-path 0.5 $A 0.5 $B", []),
    ("--micro-batch-size 4 --load $CHECKPOINT", []),
    ("--micro-batch-size 4 \"$@\"", []),
    ("--micro-batch-size 4 \"${A[@]}\" ${B[@]}", ["${A[@]}", "${B[@]}"]),
    ("--micro-batch-size 4 \"${A[*]}\"", ["${A[*]}"]),
    ("--micro-batch-size 4 --data-path \"${A[@]}\"", []),
    ("--micro-batch-size 4 --new-flag \"${A[@]}\"", ["${A[@]}"]),
    ("--micro-batch-size 4 --new-flag $MOE_ARGS", ["$MOE_ARGS"]),
    ("--micro-batch-size 4 --use-new-kernel $A", ["$A"]),
    ("--micro-batch-size 4 ${A[@]+\"${A[@]}\"} ${B[@]:-}", []),
    ("--micro-batch-size 4 $(more --of 4)", ["$(more --of 4)"]),
    ("--micro-batch-size 4 $([ $X = 1 ] && echo --fp8-format hybrid) `more --of 4`",
     ["$([ $X = 1 ] && echo --fp8-format hybrid)", "`more --of 4`"]),
])
def test_a_variable_behind_a_complete_argument_is_told_of(tmp_path, end, names):
    text = f"RUN {end}"
    assert layout(tmp_path, text)["micro_batch"] == 4
    assert notes(tmp_path, text) == [f"{name} (line 1) is not known: arguments in it are not read" for name in names]


@pytest.mark.parametrize("lines, name", [
    ("mapfile -t A < args.txt", "${A[@]}"),
    ("A=(a)\nread -r -a A <<< \"$B\"", "${A[@]}"),
    ("A=($(more --of 4))", "$(more --of 4)"),
    ("A=$(more --of 4)", "$(more --of 4)"),
    ("A=`more --of 4`", "`more --of 4`"),
    ("declare -a A", ""),
    ("f() { local -a A; }\nf\nA=()", ""),
    ("A=()\nunset A", ""),
])
def test_arrays_and_outputs_that_are_not_known_are_told_of(tmp_path, lines, name):
    text = f"{lines}\nRUN --micro-batch-size 4 \"${{A[@]}}\""
    assert layout(tmp_path, text)["micro_batch"] == 4
    told = [f"{name} (line {1 if '(more' in name or '`' in name else len(text.splitlines())}) is not known: arguments in it are not read"]
    assert notes(tmp_path, text) == (told if name else [])


def test_what_xargs_adds_is_told_of(tmp_path):
    assert notes(tmp_path, "cat args.txt | xargs RUN --micro-batch-size 4") == [
        "xargs's input (line 1) is not known: arguments in it are not read"]


@pytest.mark.parametrize("text, why", [
    ("RUN --micro-batch-size $MBS", "--micro-batch-size: '$MBS': the script does not set it"),
    ("RUN --micro-batch-size $(more 4)", "--micro-batch-size: '$(more 4)'"),
    ("GBS=64\n(( GBS <<= 1 ))\nRUN --micro-batch-size $GBS", "--micro-batch-size: '$GBS'"),
    ("MBS=1; i=0\nwhile more; do MBS=$((MBS * 2)); i=$((i + 1)); done\nRUN --micro-batch-size $MBS",
     "--micro-batch-size: '$MBS'"),
    ("MBS=1\nfor MBS in 1 2 $X; do :; done\nRUN --micro-batch-size $MBS", "--micro-batch-size: '$MBS'"),
    ("MBS=1\nfor MBS in {1..1001}; do :; done\nRUN --micro-batch-size $MBS", "--micro-batch-size: '$MBS'"),
    ("for ((MBS = 0; MBS < X; MBS++)); do :; done\nRUN --micro-batch-size $MBS", "--micro-batch-size: '$MBS'"),
    ("F=0\nfor i in $(more); do F=$F,1; done\nRUN --moe-layer-freq [$F]", "--moe-layer-freq: '[$F]'"),
    ("F=0\nwhile more; do F+=,1; done\nRUN --moe-layer-freq [$F]", "--moe-layer-freq: '[$F]'"),
    ("MBS=4x\nRUN --micro-batch-size ${MBS/%x/}", "--micro-batch-size: '${MBS/%x/}'"),
    ("MBS=4\nX=$(more (\nRUN", "run.sh:2: the $( has no end"),
    (500 * "(" + "RUN", "run.sh:1: more than 500 parts of the script are open"),
])
def test_what_is_not_known_is_refused(tmp_path, text, why):
    path = write(tmp_path, script_of(text))
    refused("layout", "--megatron", path, parts=(why,))


def test_an_export_that_is_not_known_is_told_of(tmp_path):
    for text in ("export $(more .env)", 'declare "$K=4"', "export $(more .env | xargs)"):
        word = text.split(" ", 1)[1].strip('"')
        assert notes(tmp_path, f"{text}\nRUN --micro-batch-size ${{MBS:-4}}") == [
            f"{word} (line 1) is not known: what it sets is not read"]
    assert notes(tmp_path, 'export A=$X "B=$Y"; export C D="$Z"\ndeclare -p $X; export -f $F; env $X true\nRUN') == []


# A fallback is not taken for a variable that has a value which is not known.
@pytest.mark.parametrize("text, told", [
    ("read TP MBS <<< \"2 4\"\nRUN --tensor-model-parallel-size ${TP:-1}", "'${TP:-1}': what it is in the script is not known"),
    ("mapfile -t A < tp.txt; TP=${A[0]:-1}\nRUN --tensor-model-parallel-size $TP", "'${A[0]:-1}'"),
    ("more | while read TP; do RUN --tensor-model-parallel-size ${TP-1}; done", "'${TP-1}'"),
    ("TP=1; for ((i = 0; i < 2; i++)); do ((TP <<= 1)); done\nRUN --tensor-model-parallel-size ${TP:-1}", "'${TP:-1}'"),
    ("TP=1; for ((;;)); do TP=$((TP * 2)); ((TP >= 4)) && break; done\nRUN --tensor-model-parallel-size ${TP:-1}",
     "'${TP:-1}'"),
    ("i=1; while true; do i=$((i * 2)); [ $i -ge 4 ] && break; done; TP=${i:-1}\nRUN --tensor-model-parallel-size $TP",
     "'${i:-1}'"),
    ("TP=1; x=3; (( x > 2 && (TP = 4) ))\nRUN --tensor-model-parallel-size ${TP:-1}", "'${TP:-1}'"),
    ("TP=1; x=$(( (TP = 4) + y ))\nRUN --tensor-model-parallel-size ${TP:-1}", "'${TP:-1}'"),
    ("M=1; for i in {1..1500}; do M=$((M + 1)); done\nRUN --micro-batch-size ${M:-1}", "'${M:-1}'"),
    ("read TP < tp.txt; : ${TP:=1}\nRUN --tensor-model-parallel-size $TP", "'$TP'"),
    ("read TP < tp.txt\nRUN --tensor-model-parallel-size ${TP:+1}", "'${TP:+1}'"),
    ("TP=2; read TP < tp.txt; TP+=4\nRUN --tensor-model-parallel-size ${TP:-1}", "'${TP}4'"),
    ("A=(1 2 4); read i < i.txt\nRUN --tensor-model-parallel-size ${A[$i]:-1}", "'${A[$i]:-1}'"),
])
def test_no_fallback_is_taken_for_what_is_not_known(tmp_path, text, told):
    path = write(tmp_path, script_of(text))
    refused("layout", "--megatron", path, parts=(told,))


def test_whether_a_variable_that_is_read_is_empty_is_not_known(tmp_path):
    for test in ('[ -z "$X" ]', '[ -n "${X:-}" ]', "[[ -v X ]]", '[ "${X:-1}" = 1 ]', "(( X > 1 ))"):
        text = f"X=1; read X < x.txt; TP=1\nif {test}; then TP=2; fi\nRUN --tensor-model-parallel-size $TP"
        assert notes(tmp_path, text) == [f"TP is 1 (line 1) or 2 (line 2), as `{test}` (line 2) is not known: 2 is taken"]


def test_what_a_loop_only_compares_with_keeps_its_value(tmp_path):
    text = "for ((i = 0; i < N; i++)); do :; done\nRUN --micro-batch-size ${N:-4}"
    assert layout(tmp_path, text)["micro_batch"] == 4
