# Sourced by tools/quickstart and tools/test: stages, packages, the build. Needs bash and `top`, the
# root of the project.

if [ -t 2 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\e[1m' plain=$'\e[0m'; else bold='' plain=''; fi

say() { printf '%s\n' "$*" >&2; }
stage() { printf '%s== %s%s\n' "$bold" "$*" "$plain" >&2; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# Debian and Ubuntu names. cmake must be 3.25 or newer: Debian 12, Ubuntu 24.04 and later have it.
packages_build='g++ cmake ninja-build libfmt-dev nlohmann-json3-dev libboost-dev
  libboost-program-options-dev librandom123-dev libvalijson-dev'
packages_plot='python3 python3-numpy python3-pandas python3-matplotlib'
packages_test='catch2 python3-pytest python3-pytest-xdist python3-scipy python3-jsonschema
  python3-nbclient python3-ipykernel'
# Property tests, benchmarks, packed tables, YAML, the Python wheel; what needs them says so and is left
# out where they are missing.
packages_optional='librapidcheck-dev libbenchmark-dev zlib1g-dev libyaml-cpp-dev
  python3-pip python3-venv python3-setuptools python3-wheel'

# The packages of the list that are not installed, on one line.
missing_packages() {
  local name missing=''
  for name in "$@"; do
    case $(dpkg-query -W -f='${Status}' "$name" 2>/dev/null) in
      *' installed') ;;
      *) missing="$missing $name" ;;
    esac
  done
  printf '%s' "${missing# }"
}

# Prints what runs a command as root, or fails: no root here and no sudo without a password.
as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    printf 'env'
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    printf 'sudo -n env'
  else
    return 1
  fi
}

# ensure_packages NAME...: all there, or installed with apt, or listed with the command that would.
ensure_packages() {
  if ! command -v dpkg-query >/dev/null; then
    say 'this is neither Debian nor Ubuntu: packages are not looked at. It takes, by other names:'
    say "  $*"
    return 0
  fi
  local missing root log
  missing=$(missing_packages "$@")
  if [ -z "$missing" ]; then say 'all packages are installed'; return 0; fi
  if ! root=$(as_root) || ! command -v apt-get >/dev/null; then
    say 'missing packages, and this user may not install them. Run'
    say "  sudo apt-get install --no-install-recommends $missing"
    die 'then start me again (or with --no-install if you have them from elsewhere)'
  fi
  say "installing $missing"
  log=$(mktemp)
  # A fresh container has no package lists, an old one stale ones. Names are words: no quotes.
  if ! apt_install "$root" $missing >"$log" 2>&1; then
    if ! { $root apt-get update && apt_install "$root" $missing; } >"$log" 2>&1; then
      cat "$log" >&2
      rm -f "$log"
      die 'apt could not install them; its last words are above'
    fi
  fi
  rm -f "$log"
}

# offer_packages NAME...: installs what can be, and only says so of the rest.
offer_packages() {
  local name root
  command -v dpkg-query >/dev/null || return 0
  for name in $(missing_packages "$@"); do
    if root=$(as_root) && apt_install "$root" "$name" >/dev/null 2>&1; then
      say "installed $name"
    else
      say "$name cannot be installed here; what needs it is left out"
    fi
  done
}

apt_install() {
  local root=$1
  shift
  $root DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

# The first interpreter that has all the given modules, and imports them within a minute.
find_python() {
  local candidate imports
  printf -v imports 'import %s\n' "$@"
  for candidate in "${MOESIM_PYTHON:-}" /usr/bin/python3 python3; do
    if [ -n "$candidate" ] && timeout 60 "$candidate" -c "$imports" 2>/dev/null; then
      command -v "$candidate"
      return 0
    fi
  done
  return 1
}

# build PRESET FOLDER JOBS TARGETS [cmake options]: configures with a preset of CMakePresets.json, and
# builds.
build() {
  local preset=$1 folder=$2 jobs=$3 targets=$4 launcher=''
  shift 4
  command -v cmake >/dev/null || die 'cmake is missing: install cmake 3.25 or newer'
  command -v ninja >/dev/null || die 'ninja is missing: install ninja-build'
  if command -v ccache >/dev/null; then
    launcher=-DCMAKE_CXX_COMPILER_LAUNCHER=ccache
    # Without these it knows no source again that has precompiled headers.
    export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:+$CCACHE_SLOPPINESS,}pch_defines,time_macros
  fi
  # Another generator or a moved tree leaves a cache that cmake refuses: start afresh then.
  if [ -f "$folder/CMakeCache.txt" ] &&
     ! grep -qsxF "CMAKE_HOME_DIRECTORY:INTERNAL=$top" "$folder/CMakeCache.txt"; then
    say "$folder belongs to another tree: starting afresh"
    rm -rf "$folder"
  fi
  cmake -S "$top" -B "$folder" --preset "$preset" $launcher "$@" >&2 ||
    die 'cmake failed; its last words are above'
  # Target names are words: no quotes.
  cmake --build "$folder" --parallel "$jobs" --target $targets >&2 ||
    die 'the build failed; the first error is above'
}

cores() { nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1; }

# check_whole OPTION VALUE: ends with a usage error unless the value is a whole number above 0.
check_whole() {
  case $2 in
    '' | *[!0-9]* | 0*) say "${0##*/}: $1: '$2' is not a whole number above 0"; exit 2 ;;
  esac
}
check_jobs() { check_whole --jobs "$1"; }
