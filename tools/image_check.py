#!/usr/bin/env python3
"""
Build the image without a container engine, and check that it works; as root, on Debian.

The steps of the Dockerfile are executed in a chroot that mmdebstrap makes. Then the entry
point runs as an engine would run it: as process 1 and as the user of the image, without
capabilities, with a read-only root and a folder as volume. It must become healthy, keep a
value over a `kill -9`, and end by its stop signal. Prints times and sizes; exit code 0 if
all of it holds.

    tools/image_check.py [--folder DIR] [--base TAR]
        [--build-arg NAME=VALUE]... [--secret id=NAME,src=FILE]...
"""

from __future__ import annotations

import argparse
import http.client
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from dockerfile import DockerfileError, Stage, Step, expand, parse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PROJECT: Final = Path(__file__).resolve().parents[1]
# What the slim images of Debian leave out.
SLIM: Final = ("doc", "info", "lintian", "linda", "locale", "man")
# What the images of Debian set for apt.
APT: Final = (
    'APT::Install-Recommends "false"',
    'Acquire::Languages "none"',
    'Dir::Cache::pkgcache ""',
    'Dir::Cache::srcpkgcache ""',
)
# Without it, the package usrmerge and all of Perl.
HOOK: Final = "/usr/share/mmdebstrap/hooks/merged-usr"
SUITE: Final = "bookworm"
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 30.0
# Arguments: the root, then what is to be run in it. Runs in a mount namespace of its own.
_ENTER: Final = """
set -e
root=$1; shift
mount --bind "$root" "$root"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
[ -z "$DATA" ] || mount --bind "$DATA" "$root$VOLUME"
for pair in $SEEN; do
    file=$root${pair#*:}
    mkdir -p "${file%/*}"
    [ -e "$file" ] || : >"$file"
    mount --bind "${pair%%:*}" "$file"
done
[ -z "$DATA" ] || mount -o remount,bind,ro "$root"
exec chroot "$root" /usr/bin/env -i "$@"
"""


class CheckError(Exception):
    """The image cannot be built, or does not do what it must."""


def say(text: str) -> None:
    """Print a line of the report."""
    print(text, flush=True)


