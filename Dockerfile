# The image of one instance, from the wheel that `make wheels` writes to dist/. Debian's Python
# is all it needs besides; nothing is compiled. docs/IMAGE.md is its manual.
#
#     make wheels && make image
#     docker run --detach --publish 127.0.0.1:1234:1234 --volume disk1:/data volcache:0.1.0
#
# BASE must be a Debian with a Python that there is a wheel for. With a digest, the same base is
# used again: debian:bookworm-slim@sha256:...
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS python
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/apt /var/log/dpkg.log \
    && useradd --uid 1234 --user-group --home-dir /nonexistent --no-create-home \
        --shell /usr/sbin/nologin volcache \
    && install --directory --owner=volcache --group=volcache --mode=0700 /data

FROM python AS build
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        ca-certificates python3-pip-whl
# Settings of pip. One with a password belongs into the secret `pip`, a pip.conf: arguments are
# in the history of the image.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_NO_INDEX
ARG VERSION
COPY requirements.txt dist/*.whl /dist/
# The secret `ca` is a file with the certificates that pip trusts, in place of Debian's. The
# wheel never comes from an index. Bytecode has hashes instead of times: the file system may be
# read-only, and copies may get another time.
RUN --mount=type=secret,id=ca --mount=type=secret,id=pip \
    if [ -e /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi \
    && if [ -e /run/secrets/pip ]; then export PIP_CONFIG_FILE=/run/secrets/pip; fi \
    && pip="python3 $(echo /usr/share/python-wheels/pip-*.whl)/pip --python /opt/volcache" \
    && python3 -m venv --without-pip /opt/volcache \
    && $pip install --no-compile --no-index --no-deps --find-links /dist \
        "volcache==${VERSION}" "volcache-client==${VERSION}" \
    && grep == /dist/requirements.txt >/dist/pins.txt \
    && $pip install --no-compile --no-cache-dir --only-binary :all: --find-links /dist \
        --constraint /dist/pins.txt "volcache[server,tools]==${VERSION}" \
    && python3 -m compileall -q --invalidation-mode unchecked-hash /opt/volcache/lib

FROM python
ARG VERSION
ARG SOURCE
ARG REVISION
LABEL org.opencontainers.image.title="volcache" \
    org.opencontainers.image.description="An HTTP cache for very many small files on plain disks" \
    org.opencontainers.image.licenses="MIT" \
    org.opencontainers.image.source="${SOURCE}" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.version="${VERSION}"
COPY --from=build /opt/volcache /opt/volcache
ENV PATH=/opt/volcache/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    VOLCACHE_IP=0.0.0.0 \
    VOLCACHE_MOUNT_POINT=/data
WORKDIR /data
VOLUME /data
EXPOSE 1234
# A number, so that "must not run as root" can be checked without the image's list of users.
USER 1234:1234
STOPSIGNAL SIGTERM
# By bash, which every Debian has, as starting Python would take longer than the answer. Linux
# connects 0.0.0.0 and :: to loopback.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["bash", "-c", "exec 3<>/dev/tcp/$VOLCACHE_IP/${VOLCACHE_PORT:-1234} && printf 'GET /-/healthy HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n' >&3 && read -r -t 3 line <&3 && [[ $line == 'HTTP/1.'?' 200 '* ]] || exit 1"]
ENTRYPOINT ["volcache"]
CMD ["serve"]
