"""Which files fit, how fast they are, what they lose, and which one is recommended."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from chaski.errors import ModelNotFoundError, RegistryError
from chaski.formats.gguf import has_whole_header, open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.ml.rates import DeviceRates, ProductRates
from chaski.runner.choosing import candidates
from chaski.runner.choosing.advice import Advice, advise, recommended
from chaski.runner.choosing.candidates import Candidate, local_candidates, remote_candidates
from chaski.runner.choosing.losses import Loss, loss_of_type
from chaski.runner.evaluation.records import Description, Records, Subject
from chaski.runner.evaluation.scores import SCORE
from chaski.runner.fitting.prediction import BETWEEN
from chaski.runner.fitting.work import Work, bytes_per_token
from chaski.runner.loading import reservation
from chaski.store.create import create
from chaski.store.http import Access
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.backends import about_the_processor
from tests.rewriting import write_split
from tests.store.fake_registry import FakeRegistry
from tests.tiny_llama import CONTEXT, write_tiny_llama

pytestmark = about_the_processor

BANDWIDTH = 1e9


def rates(work: Work, devices: Sequence[str]) -> Mapping[str, DeviceRates]:
    """A processor that does nothing but read."""
    return {"cpu": DeviceRates({"": ProductRates(BANDWIDTH, 1e18)}, 1e18, 1e18, 0.0)}


LOCAL = Access(insecure=True, private_hosts=frozenset({"127.0.0.1"}))


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model in three types, one of them in two parts, and files that are no models."""
    path = tmp_path / "folder"
    path.mkdir()
    for name, kind in (("Q8_0", QuantType.Q8_0), ("F16", QuantType.F16)):
        write_tiny_llama(path / f"tiny-{name}.gguf", matrices=kind)
    whole = write_tiny_llama(tmp_path / "tiny-F32.gguf")
    write_split(whole, path, 2)
    (path / "notes.txt").write_text("no model")
    sums = {"blk.0.attn_q.weight.in_sum2": (np.ones((1, 32), np.float32), QuantType.F32)}
    write_gguf(path / "imatrix.gguf", {"general.type": "imatrix"}, sums)
    return path


def test_a_folder(folder: Path) -> None:
    found = advise(local_candidates(str(folder)), None, rates)
    assert [each.type for each in found] == ["Q8_0", "F16", "F32"]
    assert all(each.fits and each.context == CONTEXT and not each.problem for each in found)
    assert [each.loss.divergence if each.loss else None for each in found] == [0.001355, 0.0, 0.0]
    speeds = [each.rate or 0 for each in found]
    assert speeds == sorted(speeds, reverse=True)
    with open_gguf(folder / "tiny-F16.gguf") as file:
        assert 1 / speeds[1] == pytest.approx(bytes_per_token(file) / BANDWIDTH + BETWEEN)
    assert found[2].candidate.num_bytes == sum(path.stat().st_size for path in folder.glob("tiny-F32-*.gguf"))


def test_a_folder_without_models(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="without a GGUF file"):
        local_candidates(str(tmp_path))


def test_tags_of_a_stored_model(folder: Path) -> None:
    from chaski.names import ModelName

    for tag in ("Q8_0", "F16"):
        list(
            create(
                Store.default(), ModelName.parse(f"tiny:{tag}"), Recipe(sources=[folder / f"tiny-{tag}.gguf"])
            )
        )
    list(create(Store.default(), ModelName.parse("other"), Recipe(sources=[folder / "tiny-F16.gguf"])))
    found = advise(local_candidates("tiny:F16"), None, rates)
    assert [each.candidate.name for each in found] == ["tiny:Q8_0", "tiny:F16"]
    assert [each.type for each in found] == ["Q8_0", "F16"]


def test_a_context_that_does_not_fit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaski.ml.cpu.backend.available_memory", lambda: 600_000, raising=False)
    monkeypatch.setattr(reservation, "available_memory", lambda: 600_000)
    small, *_, large = advise(local_candidates(str(folder)), CONTEXT, rates)
    assert not large.fits
    assert large.needed > large.available
    assert small.context == CONTEXT


