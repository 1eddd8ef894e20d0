"""`--plot` of `chaski bench` and `chaski show`: charts as characters and as SVG."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result
from PIL import Image, ImageColor

from chaski.cli.charts import Bar, Chart, show
from chaski.cli.main import chaski_command
from chaski.cli.picture import COLORS, INK, WIDTH
from tests.tiny_llama import write_tiny_llama

SMALL = ("--prompt", "20", "--generate", "6", "--threads", "1")
SVG = "{http://www.w3.org/2000/svg}"
CHART = Chart(
    "Apples & <pears>",
    [Bar("a", (3.0, 1.0), "four"), Bar("long", (1.0, 1.0), "two", ticks=(1.0, 4.0)), Bar("none", (0, 0), "")],
    ("apples", "pears"),
)


def chaski(*arguments: str) -> Result:
    return CliRunner().invoke(chaski_command, arguments)


def texts(file: Path) -> list[str]:
    return [str(found.text) for found in ElementTree.parse(file).iter(f"{SVG}text")]


def test_characters(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "35")
    show([CHART], "-")
    assert capsys.readouterr().out.splitlines() == [
        "  Apples & <pears>",
        "    █ apples   ▒ pears",
        "       a ███████████████▒▒▒▒▒ four",
        "    long █████│▒▒▒▒         │ two",
        "    none",
        "",
    ]


def test_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show([CHART, CHART], str(tmp_path / "chart.svg"))
    assert texts(tmp_path / "chart.svg").count("Apples & <pears>") == 2
    assert {"apples", "pears", "a", "long", "four", "two"} <= set(texts(tmp_path / "chart.svg"))
    drawn = [str(path.get("d")) for path in ElementTree.parse(tmp_path / "chart.svg").iter(f"{SVG}path")]
    widths = [float(width) for path in drawn for width in re.findall(r"h(\d+\.\d\d)v18", path)]
    assert widths[:4] == [562.5, 187.5, 187.5, 187.5]
    assert capsys.readouterr().err == f"Drew {tmp_path / 'chart.svg'}\n"


def test_rates_by_repeat(tiny_llama: Path) -> None:
    result = chaski("bench", "--plot", str(tiny_llama), *SMALL, "--repeat", "2")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert "  Prefill, 20 tokens of each sequence: tokens/s" in lines
    assert "  Decode, 6 tokens of each sequence: tokens/s" in lines
    bars = [line for line in lines if "█" in line]
    assert [line.split("█")[0].strip() for line in bars] == ["repeat 1", "repeat 2"] * 2


def test_rates_by_depth_and_batch(tiny_llama: Path, tmp_path: Path) -> None:
    file = tmp_path / "rates.svg"
    options = ("--depth", "0,30", "--batch", "1,2", "--repeat", "1", "--json")
    result = chaski("bench", str(tiny_llama), *SMALL, *options, "--plot", str(file))
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [(each["batch"], each["depth"]) for each in found] == [(1, 0), (1, 30), (2, 0), (2, 30)]
    assert all(len(each["decode_tokens_per_second"]) == 1 for each in found)
    labels = ["1 sequence, depth 0", "1 sequence, depth 30", "2 sequences, depth 0", "2 sequences, depth 30"]
    assert [text for text in texts(file) if text in labels] == labels * 2
    assert f"{found[0]['decode_tokens_per_second'][0]:.1f}" in texts(file)


def test_memory_by_layer_and_context(tiny_llama: Path, tmp_path: Path) -> None:
    long = write_tiny_llama(tmp_path / "long.gguf", llama__context_length=3000)
    file = tmp_path / "memory.svg"
    assert chaski("show", str(long), "--plot", str(file), "--parallel", "2").exit_code == 0
    found = texts(file)
    assert "Memory by layer, 2 sequence(s) of 3,000 tokens; weight sizes as in the file" in found
    layers = [text for text in found if text.startswith("layer ")]
    assert layers == [f"layer {number}" for number in range(len(layers))]
    assert len(layers) > 1
    contexts = [text for text in found if re.fullmatch(r"[\d,]+ tokens", text)]
    assert contexts == ["512 tokens", "1,024 tokens", "2,048 tokens", "3,000 tokens"]
    table = chaski("show", str(long), "--memory", "--plot", "--parallel", "2").output
    total = next(line for line in table.splitlines() if line.split()[:1] == ["all"]).split(maxsplit=1)[1]
    assert next(line for line in table.splitlines() if "3,000 tokens ██" in line).endswith(total.strip())
    assert table.index("available") < table.index("Memory by layer")


@pytest.mark.parametrize("name", ["gemma3n", "lfm2", "llama4", "granite"])
def test_caches_of_layers_add_up(name: str) -> None:
    file = Path(__file__).parents[1] / "data" / "architectures" / f"{name}.gguf"
    output = chaski("show", str(file), "--memory", "--plot").output
    held = [line for line in output.splitlines() if line.strip().startswith("cache, ")]
    assert held
    bars = [line for line in output.splitlines() if "▒" in line and "▒ cache" not in line and "▓" not in line]
    assert _bytes(bars) == pytest.approx(_bytes(held), rel=0.02)


def _bytes(lines: list[str]) -> float:
    """Return the sum of the last size of each line."""
    units = {"B": 1, "kB": 1e3, "MB": 1e6}
    found = [re.findall(r"([\d.]+) (B|kB|MB)", line)[-1] for line in lines]
    return sum(float(number) * units[unit] for number, unit in found)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bench", "x.gguf", "--plot=a"), "--plot: a must be a file whose name ends with .svg or .png"),
        (("bench", "x.gguf", "--plot", "a.pdf"), "a.pdf must be a file whose name ends with .svg or .png"),
        (("show", "x.gguf", "--plot", "no/folder/a.png"), "folder no/folder does not exist"),
        (("show", "x.gguf", "--plot", "no/folder/a.svg"), "folder no/folder does not exist"),
        (("bench", "x.gguf", "--plot", "--plan"), "--plan takes one depth and one batch"),
        (("bench", "x.gguf", "--depth", "0,1", "--plan"), "--plan takes one depth and one batch"),
        (("bench", "x.gguf", "--depth", "0,x"), "'x' is not a valid integer"),
        (("bench", "x.gguf", "--batch", "0"), "0 is not in the range x>=1"),
        (("show", "x.gguf", "--context", "5"), "need --memory or --plot"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], message: str) -> None:
    result = chaski(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_a_png_file_shows_the_same(tmp_path: Path) -> None:
    path = tmp_path / "Chart.PNG"
    show([CHART, CHART], str(path))
    image = Image.open(path).convert("RGB")
    colors = {color for _, color in image.getcolors(1 << 20) or ()}
    assert image.size[0] == 2 * WIDTH
    assert {ImageColor.getrgb(each) for each in (*COLORS[:2], INK, "#ffffff")} <= colors


def test_a_png_file_needs_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    result = chaski("show", "x.gguf", "--plot", "a.png")
    assert "a PNG picture needs the package pillow; install it with: pip install 'chaski-llm[images]'" in (
        " ".join(result.output.split())
    )
