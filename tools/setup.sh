#!/usr/bin/env bash
# Makes the machine and .venv ready; what is there already is left alone.
#
#   tools/setup.sh run     what the service needs
#   tools/setup.sh lint    and the checks
#   tools/setup.sh cluster what a cluster on this machine needs: memcached and nginx
#   tools/setup.sh test    all of it, and the tests
#   tools/setup.sh bench   what the benchmarks need: a cluster, wrk, and the plots
#
# System packages come by apt, as root or through sudo; without apt the missing ones are
# named. Python packages go to .venv. A stamp in .venv holds what was installed from, so
# a second run costs milliseconds and a changed requirements file is noticed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Debian keeps nginx in /usr/sbin, which is not on every user's path.
PATH=$PATH:/usr/sbin:/sbin
POLICY=/usr/sbin/policy-rc.d
VENV_PYTHON=.venv/bin/python
# Debian's own first: it is built with profile-guided optimisation, which takes a fifth
# off what a request costs in Python, and what others bring often is not.
CANDIDATES=(/usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11)

say() { printf 'setup: %s\n' "$*"; }
die() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

# --- The interpreter -----------------------------------------------------------------

# Prints the first interpreter that is new enough; fails when there is none.
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

# True when .venv works and lies where it was made: its scripts hold absolute paths.
venv_is_usable() {
    "$VENV_PYTHON" -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' \
        2>/dev/null || return 1
    [ ! -e .venv/made_at ] || [ "$(cat .venv/made_at)" = "$PWD" ]
}

# --- System packages -----------------------------------------------------------------

# True when the C compiler finds the header, looking where bjoern's build looks.
has_header() {
    printf '#include <%s>\n' "$1" |
        gcc -fsyntax-only -I/usr/include/libev -I/usr/local/include -xc - 2>/dev/null
}

# Prints the packages that building .venv with interpreter $1 lacks.
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

# Prints the packages that a cluster needs.
missing_for_cluster() {
    command -v memcached >/dev/null || echo memcached
    command -v nginx >/dev/null || echo nginx
}

# Prints the packages that only the benchmarks need.
missing_for_bench() {
    command -v wrk >/dev/null || echo wrk
}

# Prints the packages that only the tests need.
missing_for_test() {
    command -v ccache >/dev/null || echo ccache
    # A browser to look at the page with; playwright brings one only by a download.
    command -v chromium-headless-shell >/dev/null || echo chromium-headless-shell
    # What logrotate needs; see fetch_program.
    command -v logrotate >/dev/null || compgen -G "/usr/lib/*/libpopt.so.0" >/dev/null ||
        echo libpopt0
    command -v openssl >/dev/null || echo openssl
    command -v systemd-analyze >/dev/null || echo systemd
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

# True when as_root can work: as root, or sudo without a password or with somebody there.
can_be_root() {
    [ "$(id -u)" = 0 ] && return 0
    command -v sudo >/dev/null || return 1
    sudo -n true 2>/dev/null || [ -t 0 ]
}

# Debian starts a service when its package is installed, and again at every boot. The
# tests start their own, so the start is refused by Debian's own means, a policy-rc.d
# that is there only meanwhile, and the services we brought are not enabled. A policy or
# a service that was there before stays as it was.
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
            memcached | nginx)
                as_root systemctl disable "$package" >/dev/null 2>&1 || true
                ;;
        esac
    done
}