@dataclass(slots=True)
class Image:
    """A file system with what the Dockerfile says about it."""

    root: Path
    variables: dict[str, str] = field(default_factory=lambda: {"PATH": PATH})
    arguments: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = "0:0"

    def enter(
        self,
        command: Sequence[str],
        *,
        seen: Sequence[str] = (),
        data: Path | None = None,
        volume: str = "",
        variables: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Return the command that runs another inside, in namespaces of its own."""
        # Arguments of the build are not in the environment of a container.
        environ = {**({} if data else self.arguments), **self.variables}
        environ |= variables or {}
        inside = [f"{name}={value}" for name, value in environ.items()]
        if data is not None:
            user, _, group = self.user.partition(":")
            inside += [
                *("setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups"),
                *("--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"),
            ]
        # Not --chdir of env: some versions have none.
        inside += ["sh", "-c", 'cd "$0" && exec "$@"', self.folder, *command]
        outside = [f"DATA={data or ''}", f"VOLUME={volume}", f"SEEN={' '.join(seen)}"]
        return [
            *("env", *outside, "unshare", "--mount", "--pid", "--fork", "--kill-child"),
            *("sh", "-c", _ENTER, "sh", str(self.root), *inside),
        ]


class Build:
    """The build of all stages, in folders of their own."""

    def __init__(self, folder: Path, base: Path, secrets: Mapping[str, str]) -> None:
        """
        Start nothing yet.

        Args:
            folder: Gets a folder for each stage.
            base: A tar file with the file system of the base image.
            secrets: Files of this machine, by the names that RUN steps mount them by.
        """
        self._folder = folder
        self._base = base
        self._secrets = secrets
        self._images: dict[str, Image] = {}

    def run(self, stages: Sequence[Stage], arguments: Mapping[str, str]) -> Image:
        """
        Execute the steps of all stages; return the last image.

        Raises:
            CheckError: A step has failed.
        """
        image = Image(self._folder)
        for number, stage in enumerate(stages):
            image = Image(self._folder / f"stage{number}")
            self._unpack(stage, image)
            for step in stage.steps:
                started = time.monotonic()
                self._execute(step, image, arguments)
                if step.keyword in {"COPY", "RUN"}:
                    seconds = time.monotonic() - started
                    say(f"{seconds:6.1f} s  {step.keyword} {step.text[:70]}")
            self._images[stage.name or str(number)] = image
        return image

    def _unpack(self, stage: Stage, image: Image) -> None:
        if stage.base in self._images:
            before = self._images[stage.base]
            image.variables = dict(before.variables)
            _must(["cp", "-a", str(before.root), str(image.root)])
        else:
            image.root.mkdir()
            _must(["tar", "-xf", str(self._base), "-C", str(image.root)])

    def _execute(self, step: Step, image: Image, given: Mapping[str, str]) -> None:
        match step.keyword:
            case "RUN":
                self._run(step, image)
            case "COPY":
                self._copy(step, image)
            case "ENV" | "ARG":
                _define(step, image, given)
            case "WORKDIR":
                image.folder = step.text
                self._inside(image, step.text).mkdir(parents=True, exist_ok=True)
            case "USER":
                image.user = step.text
            case _:  # Facts about the image, which `Container` reads.
                pass

    def _run(self, step: Step, image: Image) -> None:
        if image.user != "0:0":
            raise CheckError(f"{step.line}: RUN after USER is not supported")
        command = image.enter(
            ["/bin/sh", "-c", step.text],
            seen=["/etc/resolv.conf:/etc/resolv.conf", *self._mounted(step)],
        )
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            end = "\n".join(done.stdout.splitlines()[-30:])
            raise CheckError(f"{step.line}: RUN ended with {done.returncode}:\n{end}")

    def _mounted(self, step: Step) -> Iterator[str]:
        """Yield the secrets of a step that were given."""
        for mount in step.options.get("mount", []):
            kind, _, name = mount.partition(",id=")
            if kind != "type=secret":
                raise CheckError(f"{step.line}: --mount={mount} is not supported")
            if name in self._secrets:
                yield f"{self._secrets[name]}:/run/secrets/{name}"

    def _copy(self, step: Step, image: Image) -> None:
        *sources, target = step.words()
        into = self._inside(image, os.path.join(image.folder, target))  # noqa: PTH118
        for stage in step.options.get("from", []):
            (source,) = sources
            _must(
                ["cp", "-aT", str(self._inside(self._images[stage], source)), str(into)]
            )
            return
        for source in sources:
            found = [str(path) for path in PROJECT.glob(source)]
            if not found:
                raise CheckError(f"{step.line}: there is no {source}; run: make wheels")
            into.mkdir(parents=True, exist_ok=True)
            _must(["cp", *found, str(into)])

    @staticmethod
    def _inside(image: Image, path: str) -> Path:
        return image.root / path.lstrip("/")


def _define(step: Step, image: Image, given: Mapping[str, str]) -> None:
    """Take over variables: those of ENV stay in the image, those of ARG do not."""
    if step.keyword == "ENV":
        known = {**image.arguments, **image.variables}
        image.variables |= {n: expand(v, known) for n, v in step.pairs().items()}
        return
    image.arguments |= step.pairs()
    names = [word.partition("=")[0] for word in step.words()]
    image.arguments |= {name: given[name] for name in names if name in given}


class Container:
    """The entry point of an image, as process 1 of a namespace, with a volume."""

    def __init__(self, image: Image, stage: Stage, data: Path) -> None:
        """
        Start nothing yet.

        Args:
            image: From `Build.run`.
            stage: The last one of the Dockerfile.
            data: The folder that is the volume; gets the owner and mode that the image
                gives it, as a new volume does.

        Raises:
            CheckError: The Dockerfile lacks an instruction, or the user is root.
        """
        self._image = image
        self._stage = stage
        self._data = data
        self._process: subprocess.Popen[str] | None = None
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - Until the end.
        [self.volume] = self._needed("VOLUME").words()
        if image.user.partition(":")[0] in {"", "0", "root"}:
            raise CheckError(f"USER is {image.user}; it must not be root")
        made = (image.root / self.volume.lstrip("/")).stat()
        os.chown(data, made.st_uid, made.st_gid)
        data.chmod(made.st_mode & 0o7777)
        self.port = _free_port()

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return the command that runs the entry point with arguments."""
        return self._enter([*self._needed("ENTRYPOINT").argv(), *arguments])

    def start(self) -> float:
        """
        Start it; return the seconds until the health check succeeds.

        Raises:
            CheckError: It ended, or did not become healthy in time.
        """
        started = time.monotonic()
        self._process = subprocess.Popen(
            self.command(self._needed("CMD").argv()),
            stdout=self.log,
            stderr=subprocess.STDOUT,
            text=True,
        )
        while not self.is_healthy():
            if self._process.poll() is not None:
                raise CheckError(f"it ended:\n{self.output()}")
            if time.monotonic() - started > START_SECONDS:
                raise CheckError(f"it is not healthy in time:\n{self.output()}")
        return time.monotonic() - started

    def is_healthy(self) -> bool:
        """Whether the command of HEALTHCHECK succeeds."""
        text = self._needed("HEALTHCHECK").text.removeprefix("CMD").strip()
        check = Step(self._needed("HEALTHCHECK").line, "HEALTHCHECK", {}, text).argv()
        return not subprocess.run(
            self._enter(check), capture_output=True, check=False
        ).returncode

    def end(self, number: signal.Signals) -> int | None:
        """Send a signal to process 1; return its exit code, None if it goes on."""
        process = self._running()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        os.kill(int(children.split()[0]), number)
        try:
            return process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            return None

    def facts(self) -> dict[str, str]:
        """Return the lines of /proc/PID/status of process 1, by name."""
        pid = self._running().pid
        child = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
        lines = Path(f"/proc/{child}/status").read_text().splitlines()
        return {
            name: text.strip() for name, _, text in (s.partition(":") for s in lines)
        }

    def ask(
        self, method: str, path: str, body: bytes | None = None
    ) -> tuple[int, bytes]:
        """Return the status and the body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def output(self) -> str:
        """Return what it has printed."""
        # Not seek: its position is that of the process, which may be writing.
        length = os.fstat(self.log.fileno()).st_size
        return os.pread(self.log.fileno(), length, 0).decode(errors="replace")

    def __enter__(self) -> Self:
        """Do nothing."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill it if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()  # With it, --kill-child ends process 1.
            self._process.wait()
        self.log.close()

    def _enter(self, command: Sequence[str]) -> list[str]:
        """Return a command that runs with the port of this container."""
        variables = {
            "VOLCACHE_IP": "127.0.0.1",
            "VOLCACHE_PORT": str(self.port),
            "VOLCACHE_VOLUME_SIZE": "16MiB",
        }
        return self._image.enter(
            command, data=self._data, volume=self.volume, variables=variables
        )

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise CheckError("it was not started")
        return self._process

    def _needed(self, keyword: str) -> Step:
        step = self._stage.last(keyword)
        if step is None:
            raise CheckError(f"the last stage has no {keyword}")
        return step


def check(container: Container, stage: Stage) -> None:
    """
    Start, use, kill, start again and stop it.

    Raises:
        CheckError: It does not do what it must.
    """
    say(f"{container.start():6.2f} s  from the start until it is healthy")
    _expect(container.ask("PUT", "/kept", b"value")[0], 200, "PUT")
    _expect(container.ask("GET", "/kept"), (200, b"value"), "GET")
    _expect(container.ask("PUT", "/gone", b"x")[0], 200, "PUT")
    _expect(container.ask("DELETE", "/gone")[0], 200, "DELETE")
    _expect(container.ask("GET", "/gone")[0], 404, "GET after DELETE")
    facts = container.facts()
    _expect(facts["NSpid"].split()[-1], "1", "the process in its namespace")
    _expect(facts["Uid"].split()[0], "1234", "the user")
    _expect(int(facts["CapEff"], 16), 0, "capabilities")
    say(f"{facts['VmRSS']:>13}  of memory")

    container.end(signal.SIGKILL)
    _holds(not container.is_healthy(), "the health check fails after kill -9")
    say(f"{container.start():6.2f} s  from a start after kill -9 until it is healthy")
    _expect(container.ask("GET", "/kept"), (200, b"value"), "GET after kill -9")
    _expect(container.ask("GET", "/gone")[0], 404, "GET of what was deleted")

    step = stage.last("STOPSIGNAL")
    number = signal.Signals[step.text if step else "SIGTERM"]
    started = time.monotonic()
    _expect(container.end(number), 0, f"the exit code after {number.name}")
    say(f"{time.monotonic() - started:6.2f} s  from {number.name} to the end")
    _holds("store.closed" in container.output(), "the store was closed")
    _must(container.command(["check", container.volume]))


def _expect(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise CheckError(f"{what}: {found!r} instead of {wanted!r}")


def _holds(what: object, text: str) -> None:
    if not what:
        raise CheckError(f"not true: {text}")


def _must(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CheckError(
            f"{shlex.join(command)[:200]} ended with {done.returncode}:"
            f" {(done.stdout + done.stderr)[-2000:]}"
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _size(folder: Path) -> int:
    """Return the bytes that the files of a folder occupy."""
    done = subprocess.run(
        ["du", "-s", "-B1", str(folder)], capture_output=True, text=True, check=True
    )
    return int(done.stdout.split()[0])


def make_base(path: Path) -> None:
    """
    Make a base image as Debian's slim one, by mmdebstrap.

    Raises:
        CheckError: mmdebstrap is missing, or has failed.
    """
    if not shutil.which("mmdebstrap"):
        raise CheckError("there is no mmdebstrap; run: apt-get install mmdebstrap")
    command = ["mmdebstrap", "--variant=minbase", f"--hook-dir={HOOK}"]
    command += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in SLIM]
    command += ["--dpkgopt=force-unsafe-io", *(f"--aptopt={text}" for text in APT)]
    part = path.with_name(f"part-{path.name}")
    _must([*command, SUITE, str(part)])
    part.replace(path)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").strip().partition("\n")[0], allow_abbrev=False
    )
    parser.add_argument(
        "--folder",
        type=Path,
        help="where to build; needs 1 GB (default: a temporary folder)",
    )
    parser.add_argument(
        "--base",
        type=Path,
        metavar="TAR",
        help="the base image; made by mmdebstrap if it does not exist",
    )
    parser.add_argument(
        "--build-arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of an ARG step, such as VERSION",
    )
    parser.add_argument(
        "--secret",
        action="append",
        default=[],
        metavar="id=NAME,src=FILE",
        help="a file of this machine that RUN steps may mount",
    )
    return parser.parse_args()


def _named(given: Sequence[str], allowed: str) -> dict[str, str]:
    """
    Return arguments by their names.

    Raises:
        CheckError: One is not as allowed.
    """
    form = re.compile(allowed)
    matches = [(text, form.fullmatch(text)) for text in given]
    wrong = [text for text, match in matches if not match]
    if wrong:
        raise CheckError(f"{wrong[0]} is not as tools/image_check.py --help says")
    return {match[1]: match[2] for _, match in matches if match}


def _report(folder: Path, base: Path, given: argparse.Namespace) -> None:
    """Build and check the image in an empty folder."""
    values = _named(given.build_arg, r"(\w+)=(.*)")
    secrets = _named(given.secret, r"id=([\w.-]+),src=(.+)")
    started = time.monotonic()
    if not base.exists():
        make_base(base)
        say(f"{time.monotonic() - started:6.1f} s  mmdebstrap")
    started = time.monotonic()
    stages = parse((PROJECT / "conf/image/Dockerfile").read_text())
    image = Build(folder, base, secrets).run(stages, values)
    say(f"{time.monotonic() - started:6.1f} s  in all")
    bare = folder / "base"
    bare.mkdir()
    _must(["tar", "-xf", str(base), "-C", str(bare)])
    for name, root in (("base", bare), ("image", image.root)):
        say(f"{_size(root) / 1e6:6.1f} MB the {name}")
    data = folder / "data"
    data.mkdir()
    with Container(image, stages[-1], data) as container:
        check(container, stages[-1])


def main() -> int:
    """Build and check; return the exit code."""
    arguments = _arguments()
    if os.geteuid():
        say("image_check: needs root, for chroot and mount")
        return 2
    try:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            base = arguments.base or Path(folder) / "base.tar"
            _report(Path(folder), base, arguments)
    except (CheckError, DockerfileError) as error:
        say(f"image_check: {error}")
        return 1
    say("image_check: the image works")
    return 0


if __name__ == "__main__":
    sys.exit(main())
