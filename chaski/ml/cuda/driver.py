"""The NVIDIA GPU of this machine, through NVIDIA's own Python packages.

The runtime compiler compiles kernels for the device, and a folder in the user's cache keeps the code. Every
error of the driver becomes a ChaskiError.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver, nvrtc

from chaski.errors import (
    ComputationError,
    DeviceError,
    MissingPackageError,
    OutOfMemoryError,
    UnsupportedError,
    extra_command,
)
from chaski.ml.backend import Device
from chaski.ml.cuda.device import Kernel, KernelLaunch, Program
from chaski.ml.cuda.sources import OPTIONS, digest_of, headers, text_of
from chaski.ml.machine import usable_processors

__all__ = ["DriverGPU", "cached_code", "compile_program", "open_gpu"]

U8 = npt.NDArray[np.uint8]

_LEAST_CAPABILITY = (7, 5)


# The only GPU, if `found_gpus` has opened it: opening takes some tenths of a second.
_looked_at: dict[int, DriverGPU] = {}


def open_gpu(number: int = 0) -> DriverGPU:
    """Open a GPU by its number.

    Raises UnsupportedError if there is no driver or no such GPU, or if the GPU is too old, and
    MissingPackageError if the runtime compiler is missing.
    """
    count = _count()
    if number >= count:
        raise UnsupportedError(f"there is no GPU {number}: this machine has {count}")
    return _looked_at.pop(number, None) or DriverGPU(number)


def found_gpus() -> Sequence[Device]:
    """Return the GPUs that are new enough, in their present state. Raises as `open_gpu` without any."""
    found: list[Device] = []
    refused: UnsupportedError | None = None
    count = _count()
    for number in range(count):
        try:
            gpu = _looked_at.pop(number, None) or DriverGPU(number)
        except UnsupportedError as error:
            refused = error
            continue
        found.append(gpu.device)
        if count == 1:
            _looked_at[number] = gpu
        else:
            gpu.close()  # an open GPU takes memory even if it is not used
    if not found:
        raise refused or UnsupportedError("there is no GPU: the NVIDIA driver shows none to this process")
    return found


def _count() -> int:
    """Return the number of GPUs that the driver shows."""
    try:
        (status,) = driver.cuInit(0)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(status.name)
        count = _checked(driver.cuDeviceGetCount())
    except (RuntimeError, OSError) as error:
        raise UnsupportedError(
            f"there is no working NVIDIA driver ({error}): install it, or load the model with the cpu backend"
        ) from error
    try:
        _, compiled_for, _ = nvrtc.nvrtcVersion()
    except (RuntimeError, OSError) as error:
        raise MissingPackageError(
            f"the cuda backend compiles its kernels with the package nvidia-cuda-nvrtc ({error}); install it "
            f"with: {extra_command('cuda')}"
        ) from error
    version = int(_checked(driver.cuDriverGetVersion()))
    if version // 1000 < compiled_for:  # a driver loads code of earlier compilers, and of its own generation
        raise UnsupportedError(
            f"the NVIDIA driver is one for CUDA {version // 1000}.{version % 1000 // 10}, and the installed "
            f"compiler one for CUDA {compiled_for}: update the driver, or install an older compiler in "
            f"another environment with: {extra_command('cuda12')}"
        )
    return int(count)


class _Context:
    """The context of a GPU, kept as long as it has users: the GPU, and arrays of pinned memory."""

    def __init__(self, gpu: Any) -> None:
        self._gpu = gpu
        self._handle = _checked(driver.cuDevicePrimaryCtxRetain(gpu))
        self._num_users = 1

    def bind(self) -> None:
        """Direct this thread's driver calls to the GPU; other libraries may have directed them elsewhere."""
        _checked(driver.cuCtxSetCurrent(self._handle))

    def keep(self) -> None:
        """Count a user."""
        self._num_users += 1

    def leave(self) -> None:
        """Count a user less."""
        self._num_users -= 1
        if not self._num_users:
            _checked(driver.cuDevicePrimaryCtxRelease(self._gpu))


