#!/usr/bin/env bash
# Compiles the programs in tests/native and runs them. Each is linked with the C files of the
# extensions that it uses and does not include, and not with Python.
#
#   tools/native_tests.sh lint                      clang-format, warnings of gcc, cppcheck, and clang-tidy
#   tools/native_tests.sh asan [SECONDS [SEED]]     with the sanitizers of memory and of
#                                                   undefined behaviour
#   tools/native_tests.sh tsan [SECONDS [SEED]]     the programs of threads with the
#                                                   sanitizer of threads
#   tools/native_tests.sh fuzz [SECONDS [SEED]]     with clang's libFuzzer if there is one
#   tools/native_tests.sh aarch64 [SECONDS [SEED]]  for 64-bit ARM, in an emulator
#   tools/native_tests.sh extension [ARGUMENTS]     pytest, with the sanitizers in the extensions
#
# The name of a program says what it takes:
#
#   NAME_test [SEED]                ends by itself
#   NAME_fuzz -r SECONDS SEED       random input; NAME_fuzz FILE... takes files as input
#   NAME SECONDS SEED               anything else
#
# A program that fails says why on stderr and does not exit with 0. One that defines
# LLVMFuzzerTestOneInput can be run by libFuzzer; VC_FUZZER is defined then, and the program
# has no `main`. Its first inputs are the files in tests/native/corpus/NAME/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

CORE=src/volcache/store/_core
FRONT=src/volcache/front
FOLDERS=(-I"$CORE" -I"$FRONT")
TESTS=tests/native
OUT=.cache/native
WARNINGS=(-std=gnu11 -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes)
SANITIZERS=(-fsanitize=address -fsanitize=undefined -fno-sanitize-recover=all)
READABLE=(-O1 -g -fno-omit-frame-pointer)
export UBSAN_OPTIONS=print_stacktrace=1
export CCACHE_DIR=$PWD/.cache/ccache

say() { printf 'native: %s\n' "$*"; }

# The extensions are built from the same files, and from what Cython generates elsewhere.
core_files() { compgen -G "$CORE/*.c"; compgen -G "$FRONT/*.c"; }

# Prints the names of the programs.
programs() { compgen -G "$TESTS/*.c" | sed 's,.*/,,; s,\.c$,,'; }

has_corpus() { compgen -G "$TESTS/corpus/$1/*" >/dev/null; }

# Compiles the programs $2... to OUT/$1/ with the command in COMPILE.
compile() {
    local out=$OUT/$1 name file objects=()
    shift
    rm -rf "$out"
    mkdir -p "$out"
    for file in $(core_files); do
        objects+=("$out/core_$(basename "$file" .c).o")
        compile_file "$file" "${objects[-1]}"
    done
    ar rc "$out/core.a" "${objects[@]}"
    for name in "$@"; do
        compile_file "$TESTS/$name.c" "$out/$name.o"
        "${COMPILE[@]}" "$out/$name.o" "$out/core.a" -lpthread -o "$out/$name"
    done
}

# Compiles the C file $1 to $2; with ccache, if there is one.
compile_file() {
    "${CCACHE[@]}" "${COMPILE[@]}" "${WARNINGS[@]}" "${FOLDERS[@]}" -c "$1" -o "$2"
}

