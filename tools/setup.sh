#!/usr/bin/env bash
# Installs missing system packages and .venv; what is installed already is not changed.
#
#   tools/setup.sh run     packages of the service
#   tools/setup.sh lint    and of the checks
#   tools/setup.sh cluster and of a cluster on this machine: memcached and nginx
#   tools/setup.sh test    all of these, and of the tests
#   tools/setup.sh bench   cluster, Redis and wrk, for the benchmarks
#   tools/setup.sh fuzz    run and clang, for fuzzing
#   tools/setup.sh aarch64 run, a compiler for 64-bit ARM and an emulator
#
# System packages are installed by apt, as root or through sudo; without apt the missing
# ones are listed. Python packages go to .venv. A stamp in .venv records the requirements
# that were installed: a second run takes milliseconds, a changed file is detected. Another
# records the sources of the extensions, which are built again when they change.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Debian keeps nginx in /usr/sbin, which is not on every user's path.
PATH=$PATH:/usr/sbin:/sbin
POLICY=/usr/sbin/policy-rc.d
VENV_PYTHON=.venv/bin/python
# Debian's Python first: its profile-guided optimisation saves 20 % of the CPU of a request
# in Python, and other builds often lack it.
CANDIDATES=(/usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11)

HAS_WORKED=
say() {
    HAS_WORKED=1
    printf 'setup: %s\n' "$*"
}
die() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

# --- The interpreter -----------------------------------------------------------------

# Prints the first interpreter that is new enough; fails if none is.
find_python() {
    local candidate
    for candidate in "${CANDIDATES[@]}"; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
            2>/dev/null; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    return 1
}

# True if .venv works, is complete and was not moved: its scripts contain absolute paths.
venv_is_usable() {
    [ ! -e .venv/unfinished ] || return 1
    "$VENV_PYTHON" -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' \
        2>/dev/null || return 1
    [ ! -e .venv/made_at ] || [ "$(cat .venv/made_at)" = "$PWD" ]
}

# --- System packages -----------------------------------------------------------------

# True if the C compiler finds the header in the directories of bjoern's build.
has_header() {
    printf '#include <%s>\n' "$1" |
        gcc -fsyntax-only -I/usr/include/libev -I/usr/local/include -xc - 2>/dev/null
}

# Prints the missing packages for building .venv with interpreter $1.
missing_for_build() {
    local python=$1 flavour=python3
    case $python in python3.*) flavour=$python ;; esac
    command -v gcc >/dev/null || echo gcc
    has_header stdlib.h || echo libc6-dev
    has_header ev.h || echo libev-dev
    "$python" -c 'import ensurepip, venv' 2>/dev/null || echo "$flavour-venv"
    "$python" -c 'import os, sys, sysconfig
header = os.path.join(sysconfig.get_config_var("INCLUDEPY"), "Python.h")
sys.exit(not os.path.exists(header))' || echo "$flavour-dev"
}

# Prints the packages of the programs that are missing; each is PROGRAM or PROGRAM:PACKAGE.
missing_programs() {
    local pair
    for pair; do
        command -v "${pair%:*}" >/dev/null || echo "${pair#*:}"
    done
}

# Prints a package if no file matches a pattern.
missing_file() { compgen -G "$2" >/dev/null || echo "$1"; }

missing_for_cluster() { missing_programs memcached nginx; }
missing_for_lint() { missing_programs cppcheck; }
missing_for_bench() { missing_programs redis-server wrk; }

missing_for_test() {
    # A browser to test the page; playwright would download one. Most are for the recipes.
    missing_programs ccache chromium-headless-shell groff:groff-base haproxy \
        mapcache_seed:mapcache-tools memccat:libmemcached-tools nutcracker openssl php:php-cli redis-server squid \
        systemd-analyze:systemd varnishd:varnish wrk
    # A library of logrotate; see fetch_programs.
    command -v logrotate >/dev/null || missing_file libpopt0 "/usr/lib/*/libpopt.so.0"
    missing_file mapcache-cgi /usr/lib/cgi-bin/mapcache
    php -m 2>/dev/null | grep -x memcached >/dev/null || echo php-memcached
    missing_file libsasl2-modules "/usr/lib/*/sasl2/libplain.so"
    # Modules of Debian's nginx and of no other.
    command -v nginx >/dev/null && ! dpkg-query -W nginx-common >/dev/null 2>&1 && return
    missing_file libnginx-mod-http-js /usr/lib/nginx/modules/ngx_http_js_module.so
    missing_file libnginx-mod-stream /usr/lib/nginx/modules/ngx_stream_module.so
}

