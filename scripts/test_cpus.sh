#!/bin/sh
# The test-suite as it runs on other processors: scalar code, AVX2 and AVX-512 as far as this machine has them, with one
# and with two threads in each operation. Arguments are those of pytest.
set -u

has() { grep -qw "$1" /proc/cpuinfo 2>/dev/null; }

run() { # vector code of torch, of oneDNN, of MKL; then pytest's arguments
    capability=$1 onednn=$2 mkl=$3
    shift 3
    for threads in 1 2; do
        echo "== $capability, threads in an operation: $threads"
        ATEN_CPU_CAPABILITY=$capability ONEDNN_MAX_CPU_ISA=$onednn MKL_ENABLE_INSTRUCTIONS=$mkl OMP_NUM_THREADS=$threads \
            "${PYTHON:-python}" -m pytest -q "$@" || failed="$failed $capability/$threads"
    done
}

failed=
run default SSE41 SSE4_2 "$@"
if has avx2; then run avx2 AVX2 AVX2 "$@"; fi
if has avx512f; then run avx512 AVX512_CORE AVX512 "$@"; fi
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
