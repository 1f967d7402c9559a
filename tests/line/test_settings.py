"""What is wrong with a file is said with its line, before anything starts."""

import json
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from procon import Detector
from procon.line.arrivals import Pushed
from procon.line.http import HttpServer
from procon.line.settings import example_text, parse_line, read_settings
from tests.conftest import Run
from tests.line.stand_in import StandIn, score_of
from tests.line.test_station import Rig, parts, rig
from tests.line.test_watch import eventually, free_port, put

__all__ = ["parts", "rig"]  # fixtures
ROOT = Path(__file__).resolve().parents[2]
GOOD = """
[line]

[[station]]
name = "top"
source = "incoming"
model = "a.procon"
csv = "a.csv"
"""


def problems(text: str) -> list[str]:
    return parse_line(text, Path("line.toml"))[1]


def test_the_example_is_read_and_is_the_one_in_the_repository() -> None:
    settings, wrong = parse_line(example_text(), Path("folder/line.toml"))
    assert wrong == [] and settings is not None
    assert settings.stations[0].model == (Path("folder/bracket.procon"),) and settings.outbox == Path("folder/outbox")
    assert (ROOT / "examples" / "line.toml").read_text(encoding="utf-8") == example_text()


def test_every_key_of_the_example_can_be_set() -> None:
    text = "\n".join(
        line.removeprefix("# ") if line.startswith("# [") or (line.startswith("# ") and " = " in line) else line
        for line in example_text().splitlines()
        if not line.startswith("# [line]: ")
        and not (line.startswith("# [") and "]: " in line)
        and "With trigger" not in line
    )
    settings, wrong = parse_line(text, Path("line.toml"))
    assert wrong == [] and settings is not None and settings.opcua is not None and settings.modbus is not None


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'name = "top"',
            'name = "a b"',
            "line.toml: line 5: [[station]] 1: name must be 1 to 32 letters, digits, - and _",
        ),
        ('name = "top"', "", 'line.toml: line 4: [[station]] 1: name is missing; add for example name = "top"'),
        (
            'csv = "a.csv"',
            "deadline_ms = -1",
            "line 8: [[station]] 1: deadline_ms must be a number from 0 to 3.6e+06, got -1;",
        ),
        (
            'csv = "a.csv"',
            'every = "fast"',
            'line 8: [[station]] 1: every must be a number from 0.001 to 86400, got "fast";',
        ),
        ('csv = "a.csv"', "trigger = 1", "line 8: [[station]] 1: trigger must be true or false, got 1;"),
        (
            'model = "a.procon"',
            "model = []",
            "line 7: [[station]] 1: model must be a path in quotes, or a list of them, got []",
        ),
        ('csv = "a.csv"', 'cvs = "a.csv"', "line 8: [[station]] 1: cvs is no key of this table; expected one of csv, "),
        ("[line]", "[lines]", "line.toml: line 2: expected the tables [line], [station], "),
        ("[[station]]", "[station]", "expected at least one [[station]], got none"),
        ("[line]", "[line", "line.toml: is no TOML: Expected ']' at the end of a table declaration (at line 2"),
    ],
)
def test_a_problem_names_line_expectation_value_and_remedy(old: str, new: str, said: str) -> None:
    (problem, *_) = problems(GOOD.replace(old, new))
    assert said in problem, problem


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 200_000, "a = " + "{a=" * 100_000, "a = " + "9" * 5000, "a = 1e999999"]
)
def test_a_crafted_file_is_a_sentence(text: str, tmp_path: Path, run: Run) -> None:
    path = tmp_path / "line.toml"
    path.write_text(text)
    code, _, err = run("line", path, "--check")
    assert code == 2 and "Traceback" not in err and f"error: {path}: " in err and len(err) < 1000