# libFuzzer is not in the package of clang.
missing_for_fuzz() {
    missing_programs clang
    missing_file libclang-rt-dev \
        "/usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-*"
}

missing_for_aarch64() {
    missing_programs aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu qemu-aarch64:qemu-user
    missing_file libc6-dev-arm64-cross /usr/aarch64-linux-gnu/include/stdlib.h
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

# True if as_root can work: as root, by sudo without a password, or on a terminal.
can_be_root() {
    [ "$(id -u)" = 0 ] && return 0
    command -v sudo >/dev/null || return 1
    sudo -n true 2>/dev/null || [ -t 0 ]
}

# Debian starts a service when its package is installed, and at every boot. The tests
# start their own processes, so a temporary policy-rc.d prevents the start, and newly
# installed services are disabled. An existing policy or service is not changed.
forbid_service_start() {
    [ ! -e "$POLICY" ] || return 0
    trap 'as_root rm -f "$POLICY"' EXIT
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$POLICY" >/dev/null
    as_root chmod 755 "$POLICY"
}

allow_service_start() {
    local package
    if [ -n "$(trap -p EXIT)" ]; then
        as_root rm -f "$POLICY"
        trap - EXIT
    fi
    command -v systemctl >/dev/null || return 0
    for package in "$@"; do
        case $package in
            haproxy | memcached | nginx | nutcracker | redis-server | squid | varnish)
                as_root systemctl disable "$package" >/dev/null 2>&1 || true
                ;;
        esac
    done
}

apt_install() {
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300)
    # One of several sources may be unreachable while the others have all packages.
    as_root "${apt[@]}" update || say "apt-get update failed; trying to install anyway"
    as_root "${apt[@]}" install -y --no-install-recommends "$@"
}

install_packages() {
    local by_hand="apt-get install $*"
    command -v apt-get >/dev/null ||
        die "there is no apt-get here; install what Debian calls: $*"
    can_be_root || die "system packages are missing; run as root: $by_hand"
    say "installing system packages: $*"
    forbid_service_start
    apt_install "$@" || { sleep 5 && apt_install "$@"; } ||
        die "apt-get failed twice; run as root and see why: $by_hand"
    allow_service_start "$@"
}

