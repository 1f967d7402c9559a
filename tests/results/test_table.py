"""Predictions as a pandas table."""

import sys
from pathlib import Path

import pytest

import procon
from procon import Detector, ImageError, MissingExtraError
from tests.conftest import part_pixels


def test_a_table_has_a_row_for_every_image(detector: Detector, good_folder: Path) -> None:
    pandas = pytest.importorskip("pandas")
    results = [*detector.predict(good_folder), *detector.predict_each([part_pixels(1, defect=True), "absent.png"])]
    table = procon.to_pandas(results)
    assert len(table) == 10
    assert table.score[0] == results[0].score and table.source[0] == str(good_folder / "000.png")
    worst = table.iloc[8]
    assert worst.is_anomalous and worst.regions >= 1 and worst.relative_score > 1 and pandas.isna(worst.source)
    assert worst.largest_region == max(results[8].regions, key=lambda region: region.area).box
    assert isinstance(results[9], ImageError) and "absent.png: no such file" in table.error[9]
    assert list(procon.to_pandas(results[0]).score) == [results[0].score]
    assert list(procon.to_pandas([]).columns) == list(table.columns)


def test_without_pandas_the_pip_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'procon\[notebook\]'"):
        procon.to_pandas([])
