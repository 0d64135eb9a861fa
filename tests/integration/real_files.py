"""
Every file of the Python installation through a real server that is killed half way.

Two scenarios. In the first everything fits: whatever was acknowledged, before or
after a `kill -9` and a restart, must come back byte for byte. In the second the cache
is much smaller than the data: the newest files must be there, none may be wrong, and
the volumes never take more room than they were given.

    .venv/bin/python tests/integration/real_files.py --limit 2000

The exit code is 0 only if nothing differs, nothing is missing that must be there, and
the volumes kept to their room.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if not __package__:  # Run as a script: the helpers are in the folder above.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.folders import FILE_BYTES_MAX, folder_bytes, peak_of, python_files
from support.process import ServerProcess
from support.read_back import read_back
from support.uploads import SourceFile, Upload

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run; `kill_at` is the share of the files stored before the kill."""

    name: str
    volume_size: int
    volume_num: int
    connections: int
    kill_at: float
    keeps_everything: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run found; the properties say whether it is good."""

    plan: Plan
    acks: int
    value_bytes: int
    interrupted: int
    unreadable: int
    must_be_there: int
    found: int
    missing: list[str]
    differing: list[str]
    data_bytes_peak: int
    index_bytes: int
    put_seconds: float
    get_seconds: float
    exit_code: int
    stderr: str

    @property
    def data_bytes_allowed(self) -> int:
        """The most room the volumes may take together."""
        return self.plan.volume_num * self.plan.volume_size

    @property
    def is_good(self) -> bool:
        """Whether the run found nothing to complain about."""
        return not (
            self.missing
            or self.differing
            or self.data_bytes_peak > self.data_bytes_allowed
            or self.exit_code
            or "Traceback" in self.stderr
        )

    def lines(self) -> Iterator[str]:
        """Describe the run for a person."""
        plan = self.plan
        put_rate = self.value_bytes / MIB / self.put_seconds
        yield (
            f"{plan.name}: {plan.volume_num} volumes of {plan.volume_size} bytes, "
            f"{plan.connections} connections, kill -9 at {plan.kill_at:.0%}"
        )
        yield (
            f"  stored      {self.acks} files, {self.value_bytes} bytes, "
            f"{self.acks / self.put_seconds:.0f} files/s, {put_rate:.1f} MiB/s "
            "(kill and restart included)"
        )
        yield (
            f"  interrupted {self.interrupted} attempts, sent again; "
            f"{self.unreadable} files could not be read"
        )
        yield (
            f"  read back   {self.acks / self.get_seconds:.0f} files/s; "
            f"{self.found} are there, of which {self.must_be_there} must be"
        )
        yield f"  differences {len(self.differing)} {self.differing[:5]}"
        yield f"  missing     {len(self.missing)} {self.missing[:5]}"
        yield (
            f"  disk        volumes at most {self.data_bytes_peak} bytes of "
            f"{self.data_bytes_allowed}, index files {self.index_bytes}"
        )
        yield (
            f"  server      exit code {self.exit_code} after SIGTERM, "
            f"{len(self.stderr.splitlines())} lines on stderr"
        )
        yield f"  verdict     {'good' if self.is_good else 'BAD'}"


def keys_that_must_be_there(upload: Upload, plan: Plan) -> set[str]:
    """
    Tell which keys rotation cannot have reclaimed.

    All volumes but one hold the newest records, and the end of each may be unused
    because the next record did not fit. PUTs that got no answer may have been
    written too. The order of the answers is nearly that of the writes.
    """
    if plan.keeps_everything:
        return {ack.file.key for ack in upload.acks}
    largest = max((ack.record_bytes for ack in upload.acks), default=0)
    # Twice the largest record: what is unused at the end, and the volume's own header.
    room = (plan.volume_num - 1) * (plan.volume_size - 2 * largest)
    room -= upload.interrupted_bytes
    keys = set()
    for ack in reversed(upload.acks):
        room -= ack.record_bytes
        if room < 0:
            break
        keys.add(ack.file.key)
    return keys


def run(plan: Plan, files: Sequence[SourceFile], mount_point: Path) -> Outcome:
    """
    Store, kill, restart, store the rest, restart, read back.

    Raises:
        RefusedError: A PUT was not answered 200.
        OSError: A request got no answer within its deadline.
        ProgramError: The server did not start again.
    """
    settings: dict[str, object] = {
        "volume_size": plan.volume_size,
        "volume_num": plan.volume_num,
    }
    if not plan.keeps_everything:
        settings["eviction"] = "fifo"  # Only with it, the newest files must be there.
    server = ServerProcess(mount_point, settings=settings)

    def kill_and_restart() -> None:
        server.kill()
        server.restart()

    with server, peak_of(mount_point / "data") as data:
        upload = Upload(server.url, files)
        upload.run(
            connections=plan.connections,
            event_at=max(1, int(len(files) * plan.kill_at)),
            event=kill_and_restart,
        )
        exit_code = server.terminate()
        server.restart()
        begin = time.monotonic()
        back = read_back(server.url, upload.acks, plan.connections)
        get_seconds = time.monotonic() - begin
        stderr = server.stderr
    required = keys_that_must_be_there(upload, plan)
    return Outcome(
        plan=plan,
        acks=len(upload.acks),
        value_bytes=sum(ack.value_bytes for ack in upload.acks),
        interrupted=upload.interrupted,
        unreadable=upload.unreadable,
        must_be_there=len(required),
        found=back.found,
        missing=sorted(required.intersection(back.missing)),
        differing=back.differing,
        data_bytes_peak=data.bytes,
        index_bytes=folder_bytes(mount_point / "index"),
        put_seconds=upload.seconds,
        get_seconds=get_seconds,
        exit_code=exit_code,
        stderr=stderr,
    )


def plan_that_fits(files: Sequence[SourceFile], options: Options) -> Plan:
    """Give every file room, whatever the records' headers take."""
    needed = sum(f.path.stat().st_size + len(f.key.encode()) + 256 for f in files)
    # What is unused at the end of a volume is less than one record of the largest.
    usable = options.volume_size - FILE_BYTES_MAX - 8192
    return Plan(
        name="everything fits",
        volume_size=options.volume_size,
        volume_num=options.volume_num or needed // usable + 3,
        connections=options.connections,
        kill_at=options.kill_at,
        keeps_everything=True,
    )


