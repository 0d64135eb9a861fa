#!/usr/bin/env bash
# Builds the container image volcache:VERSION from the wheel in dist/, with docker or podman.
# Arguments are passed to the command that builds: --build-arg NAME=VALUE,
# --secret id=NAME,src=FILE.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() {
    echo "image: $*" >&2
    exit 1
}

version=$(sed -n 's/^__version__.* = "\(.*\)"$/\1/p' src/volcache/version.py)
[ -n "$version" ] || die "src/volcache/version.py has no __version__"
shopt -s nullglob
wheels=(dist/volcache-"$version"-*.whl)
[ "${#wheels[@]}" != 0 ] || die "dist/ has no wheel of volcache $version; run: make wheels"
given=(--build-arg "VERSION=$version")
if revision=$(git rev-parse HEAD 2>/dev/null); then
    # Or the label would name sources that the wheel is not of.
    changed=$(git log -1 --format=%ct -- src setup.py pyproject.toml)
    for wheel in "${wheels[@]}"; do
        [ "$(stat --format=%Y "$wheel")" -ge "$changed" ] ||
            die "$wheel is older than the last change of the sources; run: make wheels"
    done
    given+=(--build-arg "REVISION=$revision")
fi
for engine in docker podman; do
    if command -v "$engine" >/dev/null && "$engine" info >/dev/null 2>&1; then
        build=("$engine" build --file conf/image/Dockerfile "${given[@]}" --tag "volcache:$version")
        # podman does not look for the list beside the Dockerfile. Images of the format oci,
        # its default, have no health check.
        [ "$engine" = docker ] ||
            build+=(--ignorefile conf/image/Dockerfile.dockerignore --format docker)
        echo "image: $engine builds volcache:$version"
        exec "${build[@]}" "$@" .
    fi
done
die "neither docker nor podman runs here; on Debian run as root: apt-get install podman"
