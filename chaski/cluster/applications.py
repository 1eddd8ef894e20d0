"""The applications of Ray Serve: one for each model, with the model's replicas."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

import ray
from ray import serve

from chaski.cluster.reconciler import Seen
from chaski.cluster.replica import Replica
from chaski.cluster.replica_options import PREFIX, ReplicaOptions

__all__ = ["delete", "deploy", "end_unplaced", "seen"]

_log = logging.getLogger(__name__)

_DEPLOYMENT = "replica"
_ACTIVE = frozenset(("STARTING", "UPDATING", "RECOVERING", "RUNNING", "PENDING_MIGRATION"))
_FAILED = frozenset(("DEPLOY_FAILED", "UNHEALTHY"))
# The namespace and the names of Serve's actors.
_NAMESPACE, _ACTOR = "serve", "SERVE_REPLICA::{}#{}#"


def seen() -> dict[str, Seen]:
    """Return chaski's applications by name."""
    found = {}
    for name, application in serve.status().applications.items():
        if name.startswith(PREFIX):
            number = sum(
                number
                for deployment in application.deployments.values()
                for state, number in deployment.replica_states.items()
                if _text(state) in _ACTIVE
            )
            status = _text(application.status)
            found[name] = Seen(number, status == "DELETING", not number and status in _FAILED)
    return found


def deploy(
    options: ReplicaOptions,
    key: bytes,
    shards: int,
    reserved: Mapping[str, Any],
    number: int,
    generation: int,
) -> None:
    """Request a number of replicas of a generation. Serve starts and ends replicas later.

    key       of the cluster
    shards    nodes of a replica
    reserved  the result of `Footprint.reservation`
    """
    deployment = serve.deployment(
        Replica,
        name=_DEPLOYMENT,
        num_replicas=number,
        **reserved,
        health_check_period_s=5,
        health_check_timeout_s=30,
        graceful_shutdown_timeout_s=options.leaving_seconds,
    )
    # Serve replaces replicas of another version one after the other. Without a version it would choose a
    # random one, and thus replace all replicas whenever their number changes.
    deployment = deployment.options(_internal=True, version=f"{options.model}.{generation}")
    application = deployment.bind(options, key, generation, shards)
    # Do not wait: replicas without room would otherwise block their own removal.
    serve.run_many(
        [serve.RunTarget(application, name=options.model, route_prefix=None)],
        wait_for_ingress_deployment_creation=False,
        wait_for_applications_running=False,
    )


def delete(name: str) -> None:
    """Delete an application, and wait up to a minute until its replicas are gone."""
    serve.delete(name)


def end_unplaced(name: str, listed: Collection[str]) -> None:
    """End the replicas of an application that is being deleted, except those in `listed`.

    Serve asks a replica to end and waits for its reply, up to the time limit of answers. A replica that Ray
    has not placed cannot reply.
    """
    prefix = _ACTOR.format(name, _DEPLOYMENT)
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["namespace"] == _NAMESPACE and actor["name"].startswith(prefix):
            if actor["name"].removeprefix(prefix) in listed:
                continue
            _log.info("%s was never placed, and ends", actor["name"])
            ray.kill(ray.get_actor(actor["name"], namespace=_NAMESPACE))


def _text(state: object) -> str:
    """Return the name of one of Serve's states, an enumeration of strings."""
    return str(getattr(state, "value", state))
