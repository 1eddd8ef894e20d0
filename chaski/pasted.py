"""`pasted_name`: the name of a model in what people paste: a name, a command or a link of a web page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import parse_qs, unquote, urlsplit

from chaski.errors import OptionError
from chaski.names import ModelName, is_path

__all__ = ["pasted_name", "quantization"]

_EXAMPLES = "llama3.2:3b, hf.co/USER/REPOSITORY:QUANT, or a link of huggingface.co or ollama.com"
_LINK = re.compile(
    r"(?:https?://|(?<![\w./])(?:www\.)?(?:hf\.co|huggingface\.co|ollama\.(?:com|ai))/)[^\s\"'`<>()\[\]“”‘’]+",
    re.IGNORECASE,
)
_INVISIBLE = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff"))
_AROUND = "\"'`“”‘’«»<>()[]{},;"
_VERBS = ("run", "pull", "show", "from")
_VALUED = ("--format", "--keepalive", "--dimensions", "--username", "--password", "--think", "--host")
_REPOSITORY = ("-hf", "-hfr", "--hf-repo")
_FILE = ("-hff", "--hf-file")

_HUGGING_FACE = ("hf.co", "huggingface.co")
_OLLAMA = ("ollama.com", "ollama.ai")
_PAGES_OF_OLLAMA = ("blog", "docs", "search", "download", "models", "cloud", "pricing", "settings", "signin")
_PAGES_OF_HUGGING_FACE = ("datasets", "spaces", "collections", "docs", "papers", "blog", "models", "tasks")
_NO_REGISTRIES = ("github.com", "gist.github.com", "raw.githubusercontent.com", "lmstudio.ai", "kaggle.com")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".onnx")

_PART = re.compile(r"-\d{5}-of-\d{5}$")
_QUANT = re.compile(r"(?:^|[-._])((?:UD-)?(?:I?Q\d\w*|TQ\d_\d|BF16|FP?16|FP?32|MXFP4\w*))$", re.IGNORECASE)
_LONGEST_TAG = 80
_LONGEST = 4000


def pasted_name(text: str) -> str:
    """Return the name of a model in pasted text, in the form that `ModelName.parse` reads.

    It understands names, commands such as `ollama run NAME` and `llama-server -hf USER/REPOSITORY:QUANT`, and
    links of Hugging Face and ollama.com, with spaces, quotes and prompts of a shell around them. Other words
    and paths are returned unchanged. Raises OptionError for links and sentences that name no model.
    """
    if len(text) > _LONGEST:
        raise OptionError(f"a text of {len(text)} characters names no model; give a name such as {_EXAMPLES}")
    is_one = len(text.split()) == 1 or text.startswith((".", "/", "~"))
    if is_one and is_path(text) and not _LINK.search(text):
        return text
    cleaned = text.translate(_INVISIBLE).strip()
    words = [word for each in cleaned.split() if (word := each.strip(_AROUND))]
    if not words:
        raise OptionError(f"no model is named; give a name such as {_EXAMPLES}")
    if len(words) == 1 and _is_name(words[0]):
        return words[0]
    found = _of_options(words) or _of_download(words) or _of_link(cleaned) or _of_command(words)
    if found is None and len(words) == 1:
        found = words[0]
    if found is None:
        raise OptionError(f"{cleaned!r:.200} names no model; give a name such as {_EXAMPLES}")
    return found


def _is_name(word: str) -> bool:
    """Return whether a word is the name of a model of a registry as it stands."""
    try:
        name = ModelName.parse(word)
    except OptionError:
        return False
    host = name.host.lower()
    return "://" not in word and not host.startswith("www.") and host not in _OLLAMA


def _of_options(words: Sequence[str]) -> str | None:
    """Read `-hf USER/REPOSITORY:QUANT`, as llama.cpp's programs take it, perhaps with `-hff FILE`."""
    repository = _value(words, _REPOSITORY)
    if repository is None or "/" not in repository:
        return None
    user, _, rest = repository.partition("/")
    return _hub_name(user, rest, _value(words, _FILE))


def _value(words: Sequence[str], options: Sequence[str]) -> str | None:
    """Return the value of an option, written as the next word or after an equals sign."""
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in options:
            return value.strip(_AROUND) if equals else next(iter(words[place + 1 :]), None)
    return None


def _of_download(words: Sequence[str]) -> str | None:
    """Read `hf download USER/REPOSITORY FILE` and `huggingface-cli download …`."""
    for place, word in enumerate(words[:-2]):
        if word in ("hf", "huggingface-cli") and words[place + 1] == "download":
            user, slash, repository = words[place + 2].partition("/")
            if slash:
                files = (each for each in words[place + 3 :] if re.search(r"\.gguf|\*", each))
                return _hub_name(user, repository, next(files, None))
    return None


