"""Write the answers of topics/*.toml into the guide's file without changing its encoder.

    python -m tools.guide.texts

Use it after changes of answers and pages. The topics and their order must be the same as in training.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.guide.answers_file import describe, put_texts
from tools.guide.topics import load_topics

ROOT = Path(__file__).parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--guide", type=Path, default=ROOT / "chaski/models/guide.gguf")
    parser.add_argument("--out", type=Path, default=ROOT / "build/guide/guide.gguf")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    put_texts(options.guide, options.out, load_topics())
    describe(options.out)
    print(f"{options.out}: {options.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