def test_all_problems_are_said_at_once_and_stations_must_differ() -> None:
    second = GOOD.partition("[[station]]")[2]
    said = problems(GOOD + "[[station]]" + second.replace("a.csv", "b.csv") + "every = 0\n")
    assert len(said) == 1 and "[[station]] 2: every must be" in said[0]
    said = problems(GOOD + "[[station]]" + second)
    assert said == [
        "line.toml: line 10: [[station]] 2: name must differ from that of station 1, got top; choose another",
        "line.toml: line 13: [[station]] 2: csv must differ from that of station 1, got a.csv; choose another",
    ]


def test_check_says_what_is_missing_and_starts_nothing(tmp_path: Path, detector: Detector, run: Run) -> None:
    path = tmp_path / "line.toml"
    path.write_text(
        GOOD.replace('csv = "a.csv"', 'webhook = "ftp://mes"\ntrigger = true')
        + '[http]\naddress = "0.0.0.0:8600"\n[modbus]\naddress = "nowhere"\n'
        + '[opcua]\nsecurity = "maybe"\naddress = "127.0.0.1:8600"\n'
    )
    code, _, err = run("line", path, "--check")
    assert code == 2
    for said in (
        "station top: {0}/a.procon: no such model file; make one with: procon fit",
        "station top: source must be a folder, a camera or push, got incoming; make the folder first",
        "station top: webhook must be http://HOST/PATH or https://HOST/PATH, got 'ftp://mes'",
        "[modbus] address must be HOST:PORT, got 'nowhere'",
        "[opcua] security must be one of auto, none, sign-and-encrypt, got 'maybe'",
        "[http] is open to other machines without a token; add token_file, or listen at 127.0.0.1",
        "[http] address: port 8600 is that of [opcua], too; choose another",
    ):
        assert said.format(tmp_path) in err, err
    path.write_text(GOOD)
    (tmp_path / "incoming").mkdir()
    detector.save(tmp_path / "a.procon")
    assert run("line", path, "--check") == (0, f"{path}: 1 station, nothing is wrong with it\n", "")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.procon", "incoming", "line.toml"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'csv = "a.csv"',
            "trigger = true\ndeadline_ms = 800",
            "settle must be shorter than the deadline of 0.8 s, got 1",
        ),
        ('csv = "a.csv"', "trigger = true\nsettle = 10", "settle must be shorter than the deadline of 10 s, got 10"),
        ('csv = "a.csv"', 'trigger = true\nimage = "../{part}.png"', "image must name a file in incoming, got ../"),
        ('csv = "a.csv"', 'trigger = true\nimage = "/{part}.png"', "image must name a file in incoming, got /"),
        ('"a.procon"', '["a.procon", "b/a.procon"]', "the models of a station need different names, got a twice"),
        ('"incoming"', '"/dev/video97"', "there is no camera /dev/video97; connect it, or name another"),
        ('csv = "a.csv"', 'csv = "incoming"', "csv must be a file, got the folder"),
        ("[line]", '[line]\ndevice = "gpu"', "[line] device must be auto, cpu or cuda for model files, got 'gpu'"),
        ("[line]", '[line]\nweights = "none.safetensors"', "[line] weights: there is no "),
        ("[line]", '[line]\noutbox = "a.procon"', "[line] outbox must be a folder, got the file "),
        (
            "[line]",
            '[opcua]\ncertificates = "a.procon"\n[line]',
            "[opcua] certificates must be a folder, got the file ",
        ),
        ("[line]", '[http]\ntoken_file = "none"\n[line]', "[http] token_file: "),
        ("[line]", '[http]\ntoken_file = "short"\n[line]', "must hold a token of 16 ASCII characters or more"),
        ("[line]", '[http]\ntoken_file = "a.procon"\n[line]', "[http] token_file: "),
        (
            "[line]",
            '[http]\naddress = "192.0.2.7:8600"\ntoken_file = "long"\n[line]',
            "192.0.2.7 is no address of this",
        ),
        ("[line]", '[modbus]\naddress = "no.such.host.invalid:5020"\n[line]', "no.such.host.invalid is no address of"),
        ('csv = "a.csv"', 'mqtt = "mqtt://broker"', "mqtt must be mqtt://HOST/TOPIC or mqtts://HOST/TOPIC"),
        ('csv = "a.csv"', "trigger = true\nsettle = 0.1", "trigger = true, and nothing can trigger it; add [modbus]"),
        ('source = "incoming"', 'source = "push"', "images are pushed by HTTP, and there is no [http]; add it"),
        ('csv = "a.csv"', "", "results must go somewhere; add csv, webhook or mqtt"),
        ('"a.procon"', '"incoming"', "is no exported model; make one with procon export, or name a .procon file"),
        ('"a.procon"', '"short"', "short: "),
    ],
)
def test_check_finds_what_would_go_wrong_on_the_line(
    old: str, new: str, said: str, tmp_path: Path, detector: Detector, run: Run
) -> None:
    (tmp_path / "incoming").mkdir()
    detector.save(tmp_path / "a.procon")
    (tmp_path / "short").write_text("0123456789")
    (tmp_path / "long").write_text("0123456789abcdef")
    before = sorted(tmp_path.iterdir())
    path = tmp_path / "line.toml"
    path.write_text(GOOD.replace(old, new))
    code, out, err = run("line", path, "--check")
    assert code == 2 and out == "" and said in err, err
    assert err.startswith(f"error: {tmp_path}") and "Traceback" not in err
    assert sorted(tmp_path.iterdir()) == sorted([*before, path])


