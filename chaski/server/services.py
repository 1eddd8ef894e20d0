"""`Services`: what all handlers share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from chaski.server.answering import Answering
from chaski.server.catalog import Catalog
from chaski.server.metrics import Metrics
from chaski.server.models import Models, OpenWorker
from chaski.server.remembered import Remembered
from chaski.server.settings import Settings
from chaski.store.store import Store

__all__ = ["Services"]

_TRANSFERS = 16


@dataclass(frozen=True, slots=True)
class Services:
    """remembered: responses of OpenAI's API. threads: conversations of Anthropic's.

    transfers: threads for what waits for disks and networks, so that templates never wait for those."""

    settings: Settings
    catalog: Catalog
    models: Models
    metrics: Metrics
    answering: Answering
    remembered: Remembered
    threads: Remembered
    transfers: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(_TRANSFERS, "chaski-transfer")
    )

    @classmethod
    def start(cls, settings: Settings, store: Store, open_worker: OpenWorker) -> Services:
        """Make them. Nothing is loaded."""
        catalog = Catalog(store)
        models = Models(settings, open_worker)
        metrics = Metrics(lambda: models.loaded, lambda: models.waiting)
        answering = Answering(settings, catalog, models, metrics)
        return cls(settings, catalog, models, metrics, answering, Remembered(), Remembered())

    async def close(self) -> None:
        """End all of them."""
        await self.models.close()
        self.transfers.shutdown(wait=False, cancel_futures=True)