def _of_link(text: str) -> str | None:
    """Read the first link in a text, with or without its scheme."""
    match = _LINK.search(text)
    if match is None:
        return None
    link = match[0].rstrip(".,;:!?")
    address = urlsplit(link if "://" in link else f"https://{link}")
    host = address.netloc.lower().removeprefix("www.")
    parts = [unquote(part) for part in address.path.split("/") if part]
    if host in _HUGGING_FACE:
        return _of_hugging_face(link, parts, parse_qs(address.query).get("show_file_info", [None])[0])
    if host in _OLLAMA:
        return _of_ollama(link, parts)
    if host in _NO_REGISTRIES or address.path.lower().endswith((".gguf", *_WEIGHTS)):
        raise OptionError(f"{link:.200} is not a model of a registry; give {_EXAMPLES}")
    return link


def _of_hugging_face(link: str, parts: list[str], file: str | None) -> str:
    """Read the path of a link: `USER/REPOSITORY`, perhaps with `blob/main/FILE` or another page after it."""
    if parts[:2] == ["api", "models"]:
        parts = parts[2:]
    if len(parts) < 2 or parts[0] in _PAGES_OF_HUGGING_FACE:
        raise OptionError(
            f"{link:.200} is not a model; the link of a model is https://huggingface.co/USER/REPOSITORY"
        )
    user, repository, *page = parts
    if page and page[0] in ("blob", "resolve", "raw", "tree"):
        if len(page) > 1 and page[1] != "main":
            raise OptionError(f"{link:.200} is the version {page[1]!r:.60}; only the version main is pulled")
        file = "/".join(page[2:]) or file
        if page[0] == "tree" and file and not file.endswith(".gguf"):
            file = f"{file}.gguf"  # the folder of a quantization
    return _hub_name(user, repository.removesuffix(".git"), file)


def _hub_name(user: str, repository: str, file: str | None) -> str:
    """Return the name of a repository's file, or of its usual file."""
    repository, colon, tag = repository.partition(":")
    name = f"hf.co/{user}/{repository}"
    if file is None or "mmproj" in file.lower():
        return f"{name}:{tag}" if colon else name
    if file.lower().endswith(_WEIGHTS):
        raise OptionError(f"{file:.100} is not a GGUF file; look for a repository whose name ends with GGUF")
    tag = _tag_of(file.rpartition("/")[2], repository)
    return f"{name}:{tag}" if tag else name


def _tag_of(file: str, repository: str) -> str:
    """Return the tag of a GGUF file: its quantization if the rest is the repository's name, else its name."""
    stem = re.sub(r"\.gguf$", "", file.strip("*"), flags=re.IGNORECASE).strip("*")
    if stem == file:
        match = _QUANT.search(stem)  # another file, such as README.md, or a pattern such as *Q4_K_M*
        return match[1] if match and "*" not in stem else ""
    stem = _PART.sub("", stem)
    match = _QUANT.search(stem)
    if match is None:
        return stem if stem + ".gguf" != file or len(file) > _LONGEST_TAG else file
    is_named_alike = _letters(stem[: match.start()]) in ("", _letters(re.sub(r"(?i)-?gguf$", "", repository)))
    is_part = stem + ".gguf" != file
    return match[1] if is_named_alike or is_part or len(file) > _LONGEST_TAG else file


def quantization(stem: str) -> str:
    """Return the quantization at the end of a file name without its suffix, or "" if it names none."""
    match = _QUANT.search(stem)
    return match[1] if match else ""


def _letters(text: str) -> str:
    return re.sub(r"[\W_]", "", text.lower())


def _of_ollama(link: str, parts: list[str]) -> str:
    """Read the path of a link: `library/NAME:TAG` or `USER/NAME:TAG`, perhaps with a page after it."""
    if len(parts) < 2 or parts[0] in _PAGES_OF_OLLAMA:
        raise OptionError(
            f"{link:.200} is not a model; the link of a model is https://ollama.com/library/NAME"
        )
    user, name, *_ = parts
    return name if user == "library" else f"{user}/{name}"


def _of_command(words: Sequence[str]) -> str | None:
    """Read `ollama run NAME`, `chaski pull NAME` and the like; options may stand before the name."""
    for place, word in enumerate(words[:-1]):
        is_begin = place == 0 or words[place - 1].rpartition("/")[2] in ("ollama", "chaski")
        if is_begin and word.lower().lstrip("/") in _VERBS:
            rest = iter(words[place + 1 :])
            for each in rest:
                if not each.startswith("-"):
                    return each
                if each in _VALUED:
                    next(rest, None)
    return None
