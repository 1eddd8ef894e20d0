"""`chaski shard`: computes parts of models that another machine serves."""

from __future__ import annotations

import click

__all__ = ["command"]

_PORT = 11500


@click.command("shard", short_help="Compute parts of models for a server on another machine.")
@click.option(
    "--listen",
    metavar="ADDRESS",
    default=f"127.0.0.1:{_PORT}",
    help=f"Where to listen: host:port.  [default: 127.0.0.1:{_PORT}]",
)
@click.option("--key", "key_file", metavar="FILE", help="File with the key.  [default: CHASKI_NODES_KEY]")
@click.option(
    "--threads", type=click.IntRange(1), metavar="N", help="Cores to compute on.  [default: physical cores]"
)
@click.option(
    "--models",
    multiple=True,
    metavar="FOLDER",
    help="Folder to search for model files by name; repeatable.",
)
@click.help_option("-h", "--help")
def command(listen: str, key_file: str | None, threads: int | None, models: tuple[str, ...]) -> None:
    """Compute parts of models for servers and commands with --nodes, until Ctrl-C.

    All nodes share a key, a file of at least 32 random characters. Each node opens the files of a model
    itself: at the same path, in its model store, or in FOLDER.
    """
    import threading
    from pathlib import Path

    from chaski.cluster_key import read_key
    from chaski.env import Environment
    from chaski.ml import CPUOptions, serve_member
    from chaski.store.store import Store

    environment = Environment.read()
    folders = [Path(folder) for folder in models] + [Store.default().blobs.folder]
    server = serve_member(
        listen,
        read_key(key_file or environment.nodes_key),
        environment.backend,
        folders,
        CPUOptions(threads or environment.threads, environment.isa, environment.variants),
    )
    speed = "" if server.speed is None else f", reading {server.speed() / 1e9:.1f} GB/s"
    click.echo(f"chaski computes parts of models at {server.address}{speed}", err=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        server.close()
