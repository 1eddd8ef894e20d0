"""Published chat templates: rendered like transformers, and no history of any dialect is refused.

Needs transformers and, for the templates, the network: see `published_templates`.
"""

from __future__ import annotations

import pytest

from tests.text.published_templates import check, templates

pytestmark = pytest.mark.oracle
pytest.importorskip("transformers")

# It reads variables that only the client knows, `functions` and `datetime`; transformers fails, too.
UNKNOWN = {"fireworks-ai-llama-3-firefunction-v2"}
# It joins a `safe` text with JSON, which Jinja then escapes for HTML; chaski does not escape.
ESCAPED = {"meetkai-functionary-medium-v3.1"}


def test_published_templates() -> None:
    sources = templates()
    assert len(sources) > 20
    for name in sources.keys() - UNKNOWN:
        report = check(name, sources[name])
        assert (report.different == []) or name in ESCAPED, (name, report.different)
        assert (report.refused, report.lost, report.closed) == ([], [], []), name
        assert report.prefix != "no", name
