"""Peak memory of a training step or an inference, in a process that runs one contender and nothing else.

What is compared is the memory of the *steps*: weights, gradients, optimizer state, inputs, activations, outputs and
the workspaces of kernels. Not compared are the interpreter, libraries, compilers and the code that they produced.

1. The contender is built and warmed up, compilation included; everything it compiled stays loaded.
2. ``settled``: garbage is collected and the C library gives its free pages back (``malloc_trim``); what is resident
   now is code plus the tensors that live between two steps. The resident bytes of these tensors, ``live``, are counted:
   every storage of every tensor in the process, once.
3. ``VmHWM`` is set back (``/proc/self/clear_refs``), steps run, and ``VmHWM`` says the highest resident size.
4. Points 2 and 3 are repeated; medians count.

The peak of the steps is ``VmHWM - settled + live``: the same rule for all, whatever they keep loaded. Two further
figures take nothing away but what was resident before the model was built (torch, poptorch and torch's compiler are
imported by then, and the libraries' thread pools exist, for everybody): ``resident``, the peak of the same steps, and
``start-up``, the peak of building, compiling and the first steps. The kernel counts pages in batches for each
thread: differences below a tenth of a MiB mean nothing.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import mmap
import statistics
from collections.abc import Callable

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

MIB = 2**20
PAGE = mmap.PAGESIZE
WARM_UP = 3
WINDOWS = 5
STEPS = 3


def peak_memory(make: Callable[[], Callable[[], object]]) -> dict[str, float]:
    """MiB of a contender that ``make`` builds and that is called without arguments."""
    _load_what_everybody_may_use()
    _settle()
    before = _status("VmRSS")
    _reset_peak()
    call = make()
    for _ in range(WARM_UP):
        call()
    startup = _status("VmHWM") - before
    windows = [_window(call) for _ in range(WINDOWS)]
    return {
        "peak": statistics.median(peak - settled + live for settled, live, peak in windows) / MIB,
        "live": statistics.median(live for _, live, _ in windows) / MIB,
        "resident": (statistics.median(peak for _, _, peak in windows) - before) / MIB,
        "startup": startup / MIB,
    }


def _window(call: Callable[[], object]) -> tuple[int, int, int]:
    """Points 2 and 3 of the method: settled, live, peak."""
    live = live_bytes()  # first: looking at all objects takes memory of its own
    _settle()
    settled = _status("VmRSS")
    _reset_peak()
    for _ in range(STEPS):
        call()
    return settled, live, _status("VmHWM")


def live_bytes() -> int:
    """Resident bytes of all tensors in this process; a storage that several share counts once."""
    with torch._C.DisableTorchFunctionSubclass():  # a look at wrapped weights would fetch them from the device
        storages = _storages()
    return sum(_resident_bytes(address, size) for address, size in storages.items())


def _storages() -> dict[int, int]:
    """Address and size of the memory of all tensors."""
    storages: dict[int, int] = {}
    for thing in gc.get_objects():
        if not issubclass(type(thing), torch.Tensor) or issubclass(type(thing), FakeTensor):
            continue
        for tensor in (thing, thing.grad if thing.is_leaf else None):
            if tensor is None or tensor.device.type != "cpu" or is_traceable_wrapper_subclass(tensor):
                continue  # a wrapper, such as a DTensor, has no memory; what it wraps is found by itself
            if tensor.is_mkldnn:  # packed weights have no storage that could be asked
                storages[torch.ops.mkldnn.data_ptr(tensor)] = torch.ops.mkldnn._nbytes(tensor)
            elif tensor.layout is torch.strided and tensor.untyped_storage().device.type == "cpu":
                storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return storages


def _resident_bytes(address: int, size: int) -> int:
    """How much of a block of memory is in use: zeros that nobody wrote, and reserves for packing, take no pages."""
    if size < 16 * PAGE:
        return size
    start = address // PAGE * PAGE
    pages = (address + size - start + PAGE - 1) // PAGE
    present = (ctypes.c_ubyte * pages)()
    if ctypes.CDLL(None, use_errno=True).mincore(ctypes.c_void_p(start), ctypes.c_size_t(pages * PAGE), present):
        raise OSError(ctypes.get_errno(), f"mincore of {pages} pages")
    return min(size, sum(byte & 1 for byte in present) * PAGE)


def _load_what_everybody_may_use() -> None:
    """Imports, thread pools and the first allocations of the kernel libraries are nobody's."""
    for module in ("poptorch", "torch._dynamo", "torch._inductor.compile_fx", "torch._inductor.cpp_builder"):
        importlib.import_module(module)
    x = torch.randn(256, 256, requires_grad=True)
    (x @ x).relu().sum().backward()
    torch.nn.functional.conv2d(torch.randn(1, 8, 16, 16), torch.randn(8, 8, 3, 3, requires_grad=True)).sum().backward()


def _settle() -> None:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def _status(field: str) -> int:
    """Bytes, from the kernel's account of this process."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def _reset_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
