# Sourced by the scripts that build: installs what is missing, configures and builds. Says nothing when there is
# nothing to do. Defines set_up, build and fail; set_up sets $build, the Meson build folder, and $toolkit.
#
#   root/build/cuda      built with a CUDA toolkit: programs for hostrt, and for a GPU where it has nvcc
#   root/build/hostrt    built with headers only
#   root/build/toolkit   the headers, if they had to be downloaded
#   root/build/LANE      built for one of test/run's lanes, with these headers
#   root/build/toolkits  the headers of other toolkits, the oldest and newer ones, to compile with
#   root/build/torch_headers   the headers of versions of PyTorch, to compile with
#   root/build/torch_packages  one PyTorch with all that it needs, to run with
#   root/build/log       output of everything that is run quietly

# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
logs=$root/build/log
mkdir -p "$logs"

say() { echo "graphcache: $*" >&2; }

fail() {  # exit status 2: nothing was run, because something is missing or wrong
  say "$*"
  exit 2
}

# Runs a command with its output in build/log/NAME.log; shows the log's end if it fails.
quietly() {
  local log=$logs/$1.log status=0
  shift
  "$@" >"$log" 2>&1 </dev/null || status=$?
  if ((status != 0)); then
    tail -n 60 "$log" >&2
    say "failed ($status): $*"
    say "whole log: $log"
  fi
  return "$status"
}

as_root() {
  if ((EUID == 0)); then
    "$@"
  else
    sudo "$@"
  fi
}

# Installs Debian packages, given by name.
install_packages() {
  command -v apt-get >/dev/null || fail "not a Debian system: install what these packages hold: $*"
  ((EUID == 0)) || command -v sudo >/dev/null || fail "needs root, or sudo, to install: $*"
  say "installing $*"
  if [[ -z ${apt_updated:-} ]]; then
    quietly apt-update as_root apt-get -o DPkg::Lock::Timeout=300 update || return
    apt_updated=1
  fi
  quietly apt-install as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@"
}

# Optional tools of a caller, as command:package. Scripts continue without them, and without the packages of
# graphcache_export.
optional_tools=()

have() {
  if [[ $1 == libfuzzer ]]; then
    clang++ -fsanitize=fuzzer,address,undefined -x c++ - -o /dev/null 2>/dev/null <<'EOF'
extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, decltype(sizeof 0)) { return 0; }
EOF
  else
    command -v "$1" >/dev/null
  fi
}

