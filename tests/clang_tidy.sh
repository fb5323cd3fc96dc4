#!/usr/bin/env bash
# What .clang-tidy says of the tree; fails where that is anything.
#   tests/clang_tidy.sh            what differs from the branch main
#   tests/clang_tidy.sh FILE...    these
#   tests/clang_tidy.sh --all      everything but tests: half an hour of two cores
set -euo pipefail
cd "$(dirname "$0")/.."
tidy=$(command -v clang-tidy-14 || command -v clang-tidy) || { echo "error: clang-tidy is missing (Debian package clang-tidy)" >&2; exit 2; }
case "${1:-}" in
  "") files=$(git diff --name-only --diff-filter=d main -- daemon engine kernels parallel) ;;
  --all) files=$(git ls-files daemon engine kernels parallel) ;;
  *) files=$(printf '%s\n' "$@") ;;
esac
# Headers are looked at with the sources that include them; CUDA's have a compiler of their own, and vector kernels are compiled
# for processors that clang-tidy is not told of.
files=$(grep -E '\.cc$' <<<"$files" | grep -vE '^kernels/(cuda|cpu/kernels_)' || true)
[ -n "$files" ] || { echo "clang-tidy: nothing to look at"; exit 0; }
# A file at a time and without precompiled headers, which another compiler has made.
mkdir -p build
cmake --preset clang -B build/tidy -DPAGODA_FAST_BUILD=OFF -DPAGODA_BENCHMARKS=OFF >build/tidy.log || { cat build/tidy.log; exit 2; }
headers=$(ninja -C build/tidy -t targets all | sed -nE 's/^(generated\/.*\.(h|cc)): .*/\1/p')
ninja -C build/tidy $headers >build/tidy.log || { cat build/tidy.log; exit 2; }
xargs -P "$(nproc)" -n 1 "$tidy" -p build/tidy --quiet <<<"$files" >build/tidy.log 2>/dev/null || true
found=$(grep -E '(warning|error): ' build/tidy.log | sort -u || true)
[ -z "$found" ] || { echo "$found"; exit 1; }
echo "clang-tidy: $(wc -l <<<"$files") files are clean"
