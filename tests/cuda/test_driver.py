"""The driver's GPU with a driver that only records: its calls, and the errors that result."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chaski.errors import DeviceError, MissingPackageError, OutOfMemoryError, UnsupportedError
from chaski.ml.cuda.device import KernelLaunch, Program


class Status(Enum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


class Attributes:
    """An enumeration with every name."""

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(name=name, value=name)


class Driver(ModuleType):
    """Functions that succeed and record `calls`; `fails` contains the status of failing ones."""

    CUresult = Status

    def __init__(self) -> None:
        super().__init__("cuda.bindings.driver")
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.fails: dict[str, Status] = {}
        self.number = 1
        self.capability = {"MAJOR": 9, "MINOR": 0}
        self.version = 13000
        self.host: list[Any] = []
        for name in ("CUdevice_attribute", "CUfunction_attribute", "CUstream_flags", "CUevent_flags"):
            setattr(self, name, Attributes())
        self.CUstreamCaptureMode = self.CUlaunchAttributeID = Attributes()
        self.CUlaunchConfig = SimpleNamespace
        self.CUlaunchAttribute = lambda: SimpleNamespace(value=SimpleNamespace())

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, arguments))
            status = self.fails.get(name, Status.CUDA_SUCCESS)
            return (status, *self.results(name, arguments))

        return call

    def results(self, name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        match name:
            case "cuDeviceGetCount":
                return (self.number,)
            case "cuDriverGetVersion":
                return (self.version,)
            case "cuDeviceGetName":
                return (b"A GPU\0",)
            case "cuDeviceGetAttribute":
                kind = arguments[0].name.rpartition("_")[2]
                return (self.capability.get(kind, 99000),)
            case "cuMemGetInfo":
                return (7 << 30, 8 << 30)
            case "cuMemHostAlloc":
                memory = ctypes.create_string_buffer(arguments[0])
                self.host.append(memory)
                return (ctypes.addressof(memory),)
            case "cuMemAlloc":
                return (0x1000,)
            case "cuFuncGetAttribute":
                return (1024,)
            case "cuGetErrorName" | "cuGetErrorString":
                return (arguments[0].name.encode(),)
            case "cuInit" | "cuMemFree" | "cuMemFreeHost" | "cuCtxSetCurrent" | "cuGraphDestroy":
                return ()
        return (SimpleNamespace(of=name),)

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


class Compiler(ModuleType):
    def __init__(self) -> None:
        super().__init__("cuda.bindings.nvrtc")
        self.nvrtcResult = SimpleNamespace(NVRTC_SUCCESS=0)
        self.compiled: list[tuple[bytes, ...]] = []

    def nvrtcVersion(self) -> tuple[int, int, int]:  # noqa: N802
        return 0, 13, 0

    def nvrtcCreateProgram(self, text: bytes, name: bytes, *headers: Any) -> tuple[int, bytes]:  # noqa: N802
        return 0, name

    def nvrtcCompileProgram(self, program: bytes, count: int, options: list[bytes]) -> tuple[int]:  # noqa: N802
        self.compiled.append((program, *options))
        return (0,)

    def nvrtcGetProgramLogSize(self, program: bytes) -> tuple[int, int]:  # noqa: N802
        return 0, 1

    nvrtcGetCUBINSize = nvrtcGetProgramLogSize  # noqa: N815

    def nvrtcGetProgramLog(self, program: bytes, into: bytes) -> None:  # noqa: N802
        """Return an empty log."""

    nvrtcGetCUBIN = nvrtcGetProgramLog  # noqa: N815

    def nvrtcDestroyProgram(self, program: bytes) -> None:  # noqa: N802
        """Do nothing."""


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[Driver]:
    """Replace the driver; return its record."""
    made, compiler = Driver(), Compiler()
    package = ModuleType("cuda.bindings")
    package.driver, package.nvrtc = made, compiler  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", package)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", made)
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", compiler)
    monkeypatch.delitem(sys.modules, "chaski.ml.cuda.driver", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made.compiler = compiler  # type: ignore[attr-defined]
    yield made
    sys.modules.pop("chaski.ml.cuda.driver", None)  # the next test imports the real driver


def opened() -> Any:
    from chaski.ml.cuda.driver import open_gpu

    return open_gpu()


def test_a_gpu_says_what_it_is(driver: Driver) -> None:
    gpu = opened()
    device = gpu.device
    assert (device.name, device.model, device.features) == ("cuda:0", "A GPU", ("compute capability 9.0",))
    assert (device.available_bytes, device.memory_bytes) == (7 << 30, 8 << 30)
    assert gpu.rule == "sm_90"
    gpu.close()
    assert "cuDevicePrimaryCtxRelease" in driver.names()


def test_all_gpus_that_can_compute_are_listed(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    from chaski.ml import gpus_of, usual_backend

    driver.number = 2
    assert [gpu.name for gpu in gpus_of("cuda")] == ["cuda:0", "cuda:1"]
    assert driver.names().count("cuDevicePrimaryCtxRelease") == 2
    assert gpus_of("cpu") == ()
    monkeypatch.setattr("chaski.ml.cuda.is_there", lambda: True)
    assert [gpu.name for gpu in usual_backend()[1]] == ["cuda:0", "cuda:1"]
    monkeypatch.setattr("chaski.ml.cuda.is_there", lambda: False)
    assert usual_backend() == ("cpu", ())


def test_the_only_gpu_is_opened_once(driver: Driver) -> None:
    from chaski.ml import gpus_of

    for _ in range(2):
        assert [gpu.name for gpu in gpus_of("cuda")] == ["cuda:0"]
    opened().close()
    assert driver.names().count("cuDevicePrimaryCtxRetain") == 1
    assert driver.names().count("cuDevicePrimaryCtxRelease") == 1


def test_a_gpu_that_is_too_old_is_passed_over_with_a_warning(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from chaski.ml import usual_backend

    driver.capability = {"MAJOR": 7, "MINOR": 0}
    monkeypatch.setattr("chaski.ml.cuda.is_there", lambda: True)
    assert usual_backend() == ("cpu", ())
    assert "the processor computes, not a GPU: A GPU is too old" in caplog.text


def test_a_driver_is_looked_for_where_the_packages_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from chaski.ml import cuda

    known: list[str] = []
    monkeypatch.setattr(cuda, "find_spec", lambda name: name)
    monkeypatch.setattr("ctypes.CDLL", known.append)
    assert cuda.is_there()
    assert len(known) == 1

    def missing(name: str) -> None:
        raise OSError("no such library")

    monkeypatch.setattr("ctypes.CDLL", missing)
    assert not cuda.is_there()
    monkeypatch.setattr(cuda, "find_spec", lambda name: None)
    assert not cuda.is_there()


def test_threads_ask_the_gpu_that_they_mean(driver: Driver) -> None:
    """Calls go to the current GPU, which another GPU or another library may have changed."""
    from chaski.ml.cuda.driver import open_gpu

    driver.number = 2
    first, second = open_gpu(0), open_gpu(1)
    driver.calls.clear()
    for gpu in (first, first, second, first):
        gpu.wait()
    assert driver.names() == ["cuCtxSetCurrent", "cuStreamSynchronize"] * 4


def test_what_a_plan_asks_for_is_asked_of_the_driver(driver: Driver) -> None:
    gpu = opened()
    address = gpu.allocate(100)
    gpu.zero(address, 100)
    staged = gpu.staging(16)
    staged[:] = np.arange(16, dtype=np.uint8)
    gpu.upload(address, staged)
    gpu.wait_uploads()
    gpu.fetch(address, staged)
    gpu.wait()
    gpu.free(address)
    wanted = ["cuMemAlloc", "cuMemsetD8Async", "cuMemHostAlloc", "cuMemcpyHtoDAsync", "cuEventRecord"]
    wanted += ["cuEventSynchronize", "cuMemcpyDtoHAsync", "cuStreamSynchronize", "cuMemFree"]
    assert [name for name in driver.names() if name in wanted] == wanted


def test_pinned_memory_lives_as_long_as_its_arrays(driver: Driver) -> None:
    gpu, other = opened(), opened()
    dropped, kept = gpu.staging(16), gpu.staging(16)
    driver.calls.clear()
    del dropped
    assert not driver.calls  # a finalizer may run in a thread that is recording
    gpu.close()
    assert driver.names().count("cuMemFreeHost") == 1
    kept[:] = 1
    assert "cuDevicePrimaryCtxRelease" not in driver.names()
    part = kept[3:5]
    del kept
    other.staging(8)
    assert "cuDevicePrimaryCtxRelease" not in driver.names()
    del part
    driver.calls.clear()
    other.close()
    assert driver.names().count("cuMemFreeHost") == 2  # the array's, and the other GPU's
    assert driver.names().count("cuDevicePrimaryCtxRelease") == 2


def test_all_that_a_gpu_made_is_released(driver: Driver) -> None:
    gpu = opened()
    gpu.forget(gpu.record([KernelLaunch(gpu.kernel(Program("rows"), "rope"), (1, 1, 1), 32, 0, bytes(24))]))
    gpu.close()
    released = ["cuGraphExecDestroy", "cuModuleUnload", "cuEventDestroy", *["cuStreamDestroy"] * 2]
    assert [name for name in driver.names() if name in released] == released


def test_programs_that_may_be_needed_are_compiled_beside_the_work(driver: Driver, tmp_path: Path) -> None:
    gpu = opened()
    gpu.expect([Program("rows"), Program("top_k"), Program("rows")])
    for thread in threading.enumerate():
        if thread.name == "chaski-expect":
            thread.join()
    assert len(list(tmp_path.rglob("*.cubin"))) == 2
    assert gpu.is_ready([Program("rows"), Program("top_k")])
    assert not gpu.is_ready([Program("rows"), Program("norms")])
    gpu.prepare([Program("rows"), Program("top_k")])
    assert len(driver.compiler.compiled) == 2
    assert gpu.is_ready([Program("rows"), Program("top_k")])


def test_recording_waits_for_nothing(driver: Driver) -> None:
    gpu = opened()
    launch = KernelLaunch(gpu.kernel(Program("rows"), "rope"), (1, 1, 1), 32, 0, bytes(24))
    driver.calls.clear()
    recorded = gpu.record([launch])
    assert "cuStreamSynchronize" not in driver.names()
    gpu.run(recorded)
    streams = {name: arguments[0] for name, arguments in driver.calls if name == "cuStreamBeginCapture"}
    (ran,) = (arguments[1] for name, arguments in driver.calls if name == "cuGraphLaunch")
    assert streams["cuStreamBeginCapture"] is not ran  # a stream of its own, where nothing is pending


def test_a_recording_that_finds_no_room_leaves_nothing_behind(driver: Driver) -> None:
    gpu = opened()
    launch = KernelLaunch(gpu.kernel(Program("rows"), "rope"), (1, 1, 1), 32, 0, bytes(24))
    driver.fails = {"cuGraphInstantiate": Status.CUDA_ERROR_OUT_OF_MEMORY}
    with pytest.raises(OutOfMemoryError):
        gpu.record([launch])
    assert driver.names()[-1] == "cuGraphDestroy"


@pytest.mark.parametrize("major", [8, 9])
def test_launches_are_recorded_and_run_with_one_call(driver: Driver, major: int) -> None:
    driver.capability["MAJOR"] = major
    gpu = opened()
    kernel = gpu.kernel(Program("rows", (("A", 1),)), "rope")
    assert gpu.kernel(Program("rows", (("A", 1),)), "rope") is kernel
    recorded = gpu.record([KernelLaunch(kernel, (3, 2, 1), 128, 64, bytes(24), is_early=True)])
    gpu.run(recorded)
    (config, *_), *_ = (arguments for name, arguments in driver.calls if name == "cuLaunchKernelEx")
    assert (config.gridDimX, config.gridDimY, config.blockDimX, config.sharedMemBytes) == (3, 2, 128, 64)
    assert hasattr(config, "attrs") == (major >= 9)  # only these can launch early
    assert driver.names()[-1] == "cuGraphLaunch"
    compiled = driver.compiler.compiled
    assert [options[0] for options in compiled] == [b"rows.cu"]
    assert {b"-DA=1", b"--fmad=false", f"-arch=sm_{major}0".encode()} <= set(compiled[0])
    opened().kernel(Program("rows", (("A", 1),)), "rope")
    assert len(compiled) == 1  # the second program comes from the user's cache


def test_what_comes_once_is_launched_as_it_is(driver: Driver) -> None:
    gpu = opened()
    kernel = gpu.kernel(Program("rows"), "rope")
    gpu.launch([KernelLaunch(kernel, (3, 2, 1), 128, 64, bytes(24))] * 2)
    launched = [arguments for name, arguments in driver.calls if name == "cuLaunchKernel"]
    assert [each[:8] for each in launched] == [(kernel, 3, 2, 1, 128, 1, 1, 64)] * 2
    assert "cuStreamBeginCapture" not in driver.names()


def test_another_thread_waits_for_what_was_asked_for(driver: Driver) -> None:
    wait = opened().mark()
    assert driver.names()[-2:] == ["cuEventCreate", "cuEventRecord"]
    with ThreadPoolExecutor(1) as threads:
        threads.submit(wait).result()
    assert driver.names()[-3:] == ["cuCtxSetCurrent", "cuEventSynchronize", "cuEventDestroy"]


def test_programs_are_compiled_beside_each_other(driver: Driver) -> None:
    gpu = opened()
    programs = [Program(file) for file in ("rows", "top_k", "rows")]
    for _ in range(2):
        gpu.prepare(programs)
        compiled = driver.compiler.compiled
        assert sorted(options[0] for options in compiled) == [b"rows.cu", b"top_k.cu"]
        assert driver.names().count("cuModuleLoadData") == 2


def test_errors_of_the_driver_are_told_apart(driver: Driver) -> None:
    gpu = opened()
    driver.fails = {"cuMemAlloc": Status.CUDA_ERROR_OUT_OF_MEMORY}
    with pytest.raises(OutOfMemoryError, match=r"no room for memory of 5\.00 GB"):
        gpu.allocate(5 * 10**9)
    driver.fails = {"cuStreamSynchronize": Status.CUDA_ERROR_ILLEGAL_ADDRESS}
    with pytest.raises(
        DeviceError, match=r"the GPU failed: .*CUDA_ERROR_ILLEGAL_ADDRESS.*load the model in another process"
    ):
        gpu.wait()


def test_gpus_that_cannot_compute_are_refused(driver: Driver) -> None:
    driver.capability = {"MAJOR": 7, "MINOR": 0}
    said = r"A GPU is too old: it has compute capability 7\.0, .* need 7\.5"
    with pytest.raises(UnsupportedError, match=said):
        opened()
    from chaski.ml.cuda.driver import open_gpu

    with pytest.raises(UnsupportedError, match="there is no GPU 1: this machine has 1"):
        open_gpu(1)
    driver.fails = {"cuInit": Status.CUDA_ERROR_NO_DEVICE}
    with pytest.raises(UnsupportedError, match=r"no working NVIDIA driver \(CUDA_ERROR_NO_DEVICE\)"):
        opened()


def test_a_driver_older_than_the_compiler_is_refused(driver: Driver) -> None:
    driver.version = 12080
    with pytest.raises(UnsupportedError, match=r"one for CUDA 12\.8, .* for CUDA 13: .*\[cuda12\]"):
        opened()
    driver.version = 14010
    opened()


def test_the_runtime_compiler_may_be_missing(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise RuntimeError("no library")

    monkeypatch.setattr(driver.compiler, "nvrtcVersion", missing)
    with pytest.raises(MissingPackageError, match=r"nvidia-cuda-nvrtc .*pip install 'chaski-llm\[cuda\]'"):
        opened()


def test_the_copy_that_benchmarks_measure(driver: Driver) -> None:
    from benchmarks.gpu_worker import _copy_rate

    assert _copy_rate() > 0
    copies = [arguments for name, arguments in driver.calls if name == "cuMemcpyDtoDAsync"]
    assert len(copies) == 100
    assert driver.names().count("cuMemFree") == 2
    driver.fails["cuMemcpyDtoDAsync"] = Status.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(AssertionError, match="ILLEGAL_ADDRESS"):
        _copy_rate()