install_missing() {
  local missing=() tool module
  # command:package
  for tool in g++:g++ meson:meson ninja:ninja-build pkg-config:pkg-config python3:python3; do
    command -v "${tool%%:*}" >/dev/null || missing+=("${tool#*:}")
  done
  # pkg-config module:package. Without pkg-config, all of them are requested; apt skips those that are installed.
  for module in absl_status:libabsl-dev fmt:libfmt-dev gtest:libgtest-dev gmock:libgmock-dev; do
    pkg-config --exists "${module%%:*}" 2>/dev/null || missing+=("${module#*:}")
  done
  ((${#missing[@]} == 0)) || install_packages "${missing[@]}" || exit 2

  missing=()
  for tool in "${optional_tools[@]}"; do
    have "${tool%%:*}" || missing+=("${tool#*:}")
  done
  for module in nlohmann_json:nlohmann-json3-dev prometheus-cpp-pull:prometheus-cpp-dev; do
    pkg-config --exists "${module%%:*}" || missing+=("${module#*:}")
  done
  ((${#missing[@]} == 0)) || (install_packages "${missing[@]}") || say "going on without: ${missing[*]}"
}

# download FOLDER PACKAGE...: packages of which the headers are kept, into that folder, once.
download() {
  local target=$1
  shift
  [[ ! -d $target ]] || return 0
  python3 -m pip --version >/dev/null 2>&1 || (install_packages python3-pip) || return
  rm -rf "$target.part"
  python3 -m pip install --disable-pip-version-check --no-deps --no-compile --target "$target.part" "$@" \
    >"$logs/headers.log" 2>&1 </dev/null || return
  find "$target.part" -type d -name include -prune -o ! -type d -exec rm -f {} +
  mv "$target.part" "$target"
}

# download_toolkits VERSION...: the headers of other toolkits, for tests that compile. Tests skip those that are
# not available (test/compile/meson.build has the same list).
oldest_and_newest=(12.4 13.5)
between=(13.1 13.2 13.3 13.4)
download_toolkits() {
  local version packages
  mkdir -p "$root/build/toolkits"
  for version in "$@"; do
    packages=("nvidia-cuda-runtime==$version.*" "nvidia-cuda-crt==$version.*")
    [[ $version != 12.* ]] || packages=("nvidia-cuda-runtime-cu12==$version.*" "nvidia-cuda-nvcc-cu12==$version.*")
    download "$root/build/toolkits/$version" "${packages[@]}" ||
      say "the headers of CUDA $version could not be downloaded (log: $logs/headers.log)"
  done
}

# download_torch_headers VERSION...: the headers of these versions of PyTorch, for a lane. Each is a download of 0.5 to
# 0.9 GB, of which 65 MB stay.
torch_versions=(2.8 2.9 2.10 2.11 2.12 2.13 2.14 2.15)
newest_torch=${torch_versions[-1]}
download_torch_headers() {
  local version
  mkdir -p "$root/build/torch_headers"
  for version in "$@"; do
    PIP_NO_CACHE_DIR=1 download "$root/build/torch_headers/$version" "torch==$version.*" || return
  done
}

# Downloads PyTorch for CUDA and its dependencies, 3 GB, for a lane.
download_torch() {
  local target=$root/build/torch_packages
  [[ ! -d $target ]] || return 0
  rm -rf "$target.part"
  python3 -m pip install --disable-pip-version-check --target "$target.part" 'torch==2.11.*' numpy 'setuptools<82' \
    ninja 'cuda-toolkit[crt,cccl]==13.0.*' >"$logs/torch-download.log" 2>&1 </dev/null || return
  mv "$target.part" "$target"
}

# Downloads the headers of the CUDA runtime into build/toolkit, once.
download_headers() {
  local target=$root/build/toolkit
  local point_at="install a CUDA toolkit of 12.4 or newer and point at it with --toolkit DIR or CUDA_HOME"
  [[ -d $target ]] || say "$without: downloading the headers of its runtime, to build for hostrt alone"
  # The headers of half precision, which the suites include, need those of CCCL.
  download "$target" 'nvidia-cuda-runtime>=13,<14' 'nvidia-cuda-crt>=13,<14' 'nvidia-cuda-cccl>=13,<14' ||
    fail "$without, and its headers could not be downloaded (log: $logs/headers.log): $point_at"
  toolkit=$(find "$target" -name cuda_runtime_api.h -path '*/include/*' -print -quit)
  toolkit=$(dirname "$(dirname "$toolkit")")
}

# Sets $toolkit (a root, or empty for headers only) from the user's request, and $without to the reason if it is empty.
choose_toolkit() {
  local found status=0
  toolkit=
  without="told to do without a CUDA toolkit"
  [[ $1 != none ]] || return 0
  without="no CUDA toolkit found"
  found=$("$root/lib/find_toolkit" "$1" 2>"$logs/toolkit.log") || status=$?
  grep -v "$without" "$logs/toolkit.log" >&2 || true
  ((status != 2)) || exit 2
  toolkit=$(head -n 1 <<<"$found")
}

# configure FOLDER OPTION...: sets $build and makes it a Meson build folder with exactly these options.
configure() {
  build=$root/build/$1
  shift
  local wanted
  wanted=$(printf '%s\n' "$(command -v meson)" "$(meson --version)" "${CXX:-$(command -v g++)}" \
    "$(command -v clang++ || true)" "$(command -v mpicxx || true)" \
    "$(pkg-config --modversion nlohmann_json 2>/dev/null || true)" \
    "$(pkg-config --modversion prometheus-cpp-pull 2>/dev/null || true)" "$@")
  if [[ -f $build/build.ninja && $(cat "$build/graphcache.options" 2>/dev/null) == "$wanted" ]]; then
    return
  fi
  rm -rf "$build"
  quietly "configure-$(basename "$build")" env CXX="${CXX:-g++}" meson setup "$build" "$root" --werror "$@" || exit 2
  printf '%s\n' "$wanted" >"$build/graphcache.options"
}

# build [TARGET...]: everything if none is named.
build() {
  if ! ninja -C "$build" -n "$@" 2>/dev/null | grep -q 'no work to do'; then
    [[ -n ${said_building:-} ]] || say "building (log: $logs/build.log)"
    said_building=1
    quietly build ninja -C "$build" "$@" || exit 1
  fi
}

# Two scripts in one checkout take turns, from begin_set_up to unlock.
begin_set_up() {
  exec {setup_lock}>"$root/build/.lock"
  flock "$setup_lock"
}
unlock() { exec {setup_lock}>&-; }

# Sets $gpu_code to the options for what nvcc generates code for. Without a GPU nothing of it runs, so one architecture is
# enough: the default, every major one, takes two to five times as long.
choose_gpu_code() {
  gpu_code=()
  nvidia-smi -L 2>/dev/null | grep -q GPU || gpu_code=(-Dgpu_code=-arch=sm_90)
}

# set_up TOOLKIT: everything before the build. TOOLKIT is a folder, `none` for headers only, or empty to look for one.
# Call unlock after the build, before running the programs.
set_up() {
  begin_set_up
  install_missing
  choose_toolkit "$1"
  if [[ -n $toolkit ]]; then
    choose_gpu_code
    configure cuda -Dtoolkit="$toolkit" -Db_pch=true -Dunits=true "${gpu_code[@]}"
  else
    download_headers
    configure hostrt -Dtoolkit="$toolkit" -Db_pch=true -Dunits=true -Dgpu=disabled
  fi
}
