# Sourced by tools/gpu-check: its parts, with what it knows of the machine.

# Each part prints to its log and returns 0 passed, 1 failed, 5 all measured and right, but a bar is not
# met; with a reason in `why` 77 skipped, 78 not all of it measured for want of time.
why=''
skip() { why=$*; return 77; }
partly() { why=$*; echo "$why: --resume goes on"; return 78; }
# worst CODE CODE: of two pieces of a part, what the part returns. Not all measured is said before a
# bar that is not met, so that --resume goes on.
worst() {
  case $1 in 0 | 5 | 78) ;; *) printf '%s' "$1"; return ;; esac
  case $2 in 0 | 5 | 78) ;; *) printf '%s' "$2"; return ;; esac
  case " $* " in *' 78 '*) echo 78 ;; *' 5 '*) echo 5 ;; *) echo 0 ;; esac
}
# less SECONDS SPARE: so much less, or half where that is nearly all.
less() { printf '%s' $(($1 > 2 * $2 ? $1 - $2 : ($1 + 1) / 2)); }
# Results of an earlier call are not lost to a shorter run: set aside before, put back where the new
# ones, of the lines with WORDS, are fewer.
aside() {
  local file
  for file in "$@"; do
    # Of a call that was killed.
    if [ -e "$file.before" ]; then mv -f "$file.before" "$file"; fi
    if [ -n "$resume" ] && [ -e "$file" ]; then mv -f "$file" "$file.before"; else rm -f "$file"; fi
  done
}
measured() { if [ -e "$2" ]; then grep -o -- "$1" "$2" | wc -l; else echo 0; fi; }
# settle WORDS FILE [FILE...]: the first is counted, the others go with it.
settle() {
  local words=$1 file back=''
  shift
  if [ -e "$1.before" ] && [ "$(measured "$words" "$1.before")" -gt "$(measured "$words" "$1")" ]; then
    echo "$1: more was measured before, which is kept"
    back=yes
  fi
  for file in "$@"; do
    [ -e "$file.before" ] || continue
    if [ -n "$back" ] || [ ! -e "$file" ]; then mv -f "$file.before" "$file"; else rm -f "$file.before"; fi
  done
}
# What the benchmarks write of what they had no time for.
late_in() { grep -qs 'the time limit of' "$1"; }
limited() { timeout --kill-after=5 "$(budget)" "$@"; }
ours() { limited env LD_LIBRARY_PATH="$libraries" "$@"; }

