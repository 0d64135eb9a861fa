# The image of one instance: the service with the native core and the gate, as `make run` has
# them. docs/IMAGE.md is its manual.
#
#     docker build --tag volcache .
#     docker run --detach --publish 127.0.0.1:1234:1234 --volume disk1:/data volcache
#
# BASE must be a Debian with Python 3.11 or newer; give it with a digest to build the same
# image again.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
ENV DEBIAN_FRONTEND=noninteractive
# What tools/setup.sh would install as well; here it is a layer that a changed source keeps.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
        gcc libc6-dev libev-dev python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/volcache
COPY . .
# The installation of every other machine. It goes on without the gate when that cannot be
# built; an image without it is refused.
RUN tools/setup.sh run \
    && .venv/bin/python -c 'import sys; from volcache.server.bjoern import gate_link; \
sys.exit(None if gate_link() else "built without the gate")'
# What only the build needs. Hashes instead of times: the file system may be read-only, and
# copies may get another time.
RUN .venv/bin/python -m pip uninstall --quiet --yes Cython setuptools pip \
    && rm -rf src/volcache.egg-info \
    && find .venv src -name __pycache__ -prune -exec rm -rf {} + \
    && python3 -m compileall -q --invalidation-mode unchecked-hash .venv/lib src

FROM ${BASE}
ARG VERSION=
LABEL org.opencontainers.image.title="volcache" \
    org.opencontainers.image.description="An HTTP cache for very many small files on plain disks" \
    org.opencontainers.image.licenses="MIT" \
    org.opencontainers.image.version="${VERSION}"
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        libev4 python3 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/apt /var/log/dpkg.log \
    && useradd --uid 1234 --user-group --home-dir /nonexistent --no-create-home \
        --shell /usr/sbin/nologin volcache \
    && install --directory --owner=volcache --group=volcache --mode=0700 /data
COPY --from=build /opt/volcache/LICENSE /opt/volcache/LICENSE
COPY --from=build /opt/volcache/.venv /opt/volcache/.venv
COPY --from=build /opt/volcache/src /opt/volcache/src
COPY tools/image_health.py /opt/volcache/tools/image_health.py
ENV PATH=/opt/volcache/.venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    VOLCACHE_IP=0.0.0.0 \
    VOLCACHE_MOUNT_POINT=/data
WORKDIR /data
VOLUME /data
EXPOSE 1234
# A number, so that "must not run as root" can be checked without the image's list of users.
USER 1234:1234
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-I", "/opt/volcache/tools/image_health.py"]
ENTRYPOINT ["volcache"]
CMD ["serve"]
