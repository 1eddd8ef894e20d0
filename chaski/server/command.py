"""`chaski serve`: the models of the store, and more, over HTTP. The table of commands names this module."""

from __future__ import annotations

import logging
import os

import click

__all__ = ["command"]


@click.command("serve", short_help="Serve models over HTTP.")
@click.option("--host", metavar="ADDRESS", help="Where to listen.  [default: OLLAMA_HOST, 127.0.0.1:11434]")
@click.option("--no-store", is_flag=True, help="Keep nothing of prompts on disk.")
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Let a Ray cluster compute the models; local starts one here.  [default: CHASKI_CLUSTER]",
)
@click.option(
    "--replicas", metavar="N[-M]", help="Replicas of each model in a cluster.  [default: CHASKI_REPLICAS, 1]"
)
@click.option(
    "--shards",
    metavar="N[-M]",
    help="Nodes of the cluster that compute each replica together.  [default: CHASKI_SHARDS, 1]",
)
@click.option(
    "--gpus",
    metavar="N",
    help="GPUs of each replica, or of each of its nodes, such as 0.5.  [default: CHASKI_GPUS, 1 if any]",
)
@click.option(
    "--nodes",
    metavar="ADDRESS[,ADDRESS...]",
    help="Nodes that compute each model together, each a `chaski shard`.  [default: CHASKI_NODES]",
)
@click.option(
    "--split",
    metavar="WORD",
    help="With --nodes and --shards: layers or rows.  [default: CHASKI_SPLIT, layers]",
)
@click.option(
    "--access-log", metavar="FILE", help="Add a line of JSON for each request to FILE.  [- is standard error]"
)
@click.option(
    "--otlp-traces-endpoint",
    metavar="URL",
    help="Send spans of requests to a collector of OpenTelemetry, such as http://localhost:4318/v1/traces.",
)
@click.option("--verbose", is_flag=True, help="Log each request, and what is loaded and unloaded.")
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
    """Answer over the APIs of Ollama, OpenAI and Anthropic, until Ctrl-C.

    Everything is set by environment variables: see docs/server.md and `chaski info`.
    """
    from dataclasses import replace

    from chaski.env import Environment
    from chaski.runner.loading.sizes import thread_count
    from chaski.server.run import serve
    from chaski.server.settings import Settings
    from chaski.store.store import Store

    if no_store and os.environ.get("CHASKI_PREFIX_CACHE", "on").lower() == "on":
        os.environ["CHASKI_PREFIX_CACHE"] = "memory"  # workers inherit it
    if replicas is not None:
        os.environ["CHASKI_REPLICAS"] = replicas
    if shards is not None:
        os.environ["CHASKI_SHARDS"] = shards
    if gpus is not None:
        os.environ["CHASKI_GPUS"] = gpus
    if nodes is not None:
        os.environ["CHASKI_NODES"] = nodes
    if split is not None:
        os.environ["CHASKI_SPLIT"] = split
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
    """Log all, or only what is wrong. Lines on requests stand alone, for programs to read."""
    logging.getLogger("chaski").setLevel(logging.INFO if is_verbose else logging.WARNING)
    requests = logging.getLogger("chaski.server.http.access_log")
    requests.addHandler(logging.StreamHandler())
    requests.propagate = False