@pytest.mark.parametrize(
    ("address", "security", "secure"),
    [
        ("127.0.0.1:4840", "", False),
        ("localhost:4840", "", False),
        ("[::1]:4840", "", False),
        ("0.0.0.0:4840", "", True),
        ("[::]:4840", "", True),
        ("10.0.0.5:4840", "", True),
        ("line-pc:4840", "", True),
        ("127.0.0.1:4840", 'security = "sign-and-encrypt"', True),
        ("0.0.0.0:4840", 'security = "none"', False),
    ],
)
def test_opc_ua_signs_and_encrypts_by_default_beyond_the_own_machine(
    address: str, security: str, secure: bool, tmp_path: Path
) -> None:
    """Nothing listens: the server is made, not started."""
    pytest.importorskip("asyncua")
    from procon.line.build import make_servers

    path, said = tmp_path / "line.toml", list[str]()
    path.write_text(f'{GOOD}[opcua]\naddress = "{address}"\n{security}\n')
    (server,) = make_servers(read_settings(path), [], said.append)
    assert (server._certificates is not None) is secure  # type: ignore[attr-defined]
    is_open = not secure and "0.0.0.0" in address
    assert [f"{text[:7]} {text[-16:]}" for text in said] == (["[opcua] security is none"] if is_open else [])


def test_missing_libraries_are_named_with_their_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from procon.line import check

    path = tmp_path / "line.toml"
    path.write_text(GOOD.replace("incoming", "rtsp://a") + "[modbus]\n[opcua]\n")
    monkeypatch.setattr(check, "find_spec", lambda _name: None)
    said = "\n".join(check.check_line(read_settings(path), path))
    for extra in ("camera", "modbus", "opcua"):
        assert f"pip install 'procon[{extra}]'" in said


