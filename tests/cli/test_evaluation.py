"""Measuring from the command line: bench, eval, reproduce, and settings as flags."""

import csv
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from procon import ConfigError, Detector
from procon.cli import app
from procon.cli.flags import parse_settings, with_settings
from tests.conftest import tiny_config
from tests.evaluation.test_runs import make_category

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def procon(run: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Run `procon ARGS` in this process, in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    return run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sets") / "parts"
    make_category(root / "tubes", 0)
    make_category(root / "plate", 500)
    return root


@pytest.fixture
def shared(tiny_backbone: Path) -> list[str]:
    return ["--backbone", "dinov2-custom", "--weights", str(tiny_backbone), "--image-size", "70"]


@pytest.fixture
def small(shared: list[str]) -> list[str]:
    return [*shared, "--set", "layers=-1,-3", "--banks", "2", "--coreset-ratio", "0.3", "--set", "num_neighbors=3"]


def test_eval_measures_every_category_of_a_folder(
    procon: Command, data: Path, small: list[str], tmp_path: Path
) -> None:
    code, out, err = procon("eval", data, "-o", tmp_path / "run", *small)
    assert code == 0, err
    assert "plate" in out and "tubes" in out and "Mean" in out and "I-AUROC" in out
    assert f"next: procon report {tmp_path / 'run'}" in out
    rows = list(csv.DictReader((tmp_path / "run/tables/bench.csv").open()))
    assert [row["row"] for row in rows] == ["plate", "tubes", "Mean"]
    assert float(rows[2]["p_ap"]) == pytest.approx((float(rows[0]["p_ap"]) + float(rows[1]["p_ap"])) / 2)
    assert json.loads((tmp_path / "run/run.json").read_text())["dataset"] == "folder"
    again, out_again, _ = procon("eval", data, "-o", tmp_path / "run", *small)
    assert (again, out_again) == (0, out)


def test_eval_says_which_shape_each_category_got(procon: Command, data: Path, small: list[str], tmp_path: Path) -> None:
    auto = [word if word != "70" else "auto" for word in small]
    code, out, err = procon("eval", data, "-o", tmp_path / "run", "--categories", "tubes", *auto)
    assert code == 0, err
    assert "tubes: input of 70 x 84 pixels, from the proportions of its good images" in out
    again, out_again, _ = procon("eval", data, "-o", tmp_path / "run", "--categories", "tubes", *auto)
    assert (again, out_again) == (0, out)
    code, out, err = procon("bench", "folder", "--root", data, "--categories", "tubes", "--recipe", "fast", *auto)
    assert code == 0 and "tubes: input of 70 x 84 pixels" in out, err


def test_eval_counts_what_the_threshold_of_the_model_finds_before_any_metric(
    procon: Command, data: Path, small: list[str], tmp_path: Path
) -> None:
    code, out, err = procon("eval", data, "-o", tmp_path / "run", "--categories", "tubes", *small)
    assert code == 0, err
    lines = out.splitlines()
    weights, name = small[small.index("--weights") + 1], "banks=2+coreset_ratio=0.3+layers=-1,-3+num_neighbors=3"
    detector = Detector(tiny_config(Path(weights), banks=2), device="cpu").fit(data / "tubes" / "train" / "good")
    assert detector.calibration is not None
    assert lines[0].startswith(f"tubes: threshold {detector.calibration.threshold:.4f} (5 good images, leave-one-out)")
    found = {kind: detector.predict(data / "tubes" / "test" / kind) for kind in ("good", "square")}
    counts = {kind: sum(result.is_anomalous for result in results) for kind, results in found.items()}
    texts = " ".join(out.split())
    assert f"square {counts['square']} of 3 found" in texts
    assert f"good {counts['good']} of 3 flagged (false alarms)" in texts
    assert f"of 3 hit above the pixel threshold {detector.calibration.pixel_threshold:.4f}" in texts
    assert texts.count("best F1 that labels could choose") == 2
    assert out.index("found") < out.index("I-AUROC")

    raw = tmp_path / "run" / "raw" / "tubes" / f"{name}.npz"
    stamp = raw.stat().st_mtime_ns
    code, out, err = procon(
        "eval", data, "-o", tmp_path / "run", "--categories", "tubes", *small, "--set", "threshold_rule=guarantee"
    )
    assert code == 0, err
    assert raw.stat().st_mtime_ns == stamp
    guaranteed = detector.calibration.at_rate(0.01, "guarantee")
    assert guaranteed.describe()[0] in out
    assert json.loads((tmp_path / "run/run.json").read_text())["threshold"]["threshold_rule"] == "guarantee"


def test_bench_stores_scores_of_training_images_where_it_is_asked_to(
    procon: Command, data: Path, small: list[str], tmp_path: Path
) -> None:
    command = ("bench", "folder", "--root", data, "-o", tmp_path / "run", "--categories", "tubes", *small)
    code, out, err = procon(*command)
    assert code == 0, err
    assert "found" not in out
    code, out, err = procon(*command, "--verdicts", "--set", "false_alarm_rate=0.2")  # completes the run
    assert code == 0, err
    assert "of 3 found" in out


def test_bench_takes_a_name_categories_and_seeds(procon: Command, data: Path, small: list[str], tmp_path: Path) -> None:
    code, out, err = procon("bench", "folder", "--root", data, "--categories", "tubes", "--seeds", 2, *small)
    assert code == 0, err
    assert "±" in out and "plate" not in out
    assert {path.name for path in (tmp_path / "runs/folder/raw/tubes").iterdir()} == {
        "banks=2+coreset_ratio=0.3+layers=-1,-3+num_neighbors=3.npz",
        "bank_seed=100+banks=2+coreset_ratio=0.3+layers=-1,-3+num_neighbors=3.npz",
    }


def test_errors_say_what_to_do(
    procon: Command, data: Path, small: list[str], shared: list[str], tmp_path: Path
) -> None:
    for arguments, text in (
        (("bench", "imagenet", "--root", data), "dataset must be one of mvtec"),
        (("bench", "mvtec", "--root", tmp_path / "none"), "no such folder; check the path"),
        (("bench", "folder", "--root", data, "--categories", "cup"), "categories must be among plate, tubes"),
        (("reproduce", "figure", "--root", data, *shared), "the table must be one of main, ladder"),
        (("report", tmp_path), "holds no run (no run.json)"),
        (("eval", data, "--banks", "0"), "banks must be an integer of at least 1, got 0"),
    ):
        code, _, err = procon(*arguments)
        assert code == 2
        assert text in err
        assert "Traceback" not in err


def test_settings_that_a_run_would_ignore_are_refused_before_any_work(
    procon: Command, data: Path, small: list[str], shared: list[str], tmp_path: Path
) -> None:
    pad = "aspect must be 'stretch' in benchmark runs: their masks and maps fill the input, got 'pad'; use image_size"
    rate = (
        "false_alarm_rate must be 0.01 in benchmark runs without verdicts: their metrics use no threshold, got 0.2; "
        "add --verdicts"
    )
    for arguments, text in (
        (("bench", "folder", "--root", data, *small, "--set", "aspect=pad"), pad),
        (("eval", data, *small, "--set", "aspect=pad"), pad),
        (("reproduce", "banks", "--root", data, *shared, "--set", "aspect=pad"), pad),
        (("bench", "folder", "--root", data, *small, "--set", "false_alarm_rate=0.2"), rate),
    ):
        code, _, err = procon(*arguments, *(() if arguments[0] == "reproduce" else ("-o", tmp_path / "run")))
        assert code == 2
        assert text in " ".join(err.split())
    assert not (tmp_path / "run").exists() and not (tmp_path / "runs").exists()


def test_bench_keeps_the_bank_seed_that_was_given(
    procon: Command, data: Path, small: list[str], tmp_path: Path
) -> None:
    code, _, err = procon("eval", data, "-o", tmp_path / "run", "--categories", "tubes", "--set", "bank_seed=7", *small)
    assert code == 0, err
    assert [path.name.split("+")[0] for path in (tmp_path / "run/raw/tubes").iterdir()] == ["bank_seed=7"]


def test_reproduce_prints_and_writes_tables(procon: Command, tmp_path: Path, deep_backbone: Path) -> None:
    data = tmp_path / "tubes"
    make_category(data, 0, good=60)  # 1 % of fewer would leave banks without anchors for leaving one image out
    flags = ["--backbone", "dinov2-custom", "--weights", deep_backbone, "--image-size", "70"]
    code, out, err = procon("reproduce", "banks", "coreset", "--root", data, "-o", tmp_path / "run", *flags)
    assert code == 0, err
    assert "B = 5" in out and "density-biased pruning" in out
    rows = list(csv.DictReader((tmp_path / "run/tables/banks.csv").open()))
    assert [row["row"] for row in rows] == [f"B = {banks}" for banks in range(1, 6)]
    code, out, err = procon("reproduce", "protocol", "--root", data, "-o", tmp_path / "run", *flags)
    assert code == 0, err
    assert "Phase 4" in out or "not promoted" in out
    assert out.count("Phase 3") == 5
    assert (tmp_path / "run/tables/protocol.md").exists()


@pytest.fixture(scope="session")
def deep_backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve thin blocks, so that every layer of the paper exists."""
    import torch
    from transformers import Dinov2Config, Dinov2Model

    torch.manual_seed(0)
    settings = Dinov2Config(
        hidden_size=16, num_hidden_layers=12, num_attention_heads=2, image_size=70, patch_size=14, mlp_ratio=1
    )
    folder = tmp_path_factory.mktemp("deep")
    Dinov2Model(settings).save_pretrained(folder)
    return folder


# ------------------------------------------------------------------------------------------------------ flags


def test_every_setting_is_a_flag_of_bench_and_eval_without_a_default() -> None:
    group: Any = typer.main.get_command(app)
    for name in ("bench", "eval"):
        options = {option.name: option for option in group.commands[name].params}
        for setting in ("backbone", "weights", "image_size", "coreset_ratio", "banks"):
            assert options[setting].default is None
            assert options[setting].opts == [f"--{setting.replace('_', '-')}"]
        assert options["assignments"].opts == ["--set"]


def test_a_command_gets_only_the_settings_that_were_given() -> None:
    heard: list[Any] = []

    def command(name: str, *, settings: dict[str, Any]) -> None:
        """What it does."""
        heard.append((name, settings))

    wrapped = with_settings(("banks", "layers"))(command)
    assert list(inspect.signature(wrapped).parameters) == ["name", "banks", "assignments"]
    assert wrapped.__doc__ == "What it does."
    wrapped(name="x", banks=3, assignments=None)
    wrapped(name="y", banks=None, assignments=["layers=-1,-2"])
    assert heard == [("x", {"banks": 3}), ("y", {"layers": (-1, -2)})]


def test_lists_and_sizes_are_taken_apart() -> None:
    assert parse_settings({"image_size": "392"}) == {"image_size": 392}
    assert parse_settings({"image_size": "Auto"}) == {"image_size": "auto"}
    assert parse_settings({"image_size": "392x448"}) == {"image_size": (448, 392)}, "WIDTHxHEIGHT"
    with pytest.raises(ConfigError, match="layers must be integers separated by ',', got 'deep'"):
        parse_settings({"layers": "deep"})
    assert tiny_config(Path("x"), **parse_settings({"layers": "-2"})).layers == (-2,)
