"""Checkpoints whose weights are stored quantized. Families see ordinary tensors with ordinary names.

`decode_stored` adds the decoded tensors to those of the file. Each decodes its rows when they are written.
"""

from chaski.convert.quantized.methods import Decoding, decode_stored

__all__ = ["Decoding", "decode_stored"]
