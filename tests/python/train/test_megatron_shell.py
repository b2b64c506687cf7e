"""Conditions, functions and several commands in launch scripts: moesim reads what bash runs."""

import json
import os
import shlex
import shutil
import subprocess

import pytest
from command_line import moesim, needs_binary, refused

pytestmark = needs_binary
needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash to compare with is installed")

BASE = ("--num-layers 16 --hidden-size 2048 --ffn-hidden-size 8192 --num-attention-heads 16 --seq-length 4096 "
        "--vocab-size 50304 --swiglu --disable-bias-linear --untie-embeddings-and-output-weights --num-experts 64 "
        "--moe-router-topk 8 --moe-ffn-hidden-size 1024 --moe-token-dispatcher-type alltoall --bf16 "
        "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --sequence-parallel "
        "--moe-grouped-gemm --moe-permute-fusion")
RUN = f"torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py {BASE} --global-batch-size 256"

# The micro-batch that each sets.
SETTINGS = [
    ('is_moe() {\n  case $1 in\n    mixtral*) return 0 ;;\n    *) return 1 ;;\n  esac\n}\nMBS=1\nif is_moe llama3; then MBS=8; fi', 1),
    ('f() { echo checking; return 1; }\nMBS=1\nf || MBS=4', 4),
    ('f() { [ $1 -le 1 ] && return 1; return 0; }\nMBS=1\nif f 1; then MBS=2; fi\nif f 2; then MBS=4; fi', 4),
    ('if X=$(false); then MBS=2; else MBS=4; fi', 4),
    ('MBS=2\nX=`false` && MBS=8\nX=`true` && MBS=4', 4),
    ('f() { return 1; }\nMBS=2\nMBS=$(f) || MBS=4', 4),
    ('MBS=$(echo 2; exit 1) || MBS=4', 4),
    ('MBS=$(echo 4; exit 0) || MBS=2', 4),
    ('f() { [ "$1" = big ] && echo yes; }\nMBS=4\nif X=$(f small); then MBS=2; fi', 4),
    ('X=$(true)$(false) || MBS=4', 4),
    ('MBS=2\nX=${Y:-$(false)} || MBS=4', 4),
    ('X=$(false)\nY=1 && MBS=4', 4),
    ('f() { local X=$(false) && MBS=4; }\nf', 4),
    ('case $(echo a; false) in a) X=1 && MBS=4;; esac', 4),
    ('X=$(cat <<EOF\na\nEOF\n) && MBS=4', 4),
    ('f() { return $(($1 > 8)); }\nMBS=1\nif f 9; then MBS=2; fi\nif f 8; then MBS=4; fi', 4),
    ('MBS=1\nif ( exit 1 ); then MBS=2; else MBS=4; fi', 4),
    ('A=1;B=2\nif [ $A = 1 ]; then\n  if [ $B = 1 ]; then MBS=8; elif [ $B = 2 ]; then MBS=4; else MBS=2; fi\nelse\n  MBS=1\nfi', 4),
    ('A=0;B=2\nMBS=1\nif [ $A = 1 ]; then\n  if [ $B = 2 ]; then MBS=4; else MBS=2; fi\n  MBS=8\nfi', 1),
    ('M=mid\ncase "$M" in\n  small|tiny) MBS=1 ;;\n  mid | middle )\n    MBS=2\n    ;;\n  *) MBS=4\nesac', 2),
    ('M=qwen3-30b-a3b\ncase $M in\n  qwen2*) MBS=1;;\n  qwen3-*b-a3b) MBS=4;;\n  *) MBS=2;;\nesac', 4),
    ('M=x\ncase $M in\n  (y) MBS=1;;\n  (x) MBS=4;;\nesac', 4),
    ('M=x\nMBS=1\ncase $M in\n  x) MBS=2;&\n  y) MBS=4;;\n  z) MBS=8;;\nesac', 4),
    ('M=B2\ncase $M in [a-z]*) MBS=2;; [A-C][0-9]) MBS=4;; esac', 4),
    ('M=x;N=y\ncase $M in\n x) case $N in\n     z) MBS=1;;\n     y) MBS=4;;\n    esac;;\n *) MBS=2;;\nesac', 4),
    ('M=\'*\'\ncase $M in "*") MBS=4;; *) MBS=2;; esac', 4),
    ('M=\'a\'\ncase $M in "*") MBS=4;; *) MBS=2;; esac', 2),
    ('A=1;B=0\nMBS=1\n[ $A = 1 ] && [ $B = 1 ] && MBS=8\n[ $A = 1 ] && [ $B = 0 ] && MBS=4', 4),
    ('A=1;B=0\nMBS=1\n[ $A = 2 ] || [ $B = 0 ] && MBS=4\n[ $A = 1 ] || [ $B = 0 ] || MBS=8', 4),
    ('A=0\nMBS=1\n[ $A = 0 ] && { MBS=4; C=1; }\n[ $A = 1 ] && { MBS=8; }\n[ $A = 1 ] || { MBS=2; }', 2),
    ('A=0\nMBS=1\n[ $A = 0 ] && ( MBS=4 )', 1),
    ('A=0\nMBS=1\n! [ $A = 0 ] && MBS=8\n! [ $A = 1 ] && MBS=4', 4),
    ('A=1;B=2\nif [[ $A == 1 && ( $B == 3 || $B == 2 ) ]]; then MBS=4; else MBS=2; fi', 4),
    ('A=1\nif [[ ! $A == 1 ]]; then MBS=4; else MBS=2; fi', 2),
    ('A=mixtral-8x7b\nif [[ $A == *8x7b* ]]; then MBS=4; else MBS=2; fi', 4),
    ('A=mixtral-8x7b\nif [[ $A == "*8x7b*" ]]; then MBS=4; else MBS=2; fi', 2),
    ('A=mixtral-8x7b\nif [[ $A =~ 8x7b ]]; then MBS=4; else MBS=2; fi', 4),
    ('A=mixtral-8x7b\nif [[ "$A" =~ ^mix ]]; then MBS=4; else MBS=2; fi', 4),
    ('A=1\nif [[ $A == 1 &&\n      -n "$A" ]] ; then\n  MBS=4\nelse MBS=2; fi', 4),
    ('A=4\nif [[ A -gt 2 ]]; then MBS=4; else MBS=2; fi', 4),
    ('A=\nif [[ -z $A ]]; then MBS=4; else MBS=2; fi', 4),
    ('A=\nif [[ $A ]]; then MBS=4; else MBS=2; fi', 2),
    ('A=x\nif [ $A ]; then MBS=4; else MBS=2; fi', 4),
    ('A=\nif [ $A ]; then MBS=4; else MBS=2; fi', 2),
    ('A=\nif [ $A = 1 ]; then MBS=4; else MBS=2; fi', 2),
    ('A=1;B=2\nif [ $A -eq 1 -a $B -eq 2 ]; then MBS=4; else MBS=2; fi', 4),
    ('A=1;B=2\nif [ $A -eq 3 -o "$B" = "2" ]; then MBS=4; else MBS=2; fi', 4),
    ('A=1\nif [ ! $A -eq 1 ]; then MBS=4; else MBS=2; fi', 2),
    ('A=1\nif [ \\( $A -eq 1 \\) -a ! \\( $A -eq 2 \\) ]; then MBS=4; else MBS=2; fi', 4),
    ('A=1\nif test $A = 1; then MBS=4; else MBS=2; fi', 4),
    ('A=01\nif [ $A -eq 1 ]; then MBS=4; else MBS=2; fi', 4),
    ('A="--a 1 --b 2"\nif [ -n "$A" ]; then MBS=4; else MBS=2; fi', 4),
    ('A="--a 1 --b 2"\nif [ "$A" = "" ]; then MBS=4; else MBS=2; fi', 2),
    ('A=(1 2 3)\nif [ ${#A[@]} -gt 2 ]; then MBS=4; else MBS=2; fi', 4),
    ('A=1\nif [ $A -eq 1 ] 2>/dev/null; then MBS=4; else MBS=2; fi', 4),
    ('A=4\nif (( A > 2 && A % 2 == 0 )); then MBS=4; else MBS=2; fi', 4),
    ('A=4\nif ((A<2)); then MBS=4; else MBS=2; fi', 2),
    ('(( MBS = 2 * 2 ))', 4),
    ('MBS=3\n(( MBS++ ))', 4),
    ('(( A = 2, MBS = A * 2 ))', 4),
    ('A=3\nMBS=$(( A > 2 ? 4 : 2 ))', 4),
    ('A=3\nMBS=$(( (A > 2) * 4 + (A <= 2) ))', 4),
    ('MBS=$(( 6 + -2 ))', 4),
    ('f() { MBS=$(( $1 * 2 )); }\nf 2', 4),
    ('MBS=$(( 2 ** 2 ))', 4),
    ('MBS=$(( ${X:-2} * 2 ))', 4),
    ('A=(1 2 3 4)\nMBS=${#A[@]}', 4),
    ('D=true\nMBS=1\nif $D; then MBS=4; fi', 4),
    ('D=false\nMBS=1\nif $D; then MBS=4; fi\n$D && MBS=8\n$D || MBS=2', 2),
    ('MBS=1\nwhile false; do MBS=4; done', 1),
    ('MBS=1;i=5\nwhile [ $i -lt 3 ]; do MBS=4; done', 1),
    ('for MBS in 4; do :; done', 4),
    ('MBS=1\nfor MBS in 1 2 4; do :; done', 4),
    ('for MBS in {1..4}; do :; done', 4),
    ('for MBS in {8,4}; do :; done', 4),
    ('MBS=0\nfor i in 1 3; do MBS=$((MBS + i)); done', 4),
    ('MBS=0\nfor i in 1 2; do for j in 1 1; do MBS=$((MBS + j)); done; done', 4),
    ('for MBS in 1 4 8; do [ $MBS = 4 ] && break; done', 4),
    ('MBS=0\nfor i in 1 2 3; do [ $i = 2 ] && continue; MBS=$((MBS + i)); done', 4),
    ('MBS=0\nfor i in 1 2; do for j in 1 2 3; do [ $j = 3 ] && continue 2; MBS=$((MBS + i * j - 1)); done; done\nMBS=$((MBS - 1))', 4),
    ('MBS=0\nfor i in 1 2; do for j in 4 8; do MBS=$j; break 2; done; done', 4),
    ('MBS=1\nfor ((i = 0; i < 2; i++)); do MBS=$((MBS * 2)); done', 4),
    ('MBS=1\nfor ((i = 0; i < 0; i++)); do MBS=2; done', 1),
    ('N=4\nfor ((MBS = 1; MBS < N; MBS *= 2))\ndo\n  :\ndone', 4),
    ('S=\nfor x in a b c; do S="$S$x"; done\nMBS=${#S}\nMBS=$((MBS + 1))', 4),
    ('f() { for x in "$@"; do MBS=$x; done; }\nf 1 2 4', 4),
    ('f() { for x in 4 8; do MBS=$x; return; done; }\nf', 4),
    ('A=(1 2 4)\nfor MBS in "${A[@]}"; do :; done', 4),
    ('for c in "small 1" "big 4"; do\n  set -- $c\n  MBS=$2\ndone', 4),
    ('declare -A A=([b]=1 [a]=3)\nMBS=0\nfor k in "${!A[@]}"; do MBS=$((MBS + ${A[$k]})); done', 4),
    ('MBS=$(echo 4)', 4),
    ('MBS=`echo 4`', 4),
    ('MBS=$(expr 2 \\* 2)', 4),
    ('A=1\nMBS=$([ $A = 1 ] && echo 4 || echo 2)', 4),
    ('A=1\nMBS=$(if [ $A = 2 ]; then echo 8; else echo 4; fi)', 4),
    ('f() { local x=$1; case $x in a) echo 2;; b) echo 4;; esac; }\nMBS=$(f b)', 4),
    ('f() { echo "bad" >&2; A=8; echo 4; }\nA=4\nX=$(f)\nMBS=$((X * A / 4))', 4),
    ('MBS=$(printf "%d" 4)', 4),
    ('MBS=0\nfor i in $(seq 1 4); do MBS=$((MBS + 1)); done', 4),
    ('MBS=0\nfor i in $(seq 6 -2 1); do MBS=$((MBS + i)); done\nMBS=$((MBS / 3))', 4),
    ('f() { exit 1; }\nMBS=4\nX=$(f)', 4),
    ('MBS=$(echo -n 4 2>/dev/null)', 4),
    ('MBS=$(true)\nMBS=${MBS:-4}', 4),
    ('MBS=$(echo "$(echo 4)")', 4),
    ('f() { return 3; }\nMBS=4\nX=$(f; echo 2)\nMBS=$((MBS * X / 2))', 4),
    ('MBS=1\nwhile [ $MBS -lt 4 ]; do MBS=$((MBS * 2)); done', 4),
    ('MBS=1\nuntil [ $MBS -ge 4 ]; do ((MBS++)); done', 4),
    ('set -- --a 2 --mbs 4\nwhile [ $# -gt 0 ]; do case $1 in --mbs) MBS=$2; shift 2;; *) shift;; esac; done', 4),
    ('MBS=4\nfor x in 1 2; do MBS=$x; done | cat', 4),
    ('MBS=4\necho a | while read x; do MBS=1; done', 4),
    ('MBS=4\nf() { MBS=1; }\nf | cat\nf &\nwait', 4),
    ('MBS=4\necho a | { read x; MBS=1; }\n{ MBS=2; exit; } | cat', 4),
    ('for MBS in {0..7..4}; do :; done', 4),
    ('A=(x y z)\nfor k in ${!A[@]}; do MBS=$((k + 2)); done', 4),
    ('MBS=4\nfor x in a b; do case $x in a) continue;; c) MBS=2;; esac; done', 4),
    ('MBS=2\nfor x in; do MBS=4; done', 2),
    ('is_big() { [ "$1" = big ]; }\nMBS=1\nif is_big small; then MBS=8; fi\nif is_big big; then MBS=4; fi', 4),
    ('f() { MBS=4; if [ "$1" = a ]; then return; fi; MBS=8; }\nf a', 4),
    ('f() {\n MBS=4\n [ "$1" = b ] && return\n MBS=2\n}\nf a', 2),
    ('MBS=4\nf() { local MBS=8; local x=1; echo $MBS; }\nf', 4),
    ('MBS=4\nf() { local MBS; MBS=8; }\nf', 4),
    ('MBS=4\nf() { :; }\nMBS=8 f', 4),
    ('f() { MBS=1; }\nf() { MBS=4; }\nf', 4),
    ('A=1\nif [ $A = 1 ]; then\nf() { MBS=4; }\nelse\nf() { MBS=8; }\nfi\nf', 4),
    ('X=1 MBS=4', 4),
    ('MBS=2\nenv MBS=4 true', 2),
    ('MBS=2\n( MBS=4; ( MBS=8 ); )', 2),
    ('MBS=2\n( exit 1 )\nMBS=4', 4),
    ('MBS=2\n( MBS=8; echo x ) | cat\nMBS=4', 4),
    ('MBS=4\nf() ( MBS=8 )\nf', 4),
    ('die() { echo "$1"; exit 1; }\nMBS=4\n[ $MBS -gt 0 ] || die "no"', 4),
    ('A=0\nif [ $A = 1 ]; then\ncat <<EOF\nfi\nelse\nEOF\nMBS=8\nelse\nMBS=4\nfi', 4),
    ('MBS=4\n# if [ 1 = 1 ]; then\n# MBS=8', 4),
    ('MBS=4\necho "if then else"\necho if\necho fi done esac', 4),
    ('MBS=8\nunset MBS\nMBS=${MBS:-4}', 4),
    ('A=x4xx\nMBS=${A//x/}', 4),
    ('A=84\nMBS=${A/8}', 4),
    ('N=64\nif   (( N <= 8 ));  then MBS=1\nelif (( N <= 64 )); then MBS=4\nelif (( N <= 512 )); then MBS=2\nelse MBS=8; fi', 4),
    ('A=2; if [ $A = 2 ]; then MBS=4; else MBS=8; fi; B=1', 4),
    ('MBS=1\nuntil true; do MBS=8; done\nMBS=4', 4),
    ('MBS=2\ntrue | false && MBS=8\nfalse | true && MBS=4', 4),
    ('A=1\nif [ $A = 1 ]\nthen\n  MBS=4\nelse\n  MBS=8\nfi', 4),
    ('A=1;B=1\nif [ $A = 1 ] && [ $B = 2 ]; then MBS=8; elif [ $A = 2 ] || [ $B = 1 ]; then MBS=4; fi', 4),
    ('A=0\nexport MBS=4\n[ "$A" = "1" ] && export MBS=8', 4),
    ('A=1 && MBS=4', 4),
    ('M=1\ndeclare -i M\nMBS=4', 4),
    ('A=abc\nif [[ $A < abd ]]; then MBS=4; else MBS=2; fi', 4),
    ('VAR=1\ncat <<EOF > ds.json\n{ "a": $VAR, "if": (x) }\nEOF\nMBS=4', 4),
    ('set -euo pipefail\nMBS=4', 4),
    ('set -- 4 8\nMBS=$1', 4),
    ('set -- 4 8\nif [ $# -eq 2 ]; then MBS=4; else MBS=8; fi', 4),
    ('for i in {1..3}; do :; done\nMBS=4', 4),
    ('MBS=4\nfor ((i=0; i<3; i++)); do echo $i; done', 4),
    ('for ((i=0; i<3; i++))\ndo\n  echo $i\ndone\nMBS=4', 4),
    ('MBS=4\nwhile read -r a b; do echo $a; done < file.txt', 4),
    ('M=a\ncase $M in a) MBS=4;; b) MBS=8;; esac; C=1', 4),
    ('MBS=2\nlet MBS*=2', 4),
    ('let "MBS = 2 * 2"', 4),
    ('MBS=\nif [ -z "$MBS" ]; then MBS=4; fi', 4),
    ('A=\'true\'\nif [ "$A" == \'true\' ]; then MBS=4; else MBS=8; fi', 4),
    ('MBS=2\nif ! false; then MBS=4; fi', 4),
    ('A=1\nif [ $A = 2 ]; then : ${MBS:=8}; fi\n: ${MBS:=4}', 4),
    ('A=1\n[ $A = 1 ] &&\n  MBS=4', 4),
    ('MBS=4\ncd /tmp || exit 1\nmkdir -p x && cd x', 4),
    ('function pick { if [ $1 -gt 4 ]; then MBS=4; else MBS=8; fi; }\npick 5', 4),
]


