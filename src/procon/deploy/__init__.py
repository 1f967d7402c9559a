"""A fitted detector for machines without torch: export it once, load the folder anywhere.

Only :mod:`procon.deploy.export` needs torch. What is imported here needs numpy, Pillow and onnxruntime or openvino.
"""

from procon.deploy.runtime import Runtime, Scorer, describe_any, load_any

__all__ = ["Runtime", "Scorer", "describe_any", "load_any"]