def test_what_an_evaluation_measured(folder: Path) -> None:
    path = folder / "tiny-Q8_0.gguf"
    with open_gguf(path) as file, open_gguf(folder / "tiny-F16.gguf") as other:
        model, against = Subject.of("q", file), Subject.of("f", other)
    scores = np.full(4, 0.25, SCORE)
    for pair in ((model, against), (against, model), (model, model)):
        with Records.open(Description(*pair, "text", "digest", 8, 4, "usual")) as records:
            records.append(scores)
    (found, other_type) = advise(local_candidates(str(folder)), None, rates)[:2]
    assert found.loss == Loss(0.25, "measured")
    assert other_type.loss == Loss(0.0, "published")


@pytest.mark.parametrize(
    ("type", "by_importance", "divergence"),
    [
        ("Q4_K_M", False, 0.031273),
        ("Q4_K_M", True, 0.028152),
        ("q4_k_m", False, 0.031273),
        ("UD-Q4_K_XL", False, 0.028152),
        ("IQ2_XS", False, 0.54629),
        ("Q2_K_L", False, 0.445132),
        ("Q8_K_XL", False, None),
        ("Q6_K_L", False, 0.005452),
        ("BF16", False, 0.0),
        ("", False, None),
        ("MXFP4", False, None),
    ],
)
def test_published_losses(type: str, by_importance: bool, divergence: float | None) -> None:
    found = loss_of_type(type, by_importance)
    assert (found and found.divergence) == divergence


def advice(type: str, num_bytes: int, rate: float, context: int = 8192, fits: bool = True) -> Advice:
    candidate = Candidate(f"m:{type}", type, num_bytes, Path("m"))
    return Advice(candidate, type, context, num_bytes, 99, fits, rate, loss_of_type(type))


def test_the_recommended_file() -> None:
    """The least loss at reading speed wins; losses that do not matter count as equal."""
    slow, good, near, poor = (
        advice("F16", 16, 3.0),
        advice("Q8_0", 8, 9.0),
        advice("Q6_K", 6, 12.0),
        advice("Q4_K_M", 4, 20.0),
    )
    assert recommended([poor, near, good, slow], None) is near
    assert recommended([poor, good, slow], None) is good
    assert recommended([slow, advice("Q2_K", 2, 4.0)], None) is slow
    assert recommended([advice("Q6_K", 6, 12.0, context=4096), poor], None) is poor
    assert recommended([advice("Q6_K", 6, 12.0, context=4096), poor], 4096).type == "Q6_K"
    assert recommended([advice("Q6_K", 6, 12.0, fits=False)], None) is None


def test_bytes_of_a_token(tmp_path: Path) -> None:
    """Embeddings are looked up, and only the experts that a token uses are read."""
    data = Path(__file__).parents[2] / "data" / "architectures"
    with open_gguf(data / "qwen3moe.gguf") as file:
        total = sum(tensor.nbytes for tensor in file.tensors.values())
        experts = sum(tensor.nbytes for name, tensor in file.tensors.items() if "_exps." in name)
        share = file.get("qwen3moe.expert_used_count", int) / file.get("qwen3moe.expert_count", int)
        embeddings = file.tensors["token_embd.weight"].nbytes if "output.weight" in file.tensors else 0
        assert bytes_per_token(file) == pytest.approx(total - experts * (1 - share) - embeddings)


@pytest.fixture
def hub(folder: Path):
    with FakeRegistry().running() as running:
        for path in sorted(folder.glob("*.gguf")):
            running.files[path.name] = path.read_bytes()
        running.files["mmproj-F16.gguf"] = b"projector"
        running.files["README.md"] = b"read me"
        yield running


