"""A fitted detector for machines without torch: export it once, load the folder anywhere.

Only :mod:`procon.deploy.export` needs torch. What is named here needs numpy, Pillow and onnxruntime or openvino, and is
imported when it is first asked for, so that ``procon --help`` stays quick.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from procon.deploy.runtime import Runtime, load_any

__all__ = ["Runtime", "load_any"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from procon.deploy import runtime

        return getattr(runtime, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