# Runs the programs $4... of kind $1 for $2 seconds each, with seed $3; those with a corpus
# read it first. RUN holds what is written before each command. A program that hangs is
# ended.
run() {
    local kind=$1 seconds=$2 seed=$3 name program
    local RUN=(timeout "$(($2 + 300))" "${RUN[@]}")
    shift 3
    for name in "$@"; do
        program=$OUT/$kind/$name
        say "$kind: $name"
        case $name in
            *_test) "${RUN[@]}" "$program" "$seed" ;;
            *_fuzz)
                ! has_corpus "$name" || "${RUN[@]}" "$program" "$TESTS/corpus/$name"/*
                "${RUN[@]}" "$program" -r "$seconds" "$seed"
                ;;
            *) "${RUN[@]}" "$program" "$seconds" "$seed" ;;
        esac
    done
}

# --- What can be asked for -------------------------------------------------------------

# cppcheck finds little, but takes less than a second and installs 11 MB. clang-tidy takes
# 90 MB and some seconds.
lint() {
    local files
    find src tests bench -name '*.[ch]' -print0 | xargs -0 .venv/bin/clang-format --dry-run -Werror
    mapfile -t files < <(core_files; compgen -G "$TESTS/*.c")
    gcc -fsyntax-only "${WARNINGS[@]}" "${FOLDERS[@]}" "${files[@]}"
    cppcheck --quiet --std=c11 --enable=warning,performance,portability --inline-suppr \
        --error-exitcode=1 "${FOLDERS[@]}" "${files[@]}"
    # Which mutex guards what: see sync.h.
    mapfile -t files < <(core_files | xargs grep -lE '#include "(core_parts|sync)\.h"')
    .venv/bin/clang-tidy --quiet "${files[@]}" -- -std=gnu11 -Wthread-safety -DVC_CHECK_MUTEXES \
        -fexperimental-late-parse-attributes "${FOLDERS[@]}" 2>/dev/null
}

asan() {
    local names
    mapfile -t names < <(programs)
    COMPILE=(gcc "${READABLE[@]}" "${SANITIZERS[@]}")
    compile asan "${names[@]}"
    run asan "$1" "$2" "${names[@]}"
}

tsan() {
    # It does not know fences: the index that processes share is not used here.
    COMPILE=(gcc "${READABLE[@]}" -fsanitize=thread -Wno-tsan)
    # The sanitizer of threads refuses some random layouts of the address space.
    ! setarch --addr-no-randomize true 2>/dev/null || RUN=(setarch --addr-no-randomize)
    compile tsan threads server_threads copies_threads mc_threads
    TSAN_OPTIONS=halt_on_error=1 run tsan "$1" "$2" threads server_threads copies_threads mc_threads
}

aarch64() {
    local names
    mapfile -t names < <(programs)
    COMPILE=(aarch64-linux-gnu-gcc -O3 -static)
    RUN=(qemu-aarch64)
    compile aarch64 "${names[@]}"
    run aarch64 "$1" "$2" "${names[@]}"
}

# True if clang can link a program with libFuzzer.
has_libfuzzer() {
    echo 'int LLVMFuzzerTestOneInput(const char *, long);
    int LLVMFuzzerTestOneInput(const char *data, long length) { return !data && length; }' |
        clang -w -fsanitize=fuzzer -xc - -o /dev/null 2>/dev/null
}

fuzz() {
    local seconds=$1 seed=$2 names=() for_libfuzzer=() folders=() name
    for name in $(programs); do
        if grep -q LLVMFuzzerTestOneInput "$TESTS/$name.c" && has_libfuzzer; then
            for_libfuzzer+=("$name")
        elif [[ $name == *_fuzz || $name == *_model ]]; then
            names+=("$name")
        fi
    done
    COMPILE=(gcc "${READABLE[@]}" "${SANITIZERS[@]}")
    compile fuzz "${names[@]}"
    run fuzz "$seconds" "$seed" "${names[@]}"
    [ "${#for_libfuzzer[@]}" != 0 ] || return 0
    COMPILE=(clang -O1 -g "${SANITIZERS[@]}" -fsanitize=fuzzer -DVC_FUZZER)
    compile libfuzzer "${for_libfuzzer[@]}"
    for name in "${for_libfuzzer[@]}"; do
        say "libfuzzer: $name; new inputs go to $OUT/corpus/$name"
        folders=("$OUT/corpus/$name")
        mkdir -p "${folders[@]}"
        ! has_corpus "$name" || folders+=("$TESTS/corpus/$name")
        "$OUT/libfuzzer/$name" -max_total_time="$seconds" -seed="$seed" -verbosity=0 \
            -print_final_stats=1 -artifact_prefix="$OUT/$name-" "${folders[@]}"
    done
}

# The sources and sanitized extensions are put into a folder of their own, so that the tree
# stays as it is. Python itself leaks at its end, and has its own allocator. pytest would lose
# what the sanitizers write to stderr.
extension() {
    local tree=$PWD/$OUT/tree report=$PWD/$OUT/report status=0
    rm -rf "$tree" "$report".*
    mkdir -p "$tree"
    cp -r src/volcache "$tree"
    rm -f "$tree"/volcache/{checksum,front,store/_core}/_*.so
    # Python's own flags make overflow of integers defined, and leave out assertions.
    VOLCACHE_CFLAGS="${READABLE[*]} ${SANITIZERS[*]} -fno-wrapv -UNDEBUG" \
        .venv/bin/python setup.py --quiet build_ext --force --build-lib "$tree" \
        --build-temp "$OUT/temp"
    export PYTHONPATH=$tree PYTHONMALLOC=malloc
    export ASAN_OPTIONS=detect_leaks=0:log_path=$report
    UBSAN_OPTIONS+=:log_path=$report
    LD_PRELOAD=$(gcc -print-file-name=libasan.so)
    export LD_PRELOAD
    .venv/bin/python -c 'import sys; from volcache.front import _native as front
from volcache.store._core import _native as core
sys.exit(not all(one.__file__.startswith(sys.argv[1]) for one in (front, core)))' "$tree" ||
        { say "the sanitized extensions cannot be imported"; return 1; }
    .venv/bin/python -m pytest -o "pythonpath=$tree tests tools ." "$@" || status=$?
    unset LD_PRELOAD
    if compgen -G "$report.*" >/dev/null; then
        cat "$report".*
        status=1
    fi
    return "$status"
}

main() {
    local kind=${1:-}
    RUN=() CCACHE=()
    ! command -v ccache >/dev/null || CCACHE=(ccache)
    case $kind in
        lint) lint ;;
        asan | tsan | fuzz | aarch64) "$kind" "${2:-10}" "${3:-1}" ;;
        extension) extension "${@:2}" ;;
        *)
            say "usage: tools/native_tests.sh lint|asan|tsan|fuzz|aarch64|extension ..." >&2
            return 2
            ;;
    esac
}

main "$@"
