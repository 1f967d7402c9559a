"""The names users rely on."""

import importlib
import inspect
import re
import subprocess
import sys

import pytest

import procon
from procon import errors

FUNCTIONS = {"evaluate", "to_pandas"}


def test_public_names_are_sorted_and_complete() -> None:
    assert procon.__all__ == sorted(procon.__all__)
    defined_errors = {name for name, value in vars(errors).items() if inspect.isclass(value) and name.endswith("Error")}
    data = {"Anchor", "Explanation", "LayerEvidence", "LessonEvidence", "NormalPatch", "Prediction", "Region"}
    assert set(procon.__all__) == defined_errors | data | {"Config", "Detector", "__version__"} | FUNCTIONS
    assert dir(procon) == procon.__all__


@pytest.mark.parametrize("name", [name for name in procon.__all__ if name != "__version__" and name not in FUNCTIONS])
def test_each_name_is_a_documented_class(name: str) -> None:
    value = getattr(importlib.import_module("procon"), name)
    assert inspect.isclass(value)
    assert value.__name__ == name
    assert value.__doc__
    assert not value.__doc__.startswith(f"{name}(")  # what dataclasses write themselves is no docstring
    for method, member in vars(value).items():
        if not method.startswith("_") and (inspect.isfunction(member) or isinstance(member, classmethod | property)):
            assert member.__doc__, f"{name}.{method} has no docstring"


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_each_function_is_documented_and_typed(name: str) -> None:
    value = getattr(procon, name)
    assert inspect.isfunction(value) and value.__doc__
    assert all(
        parameter.annotation is not parameter.empty for parameter in inspect.signature(value).parameters.values()
    )


def test_names_that_other_programs_rely_on() -> None:
    detector = {"fit", "predict", "predict_each", "explain", "calibrate", "partial_fit", "forget", "save", "load"}
    detector |= {"teach", "limits"}
    fields = {"score", "is_anomalous", "p_value", "regions", "source"}
    assert detector | {"from_pretrained", "push_to_hub"} <= set(dir(procon.Detector))
    assert fields <= set(procon.Prediction.__dataclass_fields__)
    assert {"heatmap", "relative_score", "plot", "overlay", "save", "image"} <= set(dir(procon.Prediction))


def test_every_error_descends_from_one() -> None:
    for name in procon.__all__:
        if name.endswith("Error"):
            assert issubclass(getattr(procon, name), procon.ProconError)


def test_the_version_is_a_release_number() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.?(a|b|rc|dev)\d+)?", procon.__version__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'procon' has no attribute 'Nothing'"):
        _ = procon.Nothing


def test_a_star_import_gives_every_name() -> None:
    code = "from procon import *; import procon; print(all(name in globals() for name in procon.__all__))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"
