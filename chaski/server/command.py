"""`chaski serve`: serve the models of the store over HTTP.

`chaski.cli.main` imports this module when the command is called.
"""

from __future__ import annotations

import logging
import os

import click

__all__ = ["command"]


@click.command("serve", short_help="Serve models over HTTP.")
@click.option("--host", metavar="ADDRESS", help="Listening address.  [default: OLLAMA_HOST, 127.0.0.1:11434]")
@click.option("--no-store", is_flag=True, help="Do not write prompts to disk.")
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Compute the models on a Ray cluster; local starts one on this machine.  [default: CHASKI_CLUSTER]",
)
@click.option(
    "--replicas", metavar="N[-M]", help="Number of replicas of each model.  [default: CHASKI_REPLICAS, 1]"
)
@click.option(
    "--shards",
    metavar="N[-M]",
    help="Number of cluster nodes that compute each replica together.  [default: CHASKI_SHARDS, 1]",
)
@click.option(
    "--gpus",
    metavar="N",
    help="Number of GPUs for each replica, or for each of its nodes; it may be a fraction such as 0.5."
    "  [default: CHASKI_GPUS, 1 if the cluster has GPUs]",
)
@click.option(
    "--nodes",
    metavar="ADDRESS[,ADDRESS...]",
    help="Addresses of the `chaski shard` nodes that compute each model together.  [default: CHASKI_NODES]",
)
@click.option(
    "--split",
    metavar="WORD",
    help="How --nodes and --shards divide a model: layers or rows.  [default: CHASKI_SPLIT, layers]",
)
@click.option(
    "--access-log", metavar="FILE", help="Append a JSON line for each request to FILE; - is standard error."
)
@click.option(
    "--otlp-traces-endpoint",
    metavar="URL",
    help="Send spans of requests to an OpenTelemetry collector, such as http://localhost:4318/v1/traces.",
)
@click.option("--verbose", is_flag=True, help="Log each request, and each model that is loaded or unloaded.")
@click.help_option("-h", "--help")
def command(
    host: str | None,
    no_store: bool,
    cluster: str | None,
    replicas: str | None,
    shards: str | None,
    gpus: str | None,
    nodes: str | None,
    split: str | None,
    access_log: str | None,
    otlp_traces_endpoint: str | None,
    verbose: bool,
) -> None:
    """Serve the APIs of Ollama, OpenAI and Anthropic until Ctrl-C.

    Environment variables set everything else; see docs/server.md and `chaski info`.
    """
    from dataclasses import replace

    from chaski.env import Environment, set_by_option
    from chaski.runner.loading.sizes import thread_count
    from chaski.server.run import serve
    from chaski.server.settings import Settings
    from chaski.store.store import Store

    if no_store and os.environ.get("CHASKI_PREFIX_CACHE", "on").lower() == "on":
        os.environ["CHASKI_PREFIX_CACHE"] = "memory"  # workers inherit it
    set_by_option("--replicas", "CHASKI_REPLICAS", replicas)
    set_by_option("--shards", "CHASKI_SHARDS", shards)
    set_by_option("--gpus", "CHASKI_GPUS", gpus)
    set_by_option("--nodes", "CHASKI_NODES", nodes)
    set_by_option("--split", "CHASKI_SPLIT", split)
    environment = Environment.read()
    _log_all(verbose or environment.debug)
    if host is not None:
        environment = replace(environment, host=host)
    if cluster is not None:
        environment = replace(environment, cluster=cluster)
    if access_log is not None:
        environment = replace(environment, access_log=access_log)
    if otlp_traces_endpoint is not None:
        environment = replace(
            environment, otlp_traces_endpoint=otlp_traces_endpoint, otel_traces_exporter=None
        )
    settings = Settings.of(environment)
    thread_count(None, environment.threads)
    serve(settings, Store.default(), lambda url: click.echo(f"chaski listens on {url}", err=True))


def _log_all(is_verbose: bool) -> None:
    """Log everything, or only warnings and errors. Lines about requests have no prefix, for programs."""
    logging.getLogger("chaski").setLevel(logging.INFO if is_verbose else logging.WARNING)
    requests = logging.getLogger("chaski.server.http.access_log")
    requests.addHandler(logging.StreamHandler())
    requests.propagate = False