apt_install() {
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
    # One source of several may be unreachable while the rest has all we need.
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

# Debian has promtool only in the package of the whole server, and wants a cron daemon
# with logrotate; both would run from then on. So the files are taken out instead, as
# whoever runs this, and nothing is installed. $1 is the program, $2 its package, $3 where
# it lies in that.
fetch_program() {
    local folder
    command -v "$1" >/dev/null && return 0
    [ ! -x ".cache/$1" ] || return 0
    say "fetching $1 into .cache"
    mkdir -p .cache
    folder=$(mktemp -d "$PWD/.cache/$1.XXXXXX")
    if download_package "$2" "$folder" && dpkg-deb -x "$folder"/*.deb "$folder"; then
        mv "$folder/$3" ".cache/$1"
    else
        say "there is no $1; the tests that need it are skipped"
    fi
    rm -rf "$folder"
}

# A machine may have no list of packages yet, or one that is out of date.
download_package() {
    local get=(apt-get -q -o DPkg::Lock::Timeout=300)
    command -v apt-get >/dev/null || return 1
    (cd "$2" && "${get[@]}" download "$1") && return 0
    can_be_root && as_root "${get[@]}" update
    (cd "$2" && "${get[@]}" download "$1")
}

# --- .venv ---------------------------------------------------------------------------

# Prints all that an installation from the given files depends on.
signature() {
    "$VENV_PYTHON" --version
    cat "$@"
}

is_installed() {
    local stamp=$1
    shift
    [ -e ".venv/$stamp" ] && signature "$@" | cmp -s - ".venv/$stamp"
}

pip_install() {
    "$VENV_PYTHON" -m pip install --quiet --disable-pip-version-check --no-input "$@" ||
        die "pip could not install: $*"
}

# The build backend is pinned in pyproject.toml and installed first, so that neither
# bjoern nor this package is built with whatever is newest that day.
install_run_requirements() {
    local backend
    backend=$("$VENV_PYTHON" -c 'import tomllib
with open("pyproject.toml", "rb") as file:
    print(*tomllib.load(file)["build-system"]["requires"])')
    say "installing requirements.txt into .venv"
    rm -f .venv/run.stamp
    # shellcheck disable=SC2086 # One word per requirement.
    pip_install $backend
    pip_install --use-pep517 --no-build-isolation -r requirements.txt -e .
    signature "${RUN_FILES[@]}" >.venv/run.stamp
}

install_test_requirements() {
    say "installing tests/requirements.txt into .venv"
    rm -f .venv/test.stamp
    pip_install -r tests/requirements.txt
    signature "${TEST_FILES[@]}" >.venv/test.stamp
}

install_bench_requirements() {
    say "installing bench/requirements.txt into .venv"
    rm -f .venv/bench.stamp
    pip_install -r bench/requirements.txt
    signature "${BENCH_FILES[@]}" >.venv/bench.stamp
}

install_cluster_requirements() {
    say "installing conf/cluster/requirements.txt into .venv"
    rm -f .venv/cluster.stamp
    pip_install -r conf/cluster/requirements.txt
    signature "${CLUSTER_FILES[@]}" >.venv/cluster.stamp
}

make_venv() {
    say "creating .venv with $("$1" --version)"
    rm -rf .venv
    "$1" -m venv .venv || die "$1 could not create .venv"
    printf '%s\n' "$PWD" >.venv/made_at
}

RUN_FILES=(requirements.txt pyproject.toml)
CLUSTER_FILES=(conf/cluster/requirements.txt)
TEST_FILES=(tests/requirements.txt)
BENCH_FILES=(bench/requirements.txt)

# -------------------------------------------------------------------------------------

main() {
    local purpose=${1:-} python="" missing=()
    case $purpose in
        run | lint | cluster | test | bench) ;;
        *) die "usage: tools/setup.sh run|lint|cluster|test|bench" ;;
    esac

    # Two at once, `make run` beside `make test`, take turns.
    if command -v flock >/dev/null; then
        exec 9<requirements.txt
        flock 9
    fi

    if ! venv_is_usable || ! is_installed run.stamp "${RUN_FILES[@]}"; then
        if ! python=$(find_python); then
            # Nothing to ask what is missing, so all of it is named.
            install_packages python3 python3-venv python3-dev gcc libc6-dev libev-dev
            python=$(find_python) || die "Python 3.11 or newer is needed, and neither" \
                "$(IFS=,; echo "${CANDIDATES[*]}") nor the system's packages are one"
        fi
        mapfile -t missing < <(missing_for_build "$python")
    fi
    case $purpose in
        cluster | test | bench)
            mapfile -t -O "${#missing[@]}" missing < <(missing_for_cluster)
            ;;
    esac
    if [ "$purpose" = bench ]; then
        mapfile -t -O "${#missing[@]}" missing < <(missing_for_bench)
    fi
    if [ "$purpose" = test ]; then
        mapfile -t -O "${#missing[@]}" missing < <(missing_for_test)
    fi
    [ "${#missing[@]}" = 0 ] || install_packages "${missing[@]}"

    venv_is_usable || make_venv "$python"
    is_installed run.stamp "${RUN_FILES[@]}" || install_run_requirements
    case $purpose in
        cluster | test)
            is_installed cluster.stamp "${CLUSTER_FILES[@]}" ||
                install_cluster_requirements
            ;;
    esac
    if [ "$purpose" = bench ]; then
        is_installed bench.stamp "${BENCH_FILES[@]}" || install_bench_requirements
    fi
    case $purpose in
        lint | test)
            is_installed test.stamp "${TEST_FILES[@]}" || install_test_requirements
            ;;
    esac
    if [ "$purpose" = test ]; then
        fetch_program promtool prometheus usr/bin/promtool
        fetch_program logrotate logrotate usr/sbin/logrotate
    fi
}

main "$@"
