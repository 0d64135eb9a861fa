#!/usr/bin/env bash
# Builds the container image volcache:VERSION with docker or podman. Where neither runs, its
# steps are executed in a chroot and the result is checked, which needs root and mmdebstrap;
# arguments are passed to the command that builds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=$(sed -n 's/^__version__.* = "\(.*\)"$/\1/p' src/volcache/version.py)
[ -n "$version" ] || {
    echo "image: src/volcache/version.py has no __version__" >&2
    exit 1
}
build=(build --build-arg "VERSION=$version" --tag "volcache:$version")
for engine in docker podman; do
    if command -v "$engine" >/dev/null && "$engine" info >/dev/null 2>&1; then
        # Images of the format oci, podman's default, have no health check.
        [ "$engine" = docker ] || build+=(--format docker)
        echo "image: $engine builds volcache:$version"
        exec "$engine" "${build[@]}" "$@" .
    fi
done
echo "image: neither docker nor podman runs here; executing the steps in a chroot"
if [ "$(id -u)" != 0 ] || ! command -v mmdebstrap >/dev/null; then
    echo "image: that needs root and mmdebstrap; start docker, or run as root:" \
        "apt-get install mmdebstrap && tools/image_check.py" >&2
    exit 1
fi
exec python3 tools/image_check.py "$@"
