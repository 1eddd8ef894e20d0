"""Beam search on forked sequences. `chaski.chat.beams` defines and checks its options."""

from chaski.runner.beams.search import BeamSearch

__all__ = ["BeamSearch"]
