"""pip, apt and npm through nginx, which stores their packages."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import shutil
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
import requests

from support.recipes import (
    FRONT,
    VALUE_BYTES_MAX,
    Front,
    RunningCache,
    a_cache,
    need,
    njs_module,
    run,
    snippet,
)
from support.registry import Registry

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.slow]

RECIPE: Final = "pip, npm and apt"


@contextmanager
def packages(folder: Path) -> Iterator[tuple[Registry, Front, RunningCache]]:
    """Run the nginx of the document between registries and an instance."""
    need("nginx")
    module = njs_module()
    more = tomllib.loads(snippet(RECIPE, "toml"))
    with (
        Registry(folder / "registry") as registry,
        a_cache(folder, more=more) as cache,
    ):
        servers = cache.placed(snippet(RECIPE, "nginx")).replace("64m", "2m")
        servers = servers.replace(str(64 << 20), str(VALUE_BYTES_MAX))
        for host in ("files", "npm", "debian", "index"):
            url = f"{registry.url}/" if host == "debian" else f"{registry.url}/{host}/"
            servers = servers.replace(f"https://{host}.example/", url)
        (folder / "nginx").mkdir()
        (folder / "nginx" / "fill.js").write_text(snippet(RECIPE, "js"))
        before = f"load_module {module};"
        servers = f"js_path {folder}/nginx;\n{servers}"
        with Front(folder / "nginx", servers, before=before) as front:
            yield registry, front, cache


def a_wheel() -> bytes:
    """Return a Python package."""
    info = "demo-1.0.dist-info"
    parts = {
        "demo.py": "VALUE = 1\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as wheel:
        for name, text in parts.items():
            wheel.writestr(name, text)
    return file.getvalue()


def test_pip_fetches_a_package_once(tmp_path: Path) -> None:
    """Into two folders, without a cache of pip."""
    with packages(tmp_path) as (registry, front, _):
        wheel = registry.write("files/packages/demo-1.0-py3-none-any.whl", a_wheel())
        digest = hashlib.sha256(wheel).hexdigest()
        link = f"{registry.url}/files/packages/demo-1.0-py3-none-any.whl"
        page = (
            f'<html><body><a href="{link}#sha256={digest}">demo-1.0</a></body></html>'
        )
        registry.write("index/simple/demo/index.html", page.encode())
        words = snippet(RECIPE, "sh").replace(FRONT, front.host).split()
        options = ["--isolated", "--no-cache-dir", "--disable-pip-version-check"]
        command = [sys.executable, "-m", *words, *options]
        for asked in (["/files/packages/demo-1.0-py3-none-any.whl"], []):
            shutil.rmtree(tmp_path / "site", ignore_errors=True)
            run([*command, "--target", tmp_path / "site"], tmp_path)
            assert (tmp_path / "site" / "demo.py").read_text() == "VALUE = 1\n"
            assert registry.packages_asked() == asked


CONTROL: Final = """Package: demo
Version: 1.0
Architecture: all
Maintainer: nobody <n@example.org>
Description: none
"""
POOL: Final = "pool/main/d/demo_1.0+b1_all.deb"


def write_archive(registry: Registry, folder: Path) -> bytes:
    """Write an archive of Debian with one package, and return the package."""
    tree = folder / "tree" / "DEBIAN"
    tree.mkdir(parents=True, mode=0o755)
    (tree / "control").write_text(CONTROL)
    package = registry.folder / "debian" / POOL
    package.parent.mkdir(parents=True)
    command = ["dpkg-deb", "--root-owner-group", "-b"]
    run([*command, tree.parent, package], folder)
    data = package.read_bytes()
    listed = f"{CONTROL}Filename: {POOL}\nSize: {len(data)}\n"
    listed += f"SHA256: {hashlib.sha256(data).hexdigest()}\n\n"
    release = "Suite: bookworm\nCodename: bookworm\nComponents: main\n"
    release += "Date: Wed, 01 Jan 2020 00:00:00 UTC\n"
    release += "Architectures: all amd64 arm64\nSHA256:\n"
    # apt requests the second if the first is listed.
    packed = gzip.compress(listed.encode())
    forms = {"Packages": listed.encode(), "Packages.gz": packed}
    for arch in ("all", "amd64", "arm64"):
        for form, index in forms.items():
            place = f"main/binary-{arch}/{form}"
            registry.write(f"debian/dists/bookworm/{place}", index)
            digest = hashlib.sha256(index).hexdigest()
            release += f" {digest} {len(index)} {place}\n"
    registry.write("debian/dists/bookworm/Release", release.encode())
    return data


def apt_downloads(root: Path, line: str) -> bytes:
    """Download the package with an apt that has this line in its sources."""
    shutil.rmtree(root, ignore_errors=True)
    for part in ("lists/partial", "cache/archives/partial", "etc/preferences.d"):
        (root / part).mkdir(parents=True)
    (root / "etc" / "sources.list").write_text(f"{line}\n")
    (root / "status").touch()
    settings = {
        "Dir::State::Lists": root / "lists",
        "Dir::State::status": root / "status",
        "Dir::Cache": root / "cache",
        "Dir::Etc": root / "etc",
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
    }
    apt = ["apt-get", "-q"]
    apt += [f"-o{name}={value}" for name, value in settings.items()]
    run([*apt, "update"], root)
    run([*apt, "download", "demo"], root)
    (package,) = root.glob("demo*.deb")
    return package.read_bytes()


def test_apt_fetches_a_package_once(tmp_path: Path) -> None:
    """As any user, with all of apt's folders below one of ours."""
    need("apt-get", "dpkg-deb")
    with packages(tmp_path) as (registry, front, _):
        data = write_archive(registry, tmp_path)
        line = snippet(RECIPE, "sh", 2).split("'")[1].replace(FRONT, front.host)
        # The test's archive has no signature.
        line = line.replace("deb ", "deb [trusted=yes] ")
        for asked in ([f"/debian/{POOL}"], []):
            assert apt_downloads(tmp_path / "apt", line) == data
            found = [path.replace("%2b", "+") for path in registry.packages_asked()]
            assert found == asked


