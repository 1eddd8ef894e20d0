"""The table of attached drafts: files that are not models but propose tokens for a given model.

Each is a module of this folder with a class `Draft`, an `AttachedDraft`.
"""

from __future__ import annotations

from importlib import import_module

from chaski.formats.gguf import GGUFFile
from chaski.model.attached import AttachedDraft, Target
from chaski.model.keys import check_keys
from chaski.model.metadata import blamed_on, check_metadata
from chaski.model.vocabulary import num_shared_tokens

__all__ = ["ATTACHED", "attach_draft", "is_attached"]

ATTACHED = {"dflash": "dflash", "eagle3": "eagle3", "gemma4-assistant": "gemma4_assistant"}
"""The module of each architecture."""


def is_attached(file: GGUFFile) -> bool:
    """Return whether the file is a draft that is not a model by itself."""
    return file.architecture in ATTACHED


def attach_draft(file: GGUFFile, target: Target) -> AttachedDraft:
    """Return the draft of a file for a model that is built, with its weights declared but not bound yet.

    Raises OptionError for a draft of another model, and the errors of `build_model`.
    """
    module = import_module(f"chaski.model.drafts.{ATTACHED[file.architecture]}")
    check_metadata(file)
    check_keys(file, module.ARCHITECTURE)
    vocab_size = target.model.config.vocab_size
    num_shared_tokens(target.file, vocab_size, file, vocab_size)
    with blamed_on(file):
        draft: AttachedDraft = module.Draft(file, target)
    return draft
