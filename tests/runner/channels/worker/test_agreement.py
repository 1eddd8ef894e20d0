"""Neighbouring versions of chaski understand each other's messages, or say which to upgrade first."""

from __future__ import annotations

import pytest
from msgspec import msgpack
from msgspec.structs import replace

from chaski.chat.events import Attempt, Done
from chaski.runner.channels.worker.agreement import Field, Kind, Messages, difference
from chaski.runner.channels.worker.codec import decode, encode

OWN = Messages.own()
DONE = Done(
    reason="stop",
    prompt_tokens=3,
    cached_tokens=0,
    generated_tokens=1,
    dropped_tokens=0,
    load_seconds=0.0,
    prefill_seconds=0.5,
    decode_seconds=0.25,
    attempts=(Attempt("one", "here", 1.0, 2.0),),
)


def changed(version: str, fields: tuple[Field, ...]) -> Messages:
    """Return the messages of a version whose `Done` has these fields."""
    return replace(OWN, version=version, kinds={**OWN.kinds, "Done": Kind(fields, is_array=True)})


def test_fields_with_defaults_at_the_end_are_agreed_on_in_both_directions() -> None:
    fields = OWN.kinds["Done"].fields
    assert difference(OWN, OWN) is None
    for other in (
        changed("0.1.0", fields[:-1]),
        changed("9.0.0", (*fields, Field("further", "int", True))),
        replace(OWN, version="9.0.0", calls=OWN.calls | {"Further"}),
    ):
        assert difference(OWN, other) is None
        assert difference(other, OWN) is None
    older = replace(OWN, replies=OWN.replies - {"LiveSequences"})
    assert difference(OWN, older) is None, "a newer server knows the replies of an older replica"


def test_an_older_version_ignores_what_it_does_not_know_and_a_newer_one_takes_defaults() -> None:
    number, words = msgpack.decode(encode(7, DONE))
    assert decode(msgpack.encode([number, [*words, "of a later version"]])) == (7, DONE)
    assert decode(msgpack.encode([number, words[:-2]])) == (7, replace(DONE, attempts=(), receipt=None))


@pytest.mark.parametrize(
    ("server", "replica", "first"),
    [("0.2.0", "0.10.0", "the server first"), ("0.10.0", "0.2.0", "the replica first")],
)
def test_other_changes_are_refused_and_the_older_end_is_named(server: str, replica: str, first: str) -> None:
    fields = OWN.kinds["Done"].fields
    own = replace(OWN, version=server)
    for other, problem in (
        (changed(replica, (*fields, Field("further", "int", False))), "Done.further is required"),
        (changed(replica, fields[1:]), "the fields of Done differ"),
        (changed(replica, (Field("reason", "int", False), *fields[1:])), "the fields of Done differ"),
        (replace(OWN, version=replica, replies=OWN.replies | {"Further"}), "does not know the reply Further"),
    ):
        told = str(difference(own, other))
        assert problem in told
        assert f"upgrade {first}" in told


def test_equal_versions_with_other_messages() -> None:
    told = difference(OWN, changed(OWN.version, OWN.kinds["Done"].fields[1:]))
    assert told == "the fields of Done differ; install the same version on both"