# Scripts of which bash runs one command that trains, and those of which it runs the last one last.
COMMANDS = [
    # In branches.
    "DEBUG=0\nif [ $DEBUG -eq 0 ]; then\nRUN --micro-batch-size 4\nelse\nRUN --recompute-activations\nfi",
    "DEBUG=0\n[ $DEBUG = 1 ] && RUN --recompute-activations\nRUN --micro-batch-size 4",
    "A=1\nif [ $A = 1 ]; then\nRUN --micro-batch-size 4\nexit\nfi\nRUN --micro-batch-size 8",
    "N=1; [ $N = 1 ] && NN=2 || NN=4\ntorchrun --nproc_per_node 8 --nnodes $NN pretrain_gpt.py BASE --global-batch-size 256",
    # Of two the last.
    "RUN --recompute-activations\nRUN --micro-batch-size 4",
    'run() { RUN "$@"; }\nrun --fp8-format hybrid\nrun --tensor-model-parallel-size 2',
    "bash other_train.sh --tensor-model-parallel-size 8 --micro-batch-size 2\nRUN",
    "FP=1\nif [ $FP = 1 ]; then RUN --micro-batch-size 2; fi\nRUN",
    # Nothing runs what is left out.
    "RUN\nexit 0\nRUN --micro-batch-size 8",
    "die() { exit 0; }\nRUN --micro-batch-size 4\ndie\nRUN --micro-batch-size 8",
    ": <<'OLD'\nRUN --tensor-model-parallel-size 4\nOLD\nRUN",
    ": <<'OLD'\nif [ x ]; then\nRUN --tensor-model-parallel-size 4\nOLD\nRUN",
    "<<'OLD'\nRUN --tensor-model-parallel-size 4\nOLD\nRUN",
    "old() { RUN --micro-batch-size 8; }\nRUN",
    "run() { RUN \"$@\"; }; run --tensor-model-parallel-size 2",
    "old() { RUN --micro-batch-size 8; }; run() { { RUN --micro-batch-size ${1:-4}; } 2>&1 | cat; }; run && echo done }",
    "f() { return 0\nRUN --tensor-model-parallel-size 8; }\nf\nRUN",
    "f() {\n  RUN --micro-batch-size 4\n  return\n  RUN --micro-batch-size 8\n}\nf",
    "exec RUN --micro-batch-size 4\nRUN --micro-batch-size 8",
    "exec > >(cat) 2>&1\nRUN --micro-batch-size 4",
    "MODE=b\na() { RUN --micro-batch-size 8; }\nb() { RUN --micro-batch-size 4; }\nif [ $MODE = a ]; then a; else b; fi",
    # Assignments in front of a command.
    "MBS=2\nMBS=4 RUN --micro-batch-size $MBS",
    "MBS=2\nMBS=4 true\nRUN --micro-batch-size $MBS",
    "MBS=2\nMBS=4 bash -c 'RUN --micro-batch-size $MBS'",
    "MBS=2\nenv MBS=4 bash -c 'RUN --micro-batch-size $MBS'",
    "f() { RUN --micro-batch-size $MBS; }\nMBS=2\nMBS=4 f",
    # Assignments that are such with quotes taken off and variables put in.
    "for kv in TP=4 MBS=2; do export \"$kv\"; done\nRUN --tensor-model-parallel-size ${TP:-1} --micro-batch-size ${MBS:-1}",
    "export \"TP=4\"\ndeclare 'MBS=2'\nRUN --tensor-model-parallel-size ${TP:-1} --micro-batch-size ${MBS:-1}",
    "k=TP\ndeclare \"$k=4\"\nexport ${k/TP/MBS}=2\nRUN --tensor-model-parallel-size ${TP:-1} --micro-batch-size ${MBS:-1}",
    "export $(printf '%s\\n' TP=4 MBS=2)\nRUN --tensor-model-parallel-size ${TP:-1} --micro-batch-size ${MBS:-1}",
    "export \"A=--tensor-model-parallel-size 4 --micro-batch-size 2\"\nRUN $A",
    "MBS=2\nf() { local \"MBS=4\"; RUN --micro-batch-size 8; }\nf\nRUN --micro-batch-size $MBS",
    "k=MBS\nif false; then export \"$k=8\"; fi\nRUN --micro-batch-size ${MBS:-4}",
    "MBS=2\nenv \"MBS=4\" bash -c 'RUN --micro-batch-size $MBS'",
    "X=tensor\nk=X\nexport \"$k+=-model-parallel-size\"\nRUN --$X 4",
    "for k in MBS TP; do [ \"$k\" = TP ] && export \"$k=4\"; done\nRUN --tensor-model-parallel-size ${TP:-1}",
    # Another shell has what is exported.
    "TP=2\nbash -c 'RUN --tensor-model-parallel-size ${TP:-1}'",
    "export TP=2\nbash -c 'RUN --tensor-model-parallel-size ${TP:-1}'",
    "TP=2\nexport MBS=4 TP\nsh -c 'RUN --tensor-model-parallel-size $TP'",
    "declare -x TP=2\nbash -c 'RUN --tensor-model-parallel-size ${TP:-1}'",
    "set -a\nTP=2\nset +a\nMBS=4\nbash -c 'RUN --tensor-model-parallel-size ${TP:-1} --micro-batch-size ${MBS:-2}'",
    "TP=2\nTP=4 bash -c 'RUN --tensor-model-parallel-size ${TP:-1}'",
    "f() { bash -c 'RUN --micro-batch-size ${1:-4}'; }\nf 8",
    "TP=2\nbash -c \"RUN --tensor-model-parallel-size ${TP:-1}\"",
    # Elements of arrays.
    "A=(--micro-batch-size 8)\nA[1]=4\nRUN \"${A[@]}\"",
    "A=(--micro-batch-size)\nA[1]=4\nRUN \"${A[@]}\"",
    "A=(--micro-batch-size 8)\nA[-1]=4\nRUN \"${A[@]}\"",
    "A=(--micro-batch-size 4 --recompute-activations --swiglu)\nunset 'A[${#A[@]}-2]'\nRUN \"${A[@]}\"",
    "A=(--micro-batch-size 8)\nunset A\nRUN \"${A[@]}\"",
    "X='--recompute-activations'\nunset X\nRUN --micro-batch-size 4 $X",
    "declare -A A\nA[x]=8\nA[x]=4\nRUN --micro-batch-size ${A[x]}",
    "A='--tensor-model-parallel-size 4'\nA=\"${A/size 4/size 2}\"\nRUN $A",
    # Outputs of commands.
    "F=1\nRUN --micro-batch-size 4 $([ $F = 1 ] && echo --fp8-format hybrid)",
    "F=0\nRUN --micro-batch-size 4 $([ $F = 1 ] && echo --fp8-format hybrid)",
    "args() { case $1 in a) echo \"--tensor-model-parallel-size 2\";; b) echo \"--swiglu\";; esac; }\nRUN $(args a) --micro-batch-size 4",
    "args() {\ncat <<EOF\n--tensor-model-parallel-size 2\nEOF\n}\nRUN --micro-batch-size 4",
    "A=($(printf '%s ' --tensor-model-parallel-size 2) --micro-batch-size 4)\nRUN \"${A[@]}\"",
    'MODE=$(printf "%s\\n" large)\n[ $MODE = large ] && TP=4 || TP=2\nRUN --tensor-model-parallel-size $TP',
    'for m in $(printf "%s\\n" 1 2 4); do case $m in 1) TP=1;; 2) TP=2;; 4) TP=4;; esac; done\nRUN --tensor-model-parallel-size $TP',
    'M=$(printf "%s\\n" 4)\nRUN --micro-batch-size $M',
    # Where it ends.
    'TP=$(case big in big) echo 4;; *) echo 2;; esac)\nRUN --tensor-model-parallel-size $TP',
    'TP=$(case big in (small) echo 1;; (big) ( echo 4 );; esac)\nRUN --tensor-model-parallel-size "$TP"',
    'TP=`echo \\`echo 4\\``\nRUN --tensor-model-parallel-size ${TP:-1}',
    'X=$(awk -F"(" \'{print $1}\' f)\nY=$(grep -oP \'\\(\\K\\d+\' f)\nRUN --micro-batch-size 4',
    'X=$(\n  # pick (the first\n  echo 4\n)\nRUN --micro-batch-size $X',
    'X=$(python3 - <<EOF\nprint("(")\nEOF\n)\nRUN --micro-batch-size 4',
    'X=$(echo "a)b")\n[ "$X" = "a)b" ] && MBS=4\nRUN --micro-batch-size $MBS',
    'X="$(echo "$(echo ")")" \\) case)"\n[ "$X" = ") ) case" ] && MBS=4\nRUN --micro-batch-size $MBS',
    'X=$(( (1 << 2) + 16#4 - 4 ))\nRUN --micro-batch-size 4',
    # Loops.
    "A=\nfor x in bf16 recompute-activations; do A=\"$A --$x\"; done\nRUN $A",
    "A=()\nfor x in tensor pipeline; do A+=(--$x-model-parallel-size 2); done\nRUN \"${A[@]}\"",
    "F='[0'\nfor i in {1..15}; do F=\"$F,1\"; done\nRUN --moe-layer-freq \"$F]\"",
    "for TP in 1 2 4; do RUN --tensor-model-parallel-size $TP; done",
    "for o in fp8 none; do\nif [ $o = fp8 ]; then A=\"$A --fp8-format hybrid\"; elif [ $o = tp ]; then A=\"$A --swiglu\"; fi\ndone\nRUN $A",
    "f() { while [ $# -gt 0 ]; do A+=(\"--$1\" \"$2\"); shift 2; done; }\nA=()\nf tensor-model-parallel-size 2 micro-batch-size 4\nRUN \"${A[@]}\"",
    # Lists.
    "FP8=false\nA=(BASE)\nif [ \"$FP8\" = true ]; then\nA+=(--fp8-format hybrid)\nfi\nRUN \"${A[@]}\"",
    "DROP=false\nA=(BASE)\n$DROP && A+=(--moe-expert-capacity-factor 1.0)\nRUN \"${A[@]}\"",
    "R=0\nA='BASE'\nif [[ $R -eq 1 ]]; then A=\"$A --recompute-activations\"; fi\nRUN $A",
    "D=a\nif [ $D = a ]; then X='--micro-batch-size 4'; else X='--recompute-activations'; fi\nRUN $X",
    "F=0\nif [ $F = 1 ]; then X='--recompute-activations'; fi\nRUN --micro-batch-size 4 $X",
    "MULTI=1\nif (( MULTI > 1 )); then A+=(--recompute-activations); fi\nRUN \"${A[@]}\"",
]


