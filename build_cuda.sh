#!/usr/bin/env bash
# Build the engine for NVIDIA GPUs: the same command, and the same result with the same stamp, as
#   garra engine build --backend cuda
# usable in a fresh checkout. A machine with an NVIDIA driver but no CUDA toolkit gets one, without root, from the Python
# package index. The architectures are those of the GPUs that are visible; without any, 86 (RTX 30, as the RTX 3070):
#   -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=86
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

usage() {
  cat <<'TEXT'
usage: ./build_cuda.sh [native|portable|dev] [options]

  native      for this CPU and GPU (the default)
  portable    for any x86-64 or arm64 CPU, Turing to Blackwell
  dev         native, with debug symbols

Options go to `garra engine build`, among them:
  --dry-run            print the configure and compile commands, do nothing
  --jobs N, -j N       parallel compilers
  --source FOLDER      llama.cpp's sources, where there is no network
  --clean              forget an interrupted or earlier build first
  --remove-compiler    afterwards remove the CUDA compiler; the libraries the engine needs stay
  --json               print the result as JSON
TEXT
}

mode=native
case "${1:-}" in
  -h | --help) usage; exit 0 ;;
  native | portable | dev) mode="$1"; shift ;;
esac
for word in "$@"; do
  case "$word" in -h | --help) usage; exit 0 ;; esac
done

garra="$here/.venv/bin/garra"
if [ ! -x "$garra" ]; then
  make -s -C "$here" .venv/run.stamp >&2
fi
exec "$garra" engine build --backend cuda --mode "$mode" "$@"