def test_a_repository_is_advised_by_the_beginning_of_one_file(
    hub: FakeRegistry, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "_FIRST_BYTES", 1000)
    with remote_candidates(hub.name("me/model"), LOCAL) as listed:
        assert all(not each.is_here for each in listed)
        found = advise(listed, None, rates)
    assert [each.type for each in found] == ["Q8_0", "F16", "F32"]
    here = advise(local_candidates(str(folder)), None, rates)
    for one, other in zip(found, here, strict=True):
        assert one.candidate.num_bytes == other.candidate.num_bytes
        assert one.needed - found[0].needed == one.candidate.num_bytes - found[0].candidate.num_bytes
        assert one.rate == pytest.approx(other.rate, rel=0.1)
        assert (one.fits, one.context, one.loss) == (other.fits, other.context, other.loss)
    assert found[0].needed == here[0].needed
    fetched = {path for _, path, _ in hub.requests if "/resolve/" in path}
    assert [path.rpartition("/")[2] for path in fetched] == ["tiny-Q8_0.gguf"]
    assert found[0].candidate.name == f"{hub.host}/me/model:Q8_0"


def test_files_of_one_type_are_told_apart(hub: FakeRegistry) -> None:
    """Their tags are file names, which `chaski pull` takes as well."""
    hub.files["more/other-Q8_0.gguf"] = hub.files["tiny-Q8_0.gguf"]
    hub.files["F16/other.gguf"] = hub.files.pop("tiny-F16.gguf")
    with remote_candidates(hub.name("me/model"), LOCAL) as listed:
        found = {each.name.rpartition(":")[2]: each.type for each in listed}
    assert found == {"other-Q8_0.gguf": "Q8_0", "tiny-Q8_0.gguf": "Q8_0", "F16": "F16", "F32": "F32"}


def test_a_split_model_alone(hub: FakeRegistry) -> None:
    hub.files = {name: data for name, data in hub.files.items() if "F32" in name}
    with remote_candidates(hub.name("me/model"), LOCAL) as listed:
        (found,) = advise(listed, None, rates)
    assert (found.type, found.fits, found.problem) == ("F32", True, "")


def test_a_repository_without_models(hub: FakeRegistry) -> None:
    hub.files = {"mmproj-F16.gguf": b"projector", "README.md": b""}
    with (
        pytest.raises(ModelNotFoundError, match="me/model has no GGUF files"),
        remote_candidates(hub.name("me/model"), LOCAL),
    ):
        pass


def test_a_file_that_ends_early(hub: FakeRegistry) -> None:
    def cut(handler, data: bytes, begin: int, end: int) -> None:
        handler.start(206, 10, {"Content-Range": f"bytes 0-9/{len(data)}"})
        handler.wfile.write(data[:10])

    hub.faults.extend([cut] * 3)
    with pytest.raises(RegistryError), remote_candidates(hub.name("me/model"), LOCAL):
        pass


def test_the_beginning_of_a_file_is_recognized(folder: Path, tmp_path: Path) -> None:
    """A header that is cut anywhere is not taken for a whole one."""
    data = (folder / "tiny-Q8_0.gguf").read_bytes()
    with open_gguf(folder / "tiny-Q8_0.gguf") as file:
        end = min(tensor.offset for tensor in file.tensors.values())
    part = tmp_path / "part.gguf"
    for length in (0, 10, 1000, end - 200):
        part.write_bytes(data[:length])
        assert not has_whole_header(part)
    part.write_bytes(data[:end])
    assert has_whole_header(part)


def test_a_damaged_file_is_listed_with_its_problem(folder: Path) -> None:
    shutil.copy(folder / "tiny-Q8_0.gguf", folder / "cut-Q8_0.gguf")
    with (folder / "cut-Q8_0.gguf").open("r+b") as file:
        file.truncate(20_000)
    found = {each.candidate.name: each for each in advise(local_candidates(str(folder)), None, rates)}
    damaged = found[str(folder / "cut-Q8_0.gguf")]
    assert "truncated" in damaged.problem
    assert not damaged.fits
