"""axe-core, the faults that it finds in a page, and the sizes in which pages are looked at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server.running import Running
from tests.web.conftest import DESKTOP, PHONE, Open

__all__ = ["Seen", "axe", "faults", "seen", "viewport"]

WEB = Path(__file__).parents[2] / "web"
AXE = WEB / "node_modules/axe-core/axe.min.js"

Seen = Callable[..., Any]


@pytest.fixture(scope="module")
def axe() -> str:
    if not AXE.exists():
        pytest.skip("axe-core is not installed; run make web")
    return AXE.read_text()


def faults(page: Any, axe: str) -> list[tuple[str, list[str]]]:
    """Return the rules that the page breaks, with the elements that break them, in light and dark colors.

    Dark colors change contrasts only, so only this rule is checked with them.
    """
    if not page.evaluate("'axe' in window"):
        page.evaluate(axe)
    found = _broken(page, "axe.run()")
    page.emulate_media(color_scheme="dark")
    found += _broken(page, "axe.run({runOnly: ['color-contrast']})")
    page.emulate_media(color_scheme="light")
    return found


def _broken(page: Any, run: str) -> list[tuple[str, list[str]]]:
    # The colors of elements that still fade in or out are not those that are seen.
    page.evaluate(
        """() => Promise.allSettled(document.getAnimations()
            .filter(each => Number.isFinite(each.effect.getComputedTiming().endTime))
            .map(each => each.finished))"""
    )
    violations = page.evaluate(run)["violations"]
    return [(each["id"], [node["html"][:200] for node in each["nodes"]]) for each in violations]


@pytest.fixture(params=[DESKTOP, PHONE], ids=["desktop", "phone"])
def viewport(request: pytest.FixtureRequest) -> dict[str, int]:
    found: dict[str, int] = request.param
    return found


@pytest.fixture
def seen(open_page: Open, viewport: dict[str, int]) -> Seen:
    """Open the page of a server in a size; phones have a touch screen."""
    is_phone = viewport is PHONE

    def seen(server: Running, path: str = "/", **more: Any) -> Any:
        options = {"viewport": viewport, "has_touch": is_phone, "is_mobile": is_phone}
        return open_page(server, path, color_scheme="light", **options, **more)

    return seen
