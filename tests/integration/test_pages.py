"""
The commands and examples of the documents are run, and print what is shown.

All of a page run in one shell, in a folder that has what they name of the tree. Addresses
are replaced by those of instances that the test started, and /etc and the like by folders.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Final

import pytest

from support.nginx import Nginx, instances_text
from support.pages import PAGES, ROOT, Block, blocks
from support.ports import pick_port
from support.process import ADMIN_TOKEN, Servers

pytestmark = [pytest.mark.integration, pytest.mark.slow]

# Their examples need more than that; their own tests run them.
OTHERS: Final = {"PYTHON.md", "ADAPTERS.md", "RECIPES.md", "MIGRATING.md"}
COPIED: Final = ("conf", "nginx", "tests/golden")
LINKED: Final = (".venv", "README.md", "docs", "src", "tools")
# What the pages call an instance, nginx in front of them, and any other port.
INSTANCE: Final = re.compile(r"(?:127\.0\.0\.1|10\.0\.0\.\d+):123\d\b")
FRONT: Final = re.compile(r"(?:127\.0\.0\.1|cache\.example):8080\b")
PORT: Final = re.compile(r"(?<=127\.0\.0\.1:)\d{4,5}\b|(?<=[Pp]ort=|PORT=)\d{4,5}\b")
SYSTEM: Final = re.compile(r"(?<![\w./-])(?=/(?:etc|srv|var|opt)/)")
DAY: Final = re.compile(r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d+ \w+ \d+")
FIGURE: Final = re.compile(
    r"(?<!\S)-(?!\S)|[0-9a-f]*\d[0-9a-f.,:]*(?:\s?(?:[KMGT]i?B?|B|[µm]?s|k|%)(?!\w))?"
)
# What would change the machine: such a block is to be marked as one that is not run.
UNSAFE: Final = re.compile(r"\b(?:sudo|systemctl|u?mount|useradd|apt-get|docker)\s")


def is_run(block: Block) -> bool:
    """Whether a block has commands, or is an example that stands alone."""
    return block.language in {"console", "python"} and not block.reason


each_page = pytest.mark.parametrize(
    "page",
    [one for one in PAGES if one.name not in OTHERS and any(map(is_run, blocks(one)))],
    ids=lambda page: str(page.name),
)


def shape(text: str) -> str:
    """Return a text without what differs each time: dates, figures and spaces."""
    return " ".join(FIGURE.sub("0", DAY.sub("0", text)).split())


def is_shown(printed: str, shown: str) -> bool:
    """Whether a page shows what a command has printed; `…` is any text."""
    parts = [re.escape(part.strip()) for part in shape(shown).split("…")]
    return re.fullmatch(r"\s*.*?\s*".join(parts), shape(printed), re.DOTALL) is not None


def as_commands(block: Block) -> list[tuple[str, str]]:
    """Return the commands of a block, each with what it prints; "" is not compared."""
    if block.language == "python":
        return [(f"python - <<'END'\n{block.text}END\n", "")]
    return block.commands()


class Stage:
    """A folder with the instances that a page names, which are started."""

    def __init__(self, folder: Path, servers: Servers, stack: ExitStack) -> None:
        """Copy and link what commands name of the tree."""
        self.folder = folder
        self._servers = servers
        self._stack = stack
        self._addresses: dict[str, str] = {}
        for name in COPIED:
            shutil.copytree(ROOT / name, folder / name)
        for name in LINKED:
            (folder / name).symlink_to(ROOT / name)
        # As on a terminal, which shows no progress of short transfers.
        (folder / ".curlrc").write_text("no-progress-meter\n")
        shutil.copytree(ROOT / "nginx" / "volcache", folder / "etc/nginx/volcache")
        shutil.copytree(ROOT / "tests/golden/v2/healthy", folder / "srv/volcache/1234")

    def start(self, page: str) -> None:
        """Start what a page names, unless it starts its instances itself."""
        if "<!-- run: alone -->" in page:
            return
        for name in {"127.0.0.1:1234", *INSTANCE.findall(page)}:
            server = self._stack.enter_context(self._servers.server())
            self._addresses[name] = f"127.0.0.1:{server.port}"
        instances = list(self._addresses.values())
        text = instances_text(instances)
        (self.folder / "etc/nginx/volcache/instances.conf").write_text(text)
        if names := set(FRONT.findall(page)):
            nginx = Nginx(self.folder / "front", instances)
            self._stack.enter_context(nginx)
            # Where `make cluster` has it.
            (self.folder / "cluster").mkdir()
            (self.folder / "cluster/nginx").symlink_to(nginx.folder)
            self._addresses |= dict.fromkeys(names, f"127.0.0.1:{nginx.port}")

    def placed(self, commands: str) -> str:
        """Return commands with the addresses and folders of this stage."""
        for name, address in self._addresses.items():
            commands = commands.replace(name, address)
        for port in set(PORT.findall(commands)) - {
            address.partition(":")[2] for address in self._addresses.values()
        }:
            commands = re.sub(rf"\b{port}\b", str(pick_port()), commands)
        return SYSTEM.sub(str(self.folder), commands)

    def run(self, commands: list[str]) -> list[tuple[str, str]]:
        """Run commands in one shell; return the exit code and the output of each."""
        script = "".join(f"{one}printf '\\0%s\\0' $?\n" for one in commands)
        script += "kill -KILL 0\n"  # Also what runs in the background.
        environment = {
            **os.environ,
            "PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}",
            "CURL_HOME": str(self.folder),
            "VOLCACHE_ADMIN_TOKEN": ADMIN_TOKEN,
            "VOLCACHE_TARGET": self._addresses.get("127.0.0.1:1234", ""),
        }
        with (self.folder / "output").open("w+b") as output:
            shell = subprocess.Popen(
                ["bash", "-c", self.placed(script)],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                shell.wait(120)
            except subprocess.TimeoutExpired:
                os.killpg(shell.pid, signal.SIGKILL)
                shell.wait()
            output.seek(0)
            printed = output.read().decode(errors="replace")
        parts = printed.replace(str(self.folder), "").split("\0")
        return list(zip(parts[1::2], parts[::2], strict=False))


def run_page(page: Path, folder: Path, servers: Servers) -> None:
    """Run a page; fail if a command fails, or prints something else than is shown."""
    commands = [
        command
        for block in blocks(page)
        if is_run(block)
        for command in as_commands(block)
    ]
    assert not [command for command, _ in commands if UNSAFE.search(command)]
    with ExitStack() as stack:
        stage = Stage(folder, servers, stack)
        stage.start(page.read_text("utf-8"))
        done = stage.run([command for command, _ in commands])
    assert len(done) == len(commands), f"{commands[len(done)][0]}does not end"
    for (command, shown), (code, printed) in zip(commands, done, strict=True):
        assert code == "0", f"{command}{printed}exit code {code}"
        if shown:
            assert is_shown(printed, shown), (
                f"{command}{printed}is not as shown:\n{shown}"
            )


def test_page_that_is_wrong_is_found(tmp_path: Path, servers: Servers) -> None:
    """A command that fails, prints something else, or would change the machine."""
    cases = {
        "$ echo a 1.5 KiB c\na 20 MiB …\n$ ls /etc/nginx/volcache/listen.conf\n": "",
        "$ false\n": "exit code 1",
        "$ echo a\nb\n": "not as shown",
        "$ sudo true\n": "sudo",
    }
    for number, (lines, error) in enumerate(cases.items()):
        page = tmp_path / f"{number}.md"
        page.write_text(f"<!-- run: alone -->\n```console\n{lines}```\n")
        (tmp_path / str(number)).mkdir()
        with pytest.raises(AssertionError, match=error) if error else nullcontext():
            run_page(page, tmp_path / str(number), servers)


@pytest.mark.sampled(4)
@each_page
def test_commands_of_a_sample_of_pages(
    page: Path, tmp_path: Path, servers: Servers
) -> None:
    """Each day other pages."""
    run_page(page, tmp_path, servers)


@pytest.mark.nightly
@each_page
def test_commands_of_every_page(page: Path, tmp_path: Path, servers: Servers) -> None:
    """And their examples in Python."""
    run_page(page, tmp_path, servers)