# Pinned memory that no array points to any more. A finalizer may run in a thread that is recording, where it
# must not call the driver, so it only lists the memory here.
_unused: deque[tuple[_Context, int]] = deque()


def _free_unused() -> None:
    with suppress(IndexError):
        while True:
            context, address = _unused.popleft()
            context.bind()
            _checked(driver.cuMemFreeHost(address))
            context.leave()


class _Code:
    """The machine code of a program, which the first thread that asks for it compiles."""

    def __init__(self, program: Program, architecture: str) -> None:
        self._program, self._architecture = program, architecture
        self._lock = threading.Lock()
        self._code: bytes | None = None

    @property
    def is_there(self) -> bool:
        """Whether `get` returns at once."""
        return self._code is not None

    def get(self) -> bytes:
        with self._lock:
            if self._code is None:
                self._code = cached_code(self._program, self._architecture)
            return self._code


class DriverGPU:
    """A GPU and one stream on it. Any thread may call its methods, but only one at a time."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._handle = _checked(driver.cuDeviceGet(number))
        attribute = driver.CUdevice_attribute
        self.capability = (
            self._attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            self._attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        )
        self._model = _checked(driver.cuDeviceGetName(256, self._handle)).decode().strip("\0 ")
        if self.capability < _LEAST_CAPABILITY:
            raise UnsupportedError(
                f"{self._model} is too old: it has compute capability {_version(self.capability)}, and the "
                f"kernels need {_version(_LEAST_CAPABILITY)}; load the model with the cpu backend"
            )
        self._cores = self._attribute(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        self.shared_memory = self._attribute(attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
        self._context = _Context(self._handle)
        self._bind()
        flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value
        self._stream = _checked(driver.cuStreamCreate(flags))
        self._recorder = _checked(driver.cuStreamCreate(flags))  # never computes: it only records
        self._uploaded = _checked(driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING.value))
        self._codes: dict[Program, _Code] = {}  # of programs whose modules are not loaded
        self._modules: dict[Program, Any] = {}
        self._kernels: dict[tuple[Program, str], Any] = {}

    @property
    def stream(self) -> Any:
        """The driver's handle of the queue."""
        return self._stream

    @property
    def rule(self) -> str:
        return f"sm_{self.capability[0]}{self.capability[1]}"

    @property
    def device(self) -> Device:
        self._bind()
        available, total = _checked(driver.cuMemGetInfo())
        features = (f"compute capability {_version(self.capability)}",)
        return Device(f"cuda:{self._number}", self._model, self._cores, features, total, available)

    def allocate(self, size: int) -> int:
        self._bind()
        return int(_checked(driver.cuMemAlloc(max(1, size)), f"memory of {size / 1e9:.2f} GB"))

    def free(self, address: int) -> None:
        self._bind()
        _checked(driver.cuMemFree(address))

    def zero(self, address: int, size: int) -> None:
        self._bind()
        _checked(driver.cuMemsetD8Async(address, 0, size, self._stream))

    def staging(self, size: int) -> U8:
        _free_unused()
        self._bind()
        address = int(_checked(driver.cuMemHostAlloc(max(1, size), 0), "memory of the host to copy from"))
        memory = (ctypes.c_uint8 * size).from_address(address)
        self._context.keep()
        weakref.finalize(memory, _unused.append, (self._context, address))
        return np.ctypeslib.as_array(memory)

    def upload(self, address: int, staged: npt.NDArray[Any]) -> None:
        self._bind()
        _checked(driver.cuMemcpyHtoDAsync(address, staged.ctypes.data, staged.nbytes, self._stream))
        _checked(driver.cuEventRecord(self._uploaded, self._stream))

    def wait_uploads(self) -> None:
        self._bind()
        _checked(driver.cuEventSynchronize(self._uploaded))

    def replace(self, address: int, content: npt.NDArray[Any]) -> None:
        self.wait()
        self.upload(address, content)
        self.wait_uploads()

    def fetch(self, address: int, staged: npt.NDArray[Any]) -> None:
        self._bind()
        _checked(driver.cuMemcpyDtoHAsync(staged.ctypes.data, address, staged.nbytes, self._stream))

    def mark(self) -> Callable[[], None]:
        self._bind()
        event = _checked(driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_BLOCKING_SYNC.value))
        _checked(driver.cuEventRecord(event, self._stream))
        return partial(self._wait_for, event)

    def expect(self, programs: Iterable[Program]) -> None:
        missing = self._missing(programs)

        def compile_all() -> None:
            for code in missing.values():
                code.get()

        threading.Thread(target=compile_all, name="chaski-expect", daemon=True).start()

    def is_ready(self, programs: Iterable[Program]) -> bool:
        return all(code.is_there for code in self._missing(programs).values())

    def prepare(self, programs: Iterable[Program]) -> None:
        self._bind()
        missing = self._missing(programs)
        if not missing:
            return
        with ThreadPoolExecutor(usable_processors(), "chaski-compile") as pool:
            codes = list(pool.map(_Code.get, missing.values()))
        for program, code in zip(missing, codes, strict=True):
            self._modules[program] = _checked(driver.cuModuleLoadData(code))
            del self._codes[program]

    def _missing(self, programs: Iterable[Program]) -> Mapping[Program, _Code]:
        """Return the code of those programs whose modules are not loaded."""
        return {
            program: self._codes.setdefault(program, _Code(program, self.rule))
            for program in dict.fromkeys(programs)
            if program not in self._modules
        }

    def kernel(self, program: Program, name: str) -> Kernel:
        self._bind()
        key = program, name
        if key not in self._kernels:
            self.prepare([program])
            kernel = _checked(driver.cuModuleGetFunction(self._modules[program], name.encode()))
            self._allow_shared_memory(kernel)
            self._kernels[key] = kernel
        return self._kernels[key]

    def record(self, launches: Sequence[KernelLaunch]) -> object:
        self._bind()
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        _checked(driver.cuStreamBeginCapture(self._recorder, mode))
        try:
            for launch in launches:
                argument = ctypes.create_string_buffer(launch.argument, len(launch.argument))
                pointers = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
                config = self._config(launch)
                _checked(driver.cuLaunchKernelEx(config, launch.kernel, ctypes.addressof(pointers), 0))
        finally:
            graph = _checked(driver.cuStreamEndCapture(self._recorder))
        try:
            return _checked(driver.cuGraphInstantiate(graph, 0))
        finally:
            _checked(driver.cuGraphDestroy(graph))

    def forget(self, recorded: object) -> None:
        self.wait()
        _checked(driver.cuGraphExecDestroy(recorded))

    def _config(self, launch: KernelLaunch) -> Any:
        """Return the driver's form of a launch. Older devices do not support early launches."""
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = launch.threads, 1, 1
        config.sharedMemBytes = launch.shared
        config.hStream = self._recorder
        if launch.is_early and self.capability >= (9, 0):
            early = driver.CUlaunchAttribute()
            early.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            early.value.programmaticStreamSerializationAllowed = 1
            config.attrs = [early]
            config.numAttrs = 1
        return config

    def run(self, recorded: object) -> None:
        self._bind()
        _checked(driver.cuGraphLaunch(recorded, self._stream))

    def launch(self, launches: Sequence[KernelLaunch]) -> None:
        self._bind()
        for launch in launches:
            argument = ctypes.create_string_buffer(launch.argument, len(launch.argument))
            pointers = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
            sizes = *launch.grid, launch.threads, 1, 1, launch.shared
            found = ctypes.addressof(pointers)
            _checked(driver.cuLaunchKernel(launch.kernel, *sizes, self._stream, found, 0))

    def wait(self) -> None:
        self._bind()
        _checked(driver.cuStreamSynchronize(self._stream))

    def close(self) -> None:
        _free_unused()
        self._bind()
        for module in self._modules.values():
            _checked(driver.cuModuleUnload(module))
        _checked(driver.cuEventDestroy(self._uploaded))
        for stream in (self._stream, self._recorder):
            _checked(driver.cuStreamDestroy(stream))
        self._context.leave()

    def _wait_for(self, event: Any) -> None:
        """Wait for an event and destroy it."""
        self._bind()
        _checked(driver.cuEventSynchronize(event))
        _checked(driver.cuEventDestroy(event))

    def _allow_shared_memory(self, kernel: Any) -> None:
        """Allow launches of a kernel to use all the shared memory that a thread block may have."""
        known = driver.CUfunction_attribute
        own = _checked(driver.cuFuncGetAttribute(known.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernel))
        most = known.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _checked(driver.cuFuncSetAttribute(kernel, most, self.shared_memory - own))

    def _attribute(self, attribute: Any) -> int:
        return int(_checked(driver.cuDeviceGetAttribute(attribute, self._handle)))

    def _bind(self) -> None:
        self._context.bind()