def test_init_writes_the_example_once(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "line.toml"
    code, out, _ = run("line", path, "--init")
    assert code == 0 and "wrote" in out and path.read_text() == example_text()
    code, _, err = run("line", path, "--init")
    assert code == 2 and "is there already; name another file, or remove it first" in err
    code, _, err = run("line", tmp_path / "other.toml")
    assert code == 2 and "no such file; write an example with: procon line --init" in err


# ---------------------------------------------------------------------------------------------------------------- HTTP


def call(port: int, path: str, data: bytes | None = None, token: str = "") -> tuple[int, dict[str, Any]]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    method = "GET" if data is None else "POST"
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_images_are_pushed_by_http_and_only_a_verdict_answers_200(rig: Rig, parts: Path) -> None:
    station, _, _ = rig.add(Pushed, StandIn())
    port = free_port()
    server = HttpServer("127.0.0.1", port, [station], "a token of sixteen", 10_000)
    rig.start()
    server.start()
    image, token = (parts / "4.png").read_bytes(), "a token of sixteen"
    try:
        assert call(port, "/top", image)[0] == 401
        code, body = call(port, "/top?part=p4", image, token)
        assert (code, body["part"], body["score"], body["verdict"]) == (200, "p4", score_of(4), "good")
        code, body = call(port, "/top?part=x", b"nonsense", token)
        assert (code, body["verdict"], body["cause"]) == (503, "none", "image")
        assert call(port, "/top", b"x" * 20_000, token)[0] == 413
        assert call(port, "/bottom", image, token)[0] == 404
        code, body = call(port, "/top/pause", b"", token)
        assert (code, body["state"]) == (200, "paused")
        assert call(port, "/top", image, token)[1]["cause"] == "paused"
        assert call(port, "/top/resume", b"", token)[1]["state"] == "ready"
        assert call(port, "/top/job?number=9", b"", token)[0] == 422
        code, body = call(port, "/", None, token)
        assert body["stations"][0]["station"] == "top" and body["stations"][0]["results"] == 3
        code, body = call(port, "/top/restart", b"", token)
        assert body["restarts"] == 1
    finally:
        server.stop()


def test_many_clients_at_once_get_their_own_result_or_a_refusal(rig: Rig, parts: Path) -> None:
    station, _, _ = rig.add(Pushed, StandIn(0.005))
    port = free_port()
    server = HttpServer("127.0.0.1", port, [station], None, 100_000)
    rig.start()
    server.start()
    wrong, done = list[object](), list[int]()

    def push(number: int) -> None:
        image = (parts / f"{number}.png").read_bytes()
        while True:
            code, body = call(port, f"/top?part={number}", image)
            if code == 200:
                break
            if body.get("cause") != "busy":
                wrong.append(body)
                return
        if (body["part"], body["score"]) != (str(number), score_of(number)):
            wrong.append(body)
        done.append(number)

    threads = [threading.Thread(target=push, args=(number,)) for number in range(12)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        server.stop()
    assert wrong == [] and sorted(done) == list(range(12)) and station.results == 12


# ------------------------------------------------------------------------------------------------------- the real thing


def predictor_of(station: Any) -> Any:
    return station.slot.current.predictor


def test_procon_line_scores_with_real_models_that_share_a_backbone(
    tmp_path: Path, detector: Detector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two stations with a .procon file each, in this process: verdicts are those of the detector."""
    from procon.line.build import make_line

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        detector.save(tmp_path / f"{name}.procon")
    text = "".join(
        f'[[station]]\nname = "{name}"\nsource = "{name}"\nmodel = "{name}.procon"\ncsv = "{name}.csv"\n'
        "every = 0.05\nsettle = 0.05\nexisting = true\n"
        for name in ("a", "b")
    )
    (tmp_path / "line.toml").write_text(text)
    line = make_line(read_settings(tmp_path / "line.toml"), tmp_path)
    images = [put(tmp_path / "a" / "good.png", 50), put(tmp_path / "b" / "red.png", 51, defect=True)]
    stop = threading.Event()
    thread = threading.Thread(target=line.run, args=(stop,))
    thread.start()
    try:
        eventually(lambda: all(station.results == 1 for station in line.stations) or not thread.is_alive())
        first, second = (predictor_of(station).reader.extractor for station in line.stations)
        assert first is not second and first.backbone._model is second.backbone._model
        for station, image in zip(line.stations, images, strict=True):
            expected = detector.predict(image)
            assert station.last is not None and station.last["score"] == expected.score
            assert station.last["verdict"] == ("anomalous" if expected.is_anomalous else "good")
    finally:
        stop.set()
        thread.join()
        for station in line.stations:
            station.plan.outbox.close()
