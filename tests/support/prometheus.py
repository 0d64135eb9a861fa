"""A Prometheus server with our rules, and the exporter of nginx's metrics."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import requests

from support.fetched import fetched_program
from support.nginx import SOURCE
from support.ports import pick_port
from support.program import Program

CONF: Final = Path(__file__).resolve().parents[2] / "conf" / "prometheus"
_EXPORTER: Final = "127.0.0.1:9113"  # in scrape.yml
_STATUS: Final = "127.0.0.1:8089"  # in status.conf


def status_text(port: int) -> str:
    """Return nginx's `status.conf` with its lines enabled, at another port."""
    text = (SOURCE / "volcache" / "status.conf").read_text()
    before, server, behind = text.partition("# server {")
    assert server
    assert f"listen {_STATUS};" in behind
    enabled = re.sub(r"^# ", "", server + behind, flags=re.MULTILINE)
    return before + enabled.replace(_STATUS, f"127.0.0.1:{port}")


class Exporter(Program):
    """Reads the status of nginx at a port."""

    def __init__(self, status_port: int) -> None:
        """Choose a port; skip the test if there is no such program."""
        super().__init__()
        self.port = pick_port()
        self._program = fetched_program("prometheus-nginx-exporter")
        self._status = f"http://127.0.0.1:{status_port}/-/nginx/status"

    def command(self) -> Sequence[str | Path]:
        """Return the command of `status.conf`, with an address of our own."""
        return [
            self._program,
            *("-nginx.scrape-uri", self._status),
            *("-web.listen-address", f"127.0.0.1:{self.port}"),
        ]

    def answers(self) -> bool:
        """Whether it has metrics."""
        try:
            answer = requests.get(f"http://127.0.0.1:{self.port}/metrics", timeout=1)
        except requests.ConnectionError:
            return False
        return "nginx_up" in answer.text


class Prometheus(Program):
    """Reads targets every second, with `scrape.yml` and `alerts.yml`."""

    def __init__(
        self, folder: Path, targets: list[dict[str, Any]], exporter_port: int
    ) -> None:
        """
        Write its files; skip the test if there is no such program.

        Args:
            folder: Created.
            targets: The contents of the file of targets.
            exporter_port: Of nginx's metrics.
        """
        super().__init__()
        self.port = pick_port()
        self._program = fetched_program("prometheus")
        self._folder = folder
        folder.mkdir()
        shutil.copy(CONF / "alerts.yml", folder)
        (folder / "volcache.json").write_text(json.dumps(targets))
        text = (CONF / "scrape.yml").read_text()
        assert "files: [volcache.json]" in text
        assert _EXPORTER in text
        often = "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        text = often + text.replace(_EXPORTER, f"127.0.0.1:{exporter_port}")
        (folder / "prometheus.yml").write_text(text)

    def command(self) -> Sequence[str | Path]:
        """Return the command."""
        return [
            self._program,
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=warn",
        ]

    def answers(self) -> bool:
        """Whether it is ready."""
        try:
            url = f"http://127.0.0.1:{self.port}/-/ready"
            return requests.get(url, timeout=1).ok
        except requests.ConnectionError:
            return False

    def ask(self, path: str, **query: str) -> Any:
        """Return what its API answers."""
        answer = requests.get(
            f"http://127.0.0.1:{self.port}/api/v1/{path}", query, timeout=10
        )
        found = answer.json()
        assert found["status"] == "success", found
        return found["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an expression at this moment."""
        found: list[dict[str, Any]] = self.ask("query", query=expression)["result"]
        return found
