"""Files that are written whole, and what is never replaced by one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from purine.errors import ConfigError
from purine.files import write_whole
from purine.graph import save_yaml
from purine.trace.trace import Trace
from purine.zoo import mlp
from tests.command import call, tree

WRITERS: dict[str, Callable[[Path], object]] = {
    "write_whole": lambda path: write_whole(path, "text"),
    "a graph": lambda path: save_yaml(mlp(4), path),
    "a trace": lambda path: Trace((), ()).save(path),
    "purine show": lambda path: call("show", "--net", "mlp", "-o", path),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_links_stay_and_what_they_point_to_is_written(
    tmp_path: Path, write: Callable[[Path], object]
) -> None:
    (tmp_path / "there").mkdir()
    for name, old in (("old", "before"), ("new", None)):
        target, link = tmp_path / "there" / name, tmp_path / name
        link.symlink_to(Path("there") / name)
        if old is not None:
            target.write_text(old)
        write(link)
        assert link.is_symlink()
        assert target.read_text() not in ("", old)
    assert tree(tmp_path) == ["new", "old", "there", "there/new", "there/old"]


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_pipe_is_written_to(tmp_path: Path, write: Callable[[Path], object]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reader.start()
    write(pipe)
    assert pipe.is_fifo()
    reader.join(timeout=60)
    assert got != [""]
    assert tree(tmp_path) == ["pipe"]


def test_what_cannot_be_written_stays(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    for path in (loop, tmp_path, tmp_path / "none" / "file"):
        with pytest.raises(ConfigError, match="cannot write the file"):
            write_whole(path, "text")
    assert tree(tmp_path) == ["loop"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    file, none = tmp_path / "file", tmp_path / "none"
    file.touch()
    for folder in (none, file):
        called = call("show", "--net", "mlp", "-o", folder / "net.txt")
        assert called.code == 2
        assert f"{folder}/net.txt: cannot write the file" in called.err
        assert f"found: no folder {folder}\n" in called.err
        assert "make the folder, or choose another path" in called.err
        assert ".tmp" not in called.err
    with pytest.raises(ConfigError) as caught:
        write_whole(tmp_path, "text")
    assert caught.value.found == "Is a directory"
