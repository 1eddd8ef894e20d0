"""Entry point of `python -m chaski`, which runs the `chaski` command."""

from __future__ import annotations

from chaski.cli.main import main

if __name__ == "__main__":
    main()