def plan_that_overflows(options: Options) -> Plan:
    """Give four volumes of 8 MiB, which is much less than the files take."""
    return Plan(
        name="newest files only",
        volume_size=8 * MIB,
        volume_num=4,
        connections=options.connections,
        kill_at=options.kill_at,
        keeps_everything=False,
    )


class Options(argparse.Namespace):
    """The command line."""

    limit: int | None
    connections: int
    kill_at: float
    volume_size: int
    volume_num: int
    scenario: str
    directory: Path | None


def parse_options(arguments: Sequence[str] | None) -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    add = parser.add_argument
    add("--limit", type=int, help="files to take, spread over the list (all)")
    add("--connections", type=int, default=4, help="at the same time (4)")
    add("--kill-at", type=float, default=0.5, help="share stored before the kill (0.5)")
    add("--volume-size", type=int, default=64 * MIB, help="bytes, if it fits (64 MiB)")
    add("--volume-num", type=int, default=0, help="if everything fits (as needed)")
    add("--scenario", choices=("fits", "overflows", "both"), default="both")
    add("--directory", type=Path, help="make the mount points here (a temporary one)")
    return parser.parse_args(arguments, namespace=Options())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the scenarios asked for; 0 if all are good."""
    options = parse_options(arguments)
    files = python_files(options.limit)
    plans = []
    if options.scenario != "overflows":
        plans.append(plan_that_fits(files, options))
    if options.scenario != "fits":
        plans.append(plan_that_overflows(options))
    good = True
    for plan in plans:
        with tempfile.TemporaryDirectory(dir=options.directory) as mount_point:
            outcome = run(plan, files, Path(mount_point))
        sys.stdout.write("".join(f"{line}\n" for line in outcome.lines()))
        good = good and outcome.is_good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
