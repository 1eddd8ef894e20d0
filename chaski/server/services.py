"""`Services`: the objects that all handlers share."""

from __future__ import annotations

from asyncio import Semaphore
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from msgspec import Struct, field

from chaski.batches.run import Ask
from chaski.server.answering.answers import Answers
from chaski.server.answering.chat import ChatService
from chaski.server.answering.jobs import Jobs
from chaski.server.answering.live import LiveService
from chaski.server.answering.receipts import ReceiptSigner
from chaski.server.answering.states import StateService
from chaski.server.answering.tokens import TokenService
from chaski.server.answering.vectors import VectorService
from chaski.server.batches.batch_service import BatchService
from chaski.server.batches.files import FileStore
from chaski.server.models.adapter_table import AdapterTable
from chaski.server.models.catalog import Catalog
from chaski.server.models.estimates import Estimates
from chaski.server.models.loaded import OpenWorker
from chaski.server.models.pool import ModelPool
from chaski.server.network.arrivals import Arrivals
from chaski.server.network.bodies import Bodies
from chaski.server.network.uploads import Uploads
from chaski.server.response_store import ResponseStore
from chaski.server.settings import Settings
from chaski.server.telemetry.metrics import Metrics
from chaski.server.telemetry.recorder import Recorder
from chaski.store.store import Store

__all__ = ["Services"]

_FORMS = 4
_TRANSFERS = 16
_MAKERS = 8
_UPLOADS_SHARE = 4  # one in `_UPLOADS_SHARE` connections may upload


class Services(Struct, frozen=True):
    """The objects that all handlers share.

    responses: stored responses of OpenAI's API
    threads: stored conversations of Anthropic's API
    forms: slots for uploads of batch files
    transfers: threads that wait for registries
    makers: threads that convert adapters
    creations: slots for processes that create models

    Transfers, conversions, creations and uploads have separate limits, so that none of them waits for others.
    """

    settings: Settings
    catalog: Catalog
    adapters: AdapterTable
    models: ModelPool
    metrics: Metrics
    chat: ChatService
    vectors: VectorService
    tokens: TokenService
    states: StateService
    responses: ResponseStore
    threads: ResponseStore
    answers: Answers
    bodies: Bodies
    uploads: Uploads
    files: FileStore
    batches: BatchService
    live: LiveService
    receipts: ReceiptSigner
    estimates: Estimates = field(default_factory=Estimates)
    forms: Arrivals = field(default_factory=lambda: Arrivals(_FORMS))
    transfers: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(_TRANSFERS, "chaski-transfer")
    )

    makers: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_MAKERS, "chaski-maker"))
    creations: Semaphore = field(default_factory=lambda: Semaphore(_MAKERS))

    @classmethod
    def start(
        cls, settings: Settings, store: Store, open_worker: OpenWorker, ask_as: Callable[[str], Ask]
    ) -> Services:
        """Create all services. `ask_as` takes a client's name and returns the function that calls them."""
        adapters = AdapterTable(settings.adapters)
        catalog = Catalog(store, adapters)
        models = ModelPool(settings, open_worker)
        metrics = Metrics(models)
        jobs = Jobs(settings, catalog, models, Recorder(metrics))
        receipts = ReceiptSigner(store)
        services = ChatService(jobs, receipts), VectorService(jobs), TokenService(jobs)
        states = StateService(jobs, models, settings.states, settings.states_size)
        bodies = Bodies(settings.body_memory, settings.body_timeout)
        uploads = Uploads(settings.body_timeout, settings.max_connections // _UPLOADS_SHARE)
        stores = ResponseStore(), ResponseStore()
        files = FileStore(store.root / "chaski" / "files", settings.files)
        files.rename_former(("", *settings.api_keys, *settings.admin_keys))
        live = LiveService(models, metrics)
        common = settings, catalog, adapters, models, metrics
        batches = BatchService(files, ask_as)
        return cls(
            *common, *services, states, *stores, Answers(), bodies, uploads, files, batches, live, receipts
        )

    async def close(self) -> None:
        """Close all services."""
        await self.batches.close()
        await self.answers.close()
        await self.models.close()
        self.bodies.close()
        self.uploads.close()
        self.files.close()
        self.adapters.close()
        for threads in (self.transfers, self.makers):
            threads.shutdown(wait=False, cancel_futures=True)
