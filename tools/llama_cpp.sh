# shellcheck shell=bash disable=SC2154
# llama.cpp (libllama, ggml) of one fixed commit: fetched and built once, kept in the cache.
# Sourced by ./dev, which defines say, fail, cache, jobs and compilers.

llama_commit=0c1e57098bba43ac29e6e3b677cdceebdd22334f
llama_git=https://github.com/ggml-org/llama.cpp
# A source package on the Python registry that carries the same tree.
llama_sdist=llama-cpp-python
llama_sdist_version=0.3.36
llama_sdist_sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e

# Prints what distinguishes this CPU: GGML_NATIVE code built for another one may not run here.
cpu_identity() {
  if [ -r /proc/cpuinfo ]; then
    awk -F: '/^(model name|flags|Features|CPU part)/ {print $1 $2}' /proc/cpuinfo | sort -u
  else
    uname -mp
  fi | sha256sum | cut -c1-12
}

# llama_key FLAGS...: the cache folder's name for a build with these flags.
llama_key() {
  local id
  id=$( { "$CC" --version | head -n 1; cpu_identity; printf '%s\n' "$@"; } | sha256sum | cut -c1-12)
  printf '%s-%s\n' "${llama_commit:0:12}" "$id"
}

# Fetches the tree from its publisher into $1; fails quickly where there is no way to it.
llama_from_publisher() {
  timeout 10 git ls-remote --exit-code "$llama_git" HEAD >/dev/null 2>&1 || return 1
  say "fetching llama.cpp ${llama_commit:0:12} from its publisher"
  git init -q "$1" &&
    timeout 600 git -C "$1" fetch -q --depth 1 "$llama_git" "$llama_commit" &&
    git -C "$1" -c advice.detachedHead=false checkout -q FETCH_HEAD &&
    [ "$(git -C "$1" rev-parse HEAD)" = "$llama_commit" ] &&
    rm -rf "$1/.git"
}

# The same tree from the Python package registry; $1: target folder, $2: scratch folder.
llama_from_registry() {
  local archive
  say "fetching llama.cpp ${llama_commit:0:12} from the Python package registry"
  python3 -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps \
    --no-binary "$llama_sdist" -d "$2" "$llama_sdist==$llama_sdist_version" >&2 || return 1
  archive=$(find "$2" -name 'llama_cpp_python-*.tar.gz' | head -n 1)
  [ -n "$archive" ] || return 1
  if ! printf '%s  %s\n' "$llama_sdist_sha256" "$archive" | sha256sum -c --status; then
    say "the downloaded $llama_sdist $llama_sdist_version is not the expected file (SHA-256 differs)"
    return 1
  fi
  tar -xzf "$archive" -C "$2" --wildcards '*/vendor/llama.cpp/*' || return 1
  rm -f "$archive"
  mv "$2"/llama_cpp_python-*/vendor/llama.cpp "$1"
}

# Sets llama_source to a tree of the pinned commit, fetching it first if need be.
llama_source_tree() {
  local scratch head
  if [ -n "${QEVICT_LLAMA_DIR:-}" ]; then
    [ -f "$QEVICT_LLAMA_DIR/include/llama.h" ] ||
      fail "QEVICT_LLAMA_DIR is not a llama.cpp source tree ($QEVICT_LLAMA_DIR): unset or correct it"
    head=$(git -C "$QEVICT_LLAMA_DIR" rev-parse HEAD 2>/dev/null || true)
    if [ -n "$head" ] && [ "$head" != "$llama_commit" ]; then
      say "warning: $QEVICT_LLAMA_DIR is at ${head:0:12}, tested with ${llama_commit:0:12}"
    fi
    llama_source=$QEVICT_LLAMA_DIR
    return
  fi
  llama_source=$cache/llama/source-${llama_commit:0:12}
  [ -d "$llama_source" ] && return
  scratch=$(mktemp -d "$cache/llama/tmp.XXXXXX")
  if ! llama_from_publisher "$scratch/tree"; then
    rm -rf "$scratch/tree"
    if ! llama_from_registry "$scratch/tree" "$scratch"; then
      rm -rf "$scratch"
      fail "cannot fetch llama.cpp (neither $llama_git nor the Python package registry answers):" \
        "put the tree of commit $llama_commit somewhere and set QEVICT_LLAMA_DIR to it"
    fi
  fi
  mv "$scratch/tree" "$llama_source"
  rm -rf "$scratch"
}

