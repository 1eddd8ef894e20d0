"""Groups: tokens of a sequence that attend to each other, as the rows of an image do.

A group is the range of its positions. It is computed in one batch or not at all, is taken over from the
prefix cache as a whole, and is forgotten as a whole. Groups of a sequence are in order and do not overlap.
"""

from __future__ import annotations

__all__ = ["Groups", "not_inside", "outside", "without"]

Groups = tuple[range, ...]


def not_inside(length: int, groups: Groups) -> int:
    """Return the largest length, at most `length`, that cuts no group in two."""
    return next((group.start for group in groups if group.start < length < group.stop), length)


def outside(position: int, groups: Groups) -> int:
    """Return the first position, from `position` on, that is not in the middle of a group."""
    for group in groups:
        if group.start < position < group.stop:
            position = group.stop
    return position


def without(dropped: range, groups: Groups) -> Groups:
    """Return the groups left without the positions `dropped`, which contain a group or do not touch it."""
    count = len(dropped)
    before = tuple(group for group in groups if group.stop <= dropped.start)
    behind = (group for group in groups if group.start >= dropped.stop)
    return before + tuple(range(group.start - count, group.stop - count) for group in behind)
