# Sourced by tools/gpu-check: --pack, programs for a machine that cannot build.

# The files that git tracks here, in KiB; none where this is no checkout.
tracked_kib() {
  local bytes
  bytes=$(cd "$top" && git ls-files -z 2>/dev/null | xargs -0 -r stat -c %s -- 2>/dev/null | awk '{ sum += $1 } END { print sum + 0 }')
  printf '%s' $(((bytes + 1023) / 1024))
}

make_pack() {
  [ -n "$bin" ] || refuse '--pack: of which --bin?'
  find_programs
  libraries=$(library_folders)${LD_LIBRARY_PATH:-}
  packed=''
  case $pack in *.tar.xz)
    packed=$pack made=$(mktemp -d) || die 'cannot make a temporary folder'
    pack=$made/$(basename "${packed%.tar.xz}") ;;
  esac
  mkdir -p "$pack/lib" "$pack/tools" "$pack/tests/bench" || die "cannot make the folder $pack/lib"
  pack=$(cd -- "$pack" && pwd -P)
  bad=0
  complain() { say "pack: $*"; bad=$((bad + 1)); }
  [ -n "$moesim" ] || complain "moesim is not in $bin"
  [ -n "$test_gpu" ] || complain "test_gpu is not in $bin"
  [ -n "$layer" ] || complain "bench_layer_gpu is not in $bin"
  [ "${#benches[@]}" -gt 0 ] || complain "bench_gpu_kernels is not in $bin"
  for file in "$moesim" "$test_gpu" "$layer" "${benches[@]}"; do
    [ -n "$file" ] || continue
    name=$(basename "$file")
    absent_here=$(unfound "$file")
    [ -z "$absent_here" ] || complain "$name needs, and this machine has not: $absent_here"
    cp "$file" "$pack/" || die "cannot copy $file"
    # Of symbols that nobody reads there; a script, say, has none.
    strip "$pack/$name" 2>/dev/null
    # The C and C++ libraries are that machine's own, CUDA's are large and are where a GPU is.
    { LD_LIBRARY_PATH=$libraries ldd "$file" 2>/dev/null || true; } | sed -n 's/.* => \(\/[^ ]*\).*/\1/p' |
      { grep -vE '/lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|cublas|cublasLt|cudart|nccl|cupti)\.so' || true; } |
      xargs -r cp -L -t "$pack/lib" || die "cannot copy the libraries of $file"
  done
  cp "$top/tools/gpu-check" "$top"/tools/{common,gpu_parts,gpu_pack}.sh "$pack/tools/" || die "cannot copy to $pack/tools"
  mkdir -p "$pack/tests/bench/peers"
  cp "$top/tests/bench/gpu_peers.py" "$pack/tests/bench/" || complain 'the peers are missing'
  cp "$top"/tests/bench/peers/*.py "$pack/tests/bench/peers/" || complain 'the modules of the peers are missing'
  if [ -n "${MOESIM_PEER_WHEELS:-}" ]; then
    rm -rf "$pack/peer-wheels"
    cp -R "$MOESIM_PEER_WHEELS" "$pack/peer-wheels" || complain "cannot copy the wheels' files of $MOESIM_PEER_WHEELS"
  fi
  cp -R "$top/profiles" "$pack/" || complain 'the profiles are missing'
  # The rehearsal: each starts as it will there.
  for file in "$moesim" "$test_gpu" "$layer" "${benches[@]}"; do
    [ -n "$file" ] || continue
    name=$(basename "$file")
    env -i PATH=/usr/bin:/bin LD_LIBRARY_PATH="$pack/lib" timeout 60 "$pack/$name" --help >/dev/null 2>&1 ||
      complain "$name does not start from an empty environment"
  done
  env -i PATH=/usr/bin:/bin "$pack/tools/gpu-check" --list >/dev/null || complain 'gpu-check does not start'
  run=$(basename "$pack")/tools/gpu-check
  if [ -n "$packed" ]; then
    { mkdir -p "$(dirname "$packed")" && tar -C "$made" -cJf "$packed" "$(basename "$pack")"; } || die "cannot write $packed"
    rm -rf "$made"
    pack=$packed run="tar -xf $(basename "$pack") && $run"
  fi
  size=$(du -sk "$pack" | cut -f1)
  tree=$(tracked_kib)
  if [ $((size + tree)) -gt $((most_mib * 1024)) ]; then
    kinds=$(sed -n 's/^MOESIM_CUDA_ARCHITECTURES:[A-Z]*=//p' "$bin/CMakeCache.txt" 2>/dev/null)
    advice="--pack $(basename "${pack%.tar.xz}").tar.xz, which is smaller"
    case $kinds in *\;*) advice="the programs are for the GPUs $kinds: build for one, -DMOESIM_CUDA_ARCHITECTURES=90, or $advice" ;; esac
    if [ -n "$packed" ]; then advice='build for one GPU, with fewer wheels'; fi
    complain "$size KiB and $tree KiB of files that git tracks are over $most_mib MiB: $advice"
  fi
  say "$size KiB in $pack, with the files that git tracks $((size + tree)) of $((most_mib * 1024)); on the other machine: $run"
  [ "$bad" -eq 0 ] || die "$bad thing(s) are wrong with the pack"
}
