"""An opened Hugging Face checkpoint: its configuration, its family and the plan of its tensors.

The check is strict: every planned tensor has sources of the right shape, and no tensor is left over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from msgspec import Struct

from chaski.convert.blocks import with_present_blocks
from chaski.convert.config import Config, read_config
from chaski.convert.families import find_family
from chaski.convert.family import Family, VisionFamily
from chaski.convert.pooling import MODULES, check_modules, dense_tensors
from chaski.convert.quantized import Decoding, decode_stored
from chaski.convert.tensors import Planned
from chaski.errors import ModelError
from chaski.formats.safetensors import SafeTensor, open_checkpoint

__all__ = ["Checkpoint", "computing", "open_weights", "plain_name", "plan_conversion", "text_settings"]

# Prefixes that wrappers add to the names of a text model, in the order of any release.
_WRAPPERS = re.compile(
    r"^(?:thinker\.|llm\.|model\.|language_model\.|text_model\.|bert\.|roberta\.|distilbert\."
    r"|transformer\.(?!layer\.)|gpt_neox\.|backbone\.|rwkv\.)+"
    r"|(?<=^vision_tower\.)vision_model\."
)
# Parts of a configuration that contain the settings of the text model or of a draft's layers.
_TEXT_PARTS = ("thinker_config", "text_config", "transformer_layer_config")
# Buffers in old releases that can be derived from the configuration.
_BUFFERS = (r"(.*\.)?rotary_emb\.inv_freq", r"(.*\.)?position_ids", r".*\.attention\.(masked_)?bias")
_SHOWN = 5


class Checkpoint(Struct, frozen=True):
    """config: with the text model's own settings on top. tensors: by plain name.

    plan: the tensors of the text model's file. vision: the image encoder, if there is one to convert.
    target: the target model, if the checkpoint is a draft.
    """

    folder: Path
    config: Config
    family: Family
    tensors: Mapping[str, SafeTensor]
    plan: list[Planned]
    vision: VisionFamily | None = None
    target: DraftTarget | None = None


class DraftTarget(Struct, frozen=True):
    """The checkpoint that a draft was trained for. Its weights may be missing."""

    folder: Path
    config: Config
    family: Family

    @classmethod
    def of(cls, folder: Path) -> DraftTarget:
        config = read_config(folder)
        return cls(folder, config.part("text_config").over(config), find_family(config))


def plan_conversion(folder: Path, target_folder: Path | None = None, task: str | None = None) -> Checkpoint:
    """Open the checkpoint in `folder` and plan its conversion, without reading matrices.

    `target_folder` contains the checkpoint of a draft's target. The adapter of `task` is merged.

    Raises ModelError for tensors that are missing, left over or of another shape than the configuration
    says, UnsupportedError for architectures and methods of quantization that cannot be converted.
    """
    config = read_config(folder)
    with computing(config):
        return _planned(config, folder, target_folder, task)


def _planned(config: Config, folder: Path, target_folder: Path | None, task: str | None) -> Checkpoint:
    family = find_family(config)
    target = _target(config, family, target_folder)
    if target is not None:
        config = Config(config.path, {**config.values, "target": target.config.values})
    if task is not None:
        config = Config(config.path, {**config.values, "task": _known_task(config, family, task)})
    check_modules(config, family.embeds)
    decoding = open_weights(config, folder)
    tensors = {**decoding.tensors, **(_of_modules(folder) if family.embeds else {})}
    tensors = _effective(tensors, family.ineffective)
    config = text_settings(config, family, tensors.keys()).within(len(tensors))
    vision = family.vision if "vision_config" in config else None
    if vision is not None and vision.of is not None:
        vision = vision.of(tensors)
    planned = chain(family.tensors(config, tensors.keys()), dense_tensors(config) if family.embeds else ())
    plan = _checked(folder, planned, tensors)
    seen = [] if vision is None else _checked(folder, vision.tensors(config), tensors)
    unused = *decoding.unused, *(family.unused if vision is None else vision.unused), *family.left_out(config)
    used = decoding.used({name for planned in plan + seen for name in planned.sources})
    _check_unused(config, family.architecture, tensors.keys() - decoding.added, used, unused)
    return Checkpoint(folder, config, family, tensors, plan, vision, target)


def open_weights(config: Config, folder: Path) -> Decoding:
    """Return the tensors of the checkpoint in `folder` by plain name, decoded where they are quantized.

    Raises what `open_checkpoint` and `decode_stored` raise, and ModelError for two tensors of one name.
    """
    return decode_stored(config, _plain_names(open_checkpoint(folder)))


def text_settings(config: Config, family: Family, names: Set[str]) -> Config:
    """Return the settings of the text model with these tensor names, including implied settings."""
    for part in _TEXT_PARTS:
        config = config.part(part).over(config)
    usual = {name: config.values[other] for other, name in family.synonyms.items() if other in config}
    config = config.over(Config(config.path, {**family.defaults, **usual}))
    return with_present_blocks(Config(config.path, family.observed(names)).over(config), names)


def plain_name(name: str) -> str:
    """Return the name of a tensor without wrapper prefixes."""
    return _WRAPPERS.sub("", _WRAPPERS.sub("", name))


def _target(config: Config, family: Family, folder: Path | None) -> DraftTarget | None:
    """Return the target of a draft. Raises for a draft without a target, and for a target without a draft."""
    if family.needs_target and folder is None:
        raise ModelError(
            f"{config.path}: this is a draft, which needs the tokenizer of its target; name the folder of "
            "the target's checkpoint (chaski convert --target FOLDER)"
        )
    if not family.needs_target and folder is not None:
        raise ModelError(f"{config.path}: only a draft takes a target; convert without {folder}")
    return None if folder is None else DraftTarget.of(folder)


def _known_task(config: Config, family: Family, task: str) -> str:
    known = family.tasks(config)
    if task in known:
        return task
    if not known:
        raise ModelError(f"{config.path}: it has no adapters for tasks: convert it without a task")
    raise ModelError(f"{config.path}: it has no adapter for {task!r:.80}; tasks are {', '.join(known)}")


@contextmanager
def computing(config: Config) -> Iterator[None]:
    """Turn arithmetic, type and lookup errors into a ModelError about the configuration.

    Common settings are checked individually. This handles other malformed values.
    """
    try:
        yield
    except (ArithmeticError, ValueError) as error:
        raise ModelError(f"{config.path}: its numbers are not valid for a model: {error}") from error
    except (TypeError, LookupError, AttributeError) as error:
        raise ModelError(
            f"{config.path}: its values are not valid for a model: {type(error).__name__}: {error}"
        ) from error


def _checked(folder: Path, planned: Iterable[Planned], tensors: Mapping[str, SafeTensor]) -> list[Planned]:
    """Return the plan. A missing source fails at its first tensor, before the rest of the plan is built."""
    plan = []
    for each in planned:
        _check_sources(folder, each, tensors)
        plan.append(each)
    return plan


def _plain_names(tensors: Mapping[str, SafeTensor]) -> dict[str, SafeTensor]:
    plain: dict[str, SafeTensor] = {}
    for name, tensor in tensors.items():
        short = plain_name(name)
        if short in plain:
            raise ModelError(f"{tensor.path}: tensors {plain[short].name!r} and {name!r} are the same one")
        plain[short] = tensor
    return plain


def _effective(tensors: dict[str, SafeTensor], patterns: tuple[str, ...]) -> dict[str, SafeTensor]:
    """Return the tensors, without all-zero tensors of these names."""
    if not patterns:
        return tensors
    named = re.compile("|".join(patterns))
    return {name: each for name, each in tensors.items() if not named.fullmatch(name) or each.data.any()}


def _of_modules(folder: Path) -> dict[str, SafeTensor]:
    """Return the tensors of the module folders that sentence-transformers stores next to the weights."""
    found: dict[str, SafeTensor] = {}
    for name, module in MODULES.items():
        if (folder / module).is_dir():
            found |= {f"{name}.{key}": tensor for key, tensor in open_checkpoint(folder / module).items()}
    return found


def _check_sources(folder: Path, planned: Planned, tensors: Mapping[str, SafeTensor]) -> None:
    for name, shape in planned.sources.items():
        if name not in tensors:
            raise ModelError(
                f"{folder}: tensor {name!r} {shape} is missing; {planned.name!r} is made from it"
            )
        found = tensors[name].shape
        if found != shape:
            raise ModelError(f"{folder}: tensor {name!r} has shape {found}, but config.json asks for {shape}")


def _check_unused(
    config: Config,
    architecture: str,
    names: Set[str],
    used: Set[str],
    allowed: Iterable[str],
) -> None:
    unused = re.compile("|".join([*_BUFFERS, *allowed]))
    left = sorted(name for name in names - used if not unused.fullmatch(name))
    if left:
        shown = ", ".join(left[:_SHOWN])
        more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
        raise ModelError(f"{config.path.parent}: {architecture} has no use for tensors {shown}{more}")
