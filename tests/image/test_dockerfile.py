"""The Dockerfile is understood, and agrees with the rest of the project."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import image_health
from dockerfile import DockerfileError, Ignored, Stage, expand, parse
from image_check import project_files
from support.tables import each_row
from volcache.config import Sources

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text()
IGNORED = Ignored((ROOT / ".dockerignore").read_text())


def last_stage() -> Stage:
    """Return the stage that is the image."""
    return parse(TEXT)[-1]


def argv(keyword: str) -> list[str]:
    """Return the command of an instruction of the image."""
    step = last_stage().last(keyword)
    assert step is not None
    return step.argv()


def variables() -> dict[str, str]:
    """Return the environment of the image."""
    step = last_stage().last("ENV")
    assert step is not None
    return step.pairs()


def test_both_stages_have_the_same_base() -> None:
    """The virtual environment of the one is used by the Python of the other."""
    build, final = parse(TEXT)
    assert (build.name, build.base) == ("build", final.base)
    assert final.base == "debian:bookworm-slim"
    other = parse(TEXT, {"BASE": "debian:13", "OTHER": "x"})
    assert [stage.base for stage in other] == ["debian:13"] * 2


def test_every_source_of_a_copy_exists() -> None:
    """In the build context, or below the folder of the installation."""
    copies = 0
    for stage in parse(TEXT):
        for step in stage.steps:
            if step.keyword == "COPY":
                *sources, _ = step.words()
                for source in sources:
                    copies += 1
                    if "from" in step.options:
                        assert step.options == {"from": "build"}
                        name = source.removeprefix("/opt/volcache/")
                        assert name == ".venv" or (ROOT / name).exists()
                    else:
                        assert project_files(source, IGNORED)
    assert copies == 5


def test_build_gets_what_it_needs_and_nothing_else() -> None:
    """No data, no tokens, and nothing that was built for the Python of this machine."""
    files = project_files(".", IGNORED)
    needed = ["requirements.txt", "pyproject.toml", "setup.py", "LICENSE", "README.md"]
    needed += ["tools/setup.sh", "tools/image_health.py", "src/volcache/__init__.py"]
    needed += [
        "src/volcache/front/link.c",
        "src/volcache/store/_core/_native.pyx",
    ]
    assert set(needed) <= set(files)
    allowed = ("src/", "conf/", "nginx/", "systemd/", "tools/", "requirements")
    assert [f for f in files if "/" in f and not f.startswith(allowed)] == []
    for name in (
        "data/0",
        ".env",
        ".venv/bin/python",
        ".git/config",
        "tests/conftest.py",
    ):
        assert name in IGNORED
    for name in ("src/a/__pycache__/b.pyc", "src/volcache/store/_core/_native.x.so"):
        assert name in IGNORED


def test_packages_of_the_build_are_those_of_the_installation() -> None:
    """So that tools/setup.sh finds nothing missing."""
    script = (ROOT / "tools" / "setup.sh").read_text()
    (listed,) = re.findall(r"install_packages (python3 .*)$", script, re.MULTILINE)
    build = parse(TEXT)[0]
    (apt,) = [s.text for s in build.steps if "apt-get install" in s.text]
    words = apt.split("--no-install-recommends", 1)[1].split("&&")[0].split()
    assert sorted(words) == sorted(str(listed).split())
    assert any("tools/setup.sh run" in step.text for step in build.steps)


def test_settings_of_the_image_are_valid() -> None:
    """It listens on all addresses, and keeps its data in the volume."""
    config = Sources(None, variables()).load()
    assert (config.ip, config.mount_point) == ("0.0.0.0", "/data")  # noqa: S104
    for keyword in ("VOLUME", "WORKDIR"):
        step = last_stage().last(keyword)
        assert step is not None
        assert step.words() == [config.mount_point]
    exposed = last_stage().last("EXPOSE")
    assert exposed is not None
    assert exposed.words() == [str(config.port)] == [image_health.PORT]


def test_image_does_not_run_as_root() -> None:
    """The user is a number, and owns the folder of the volume."""
    user = last_stage().last("USER")
    assert user is not None
    number = user.text.partition(":")[0]
    assert int(number) > 0
    text = " ".join(step.text for step in last_stage().steps if step.keyword == "RUN")
    assert f"useradd --uid {number} " in text
    assert "--owner=volcache --group=volcache --mode=0700 /data" in text


def test_process_of_the_image_gets_the_signals() -> None:
    """No shell is between; the entry point is the command line of the package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert argv("ENTRYPOINT")[0] in project["scripts"]
    assert argv("CMD") == ["serve"]
    stop = last_stage().last("STOPSIGNAL")
    assert stop is not None
    assert stop.text == "SIGTERM"