def _version(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def _checked(result: Sequence[Any], what: str = "a call of the driver") -> Any:
    """Return the values of a call after its status. Raises the error that the status stands for."""
    status, *values = result
    if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        raise OutOfMemoryError(f"the GPU has no room for {what}; use a smaller context or a smaller model")
    if status != driver.CUresult.CUDA_SUCCESS:
        _, name = driver.cuGetErrorName(status)
        _, text = driver.cuGetErrorString(status)
        message = f"the GPU failed: {(text or b'').decode()} ({(name or b'').decode()})"
        raise DeviceError(
            f"{message}; load the model in another process, as the server does, and on the processor if this "
            "stays"
        )
    return values[0] if len(values) == 1 else tuple(values)


def cached_code(program: Program, architecture: str) -> bytes:
    """Return the machine code of a program, from the user's cache if it contains it."""
    major, minor = nvrtc.nvrtcVersion()[1:]
    name = digest_of(program, architecture, f"{major}.{minor}")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "chaski" / "cuda"
    path = base / f"{Path(program.file).name}-{name}.cubin"
    with suppress(OSError):
        return path.read_bytes()
    code = compile_program(program, architecture)
    with suppress(OSError):  # if the cache cannot be written, the next process compiles again
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as partial:
            partial.write(code)
        Path(partial.name).rename(path)
    return code


def compile_program(
    program: Program,
    architecture: str,
    options: Sequence[str] = OPTIONS,
    tell: Callable[[str], None] = lambda messages: None,
) -> bytes:
    """Compile a program for an architecture such as `sm_90` -> machine code. This needs no GPU.

    `tell` receives the compiler's messages. Raises ComputationError with these messages if compiling fails.
    """
    known = headers()
    status, made = nvrtc.nvrtcCreateProgram(
        text_of(program.file).encode(),
        f"{program.file}.cu".encode(),
        len(known),
        [text.encode() for text in known.values()],
        [name.encode() for name in known],
    )
    defines = (f"-D{name}={value}" for name, value in program.defines)
    given = [option.encode() for option in (f"-arch={architecture}", *options, *defines)]
    (status,) = nvrtc.nvrtcCompileProgram(made, len(given), given)
    _, size = nvrtc.nvrtcGetProgramLogSize(made)
    log = bytes(size)
    nvrtc.nvrtcGetProgramLog(made, log)
    text = log.decode(errors="replace").strip("\0 \n")
    tell(text)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise ComputationError(f"{program} cannot be compiled for {architecture}: {text}")
    _, size = nvrtc.nvrtcGetCUBINSize(made)
    code = bytes(size)
    nvrtc.nvrtcGetCUBIN(made, code)
    nvrtc.nvrtcDestroyProgram(made)
    return code
