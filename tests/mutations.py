"""
Break the store in one place at a time, and check that a test fails each time.

    make mutations
    python tests/mutations.py [python|c]

Each mutation is applied to a copy of the source tree, and tests are run against that copy,
two copies at a time: for Python those below, for C those that mutations.toml names. The
exit code is 0 only if the unchanged sources make no test fail, and each mutation makes one
fail, except those that say why none does.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

if not __package__:  # Run as a script: the helpers are beside it.
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from collections.abc import Callable, Iterable, Sequence

from support.c_changes import Objects
from support.code_changes import NotFoundError, changed

ROOT: Final = Path(__file__).resolve().parents[1]
# From the quick and narrow to the slow and wide; pytest stops at the first that fails.
TESTS: Final = (
    "tests/unit/test_cache.py",
    "tests/unit/test_cache_threads.py",
    "tests/unit/http/test_dates.py",
    "tests/unit/store",
    "tests/golden",
    "tests/unit/hot",
    "tests/crash/test_refused_writes.py",
    "tests/crash/test_bad_disk.py",
    "tests/crash/test_bit_rot.py",
    "tests/crash/test_replaced_files.py",
    "tests/crash/test_purge.py",
    "tests/crash/test_power_loss.py",
    "tests/property",
)
JOBS: Final = 2
DEADLINE_SECONDS: Final = 600
PROGRAM_DEADLINE_SECONDS: Final = 60
# Of a single test, where it can be interrupted.
TEST_SECONDS: Final = 100
# How long a program with random input of its own runs if it finds nothing.
PROGRAM_SECONDS: Final = "4"
# What may become of a mutation, or of the unchanged sources.
GOOD: Final = frozenset(("noticed", "with a reason", "unchanged"))


class Mutation(NamedTuple):
    """A fault, the changes of one function that cause it, and who should notice it."""

    language: str
    fault: str
    where: str  # `module:function` or `file:function` below `volcache`.
    changes: tuple[tuple[str, ...], ...]
    tests: tuple[str, ...]
    survives: str  # Why no test fails.

    @classmethod
    def of(cls, language: str, row: dict[str, Any]) -> Self:
        """Return a mutation of mutations.toml."""
        tests = (GROUPS.get(name, [name]) for name in row.get("tests", TESTS))
        return cls(
            language,
            row["fault"],
            row["where"],
            tuple(map(tuple, row["changes"])),
            tuple(dict.fromkeys(chain.from_iterable(tests))),
            row.get("survives", ""),
        )

    @property
    def file(self) -> str:
        """The path of the file below `volcache`."""
        module = self.where.partition(":")[0]
        return module if self.language == "c" else module.replace(".", "/") + ".py"

    def changed_file(self, package: Path) -> tuple[Path, str]:
        """
        Return the path of the file in a package, and its changed source.

        Raises:
            NotFoundError: The function, or a change in it, is not found exactly once.
        """
        path, function = package / self.file, self.where.partition(":")[2]
        return path, changed(path, function, *self.changes)


TABLE: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
GROUPS: Final[dict[str, list[str]]] = TABLE["groups"]
MUTATIONS: Final = {
    language: [Mutation.of(language, row) for row in TABLE[language]]
    for language in ("python", "c")
}


class Ended(NamedTuple):
    """How a command ended; it is `None` if it had to be killed after its time."""

    code: int | None
    stdout: str
    stderr: str


def ended(
    command: Sequence[str | Path],
    seconds: float,
    environment: dict[str, str] | None = None,
    folder: Path = ROOT,
) -> Ended:
    """Run a command; whatever it has started is killed with it after its time."""
    process = subprocess.Popen(
        list(map(str, command)),
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        return Ended(None, stdout, stderr)
    return Ended(process.returncode, stdout, stderr)


def first_failure(
    source: Path,
    scratch: Path,
    tests: Iterable[str] = TESTS,
    *,
    folder: Path = ROOT,
) -> str:
    """
    Return the test that failed first against a source tree; empty: none did.

    Args:
        source: Of the packages.
        scratch: For what the tests leave behind.
        tests: Paths in `folder`.
        folder: Of the tests; those that start servers take the sources beside it.
    """
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header"]
    command += ["-p", "no:cacheprovider", "--show-capture=no"]
    # The same examples each time, and no deadline: a slow example is not a failure.
    command += ["--hypothesis-profile=ci"]
    command += [f"--timeout={TEST_SECONDS}"]
    command += ["-o", f"pythonpath={source} tests tools", *tests]
    environment = {
        **os.environ,
        "PYTHONPATH": str(source),
        # Where the tests take samples, the same ones each time.
        "SEED": "1",
        # Failing examples are kept for the next run, where they have no business.
        "HYPOTHESIS_STORAGE_DIRECTORY": str(scratch / "hypothesis"),
    }
    done = ended(command, DEADLINE_SECONDS, environment, folder)
    if done.code == 0:
        return ""
    if done.code is not None and done.code < 0:
        return f"pytest: {ending(done)}"
    failed = [
        line
        for line in done.stdout.splitlines()
        if line.startswith(("FAILED ", "ERROR "))
    ]
    if done.code != 1 or not failed:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
    return failed[0].partition(" ")[2].partition(" - ")[0]


def ending(done: Ended) -> str:
    """Return how a process that failed ended."""
    if done.code is None:
        return "did not end"
    if done.code < 0:
        return f"ended by {signal.Signals(-done.code).name}"
    return f"exit code {done.code}"


def first_failed_program(objects: Objects, names: Iterable[str]) -> str:
    """Run programs of tests/native, linked with some objects; empty: none has failed."""
    for name in names:
        test = ROOT / "tests" / "native" / f"{name}.c"
        program = objects.program(test)
        corpus = sorted((test.parent / "corpus" / name).glob("*"))
        runs: list[list[str | Path]] = [[PROGRAM_SECONDS, "1"]]
        if name.endswith("_test"):
            runs = [["1"]]
        elif name.endswith("_fuzz"):
            runs = [[*corpus], ["-r", *runs[0]]] if corpus else [["-r", *runs[0]]]
        for arguments in runs:
            done = ended([program, *arguments], PROGRAM_DEADLINE_SECONDS)
            if done.code != 0:
                said = done.stderr.replace(f"{ROOT}/", "").splitlines()
                return f"{name}: {said[0] if said else ending(done)}"
    return ""


def python_failure(mutation: Mutation | None, folder: Path) -> str:
    """Return the test that fails first with a mutation of Python; empty: none."""
    source = folder / "src"
    shutil.copytree(ROOT / "src", source)
    if mutation is not None:
        path, text = mutation.changed_file(source / "volcache")
        path.write_text(text)
    return first_failure(source, folder)


def c_failure(objects: Objects, mutation: Mutation | None, folder: Path) -> str:
    """Return the test or program that fails first with a mutation of C; empty: none."""
    source = folder / "src"
    shutil.copytree(ROOT / "src", source)
    names = dict.fromkeys(test for one in MUTATIONS["c"] for test in one.tests)
    if mutation is not None:
        path, text = mutation.changed_file(source / "volcache")
        path.write_text(text)
        names = dict.fromkeys(mutation.tests)
    objects = objects.within(source, folder, changed=mutation.file if mutation else "")
    failed = first_failed_program(objects, [name for name in names if "/" not in name])
    paths = [name for name in names if "/" in name]
    if failed or not paths:
        return failed
    objects.extensions()
    for name in ("tests", "tools", "conf", "docs"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return first_failure(source, folder, paths, folder=folder)


class Trial(NamedTuple):
    """A mutation to be tested, or the unchanged sources."""

    language: str
    failure: Callable[[Path], str]  # What fails first, in a folder of its own.
    mutation: Mutation | None = None


def judge(trial: Trial) -> tuple[str, str]:
    """Print what becomes of a trial; return its language and the word it is counted by."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            failed = trial.failure(Path(folder))
        except (NotFoundError, RuntimeError) as error:
            failed, word = f"cannot be tested: {error}", "not tested"
        else:
            word = "noticed" if failed else "NOT NOTICED"
    fault = f"{trial.language}: unchanged"
    if trial.mutation is None:
        word = "unchanged" if word == "NOT NOTICED" else "unchanged fails"
        failed = failed or "all tests pass"
    else:
        fault = trial.mutation.fault
        if not failed and trial.mutation.survives:
            failed, word = trial.mutation.survives, "with a reason"
    verdict = "ok" if word in GOOD else "BAD"
    print(f"{verdict:4} {fault}: {failed or word}", flush=True)  # noqa: T201
    return trial.language, word


def trials(languages: Sequence[str], folder: Path) -> list[Trial]:
    """Return what is to be tested; `folder` is for what is built once."""
    failures = {"python": python_failure}
    if "c" in languages:
        failures["c"] = partial(c_failure, Objects.of(ROOT / "src", folder))
    return [
        Trial(language, partial(failures[language], one), one)
        for language in languages
        for one in (None, *MUTATIONS[language])
    ]


def main(arguments: Sequence[str]) -> int:
    """Test each mutation of Python, C or both; 0 if all are noticed or have a reason."""
    languages = arguments or ("python", "c")
    if not {"python", "c"}.issuperset(languages):
        print("usage: mutations.py [python|c]", file=sys.stderr)  # noqa: T201
        return 2
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(JOBS) as pool:
        words = Counter(pool.map(judge, trials(languages, Path(folder))))
    counts = [
        f"{language}: "
        + ", ".join(f"{n} {word}" for (of, word), n in words.items() if of == language)
        for language in languages
    ]
    print("; ".join(counts))  # noqa: T201
    return 0 if GOOD.issuperset(word for _, word in words) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