def test_health_check_is_a_file_of_the_image() -> None:
    """Run by the Python of the image."""
    step = last_stage().last("HEALTHCHECK")
    assert step is not None
    assert step.options["interval"] == "10s"
    name = "/opt/volcache/tools/image_health.py"
    assert step.text == f'CMD ["python", "-I", "{name}"]'
    assert any(
        other.words()[-1] == name
        for other in last_stage().steps
        if other.keyword == "COPY"
    )


@each_row(
    ("text", "message"),
    [
        ("FROM a\nADD b c", "2: ADD is not understood; known are ARG, CMD, COPY"),
        ("RUN a", "1: RUN before the first FROM"),
        ("# only\n", "1: there is no FROM"),
        ("FROM a b", "1: write FROM image [AS name]"),
        ("FROM a\n\nRUN b \\\n  && c \\", "3: the last line ends with a backslash"),
        ("FROM a\nRUN cat <<E", "2: here-documents are not understood"),
        ("FROM a\nUSER", "2: nothing follows USER"),
    ],
)
def test_line_that_is_not_understood_is_an_error(text: str, message: str) -> None:
    """With its number."""
    with pytest.raises(DockerfileError, match=re.escape(message)):
        parse(text)


def test_words_that_are_not_understood_are_an_error() -> None:
    """A broken list, a command for a shell, a variable without a value."""
    (stage,) = parse('FROM a\nCMD ["x"\nCMD x y\nENV a\nLABEL "x')
    broken, shell, name, quote = stage.steps
    for step, call in (
        (broken, broken.words),
        (shell, shell.argv),
        (name, name.pairs),
        (quote, quote.pairs),
    ):
        with pytest.raises(DockerfileError, match=f"^{step.line}: "):
            call()
    with pytest.raises(DockerfileError, match="is not understood"):
        expand("a$(b)", {})


def test_lines_are_joined_without_their_comments() -> None:
    """As an engine reads them."""
    (stage,) = parse(
        "FROM ${A}\nRUN --network=none a \\\n# comment\n   && b\nENV x=$y\n"
    )
    run, env = stage.steps
    assert (run.line, run.text, run.options) == (2, "a    && b", {"network": "none"})
    assert env.pairs() == {"x": "$y"}
    assert expand("${y}/$y:$z", {"y": "1"}) == "1/1:"


@each_row(
    ("patterns", "path", "is_out"),
    [
        ("*", "a", True),
        ("*", "a/b", True),
        ("*\n!a", "a/b/c", False),
        ("*\n!a/b", "a/c", True),
        ("!a\n*", "a", True),
        ("**/*.so", "a/b.so", True),
        ("**/*.so", "b.so", True),
        ("*.so", "a/b.so", False),
        ("a?c", "abc", True),
        ("a?c", "a/c", False),
        ("/a/", "a/b", True),
        ("# a\n\na", "# a", False),
    ],
)
def test_last_pattern_that_matches_decides(
    patterns: str, path: str, *, is_out: bool
) -> None:
    """As in the reference of .dockerignore; a folder stands for what is in it."""
    assert (path in Ignored(patterns)) == is_out