def script_of(text):
    return text.replace("RUN", RUN).replace("BASE", BASE) + "\n"


def layout(tmp_path, text, name="run.sh"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    result = moesim("layout", "--megatron", path, "--format", "json")
    assert result.returncode == 0, result.stderr
    return {key: value for key, value in json.loads(result.stdout).items() if key != "model"}


def notes(tmp_path, text):
    path = tmp_path / "run.sh"
    path.write_text(script_of(text), encoding="utf-8")
    lines = moesim("layout", "--megatron", path).stderr.splitlines()
    return [line.split("run.sh: ", 1)[1] for line in lines if line.startswith("note: ")]


def bash(tmp_path, text):
    """What it prints, with a torchrun that writes down its arguments."""
    stub = tmp_path / "bin" / "torchrun"
    stub.parent.mkdir(exist_ok=True)
    stub.write_text("#!/bin/bash\nprintf '%s\\0' \"$@\" >> \"$ARGUMENTS\"\nprintf '\\n\\0' >> \"$ARGUMENTS\"\n",
                    encoding="utf-8")
    stub.chmod(0o755)
    script = tmp_path / "script.sh"
    script.write_text(text, encoding="utf-8")
    environment = {"PATH": f"{stub.parent}:{os.environ['PATH']}", "ARGUMENTS": str(tmp_path / "arguments")}
    return subprocess.run(["bash", str(script)], env=environment, cwd=tmp_path, check=False, timeout=60,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True).stdout


@pytest.mark.parametrize("lines, micro_batch", SETTINGS)
def test_a_setting_is_that_of_the_branch_that_runs(tmp_path, lines, micro_batch):
    assert layout(tmp_path, script_of(f"{lines}\nRUN --micro-batch-size $MBS"))["micro_batch"] == micro_batch
    assert not notes(tmp_path, f"{lines}\nRUN --micro-batch-size $MBS")


@needs_bash
@pytest.mark.parametrize("lines, micro_batch", SETTINGS)
def test_bash_sets_it_so(tmp_path, lines, micro_batch):
    assert bash(tmp_path, f"{lines}\necho \"=$MBS\"\n").strip().rsplit("=", 1)[-1] == str(micro_batch)


@needs_bash
@pytest.mark.parametrize("text", COMMANDS)
def test_the_command_is_the_last_one_that_bash_runs(tmp_path, text):
    bash(tmp_path, script_of(text))
    runs = [run.split("\0")[:-1] for run in (tmp_path / "arguments").read_text(encoding="utf-8").split("\n\0") if run]
    flat = "torchrun " + " ".join(shlex.quote(word) for word in runs[-1]) + "\n"
    assert layout(tmp_path, script_of(text)) == layout(tmp_path, flat, "flat.sh")


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
    assert layout(tmp_path, script_of(text))["tensor_parallel"] == 2


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
    read = layout(tmp_path, script_of(text))
    assert (read["precision"], read["recompute"]) == ("fp8-delayed", "full")


def test_several_commands_that_train_are_told_of(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(script_of("RUN --recompute-activations\nRUN\nold() { RUN; }"), encoding="utf-8")
    told = moesim("layout", "--megatron", path).stderr
    assert "run.sh: 2 commands train (lines 1, 2): that of line 2 is taken\n" in told
    assert "arguments left out: 24 of pretrain_gpt.py (line 1), " in told
    assert "23 of pretrain_gpt.py (line 3), in a function that no command calls" in told


def test_of_commands_in_branches_that_are_not_known_the_last_is_taken(tmp_path):
    text = "if [ $1 = fp8 ]; then\nRUN --fp8-format hybrid\nelse\nRUN --micro-batch-size 4\nfi"
    read = layout(tmp_path, script_of(text))
    assert (read["precision"], read["micro_batch"]) == ("bf16", 4)
    assert notes(tmp_path, text) == ["2 commands train (lines 2, 4): that of line 4 is taken"]


def test_an_evaluation_behind_the_training_is_not_taken(tmp_path):
    text = "RUN --micro-batch-size 4\npython tools/eval_after_train.py --micro-batch-size 8 --tensor-model-parallel-size 8"
    assert layout(tmp_path, script_of(text))["micro_batch"] == 4


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
    assert layout(tmp_path, script_of(text))["micro_batch"] == 4
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
    assert layout(tmp_path, script_of(text))["micro_batch"] == 4
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
    path = tmp_path / "run.sh"
    path.write_text(script_of(text), encoding="utf-8")
    refused("layout", "--megatron", path, parts=(why,))


def test_an_export_that_is_not_known_is_told_of(tmp_path):
    for text in ("export $(more .env)", 'declare "$K=4"', "export $(more .env | xargs)"):
        word = text.split(" ", 1)[1].strip('"')
        assert notes(tmp_path, f"{text}\nRUN --micro-batch-size ${{MBS:-4}}") == [
            f"{word} (line 1) is not known: what it sets is not read"]
    assert notes(tmp_path, 'export A=$X "B=$Y"; export C D="$Z"\ndeclare -p $X; export -f $F; env $X true\nRUN') == []


@needs_bash
def test_exports_from_a_file_are_read(tmp_path):
    (tmp_path / "env.txt").write_text("TP=4\nMBS=2\n", encoding="utf-8")
    text = "export $(cat env.txt)\nRUN --tensor-model-parallel-size ${TP:-1} --micro-batch-size ${MBS:-1}"
    bash(tmp_path, script_of(text))
    assert (tmp_path / "arguments").read_text(encoding="utf-8").split("\0")[-5:-2] == ["4", "--micro-batch-size", "2"]
    read = layout(tmp_path, script_of(text))
    assert (read["tensor_parallel"], read["micro_batch"]) == (4, 2)


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
    path = tmp_path / "run.sh"
    path.write_text(script_of(text), encoding="utf-8")
    refused("layout", "--megatron", path, parts=(told,))


def test_whether_a_variable_that_is_read_is_empty_is_not_known(tmp_path):
    for test in ('[ -z "$X" ]', '[ -n "${X:-}" ]', "[[ -v X ]]", '[ "${X:-1}" = 1 ]', "(( X > 1 ))"):
        text = f"X=1; read X < x.txt; TP=1\nif {test}; then TP=2; fi\nRUN --tensor-model-parallel-size $TP"
        assert notes(tmp_path, text) == [f"TP is 1 (line 1) or 2 (line 2), as `{test}` (line 2) is not known: 2 is taken"]


def test_what_a_loop_only_compares_with_keeps_its_value(tmp_path):
    text = "for ((i = 0; i < N; i++)); do :; done\nRUN --micro-batch-size ${N:-4}"
    assert layout(tmp_path, script_of(text))["micro_batch"] == 4


@needs_bash
@pytest.mark.parametrize("command", ["$(cat args.txt)", "$(< args.txt)", "$(<args.txt)", "`cat args.txt`"])
def test_a_file_of_arguments_is_read(tmp_path, command):
    (tmp_path / "args.txt").write_text("--micro-batch-size 4\n--tensor-model-parallel-size 2\n", encoding="utf-8")
    text = f"RUN {command}"
    bash(tmp_path, script_of(text))
    assert (tmp_path / "arguments").read_text(encoding="utf-8").split("\0")[-5:-2] == ["4", "--tensor-model-parallel-size", "2"]
    read = layout(tmp_path, script_of(text))
    assert (read["tensor_parallel"], read["micro_batch"]) == (2, 4)
    assert notes(tmp_path, text) == ["args.txt (line 1) is read too"]


# Scripts that source a file, the file, and how a note names it.
SOURCES = [
    ("source args.sh\nRUN \"${ARGS[@]}\"", "args.sh", "args.sh (line 1)"),
    ("source $(dirname $0)/conf/args.sh\nRUN ${ARGS[@]}", "conf/args.sh", "conf/args.sh (line 1)"),
    ("DIR=\"$(cd \"$(dirname \"${BASH_SOURCE[0]}\")\" &>/dev/null && pwd)\"\n. \"${DIR}/conf/args.sh\"\nRUN \"${ARGS[@]}\"",
     "conf/args.sh", "conf/args.sh (line 2)"),
    ("M=moe\nsource conf/$M.sh\nRUN \"${ARGS[@]}\"", "conf/moe.sh", "conf/moe.sh (line 2)"),
    ("ARGS=(--micro-batch-size 8)\nsource $PWD/args.sh\nRUN \"${ARGS[@]}\"", "args.sh", "args.sh (line 2)"),
    ("cd conf\nsource args.sh\ncd ..\nRUN \"${ARGS[@]}\"", "conf/args.sh", "conf/args.sh (line 2)"),
]


@needs_bash
@pytest.mark.parametrize("text, name, told", SOURCES)
def test_a_file_that_is_sourced_is_read(tmp_path, text, name, told):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("ARGS=(\n  --tensor-model-parallel-size 2\n  --micro-batch-size 4  # of each\n)\n", encoding="utf-8")
    bash(tmp_path, script_of(text))
    assert (tmp_path / "arguments").read_text(encoding="utf-8").split("\0")[-5:-2] == ["2", "--micro-batch-size", "4"]
    read = layout(tmp_path, script_of(text))
    assert (read["tensor_parallel"], read["micro_batch"]) == (2, 4)
    assert notes(tmp_path, text) == [f"{told} is read too"]


def test_errors_name_the_file_that_is_sourced(tmp_path):
    (tmp_path / "args.sh").write_text("# sizes\nARGS=(--num-layers x)\n", encoding="utf-8")
    path = tmp_path / "run.sh"
    path.write_text(script_of('source args.sh\nRUN "${ARGS[@]}"'), encoding="utf-8")
    refused("layout", "--megatron", path, parts=("args.sh:2: --num-layers: 'x' is not a whole number",))


def test_a_file_that_is_sourced_and_not_there_is_told_of(tmp_path):
    text = 'source args.sh\nsource ~/.bashrc\nRUN --micro-batch-size ${MBS:-4} "${ARGS[@]}"'
    assert layout(tmp_path, script_of(text))["micro_batch"] == 4
    assert notes(tmp_path, text) == ["args.sh (line 1) is not found: what it has is not known",
                                     "${ARGS[@]} (line 3) is not known: arguments in it are not read"]
