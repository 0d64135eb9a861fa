"""The Dockerfile is understood, and agrees with the rest of the project."""

from __future__ import annotations

import tomllib
from pathlib import Path

from dockerfile import Step, expand, parse
from volcache.config import Sources

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "conf/image/Dockerfile").read_text()


def last(keyword: str) -> Step:
    """Return the last instruction of a kind in the stage that is the image."""
    step = parse(TEXT)[-1].last(keyword)
    assert step is not None
    return step


def test_stages_have_the_same_base() -> None:
    """The virtual environment of the one is used by the Python of the other."""
    assert [(stage.base, stage.name) for stage in parse(TEXT)] == [
        ("debian:bookworm-slim", "python"),
        ("python", "build"),
        ("python", ""),
    ]
    assert parse(TEXT, {"BASE": "debian:13", "OTHER": "x"})[0].base == "debian:13"


def test_image_needs_no_pip() -> None:
    """It is installed in the stage that is not the image."""
    python, build, final = parse(TEXT)
    for stage in (python, build, final):
        text = " ".join(step.text for step in stage.steps if step.keyword == "RUN")
        assert ("pip" in text) == (stage is build)
        assert "gcc" not in text


def test_build_gets_what_it_copies_and_nothing_else() -> None:
    """No data, no tokens, and no sources: a wheel, and the versions it was tested with."""
    copies = [s for stage in parse(TEXT) for s in stage.steps if s.keyword == "COPY"]
    context, inner = copies
    ignored = (ROOT / "conf/image/Dockerfile.dockerignore").read_text().splitlines()
    assert [line for line in ignored if not line.startswith("#")] == [
        "*",
        *(f"!{source}" for source in context.words()[:-1]),
    ]
    assert context.words()[:-1] == ["requirements.txt", "dist/*.whl"]
    assert inner.options == {"from": ["build"]}
    assert inner.words() == ["/opt/volcache"] * 2


def test_wheel_never_comes_from_an_index() -> None:
    """A package of the same name there is not installed."""
    (text,) = [s.text for s in parse(TEXT)[1].steps if "pip install" in s.text]
    first, second = text.split("$pip install")[1:]
    assert "--no-index --no-deps" in first
    assert '"volcache==${VERSION}" "volcache-client==${VERSION}"' in first
    assert '"volcache[server,tools]==${VERSION}"' in second
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"server", "tools"} <= project["optional-dependencies"].keys()


def test_secrets_are_those_of_the_manual() -> None:
    """Certificates, and a pip.conf that may have a password."""
    (step,) = [s for stage in parse(TEXT) for s in stage.steps if "mount" in s.options]
    manual = (ROOT / "docs" / "IMAGE.md").read_text()
    for name in ("ca", "pip"):
        assert f"type=secret,id={name}" in step.options["mount"]
        assert f"[ -e /run/secrets/{name} ]" in step.text
        assert f"--secret id={name},src=" in manual


def test_labels_say_where_the_image_is_from() -> None:
    """Each is an argument of the build."""
    labels = last("LABEL").pairs()
    names = {s.text for s in parse(TEXT)[-1].steps if s.keyword == "ARG"}
    for name in ("source", "revision", "version"):
        assert labels[f"org.opencontainers.image.{name}"] == f"${{{name.upper()}}}"
        assert name.upper() in names


def test_settings_of_the_image_are_valid() -> None:
    """It listens on all addresses, and keeps its data in the volume."""
    config = Sources(None, last("ENV").pairs()).load()
    assert (config.ip, config.mount_point) == ("0.0.0.0", "/data")  # noqa: S104
    for keyword in ("VOLUME", "WORKDIR"):
        assert last(keyword).words() == [config.mount_point]
    assert last("EXPOSE").words() == [str(config.port)]


def test_image_does_not_run_as_root() -> None:
    """The user is a number, and owns the folder of the volume."""
    number = last("USER").text.partition(":")[0]
    assert int(number) > 0
    text = " ".join(step.text for step in parse(TEXT)[0].steps if step.keyword == "RUN")
    assert f"useradd --uid {number} " in text
    assert "--owner=volcache --group=volcache --mode=0700 /data" in text


def test_process_of_the_image_gets_the_signals() -> None:
    """No shell is between; the entry point is the command line of the package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert last("ENTRYPOINT").argv()[0] in project["scripts"]
    assert last("CMD").argv() == ["serve"]
    assert last("STOPSIGNAL").text == "SIGTERM"


def test_lines_are_joined_without_their_comments() -> None:
    """As an engine reads them."""
    (stage,) = parse(
        "FROM ${A}\nRUN --network=none --mount=a --mount=b a \\\n# comment\n   && b\n"
        "ENV x=$y\n"
    )
    run, env = stage.steps
    assert (run.line, run.text, run.options) == (
        2,
        "a    && b",
        {"network": ["none"], "mount": ["a", "b"]},
    )
    assert env.pairs() == {"x": "$y"}
    assert expand("${y}/$y:$z", {"y": "1"}) == "1/1:"
