"""The live page: only for those who know its token, and telling why a run is stuck."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from purine.job.status import Status, answering
from purine.viewer.live import live_page
from purine.viewer.serve import Server
from purine.viewer.watch import Watch
from tests.command import call
from tests.viewer.conftest import Opens

pytestmark = pytest.mark.slow

CHAIN = "conv2 <- conv1/weight <- update/conv1/weight <- host1, iteration 7"

ANSWERS_FOREVER = """
import torch
from purine.viewer import serve

class Busy:
    ended = False

    def page(self):
        values = torch.ones(200, 200)
        while True:
            values = torch.mm(values, values)

serve.Server.watch = Busy()
serve.main()
"""
"""A server whose threads are in native code when the job ends."""


@pytest.fixture
def folder(run: Path, tmp_path: Path) -> Path:
    """A copy of the run, in which files may change."""
    return Path(shutil.copytree(run, tmp_path / "run"))


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    with Server(folder) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def answer(server: Server, path: str, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, body


def test_only_the_address_that_was_printed_is_answered(server: Server) -> None:
    state = f"/state?token={server.token}"
    assert server.server_address[0] == "127.0.0.1"
    assert answer(server, state)[0] == 200
    assert answer(server, state, Host=f"localhost:{server.server_port}")[0] == 200
    for path in ("/", "/?token=", "/state?token=x", f"/document?token={server.token}x"):
        assert answer(server, path)[0] == 403
    strangers = (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Host": "evil.example"},
        {"Host": f"evil.example:{server.server_port}"},
        {"Sec_Fetch_Site": "cross-site"},
    )
    for headers in strangers:
        status, body = answer(server, state, **headers)
        assert status == 403
        assert body.startswith(b"refused")
    assert answer(server, f"/../config.yaml?token={server.token}")[0] == 404


def test_ten_viewers_get_the_page_and_one_that_never_reads_holds_nobody_up(server: Server) -> None:
    address = urlsplit(server.address)
    deaf = []
    for _ in range(5):
        connection = socket.create_connection(("127.0.0.1", server.server_port))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(
            f"GET /document?{address.query} HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode()
        )
        deaf.append(connection)
    silent = socket.create_connection(("127.0.0.1", server.server_port))
    with ThreadPoolExecutor(10) as viewers:
        asked = [viewers.submit(answer, server, f"/document?{address.query}") for _ in range(10)]
        answers = [one.result() for one in asked]
    assert {status for status, _ in answers} == {200}
    first: Any = json.loads(answers[0][1])
    assert first["parts"][0]["timeline"]["count"] > 300
    assert len({body for _, body in answers}) == 1
    for connection in (*deaf, silent):
        connection.close()


def test_a_live_page_shows_new_metrics_and_what_a_stuck_run_waits_for(
    server: Server, folder: Path, opens: Opens
) -> None:
    status = Status(7, (CHAIN,), ("host1",))
    with answering(folder, "127.0.0.1", lambda: status), opens(server.address) as opened:
        opened.click(".status summary:has-text('7 of 8 iterations')")
        opened.wait_for_selector(f".status >> text={CHAIN}")
        assert "7 of 8 iterations" in opened.inner_text(".status")
        before = opened.get_attribute("figure:has-text('Loss') svg", "aria-label")
        with open(folder / "metrics.jsonl", "a") as file:
            file.write('{"iteration": 9, "epoch": 1, "loss": 77.5, "lr": 0.01}\n')
        opened.wait_for_selector("figure:has-text('Loss') svg[aria-label*='77.5']")
        assert "77.5" not in before
        server.end()
        opened.wait_for_selector(".status >> text=The run has ended.")


def test_a_live_page_tells_how_far_the_run_is_and_what_was_last_known(
    server: Server, opens: Opens
) -> None:
    news = {"rows": 0, "version": 0, "iteration": 7, "stuck": 1.0, "ended": False}
    host = {"host": "host1", "fresh": True, "status": {"iteration": 7, "does": [CHAIN]}}
    with opens(server.address) as opened:
        opened.route("**/state?*", lambda route: route.fulfill(json={**news, "hosts": [host]}))
        opened.click(".status summary:has-text('7 of 8 iterations')")
        opened.route("**/state?*", lambda route: route.fulfill(json=None))
        opened.wait_for_selector(".status >> text=The run does not answer")
        assert opened.is_visible(f".status >> text={CHAIN}")


def test_a_stuck_run_shows_at_once_what_its_hosts_wait_for(server: Server, opens: Opens) -> None:
    news = {"rows": 0, "version": 0, "iteration": 7, "stuck": 1.0, "ended": False}
    host = {"host": "host1", "fresh": True, "status": {"iteration": 7, "does": [CHAIN]}}
    with opens(server.address) as opened:
        opened.route("**/state?*", lambda route: route.fulfill(json={**news, "hosts": [host]}))
        opened.wait_for_selector(".status summary:has-text('host1 iteration 7')")
        assert not opened.is_visible(f".status >> text={CHAIN}")
        news["stuck"] = 12.0
        opened.wait_for_selector(f".status >> text={CHAIN}")
        assert "Nothing was completed" in opened.inner_text(".status [role=status]")
        opened.click(".status summary")  # it stays as the reader wants it
        news["stuck"] = 13.0
        opened.wait_for_selector(".status summary:has-text('13 s')")
        assert not opened.is_visible(f".status >> text={CHAIN}")


def test_viewers_share_one_reading_of_the_metrics_until_the_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, now = Watch(folder, "token"), [100.0]
    monkeypatch.setattr("purine.viewer.watch.time.monotonic", lambda: now[0])
    first: Any = watch.curves()
    metrics = folder / "metrics.jsonl"
    with metrics.open("a") as file:
        file.write('{"iteration": 9999, "loss": 0.5, "lr": 0.1}\n')
    assert watch.curves() is first
    now[0] += 1.5
    second: Any = watch.curves()
    assert second["curves"]["training"]["iteration"][-1] == 9999
    assert second["rows"] == metrics.stat().st_size
    watch.ended = True
    assert watch.curves() is not second  # what came last is shown
    assert watch.curves() is watch.curves()


def test_the_server_ends_with_the_job(folder: Path) -> None:
    with live_page(folder) as address:
        place = urlsplit(address)
        connection = http.client.HTTPConnection(place.netloc, timeout=20)
        connection.request("GET", "/")
        assert connection.getresponse().status == 403
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", place.port or 0))


def test_the_server_ends_in_silence_while_it_answers(folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ANSWERS_FOREVER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    place = urlsplit(process.stdout.readline().strip())
    viewers = [http.client.HTTPConnection(place.netloc, timeout=20) for _ in range(4)]
    for viewer in viewers:
        viewer.request("GET", f"/?{place.query}")
    process.stdin.close()
    assert process.wait(60) == 0
    assert process.stderr.read() == ""
    for viewer in viewers:
        viewer.close()
    process.stdout.close()
    process.stderr.close()


def test_train_tells_the_address_and_only_if_asked(tmp_path: Path) -> None:
    words = ["train", "--net", "mlp", "--data", "fashion-mini", "--batch", "8", "--iters", "2"]
    asked = call(*words, "--out", tmp_path / "a", "--live")
    assert asked.code == 0, asked.err
    assert "live: http://127.0.0.1:" in asked.out
    assert "http://" not in call(*words, "--out", tmp_path / "b").out