# Prometheus, its exporter for nginx and logrotate, which depends on a cron daemon, would be
# running services if they were installed. So programs are extracted from their package into
# .cache, without root, and nothing is installed. $1: package; further: paths in it.
fetch_programs() {
    local package=$1 folder path missing=()
    shift
    for path in "$@"; do
        command -v "${path##*/}" >/dev/null || [ -x ".cache/${path##*/}" ] ||
            missing+=("$path")
    done
    [ "${#missing[@]}" != 0 ] || return 0
    say "fetching $package into .cache"
    mkdir -p .cache
    folder=$(mktemp -d "$PWD/.cache/$package.XXXXXX")
    if download_package "$package" "$folder" && dpkg-deb -x "$folder"/*.deb "$folder"; then
        (cd "$folder" && mv "${missing[@]}" ..)
    else
        say "there is no $package; the tests that need it are skipped"
    fi
    rm -rf "$folder"
}

# The machine may have no package list, or an outdated one.
download_package() {
    local get=(apt-get -q -o DPkg::Lock::Timeout=300)
    command -v apt-get >/dev/null || return 1
    (cd "$2" && "${get[@]}" download "$1") && return 0
    can_be_root && as_root "${get[@]}" update
    (cd "$2" && "${get[@]}" download "$1")
}

# --- .venv ---------------------------------------------------------------------------

# Prints everything that an installation from the given files depends on.
signature() {
    "$VENV_PYTHON" --version
    cat "$@"
}

is_installed() {
    local stamp=$1
    shift
    [ -e ".venv/$stamp" ] && signature "$@" | cmp -s - ".venv/$stamp"
}

# pip shows what it downloads, on a terminal with its progress.
pip_install() {
    "$VENV_PYTHON" -m pip install --disable-pip-version-check --no-input "$@" ||
        die "pip could not install: $*"
}

# The build backend is pinned in pyproject.toml and installed first, so that this package is
# not built with its latest version. pip also builds the extensions.
install_run_requirements() {
    local backend
    backend=$("$VENV_PYTHON" -c 'import tomllib
with open("pyproject.toml", "rb") as file:
    print(*tomllib.load(file)["build-system"]["requires"])')
    rm -f .venv/run.stamp
    remove_extensions
    say "installing the build tools into .venv"
    # shellcheck disable=SC2086 # One word per requirement.
    pip_install $backend
    say "installing requirements.txt into .venv; compiling volcache takes about 30 s"
    pip_install --use-pep517 --no-build-isolation -r requirements.txt
    signature "${RUN_FILES[@]}" >.venv/run.stamp
    ! has_extensions || signature "${NATIVE_FILES[@]}" >.venv/native.stamp
}

has_extensions() {
    local folder
    for folder in "${EXTENSIONS[@]}"; do
        compgen -G "$folder/_*.so" >/dev/null || return 1
    done
}

extensions_are_built() { has_extensions && is_installed native.stamp "${NATIVE_FILES[@]}"; }

# A failed build would take an earlier one from build/.
remove_extensions() {
    rm -f .venv/native.stamp {"$CORE","$FRONT"}/_*.so
    rm -rf build/lib.*
}

# Unlike pip, shows what the compiler says. Fails if it fails. Where the tests have installed
# ccache, only a changed file is compiled again.
build_extensions() {
    say "compiling the extensions of the store and of the service: about 30 s"
    remove_extensions
    ! command -v ccache >/dev/null || local -x CC="ccache gcc" CCACHE_DIR=$PWD/.cache/ccache
    "$VENV_PYTHON" setup.py --quiet build_ext --inplace --force && has_extensions &&
        signature "${NATIVE_FILES[@]}" >.venv/native.stamp
}

# $1: a name for the stamp, $2: the file.
install_requirements() {
    ! is_installed "$1.stamp" "$2" || return 0
    say "installing $2 into .venv"
    rm -f ".venv/$1.stamp"
    pip_install -r "$2"
    signature "$2" >".venv/$1.stamp"
}

make_venv() {
    say "creating .venv with $("$1" --version)"
    rm -rf .venv
    mkdir .venv
    : >.venv/unfinished
    "$1" -m venv .venv || die "$1 could not create .venv"
    printf '%s\n' "$PWD" >.venv/made_at
    rm .venv/unfinished
}

CORE=src/volcache/store/_core
FRONT=src/volcache/front
EXTENSIONS=("$CORE" "$FRONT")
RUN_FILES=(requirements.txt pyproject.toml)
shopt -s nullglob
NATIVE_FILES=(setup.py tools/make_pxd.py requirements.txt {"$CORE","$FRONT"}/{*.c,*.h,_*.pxd,*.pxi,*.pyx})
shopt -u nullglob

# -------------------------------------------------------------------------------------

main() {
    local purpose=${1:-} python="" missing=() parts=() part
    case $purpose in
        run) ;;
        lint | cluster | fuzz | aarch64) parts=("$purpose") ;;
        test) parts=(cluster lint test) ;;
        bench) parts=(cluster bench) ;;
        *) die "usage: tools/setup.sh run|lint|cluster|test|bench|fuzz|aarch64" ;;
    esac

    # Concurrent runs, as of `make run` and `make test`, wait for each other.
    if command -v flock >/dev/null; then
        exec 9<requirements.txt
        flock --nonblock 9 || { say "waiting for another run" && flock 9; }
    fi

    if ! venv_is_usable || ! is_installed run.stamp "${RUN_FILES[@]}" ||
        ! extensions_are_built; then
        if ! python=$(find_python); then
            # Without Python the missing packages cannot be detected: install all.
            install_packages python3 python3-venv python3-dev gcc libc6-dev libev-dev
            python=$(find_python) || die "Python 3.11 or newer is needed, and neither" \
                "$(IFS=,; echo "${CANDIDATES[*]}") nor the system's packages are one"
        fi
        mapfile -t missing < <(missing_for_build "$python")
    fi
    for part in "${parts[@]}"; do
        mapfile -t -O "${#missing[@]}" missing < <("missing_for_$part")
    done
    [ "${#missing[@]}" = 0 ] || install_packages "${missing[@]}"

    venv_is_usable || make_venv "$python"
    is_installed run.stamp "${RUN_FILES[@]}" || install_run_requirements
    extensions_are_built || build_extensions || die "the extensions cannot be built"
    case $purpose in
        cluster | test) install_requirements cluster conf/cluster/requirements.txt ;;
    esac
    case $purpose in
        lint | test) install_requirements test tests/requirements.txt ;;
    esac
    if [ "$purpose" = test ]; then
        fetch_programs prometheus usr/bin/prometheus usr/bin/promtool
        fetch_programs prometheus-nginx-exporter usr/bin/prometheus-nginx-exporter
        fetch_programs logrotate usr/sbin/logrotate
    fi
    [ -z "$HAS_WORKED" ] || say "done, in $SECONDS s"
}

main "$@"
