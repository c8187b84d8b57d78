"""Errors about options and environment variables, and those of tools."""

from poptorch.error_catalogue.entry import Entry

ENTRIES = (
    Entry(
        "PT0000",
        "A tool cannot do this",
        "A command, an estimate, a report or an adapter for another library was given what it cannot work with.",
        """
poptorch.ipu_model.estimate(nn.Linear(4, 2), None, torch.ones(8, 4), arch="mk7")
""",
        "Do what the message says. The page of the tool has examples: [IPU Model](ipu-model.md), "
        "[Profiling](profiling.md).",
        """
poptorch.ipu_model.estimate(nn.Linear(4, 2), None, torch.ones(8, 4), arch="bow")
""",
    ),
    Entry(
        "PT3000",
        "A setting that cannot be used",
        "An option has a value, or options contradict each other, so that no program can be made.",
        """
options = poptorch.Options()
options._Popart.set("virtualGraphMode", 99)
poptorch.inferenceModel(nn.Linear(4, 2), options)(torch.ones(8, 4))
""",
        "[Options](options.md) lists what each takes.",
        """
options = poptorch.Options()
poptorch.inferenceModel(nn.Linear(4, 2), options)(torch.ones(8, 4))
""",
    ),
    Entry(
        "PT3001",
        "The options are frozen",
        "Options belong to a model or a data loader from the moment they are given to it. A change would have no "
        "effect.",
        """
options = poptorch.Options()
model = poptorch.inferenceModel(nn.Linear(4, 2), options)
options.deviceIterations(2)
""",
        "Set options before you pass them on, or change a `clone()`.",
        """
options = poptorch.Options()
model = poptorch.inferenceModel(nn.Linear(4, 2), options)
longer = options.clone().deviceIterations(2)
""",
    ),
    Entry(
        "PT3002",
        "An option of this name does not exist",
        "A setting of the backend, given by name, is misspelt.",
        """
options = poptorch.Options()
options._Popart.set("enableStabelNorm", True)
poptorch.inferenceModel(nn.Linear(4, 2), options)(torch.ones(8, 4))
""",
        "Use the name that the message proposes.",
        """
options = poptorch.Options()
options._Popart.set("enableStableNorm", True)
poptorch.inferenceModel(nn.Linear(4, 2), options)(torch.ones(8, 4))
""",
    ),
    Entry(
        "PT3003",
        "A configuration file is not understood",
        "`loadFromFile` reads calls on the options with literals. It runs no other code.",
        """
with open("options.cfg", "w") as file:
    file.write("deviceIterations(int(input()))")
poptorch.Options().loadFromFile("options.cfg")
""",
        "Write a call with literals in each line. `trusted=True` runs the file as Python, if you trust it as your "
        "own code.",
        """
with open("options.cfg", "w") as file:
    file.write("deviceIterations(4)")
poptorch.Options().loadFromFile("options.cfg")
""",
        files=True,
    ),
    Entry(
        "PT3004",
        "An environment variable is no JSON",
        "Variables that hold several options hold them as a JSON object.",
        """
import os

os.environ["POPTORCH_DEFAULT_OPTIONS"] = "deviceIterations=4"
try:
    poptorch.Options()
finally:
    del os.environ["POPTORCH_DEFAULT_OPTIONS"]
""",
        """Write an object: `{"deviceIterations": 4}`. [Environment variables](environment.md) lists them all.""",
        """
import os

os.environ["POPTORCH_DEFAULT_OPTIONS"] = '{"deviceIterations": 4}'
try:
    poptorch.Options()
finally:
    del os.environ["POPTORCH_DEFAULT_OPTIONS"]
""",
    ),
)
