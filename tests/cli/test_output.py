"""Standard output that breaks, and what is shown while a job runs."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import pty
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from purine.cli import main, views
from purine.cli.output import Output
from purine.cli.progress import Signals, stop_signals
from purine.cli.views import Bar, Lines, view_on
from tests.cli.runs import SMALL
from tests.command import call
from tests.forked import python, start

ROOT = Path(__file__).parents[2]
LONG = (*SMALL, "--iters", "1000000", "--test-every", "20", "--save-every", "1000000")


@contextlib.contextmanager
def closed_after_a_line() -> Iterator[int]:
    """The end to write to of a pipe that is read like `| head -1` does."""

    def head() -> None:
        with open(reader) as lines:
            lines.readline()

    reader, writer = os.pipe()
    thread = threading.Thread(target=head)
    thread.start()
    try:
        yield writer
    finally:
        os.close(writer)
        thread.join()


@contextlib.contextmanager
def full() -> Iterator[int]:
    with open("/dev/full", "w") as file:
        yield file.fileno()


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("output", "found"),
    [
        (closed_after_a_line, "the pipe was closed by its reader"),
        (full, "No space left on device"),
    ],
)
def test_a_training_without_its_output_stops_with_a_checkpoint(
    tmp_path: Path, output: Callable[[], AbstractContextManager[int]], found: str
) -> None:
    out = tmp_path / "a b"
    with output() as stdout:
        done = python("-m", "purine", *LONG, "--out", out, stdout=stdout)
    assert done.returncode == 2
    assert "error: cannot write the output; the run stopped at iteration" in done.stderr
    assert f"found: {found}" in done.stderr
    assert f"purine train --resume --out '{out}'" in done.stderr
    assert "Traceback" not in done.stderr
    assert list((out / "checkpoints").glob("0*"))


def without_output(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = f"{shlex.join([sys.executable, '-m', 'purine', *arguments])} >&-"
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, cwd=ROOT, timeout=300
    )


@pytest.mark.multiprocess
def test_without_an_output_a_training_goes_on_and_others_end(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = without_output(*SMALL, "--iters", "2", "--out", str(out))
    assert (done.returncode, (out / "summary.json").exists()) == (0, True)
    assert done.stderr == f"note: there is no standard output; see {out}/metrics.jsonl\n"
    done = without_output("show", "--net", "lenet")
    assert done.returncode == 2
    assert "found: there is no standard output" in done.stderr


@pytest.mark.multiprocess
def test_the_bar_is_gone_after_an_interrupt(tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    process = start(
        *("-m", "purine", *LONG, "--out", tmp_path / "out"),
        streams=(terminal, terminal, terminal),
        env={"TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(terminal)
    shown, interrupted = b"", False
    with contextlib.suppress(OSError):  # what reading gives when the other end is closed
        while data := os.read(controller, 65536):
            shown += data
            if b", accuracy 0." in shown and not interrupted:
                interrupted = True  # a second one would stop it at once
                os.kill(process.pid, signal.SIGINT)
    assert process.wait() == 130
    os.close(controller)
    assert b"reading the data and building the graphs" in shown
    assert b"0:00:0" in shown  # the time that passed
    assert b"\r\x1b[2Kstopping after the iterations in flight" in shown  # the line of the bar
    assert shown.rstrip().endswith(b"\x1b[2K")  # erased at the end as well


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(view_on(Output(Terminal())), Lines)
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(view_on(Output(Terminal())), Bar)
    assert isinstance(view_on(Output(io.StringIO())), Lines)


def test_a_stage_that_takes_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream(io.StringIO):
        def flush(self) -> None:
            told.set()

    told = threading.Event()
    monkeypatch.setattr(views, "_STAGE_SECONDS", 0.0)
    stream = Stream()
    with Lines(Output(stream)) as lines:
        lines.stage("reading")
        assert told.wait(60)
    assert stream.getvalue().startswith("reading: 0 s so far\n")


def test_a_write_that_fails_is_kept_and_later_ones_are_dropped() -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            if self.getvalue().count("\n") > 1:
                raise OSError(errno.ENOSPC, "full")

    stream = Full()
    output = Output(stream)
    for line in ("one", "two", "three"):
        output.print(line)
    assert output.error is not None
    assert output.error.errno == errno.ENOSPC
    assert stream.getvalue() == "one\ntwo\n"


def test_sighup_is_left_to_nohup_and_does_not_count_twice() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    signals = Signals()
    signals.handle(signal.SIGHUP, None)
    signals.handle(signal.SIGHUP, None)  # the second of another signal would end the process
    assert signals.received == [signal.SIGHUP]


NAMED = """\
- {type: blob, name: x, size: [2]}
- {type: op, op_type: Relu, name: 网, inputs: [x], outputs: [y]}
"""


def test_names_that_a_terminal_has_no_codes_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "net.yaml"
    file.write_text(NAMED, encoding="utf-8")
    for form, code, text in (("table", 0, b"\\u7f51"), ("yaml", 2, b"")):
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, "latin-1")
        with (
            contextlib.redirect_stdout(stream),
            pytest.raises(SystemExit) as ended,
        ):
            main(["show", str(file), "--format", form])
        assert ended.value.code == code
        assert text in raw.getvalue()
    assert "found: latin-1" in capfd.readouterr().err


@pytest.mark.parametrize("other", ["same", "relative", "link", "hard link", "around"])
def test_an_output_that_is_its_own_input(
    tmp_path: Path, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text, command in (
        ("net.yaml", NAMED, ["show", "--format", "yaml"]),
        ("net.prototxt", 'layer { name: "a" type: "ReLU" }', ["import", "caffe"]),
    ):
        file, link = tmp_path / name, tmp_path / f"link-{name}"
        file.write_text(text, encoding="utf-8")
        if other == "link":
            link.symlink_to(file)
        elif other == "hard link":
            os.link(file, link)
        around = f"../{tmp_path.name}/{name}"
        names = {"same": str(file), "relative": name, "around": around}
        called = call(*command, file, "-o", names.get(other, str(link)))
        assert called.code == 2
        assert "the output would replace its own input" in called.err
        assert file.read_text(encoding="utf-8") == text


def test_commands_in_messages_are_quoted(tmp_path: Path) -> None:
    out = tmp_path / "a b"
    assert call(*SMALL, "--iters", "1", "--out", out).code == 0
    called = call("train", "--resume", "--out", out)
    assert f"purine train --resume --out '{out}' --iters 2" in called.out


def test_a_topology_alone_is_of_replicas() -> None:
    words = ("--devices", "cpu:0-1", "--share-cores", "--dry-run", "--parallel")
    assert "on 2 devices (data=2,topology=ring)" in call(*SMALL, *words, "topology=ring").out
    called = call(*SMALL, *words, "data=1,topology=ring")
    assert "the scheme is for 1 devices, and 2 are named" in called.err


def test_batches_read_ahead_have_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("purine.machine.capacity.available_memory", lambda device: 20_000_000)
    called = call(*SMALL, "--dry-run", "--prefetch", "1000")
    assert called.code == 2
    assert "1000 batches that are read ahead do not fit into memory" in called.err
    assert call(*SMALL, "--dry-run", "--prefetch", "100").code == 0
