"""`python -m chaski` is the `chaski` command."""

from __future__ import annotations

from chaski.cli.main import main

if __name__ == "__main__":
    main()
