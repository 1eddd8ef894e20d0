"""`chaski new-model`: the files of a new model family, to be filled in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chaski.errors import OptionError

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["command"]

_ROOT = Path(__file__).parents[2]
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}[a-z0-9]")

_ARCHITECTURE = '''"""{title} (AUTHORS YEAR): WHAT DIFFERS FROM {like}."""

from __future__ import annotations

from chaski.model.arch import {like_module}
from chaski.model.architecture import Architecture

ARCHITECTURE = Architecture("{name}", "{title}")


class Model({like_module}.Model):
    """Override the methods that compute something else: `layer`, `ffn`, `rope`, `layer_kinds`."""
'''
_CONVERTER = '''"""{title} (AUTHORS YEAR): WHAT ITS CHECKPOINTS HAVE THAT {like} HAS NOT."""

from __future__ import annotations

from chaski.convert.derived import derived_family
from chaski.convert.families import {like_module}

FAMILY = derived_family("{name}", {like_module}.metadata{special})
CHECKPOINTS = ("{checkpoint}",)
'''
_CONFIGURATION = """
[{name}]
architectures = ["{checkpoint}"]
vocab_size = 304
hidden_size = {hidden}
intermediate_size = {ffn}
num_hidden_layers = {layers}
num_attention_heads = {heads}
num_key_value_heads = {kv_heads}
max_position_embeddings = 256
tie_word_embeddings = {tied}
"""
_SIZES = (
    ("usual", 32, 52, 4, 4, 2, "true"),
    ("odd", 40, 36, 3, 2, 1, "false"),
    ("large", 48, 40, 2, 3, 3, "true"),
)
_KEYS = ("name", "hidden", "ffn", "layers", "heads", "kv_heads", "tied")
_NEXT = """
Read docs/adding-a-model.md, then:
  PYTHONPATH=. python -m tools.fixtures.make_families {name}    (needs torch and transformers)
  python -m pytest tests/model -k {name}
  PYTHONPATH=. python -m tools.check_model CHECKPOINT           (a real or tiny checkpoint)"""


@click.command("new-model", short_help="Write the files of a new model family.")
@click.argument("name")
@click.option("--like", default="llama", show_default=True, help="The architecture that it varies.")
@click.option("--checkpoint", default="", help="The class in config.json; otherwise it is made of the name.")
@click.help_option("-h", "--help")
def command(name: str, like: str, checkpoint: str) -> None:
    """Write the three files of a new family into a checkout of chaski's sources: model, converter, test.

    NAME is the architecture's name in GGUF, such as `olmo2`. The files run as they are: they compute what
    the architecture of --like computes. Change what differs.
    """
    for path in write_family(_ROOT, name, like, checkpoint):
        click.echo(f"wrote {path.relative_to(_ROOT)}")
    click.echo(_NEXT.format(name=name))


def write_family(root: Path, name: str, like: str, checkpoint: str = "") -> list[Path]:
    """Write the files and return their paths.

    Raises OptionError for a name that cannot be one or exists, for an unknown `like`, and outside of a
    checkout.
    """
    from chaski.model.registry import ARCHITECTURES

    if not _NAME.fullmatch(name):
        raise OptionError(f"{name!r:.80} cannot be a name of an architecture: use a-z, 0-9, - and _")
    if like not in ARCHITECTURES:
        raise OptionError(f"--like {like!r:.80} is not an architecture; `chaski models` lists them")
    if not (root / "tests" / "data" / "families").is_dir():
        raise OptionError(f"{root} is no checkout of chaski's sources; new-model writes into one")
    module, like_module = name.replace("-", "_"), like.replace("-", "_")
    converter = _converter_of(like_module)
    checkpoint = checkpoint or "".join(map(str.capitalize, re.split("[-_]", name))) + "ForCausalLM"
    values = {
        "name": name,
        "title": name,
        "like": like,
        "like_module": like_module,
        "checkpoint": checkpoint,
        "special": f", {like_module}.special" if hasattr(converter, "special") else "",
    }
    tables = (
        _CONFIGURATION.format(checkpoint=checkpoint, **dict(zip(_KEYS, sizes, strict=True)))
        for sizes in _SIZES
    )
    texts = {
        root / "chaski" / "model" / "arch" / f"{module}.py": _ARCHITECTURE.format(**values),
        root / "chaski" / "convert" / "families" / f"{module}.py": _CONVERTER.format(**values),
        root / "tests" / "data" / "families" / f"{name}.toml": f"# {name}.\n" + "".join(tables),
    }
    for path in texts:
        if path.exists():
            raise OptionError(f"{path.relative_to(root)} exists already")
    for path, text in texts.items():
        path.write_text(text)
    return list(texts)


def _converter_of(like_module: str) -> ModuleType:
    """Return the module that converts checkpoints of an architecture. Raises OptionError without one."""
    from chaski.convert.families import families

    for module in families().values():
        if module.__name__.rpartition(".")[2] == like_module and hasattr(module, "metadata"):
            return module
    raise OptionError(
        f"--like {like_module}: no file of chaski/convert/families has its name and `metadata`; "
        "choose another"
    )
