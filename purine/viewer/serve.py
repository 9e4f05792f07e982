"""The server of a live page: a process beside the job, which reads the job's folder.

It is a process of its own with a low priority, so that neither its work nor the interpreter's
lock delays the job, and a job that hangs is still shown. It imports nothing large before the first
request. It answers on 127.0.0.1 only, to clients that know the token, and to no page of another
origin. It ends when the job closes its standard input, also by dying.

    python -m purine.viewer.serve RUN
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from purine.viewer.watch import Watch

__all__ = ["Server", "main"]

_SECONDS = 10.0
"""For which a connection may ask nothing, or not read its answer."""
_CONNECTIONS = 64
_NICE = 10
"""The job goes first, and the page still opens where it keeps all cores busy."""
_FAREWELL = 3.0
"""Seconds for which viewers can still ask after the end of the job."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Server(ThreadingHTTPServer):
    """Serves the page of a run to clients that know the token."""

    daemon_threads = True

    def __init__(self, run: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.run = run
        self.token = secrets.token_urlsafe(24)
        self.asked = 0.0
        """When somebody with the token asked last."""
        self._free = threading.BoundedSemaphore(_CONNECTIONS)
        self._watch: Watch | None = None
        self._making = threading.Lock()

    @property
    def address(self) -> str:
        """The address to open in a browser."""
        return f"http://127.0.0.1:{self.server_port}/?token={self.token}"

    @property
    def watch(self) -> Watch:
        """The state of the run; the first request waits for the imports."""
        with self._making:
            if self._watch is None:
                from purine.viewer.watch import Watch

                self._watch = Watch(self.run, self.token)
            return self._watch

    def end(self) -> None:
        """Tell viewers that the job has ended."""
        if self._watch is not None:
            self._watch.ended = True

    def process_request(
        self, request: socket | tuple[bytes, socket], client_address: object
    ) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(
        self, request: socket | tuple[bytes, socket], client_address: object
    ) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """A viewer that disconnects is no error."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = _SECONDS

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        asked = parse_qs(url.query)
        refused = self._refusal(asked.get("token", [""])[0])
        if refused:
            self._send(HTTPStatus.FORBIDDEN, "text/plain", refused.encode())
            return
        self.server.asked = time.monotonic()
        watch = self.server.watch
        if url.path == "/":
            self._send(HTTPStatus.OK, "text/html", watch.page())
        elif url.path == "/document":
            self._send(HTTPStatus.OK, "application/json", watch.document())
        elif url.path == "/curves":
            self._send(HTTPStatus.OK, "application/json", json.dumps(watch.curves()).encode())
        elif url.path == "/state":
            self._send(HTTPStatus.OK, "application/json", json.dumps(watch.state()).encode())
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"there is nothing here\n")

    def _refusal(self, token: str) -> str:
        """Why a request is refused; empty if it is not. Other sites can ask, but not answer this.

        A foreign `Host` is that of a name that someone else let point at this machine.
        """
        names = {f"{name}:{self.server.server_port}" for name in ("127.0.0.1", "localhost")}
        if self.headers.get("Host") not in names:
            return "refused: open the address that the job printed\n"
        origin = self.headers.get("Origin")
        if origin is not None and origin not in {f"http://{name}" for name in names}:
            return "refused: another site asks\n"
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return "refused: another site asks\n"
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            return "refused: the address lacks the token that the job printed\n"
        return ""

    def _send(self, status: HTTPStatus, sort: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{sort}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the server must not write to the output of the job."""


def main() -> None:
    """Serve until standard input is closed; the first line of output is the address."""
    os.nice(_NICE)
    server = Server(Path(sys.argv[1]))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.address, flush=True)
    sys.stdin.buffer.read()
    server.end()
    if time.monotonic() - server.asked < _FAREWELL:
        time.sleep(_FAREWELL)
    os._exit(0)  # threads that answer may be in native code, which aborts when the interpreter ends


if __name__ == "__main__":
    main()
