"""Rendered parts to try everything on, without images of your own."""

from procon.demo.parts import render_part, write_set

__all__ = ["render_part", "write_set"]
