"""The definition of linear recurrences in NumPy and float32, token by token."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.ml.recurrent_ops import CHUNK, RING, padded_columns
from chaski.ml.reference.cached_ops import Storage

__all__ = ["chunked_conv", "gated_delta", "generalized_delta", "pooling", "selective_scan", "ssd"]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]


def chunked_conv(x: F32, segments: I32, states: Storage, rows: Storage, *, filter: F32) -> F32:
    y = np.zeros_like(x)
    taps = filter.shape[1]
    before = taps - 1
    for begin, end, position, cell, source, target, since in segments.tolist():
        ring = rows.rows[cell]
        kept = [states.rows[source], ring[np.arange(since, position) % RING]]
        seen = np.concatenate([*kept, x[begin:end]])  # from since - before on
        for tap in range(taps):
            first = position - since + tap
            y[begin:end] += filter[:, tap] * seen[first : first + end - begin]
        positions = np.arange(position, position + end - begin)
        if target:
            last = len(seen) - positions[-1] % CHUNK - 1
            states.rows[target] = seen[last - before : last]
        newest = positions[-RING:]
        ring[newest % RING] = x[end - len(newest) : end]
    return y


def gated_delta(
    q: F32,
    k: F32,
    v: F32,
    log_decay: F32,
    beta: F32,
    segments: I32,
    states: Storage,
    *rows: Storage,
    tiled: bool,
) -> F32:
    heads, key_heads = v.shape[1], k.shape[1]
    shared = np.arange(heads) % key_heads if tiled else np.arange(heads) // (heads // key_heads)
    return _in_chunks(_DeltaRule, shared, (q, k, v, log_decay, beta), segments, states, *rows)


def ssd(
    c: F32,
    b: F32,
    x: F32,
    log_decay: F32,
    dt: F32,
    segments: I32,
    states: Storage,
    *rows: Storage,
    d: F32,
) -> F32:
    shared = np.arange(x.shape[1]) // (x.shape[1] // b.shape[1])
    y = _in_chunks(_Recurrence, shared, (c, b, x, log_decay, dt), segments, states, *rows)
    return y + d[:, None] * x


def pooling(values: F32, scores: F32, segments: I32, states: Storage, rows: Storage, *, bias: F32) -> F32:
    (ratio, width), channels = bias.shape, states.size
    y = np.empty((len(values), channels), np.float32)
    for begin, end, position, cell, source, target, since in segments.tolist():
        ring, count = rows.rows[cell], position + end - begin
        kept = ring[np.arange(since, position) % RING]
        inputs = np.concatenate([kept, np.concatenate([values[begin:end], scores[begin:end]], axis=1)])
        empty = _Pool.empty(channels)
        known = _Pool(*states.rows[source])
        own, following, before = empty, empty, empty
        if width > channels:
            before = known if since else empty
        elif since % ratio:
            own = known
        last_chunk = (count - 1) // CHUNK * CHUNK
        for at in range(since, count):
            if at % ratio == 0:
                before = following if width > channels and at > since else before
                own = following = empty
            if target and at == last_chunk:
                states.rows[target] = np.stack(before if width > channels else own)
            row = inputs[at - since]
            c, z = row[:width], row[width:] + bias[at % ratio]
            own = own.joined(_Pool(z[-channels:], np.ones(channels, np.float32), c[-channels:]))
            if width > channels:
                token = _Pool(z[:channels], np.ones(channels, np.float32), c[:channels])
                following = following.joined(token)
            if at >= position:
                whole = before.joined(own)
                y[begin + at - position] = whole.total / whole.sum
        newest = np.arange(max(position, count - RING), count)
        ring[newest % RING] = inputs[newest - since]
    return y


class _Pool(NamedTuple):
    """The highest scores of some tokens, and sums of their powers relative to it, alone and times values."""

    highest: F32
    sum: F32
    total: F32

    @classmethod
    def empty(cls, channels: int) -> _Pool:
        zeros = np.zeros(channels, np.float32)
        return cls(np.full(channels, -np.inf, np.float32), zeros, zeros)

    def joined(self, later: _Pool) -> _Pool:
        highest = np.maximum(self.highest, later.highest)
        f, g = np.exp(self.highest - highest), np.exp(later.highest - highest)
        return _Pool(highest, self.sum * f + later.sum * g, self.total * f + later.total * g)


def selective_scan(x: F32, dt: F32, b: F32, c: F32, segments: I32, states: Storage, *, a: F32) -> F32:
    y = np.empty_like(x)
    state = np.empty_like(states.rows[0])
    for begin, end, first, source, target in segments.tolist():
        if begin == first:
            state = states.rows[source].copy()
        for token in range(begin, end):
            decay = np.exp(dt[token] * a.T)
            state = decay * state + (dt[token] * x[token]) * b[token][:, None]
            y[token] = _sum(c[token], state)
        states.rows[target] = state
    return y


def generalized_delta(
    r: F32, w: F32, k: F32, v: F32, segments: I32, states: Storage, *correction: F32
) -> F32:
    y = np.empty_like(v)
    (heads, key_size), value_size = k.shape[1:], v.shape[2]
    shape = (heads, key_size, padded_columns(value_size))
    state = np.zeros((heads, key_size, value_size), np.float32)
    for begin, end, first, source, target in segments.tolist():
        if begin == first:
            state = states.rows[source].reshape(shape)[:, :, :value_size].copy()
        for token, head in np.ndindex(end - begin, heads):
            at, s = (begin + token, head), state[head]
            taken = k[at][:, None] * v[at]
            if correction:
                a, b = correction
                taken += b[at][:, None] * _sum(a[at], s)
            s[:] = w[at][:, None] * s + taken
            y[at] = _sum(r[at], s)
        states.rows[target].reshape(shape)[:, :, :value_size] = state
    return y


def _in_chunks(
    rule: type[_Recurrence],
    key_head_of: npt.NDArray[np.int_],
    inputs: tuple[F32, F32, F32, F32, F32],
    segments: I32,
    states: Storage,
    keys: Storage,
    values: Storage,
    decays: Storage,
) -> F32:
    """Compute a rule for each head and its shared key head."""
    q, k, v, log_decay, beta = inputs
    y = np.empty_like(v)
    value_size, key_size = v.shape[2], k.shape[2]
    state_shape = (key_size, padded_columns(value_size))
    for begin, end, position, cell, source, target, since in segments.tolist():
        recurrences = [
            rule(
                keys.rows[cell, key_head].reshape(RING, key_size),
                values.rows[cell, head].reshape(RING, -1)[:, :value_size],
                decays.rows[cell, head],
                states.rows[source, head].reshape(state_shape)[:, :value_size],
                states.rows[target, head].reshape(state_shape)[:, :value_size],
                since,
            )
            for head, key_head in enumerate(key_head_of)
        ]
        for token in range(begin, end):  # heads share the ring of keys, so all take a token together
            for head, (key_head, recurrence) in enumerate(zip(key_head_of, recurrences, strict=True)):
                y[token, head] = recurrence.advance(
                    position + token - begin,
                    q[token, key_head],
                    k[token, key_head],
                    v[token, head],
                    log_decay[token, head],
                    beta[token, head],
                )
    return y


class _Recurrence(Struct):
    """One head of a sequence: the rows of its last tokens, its state at a boundary, and a place for the next.

    States are (key size, value size). The state is that at the boundary `since`. A full chunk after it stays
    open until the next token.
    """

    keys: F32
    values: F32
    log_decays: F32
    state: F32
    target: F32
    since: int

    def advance(self, position: int, q: F32, k: F32, v: F32, log_decay: F32, beta: F32) -> F32:
        """Compute the token at `position` -> (value size,)."""
        if position == self.since + CHUNK:
            self._pass_boundary()
        own = position % RING
        self.keys[own], self.log_decays[own] = k, log_decay
        chunk = np.arange(self.since, position + 1) % RING
        keys = self.keys[chunk]
        decay, since = self._decays(chunk)
        self.values[own] = beta * self._new(v, k, keys[:-1], self.values[chunk[:-1]], decay, since[:-1])
        y: F32 = decay * _sum(q, self.state) + _sum(since * _sum(q, keys.T), self.values[chunk])
        return y

    def _new(self, v: F32, k: F32, keys: F32, values: F32, decay: np.float32, since: F32) -> F32:
        """Return what the state does not have of a value: all of it for Mamba 2."""
        return v

    def _pass_boundary(self) -> None:
        chunk = np.arange(self.since, self.since + CHUNK) % RING
        decay, since = self._decays(chunk)
        self.target[:] = decay * self.state + self.keys[chunk].T @ (since[:, None] * self.values[chunk])
        self.state, self.since = self.target, self.since + CHUNK

    def _decays(self, chunk: npt.NDArray[np.int_]) -> tuple[np.float32, F32]:
        """Return the decay since the boundary, and the decays since each token of the chunk."""
        sums = np.zeros(len(chunk) + 1, np.float32)
        for index, log_decay in enumerate(self.log_decays[chunk]):
            sums[: index + 1] += log_decay
        decays: F32 = np.exp(sums)
        return decays[0], decays[1:]


class _DeltaRule(_Recurrence):
    """The gated delta rule: what the state returns for the key is no longer new."""

    def _new(self, v: F32, k: F32, keys: F32, values: F32, decay: np.float32, since: F32) -> F32:
        error = v - decay * _sum(k, self.state)
        error -= _sum(since * _sum(k, keys.T), values)
        return error


def _sum(factors: F32, rows: F32) -> F32:
    """Add up rows times factors one after the other, because a product's order may depend on its shape."""
    total: F32 = (factors[:, None] * np.ascontiguousarray(rows)).sum(axis=0)
    return total