@pytest.mark.recipes
def test_npm_fetches_a_package_once(tmp_path: Path) -> None:
    """Into two projects, each with a new cache of npm."""
    need("npm")
    with packages(tmp_path) as (registry, front, _):
        file = io.BytesIO()
        manifest = {"name": "demo", "version": "1.0.0"}
        with tarfile.open(fileobj=file, mode="w:gz") as archive:
            text = json.dumps(manifest).encode()
            info = tarfile.TarInfo("package/package.json")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
        data = registry.write("npm/demo/-/demo-1.0.0.tgz", file.getvalue())
        digest = base64.b64encode(hashlib.sha512(data).digest()).decode()
        dist = {
            "tarball": f"{registry.url}/npm/demo/-/demo-1.0.0.tgz",
            "integrity": f"sha512-{digest}",
        }
        document = {
            "name": "demo",
            "dist-tags": {"latest": "1.0.0"},
            "versions": {"1.0.0": {**manifest, "dist": dist}},
        }
        registry.write("npm/demo/index.html", json.dumps(document).encode())
        words = snippet(RECIPE, "sh", 1).replace(FRONT, front.host).split()
        for number, asked in enumerate((["/npm/demo/-/demo-1.0.0.tgz"], [])):
            folder = tmp_path / f"project{number}"
            folder.mkdir()
            (folder / "package.json").write_text('{"name": "root"}')
            options = ["--cache", str(folder / "cache"), "--no-audit", "--no-fund"]
            run([*words, *options], folder)
            assert (folder / "node_modules" / "demo" / "package.json").exists()
            assert registry.packages_asked() == asked


def test_a_miss_is_filled_and_other_answers_are_passed_on(tmp_path: Path) -> None:
    """With a name that has to be encoded, and a range."""
    with packages(tmp_path) as (registry, front, cache):
        # A package is not an index: addresses in it stay.
        content = bytes(range(256)) * 4000 + f"{registry.url}/files/".encode()
        data = registry.write("files/a b+c%/x.bin", content)
        url = f"http://{front.host}/files/a%20b+c%25/x.bin"
        first = requests.get(url, headers={"Range": "bytes=5-9"}, timeout=5)
        assert (first.status_code, first.content) == (200, data)
        part = requests.get(url, headers={"Range": "bytes=5-9"}, timeout=5)
        assert (part.status_code, part.content) == (206, data[5:10])
        assert part.headers["X-Cache"] == "DISK"
        assert len(registry.packages_asked()) == 1

        large = registry.write("files/large.bin", b"x" * (VALUE_BYTES_MAX + 1))
        for _ in range(2):
            answer = requests.get(f"http://{front.host}/files/large.bin", timeout=5)
            assert (answer.status_code, answer.content) == (200, large)
        absent = requests.get(f"http://{front.host}/files/absent.bin", timeout=5)
        assert absent.status_code == 404
        stored = requests.put(url, data=b"forged", timeout=5)
        assert stored.status_code == 403
        hit = requests.get(url, timeout=5)
        assert (hit.content, hit.headers["Content-Length"]) == (data, str(len(data)))
        for path in ("store/files/x", "origin/files/x", "files/../store/x"):
            answer = requests.get(f"http://{front.host}/{path}", timeout=5)
            assert answer.status_code == 404
        cache.server.kill()
        assert requests.get(url, timeout=5).content == data


def test_a_package_is_stored_under_its_own_name(tmp_path: Path) -> None:
    """Not decoded twice, and not cut at a question mark."""
    with packages(tmp_path) as (registry, front, cache):
        registry.write("files/x%41.bin", b"not xA")
        name = f"http://{front.host}/files/x%2541.bin"
        assert requests.get(name, timeout=5).content == b"not xA"
        assert requests.get(name, timeout=5).headers["X-Cache"] == "DISK"
        assert requests.get(f"{cache.url}/files/xA.bin", timeout=5).status_code == 404
        registry.write("files/y", b"y")
        cut = requests.get(f"http://{front.host}/files/y%3Fz", timeout=5)
        assert cut.status_code == 404
        assert requests.get(f"{cache.url}/files/y", timeout=5).status_code == 404


def test_a_query_is_asked_of_the_registry_and_is_part_of_the_key(
    tmp_path: Path,
) -> None:
    """Each URL is fetched once, also if it is not stored."""
    with packages(tmp_path) as (registry, front, cache):
        registry.write("files/x", b"x")
        for target in ("/files/x", "/files/x?a=%20", "/files/x?a=+&b"):
            for source, asked in (("FILLED", [target]), ("DISK", [])):
                answer = requests.get(f"http://{front.host}{target}", timeout=5)
                assert (answer.content, answer.headers["X-Cache"]) == (b"x", source)
                assert registry.paths == asked
                registry.paths.clear()
        assert requests.get(f"{cache.url}/files/x?b", timeout=5).status_code == 404
        registry.write("files/large", b"x" * (VALUE_BYTES_MAX + 1))
        assert requests.get(f"http://{front.host}/files/large?c", timeout=5).ok
        assert registry.paths == ["/files/large?c"]
