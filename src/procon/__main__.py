"""``python -m procon`` is ``procon``."""

from procon.cli import main

if __name__ == "__main__":
    main()