llama_flags() { # $1: empty or thread
  printf '%s\n' -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON \
    -DGGML_OPENMP=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF \
    -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF \
    "-DLLAMA_BUILD_COMMIT=${llama_commit:0:7}" -DLLAMA_BUILD_NUMBER=0
  if [ "${1:-}" = thread ]; then
    printf '%s\n' -DGGML_SANITIZE_THREAD=ON -DLLAMA_SANITIZE_THREAD=ON
  fi
}

# llama_build TARGET_FOLDER LOG FLAGS... -- COMMAND...: builds in a scratch folder; COMMAND (run
# with the build folder and the folder to fill) puts the results in place; renamed when complete.
llama_build() {
  local target=$1 scratch log
  shift
  local flags=()
  while [ "$1" != -- ]; do
    flags+=("$1")
    shift
  done
  shift
  llama_source_tree
  scratch=$(mktemp -d "$cache/llama/tmp.XXXXXX")
  log=$cache/llama/$(basename "$target").log
  say "building llama.cpp once (a few minutes; log: $log)"
  if ! { cmake -S "$llama_source" -B "$scratch/build" -G Ninja -DCMAKE_C_COMPILER="$CC" \
    -DCMAKE_CXX_COMPILER="$CXX" -DCMAKE_INSTALL_LIBDIR=lib "${flags[@]}" &&
    "$@" "$scratch/build" "$scratch/out"; } >"$log" 2>&1; then
    tail -n 25 "$log" >&2
    rm -rf "$scratch"
    fail "llama.cpp did not build (whole log: $log): mend what it names and run this again"
  fi
  rm -rf "$target"
  mv "$scratch/out" "$target"
  rm -rf "$scratch"
}

llama_install_step() { # BUILD OUT
  ninja -C "$1" -j "$jobs" && cmake --install "$1" --prefix "$2"
}

llama_bench_step() { # BUILD OUT
  ninja -C "$1" -j "$jobs" llama-bench llama-batched-bench && mkdir -p "$2" &&
    cp "$1/bin/llama-bench" "$1/bin/llama-batched-bench" "$2/"
}

# Sets llama_prefix to an installed libllama + ggml; $1: empty or thread (sanitizer).
llama_install() {
  local flags
  mapfile -t flags < <(llama_flags "${1:-}"; printf '%s\n' -DLLAMA_BUILD_TOOLS=OFF \
    -DLLAMA_BUILD_COMMON=OFF)
  llama_prefix=$cache/llama/$(llama_key "${flags[@]}" ${QEVICT_LLAMA_DIR:+"$QEVICT_LLAMA_DIR"})
  [ -f "$llama_prefix/lib/cmake/llama/llama-config.cmake" ] && return
  mkdir -p "$cache/llama"
  exec 8>"$cache/llama/lock"
  flock 8
  if [ ! -f "$llama_prefix/lib/cmake/llama/llama-config.cmake" ]; then
    llama_build "$llama_prefix" "${flags[@]}" -- llama_install_step
  fi
  exec 8>&-
}

# Sets llama_bench to llama.cpp's own benchmark, built with the same compiler and flags;
# llama-batched-bench lies beside it.
llama_bench_program() {
  local flags
  mapfile -t flags < <(llama_flags; printf '%s\n' -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_COMMON=ON)
  llama_bench=$cache/llama/bench-$(llama_key "${flags[@]}")/llama-bench
  local batched
  batched=$(dirname "$llama_bench")/llama-batched-bench
  [ -x "$llama_bench" ] && [ -x "$batched" ] && return
  mkdir -p "$cache/llama"
  exec 8>"$cache/llama/lock"
  flock 8
  if [ ! -x "$llama_bench" ] || [ ! -x "$batched" ]; then
    llama_build "$(dirname "$llama_bench")" "${flags[@]}" -- llama_bench_step
  fi
  exec 8>&-
}
