"""``python -m procon`` is ``procon``."""

from procon.cli import main

main()
