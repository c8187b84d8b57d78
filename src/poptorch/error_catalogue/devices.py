"""Errors about devices, files, caches, runs and processes."""

from poptorch.error_catalogue.entry import Entry

ENTRIES = (
    Entry(
        "PT8000",
        "A device, cache or program in a file cannot be used",
        "What was compiled or stored earlier does not fit what it is used for now.",
        """
options = poptorch.Options().useOfflineIpuTarget().useIpuId(0)
poptorch.inferenceModel(nn.Linear(4, 2), options).compile(torch.ones(8, 4))
""",
        "The message says what differs. [Precompilation and caches](precompilation.md) and [Devices](devices.md) "
        "have the rules.",
        """
options = poptorch.Options().useOfflineIpuTarget()
poptorch.inferenceModel(nn.Linear(4, 2), options).compile(torch.ones(8, 4))
""",
    ),
    Entry(
        "PT8001",
        "No free IPUs",
        "All suitable IPUs are in use by other models or programs, or the system has none.",
        """
first = poptorch.inferenceModel(nn.ReLU(), poptorch.Options().useIpuId(0))
second = poptorch.inferenceModel(nn.ReLU(), poptorch.Options().useIpuId(0))
first(torch.ones(8))
second(torch.ones(8))
""",
        "`destroy()` or `detachFromDevice()` the first model. `gc-monitor` shows who uses IPUs; "
        "`POPTORCH_WAIT_FOR_IPU=1` waits for them: [Devices](devices.md).",
        """
first = poptorch.inferenceModel(nn.ReLU(), poptorch.Options().useIpuId(0))
second = poptorch.inferenceModel(nn.ReLU(), poptorch.Options().useIpuId(0))
first(torch.ones(8))
first.destroy()
second(torch.ones(8))
second.destroy()
""",
    ),
    Entry(
        "PT8002",
        "A file that is no exported model",
        "The file is damaged, was written by another release, or is something else.",
        """
with open("model.poptorch", "w") as file:
    file.write("no model")
poptorch.load("model.poptorch")
""",
        "Export the model again with this release: [Precompilation](precompilation.md).",
        """
model = poptorch.inferenceModel(nn.Linear(4, 2))
model(torch.ones(8, 4))
model.save("model.poptorch")
model.destroy()
poptorch.load("model.poptorch")
""",
        files=True,
    ),
    Entry(
        "PT8003",
        "A file cannot be opened or written",
        "There is no such file, no right to it, or no room for it.",
        """
poptorch.load("missing.poptorch")
""",
        "Check name and rights.",
        """
model = poptorch.inferenceModel(nn.Linear(4, 2))
model(torch.ones(8, 4))
model.save("model.poptorch")
model.destroy()
poptorch.load("model.poptorch")
""",
        files=True,
    ),
    Entry(
        "PT9000",
        "A run, or a job of several processes, cannot go on",
        "Processes cannot meet, disagree about their program, or a variable that describes the job is not understood.",
        """
import os

os.environ["POPTORCH_FAULTS"] = "sometimes"
try:
    poptorch.inferenceModel(nn.ReLU())(torch.ones(8))
finally:
    del os.environ["POPTORCH_FAULTS"]
""",
        "[Several processes](distributed.md) says what all of them must have in common; the output of the first "
        "process that failed says why.",
        """
poptorch.inferenceModel(nn.ReLU())(torch.ones(8))
""",
    ),
    Entry(
        "PT9001",
        "A failure that may pass",
        "A process or a device was lost. `recovery_action` says what has to be reset.",
        """
import os

os.environ["POPTORCH_FAULTS"] = "ipu_reset: call=1"
try:
    poptorch.inferenceModel(nn.ReLU())(torch.ones(8))
finally:
    del os.environ["POPTORCH_FAULTS"]
""",
        "Restore the last checkpoint and go on: [Errors and what to do](errors.md), [Reliability](reliability.md).",
        "",
    ),
    Entry(
        "PT9002",
        "A failure for good",
        "A device is broken. Using it again would give wrong results.",
        """
import os

os.environ["POPTORCH_FAULTS"] = "unrecoverable: call=1"
try:
    poptorch.inferenceModel(nn.ReLU())(torch.ones(8))
finally:
    del os.environ["POPTORCH_FAULTS"]
""",
        "Take the system out of service, and restore the last checkpoint on another one.",
        "",
    ),
)