part_facts() {
  date -u +%FT%TZ
  uname -a
  df -h "$out" "${TMPDIR:-/tmp}"
  echo "libraries: $libraries"
  if command -v nvidia-smi >/dev/null; then limited nvidia-smi; limited nvidia-smi topo -m; fi
  local file none
  for file in "$moesim" "$test_gpu" "$layer" "${benches[@]}"; do
    [ -n "$file" ] || continue
    none=$(unfound "$file")
    [ -z "$none" ] || { echo "$file cannot start here: it lacks $none"; return 1; }
  done
  ours "$moesim" doctor
}
part_tests() {
  local code of_several=0 those=()
  # In a process of their own: where an exchange hangs, the others have been tested.
  if [ "$gpus" -gt 1 ]; then those=('~[gpus]~[.]'); fi
  ours "$test_gpu" --durations yes "${those[@]}" | tee "$out/test_gpu.txt"
  code=${PIPESTATUS[0]}
  if grep -q 'SKIPPED: no usable GPU' "$out/test_gpu.txt"; then
    echo 'no test ran: the GPU cannot be used'
    return 1
  fi
  if [ "$gpus" -gt 1 ]; then
    ours "$test_gpu" --durations yes '[gpus]' | tee "$out/test_gpus.txt"
    of_several=${PIPESTATUS[0]}
    if grep -q 'SKIPPED:' "$out/test_gpus.txt"; then echo 'a test of several GPUs was skipped'; of_several=1; fi
    [ "$of_several" -eq 0 ] || echo "exit code $of_several of the tests of several GPUs"
  fi
  if [ "$code" -ne 0 ]; then
    echo "exit code $code; each by itself:"
    each_test "${those[@]}"
    return 1
  fi
  return "$of_several"
}
# each_test [WHICH]: one that kills the device, or never ends, would end those after it too.
each_test() {
  local code name most failed=0
  while IFS= read -r name; do
    [ "$(budget)" -gt 3 ] || { echo 'no time for the others'; break; }
    # Some measure a dozen points.
    most=$(($(budget) < 60 ? $(budget) : 60))
    if LD_LIBRARY_PATH=$libraries timeout --kill-after=2 "$most" "$test_gpu" "$(printf '%s' "$name" | sed 's/[],[\\]/\\&/g')" \
         >"$out/test_gpu.one.txt" 2>&1 </dev/null; then echo "passed: $name"
    else code=$? failed=$((failed + 1)); cat "$out/test_gpu.one.txt"; echo "failed with $code: $name"; fi
  done < <(LD_LIBRARY_PATH=$libraries timeout 10 "$test_gpu" --list-test-names-only "$@" 2>/dev/null)
  rm -f "$out/test_gpu.one.txt"
  echo "$failed failed by themselves"
}
# profile_suites MOST-BREAKS [OPTIONS]: a kernel that kills the process or never ends costs its point,
# --resume passes over it. Sets `code`, adds to `broken`; `more` and `stall` are the part's.
profile_suites() {
  local most=$(($1 + broken))
  shift
  while :; do
    ours "$moesim" profile --out "$out/node.json" --stall "$stall" \
      --timeout "$(less "$(budget)" 10)" "$@" $more
    code=$?
    more=--resume
    case $code in
      0 | 2 | 3 | 4 | 130) break ;;
      124) [ "$(budget)" -gt 60 ] || break ;;
      *) [ "$(budget)" -gt 20 ] || break ;;
    esac
    broken=$((broken + 1))
    [ "$broken" -lt "$most" ] || break
    echo "exit code $code: continuing after the point that broke it"
  done
}
part_profile() {
  local more='' code=0 void=0 broken=0 stall=40
  # What neither exchanges nor takes minutes for its plans.
  local alone=gemm,sustained,memory,permute,experts,routing,launch,gemm-fp8
  # Those of an earlier call say nothing of this one.
  if [ -n "$resume" ]; then more=--resume; else rm -f "$out/node.json" "$out/node.raw.json"; fi
  if [ "$gpus" -gt 1 ]; then
    stall=90  # GPUs that nobody uses take their time to open, and so does NCCL
    # A profile is there before NCCL starts, which may hang or end the process.
    profile_suites 5 --suite "$alone"
    case $code in 2 | 3 | 130) return "$code" ;; 4) void=4 ;; esac
    profile_suites 2
    # With so many breaks an exchange is the likely cause: what comes after the exchanges.
    if [ "$broken" -ge 2 ] && [ "$code" -ne 0 ] && [ "$(budget)" -gt 30 ]; then
      echo 'continuing without exchanges'
      profile_suites 2 --suite "$alone,attention,attention-backward"
    fi
  else
    if [ -n "$first" ]; then
      # What has not run yet may break: it must not cost the time of the others.
      profile_suites 2 --suite "$first"
      case $code in 2 | 3 | 130) return "$code" ;; 4) void=4 ;; esac
    fi
    profile_suites 5
  fi
  if [ "$code" -eq 0 ] || { [ "$code" -eq 124 ] && [ -s "$out/node.json" ]; }; then
    [ "$void" -eq 0 ] || return "$void"
    if [ "$broken" -gt 0 ]; then
      echo "$broken point(s) broke the run: they are void in the profile's points"
      return 1
    fi
    [ "$code" -eq 0 ] || partly 'out of time: the profile holds what was measured' || return
  fi
  return "$code"
}
part_simulate() {
  [ -s "$out/node.json" ] || { skip 'there is no profile: the part profile writes it'; return 77; }
  ours "$moesim" simulate --profile "$out/node.json" --gpus 8 --replicas 3
}
# layers_into FOLDER SECONDS [OPTIONS]: measures layers for so long.
layers_into() {
  local folder=$1 most=$2 profile=() stall=40 code
  shift 2
  mkdir -p "$folder"
  aside "$folder/measured-layer.json"
  if [ -s "$out/node.json" ]; then profile=(--profile "$out/node.json"); fi
  case " $* " in *' --gpus '*) stall=90 ;; esac  # several GPUs load all kernels as they are opened
  ours "$layer" "${profile[@]}" --out "$folder" --timeout "$(less "$most" 15)" --stall "$stall" "$@"
  code=$?
  settle '"stages"' "$folder/measured-layer.json"
  case $code in 5 | 124)
    if ! grep -qs '"stages"' "$folder/measured-layer.json"; then :
    elif [ "$code" -eq 124 ] || late_in "$folder/measured-layer.json"; then partly 'not all layers were measured'; return
    fi ;;
  esac
  return "$code"
}
part_layer() {
  local code=0 group=1 several=0
  # Each rank has as many of the 8 experts.
  for several in 2 4 8; do if [ "$several" -le "$gpus" ]; then group=$several; fi; done
  if [ "$group" -eq 1 ]; then layers_into "$out" "$(budget)"; return; fi
  layers_into "$out" $(($(budget) / 2)) || code=$?
  [ "$(budget)" -gt 15 ] || { echo "no time for a group of $group GPUs"; return 1; }
  echo "a group of $group GPUs"
  layers_into "$out/layer-$group" "$(budget)" --gpus "$group"
  return "$(worst "$code" $?)"
}
part_benchmarks() {
  local bench failed=0 code peers=() python most late=0 wheels=()
  # Peers go on from those that were measured.
  if [ -n "$resume" ]; then peers=(--resume); else rm -f "$out/peers.json"; fi
  aside "$out"/gpu_kernels.{json,csv}
  if [ -d "${MOESIM_PEER_WHEELS:-$top/peer-wheels}" ]; then wheels=(--wheels "${MOESIM_PEER_WHEELS:-$top/peer-wheels}"); fi
  # All but what the kernels of this project take, a third at least. What is compiled when its time is
  # over is ended.
  if python=$(find_python torch); then
    most=$(($(budget) / 3 + 1))
    if [ "$(budget)" -gt $((most + own_benchmarks)) ]; then most=$(($(budget) - own_benchmarks)); fi
    timeout --kill-after=5 "$most" "$python" "$top/tests/bench/gpu_peers.py" \
      --out "$out/peers.json" --seconds "$(less "$most" 10)" "${wheels[@]}" "${peers[@]}"
    case $? in 124 | 137) late=78 ;; esac
  fi
  peers=()
  if late_in "$out/peers.json"; then late=78; fi
  if [ -s "$out/peers.json" ]; then peers=(--peers "$out/peers.json")
  else echo 'no peers: no PyTorch that can use this GPU, or no time for it'; fi
  for bench in "${benches[@]}"; do
    ours "$bench" --out "$out" "${peers[@]}" --timeout "$(less "$(budget)" 15)"
    code=$?
    settle '"time_us"' "$out"/gpu_kernels.{json,csv}
    case $code in
      5) if late_in "$out/gpu_kernels.json"; then code=78; fi ;;
      124) if [ -s "$out/gpu_kernels.json" ]; then code=78; fi ;;
    esac
    failed=$(worst "$failed" "$code")
  done
  [ "$failed" -ne 3 ] || { skip 'the benchmarks found no GPU'; return 77; }
  failed=$(worst "$failed" "$late")
  if [ "$failed" -eq 78 ]; then partly 'out of time after some of the benchmarks, or of the peers'; fi
  return "$failed"
}
# profile_ranks COUNT NAME SECONDS [OPTIONS]: so many processes together; of one GPU if `shared`.
profile_ranks() {
  local count=$1 name=$2 most=$3 rank code=0 each processes=() own local_rank port=$((21000 + RANDOM % 8000))
  shift 3
  aside "$out/$name".{json,raw.json}
  for rank in $(seq 0 $((count - 1))); do
    own=(NCCL_DEBUG=WARN) local_rank=$rank
    # NCCL refuses two ranks of one host on one GPU: each says that it is a host of its own.
    if [ -n "$shared" ]; then
      own+=(NCCL_HOSTID="moesim-$rank" NCCL_SOCKET_IFNAME=lo NCCL_NET=Socket NCCL_IB_DISABLE=1) local_rank=0
    fi
    ours env "${own[@]}" "$moesim" profile --out "$out/$name.json" "$@" --rank "$rank" --ranks "$count" \
      --local-rank "$local_rank" --address "127.0.0.1:$port" --timeout "$(less "$most" 15)" &
    processes+=($!)
  done
  for each in "${processes[@]}"; do
    wait "$each"
    rank=$?
    [ "$rank" -eq 0 ] || code=$rank
  done
  settle '"op"' "$out/$name.json" "$out/$name.raw.json"
  if [ "$code" -eq 124 ] && [ -s "$out/$name.json" ]; then partly 'out of time after some of the exchanges'; return; fi
  return "$code"
}
part_ranks() {
  local code=0 base=() shared=''
  if [ "$gpus" -gt 1 ]; then
    # A profile too, of what the part profile has and of these exchanges.
    if [ -s "$out/node.json" ]; then base=(--base "$out/node.json"); fi
    echo "$gpus processes with a GPU each"
    profile_ranks "$gpus" exchanges $(($(budget) * 3 / 4)) --suite collectives,overlap --stall 90 "${base[@]}" || code=$?
    [ "$(budget)" -gt 5 ] || { echo 'no time for two processes that share a GPU'; return 1; }
    echo 'two processes that share a GPU'
  fi
  shared=yes
  profile_ranks 2 ranks "$(budget)" --suite collectives --only 'bytes=65536'
  code=$(worst "$code" $?)
  case $code in 0 | 78) ;; *) return "$code" ;; esac
  grep -q '"synthetic": true' "$out/ranks.json" ||
    { echo 'their times are not marked synthetic'; return 1; }
  return "$code"
}
part_sanitizer() {
  local tool code=0 each late=''
  [ -n "$resume" ] || rm -f "$out/sanitizer.passed"
  for tool in memcheck racecheck synccheck initcheck; do
    if [ -n "$resume" ] && grep -qsx "$tool" "$out/sanitizer.passed"; then echo "== $tool passed before"; continue; fi
    [ "$(budget)" -gt 5 ] || { late="no time for $tool"; break; }
    echo "== $tool"
    ours "$sanitizer" --tool "$tool" --error-exitcode 1 "$test_gpu" '[sanitizer]' | tee "$out/sanitizer.one.txt"
    each=${PIPESTATUS[0]}
    # A test that found no GPU under the tool has shown nothing.
    if grep -q 'SKIPPED:' "$out/sanitizer.one.txt"; then echo "$tool: a test was skipped"; each=1; fi
    case $each in
      0) echo "$tool" >>"$out/sanitizer.passed" ;;
      124 | 137) late="no time to end $tool"; break ;;
      *) code=$each ;;
    esac
  done
  rm -f "$out/sanitizer.one.txt"
  if grep -q 'Device not supported' "$out/sanitizer.log"; then skip 'compute-sanitizer cannot use this device'; return 77; fi
  # A finding of those before is a failure all the same.
  if [ "$code" -eq 0 ] && [ -n "$late" ]; then partly "$late"; return; fi
  return "$code"
}
