from __future__ import annotations

import gzip
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

import purine.data
from purine.data import Field, fashion_mini

FOLDER = Path(purine.data.__file__).parent / "fashion_mini"
FULL = Path("/usr/share/datasets/fashion-mnist")
SCRIPT = Path(__file__).parents[2] / "scripts" / "make_fashion_mini.py"


def test_counts_and_balance() -> None:
    data = fashion_mini()
    assert data.name == "fashion-mini"
    assert data.test is not None
    for source, count in ((data.train, 600), (data.test, 100)):
        assert source.fields == (Field("image", (1, 28, 28), "uint8"), Field("label", (), "int64"))
        assert source.classes == 10
        image, label = source.batch(np.arange(len(source)))
        assert label.bincount().tolist() == [count] * 10
        assert 70 < image.float().mean() < 76


def test_classes_are_mixed_in_the_order_of_the_file() -> None:
    _, label = fashion_mini().train.batch(np.arange(100))
    assert len(label.unique()) == 10


def test_origin_and_licence_lie_beside_the_files() -> None:
    assert "Zalando SE" in (FOLDER / "LICENSE").read_text()
    assert "make_fashion_mini.py" in (FOLDER / "README").read_text()


@pytest.mark.skipif(not FULL.is_dir(), reason="needs the full data set of dataset-fashion-mnist")
def test_the_script_makes_these_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["make_fashion_mini", str(FULL), "--out", str(tmp_path)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    made = sorted(tmp_path.iterdir())
    assert len(made) == 4
    for path in made:
        ours, again = (FOLDER / path.name).read_bytes(), path.read_bytes()
        assert again[:10] == ours[:10], "the gzip header holds neither date nor name"
        # another zlib may compress the same content to other bytes
        assert gzip.decompress(again) == gzip.decompress(ours)
