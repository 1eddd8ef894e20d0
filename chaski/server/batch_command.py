"""`chaski batch`: answer a file of requests, and resume after interruptions.

`chaski.cli.main` imports this module when the command is called.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chaski.errors import ChaskiError, FormatError

if TYPE_CHECKING:
    from chaski.batches.results import Results
    from chaski.batches.run import Ask, Reply, Tokens
    from chaski.remote import Remote

__all__ = ["command"]

_HERE, _AWAY = 16, 64
"""Concurrent requests in this process, and to a server, which has its own queue."""


@click.command("batch", short_help="Answer a file of requests.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for the results.  [default: FILE with the suffix .results.jsonl]",
)
@click.option("--model", metavar="NAME", help="Model for requests that do not name one.")
@click.option(
    "--parallel",
    type=click.IntRange(1, 1024),
    help=f"Number of concurrent requests.  [default: up to {_HERE}, as memory allows; {_AWAY} with a server]",
)
@click.option(
    "--receipts", is_flag=True, help="Add a receipt to each answer, by which `chaski verify` checks it."
)
@click.option("--retry-failed", is_flag=True, help="Repeat the requests whose results are errors.")
@click.help_option("-h", "--help")
def command(
    file: Path,
    output: Path | None,
    model: str | None,
    parallel: int | None,
    receipts: bool,
    retry_failed: bool,
) -> None:
    """Answer the requests of FILE, in OpenAI's batch format: one JSON object per line.

    Results are appended to a file as they arrive. If the command is interrupted or the machine fails, run the
    same command again: it continues where it stopped. No request is lost, and none is answered twice.

    If OLLAMA_HOST is set, the server that it names answers the requests. Otherwise this process answers them
    with the models of the store.
    """
    from chaski.batches.lines import check_lines, read_lines
    from chaski.batches.results import Results
    from chaski.batches.run import run_batch
    from chaski.remote import chosen_server

    requests = check_lines(file, model, receipts)
    path = output or file.with_suffix(".results.jsonl")
    if path.exists() and path.samefile(file):
        raise click.UsageError("FILE and --output are the same file.")
    remote = chosen_server()
    in_flight = parallel or (_HERE if remote is None else _AWAY)
    try:
        with Results.open(path, retry_failed) as results:
            _require_same(requests, results)
            num_before, began = len(results.done), time.monotonic()
            with closing(_Bar(len(requests), results)) as progress:

                async def answer() -> Tokens:
                    async with _asking(remote, in_flight, parallel) as ask:
                        lines = read_lines(file, model, receipts)
                        return await run_batch(lines, ask, results, in_flight, progress)

                tokens = asyncio.run(answer()) if num_before < len(requests) else None
            _report(results, num_before, tokens, time.monotonic() - began)
    except OSError as error:
        raise ChaskiError(f"{path}: {error.strerror or error}") from None
    except KeyboardInterrupt:
        click.echo(f"Stopped. Results so far are in {path}; run the command again to continue.", err=True)
        raise SystemExit(130) from None
    if results.num_failed:
        raise SystemExit(1)


class _Bar:
    """Progress bar with the number of answered requests and the token rate."""

    def __init__(self, num_requests: int, results: Results) -> None:
        from chaski.progress_bar import ProgressBar

        self._bar = ProgressBar("answering")
        self._num_requests = num_requests
        self._results = results
        self._began = time.monotonic()

    def __call__(self, tokens: Tokens) -> None:
        done, seconds = len(self._results.done), time.monotonic() - self._began
        rate = tokens.answers / seconds if seconds else 0.0
        self._bar(done / self._num_requests, f"{done} of {self._num_requests}, {rate:.0f} tokens/s")

    def close(self) -> None:
        self._bar.close()


def _require_same(requests: Mapping[str, str], results: Results) -> None:
    """Raise FormatError if the results belong to other requests."""
    for custom_id, request_id in results.done.items():
        if requests.get(custom_id) != request_id:
            what = "is not in FILE" if custom_id not in requests else "has changed since"
            raise FormatError(
                f"{results.path} contains a result for request '{custom_id:.80}', which {what}; remove the "
                "results, or write to another file with --output"
            )


@asynccontextmanager
async def _asking(remote: Remote | None, in_flight: int, parallel: int | None) -> AsyncIterator[Ask]:
    """Yield a function that sends requests to `remote`, or to services in this process if that is None.

    parallel: sequences that a model in this process runs at once; None for the usual number
    """
    if remote is not None:
        async with _asking_server(remote, in_flight) as ask:
            yield ask
        return
    from msgspec.structs import replace

    from chaski.env import Environment
    from chaski.server.app import create_app
    from chaski.server.in_process import InProcess
    from chaski.server.run import worker_opener
    from chaski.server.settings import Settings
    from chaski.store.store import Store

    # These requests are not sent over HTTP, so they have no spans to export.
    usual = Settings.of(dataclasses.replace(Environment.read(), is_otel_disabled=True))
    settings = replace(usual, parallel=parallel or usual.parallel, most_parallel=_HERE)
    app = create_app(settings, Store.default(), worker_opener())
    async with app.router.lifespan_context(app):
        yield InProcess(app, "batch")


@asynccontextmanager
async def _asking_server(remote: Remote, in_flight: int) -> AsyncIterator[Ask]:
    from concurrent.futures import ThreadPoolExecutor

    from chaski.batches.run import Reply

    threads = ThreadPoolExecutor(in_flight, "chaski-batch")

    def ask(url: str, body: Mapping[str, Any]) -> Reply:
        status, headers, answer = remote.reply(url, body)
        wait = headers.get("retry-after", "")
        seconds = float(wait) if wait.isdigit() else None
        return Reply(status, answer, str(answer.get("id") or ""), seconds)

    async def in_thread(url: str, body: Mapping[str, Any]) -> Reply:
        return await asyncio.get_running_loop().run_in_executor(threads, ask, url, body)

    try:
        yield in_thread
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _report(results: Results, num_before: int, tokens: Tokens | None, seconds: float) -> None:
    say = partial(click.echo, err=True)
    if tokens is None:
        say(f"All requests already have results: {num_before}.")
    else:
        before = f" (before: {num_before})" if num_before else ""
        rate = f", {tokens.answers / seconds:.1f} per second" if tokens.answers else ""
        say(
            f"Requests answered: {len(results.done) - num_before}{before}, in {seconds:.1f} s. "
            f"Prompt tokens: {tokens.prompts}. Answer tokens: {tokens.answers}{rate}."
        )
    if results.num_failed:
        say(
            f"Results that are errors: {results.num_failed}. See status_code in {results.path}; "
            "use --retry-failed to repeat these requests."
        )
    click.echo(results.path)
