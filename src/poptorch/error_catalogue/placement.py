"""Errors about blocks, stages and numbers of IPUs."""

from poptorch.error_catalogue.entry import Entry

_TWO_STAGES = """
class TwoStages(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        with poptorch.Block(ipu_id=0):
            x = self.first(x)
        with poptorch.Block(ipu_id=1):
            return self.second(x)
"""
_STAGES = _TWO_STAGES.lstrip("\n")

ENTRIES = (
    Entry(
        "PT4000",
        "The program cannot be divided or compiled",
        "Stages, replicas, buffers and output modes do not fit together.",
        """
options = poptorch.Options().deviceIterations(4).outputMode(poptorch.OutputMode.EveryN, 3)
poptorch.inferenceModel(nn.Linear(4, 2), options)(torch.ones(8, 4))
""",
        "The message says which numbers must agree. [Several IPUs](parallel.md) and [Batching](batching.md) have the "
        "rules.",
        """
options = poptorch.Options().deviceIterations(4).outputMode(poptorch.OutputMode.EveryN, 2)
poptorch.inferenceModel(nn.Linear(4, 2), options)(torch.ones(8, 4))
""",
    ),
    Entry(
        "PT4001",
        "An operation is in no block",
        "Phased execution, and strategies with stages of your own, have to know where each operation runs.",
        """
class Half(nn.Linear):
    def forward(self, x):
        with poptorch.Block("a"):
            return super().forward(x)

strategy = poptorch.SerialPhasedExecution(poptorch.Phase("a"))
options = poptorch.Options().setExecutionStrategy(strategy)
poptorch.inferenceModel(Half(4, 2), options)(torch.ones(8, 4))
""",
        "Put the operation into the scope of a block, and give the phase its IPU.",
        """
class Half(nn.Linear):
    def forward(self, x):
        with poptorch.Block("a", ipu_id=0):
            return super().forward(x)

strategy = poptorch.SerialPhasedExecution(poptorch.Phase("a"))
options = poptorch.Options().setExecutionStrategy(strategy)
poptorch.inferenceModel(Half(4, 2), options)(torch.ones(8, 4))
""",
    ),
    Entry(
        "PT4002",
        "Too many IPUs",
        "One process has up to 64 IPUs. `replicationFactor` times the IPUs of the model is more.",
        """
model = poptorch.inferenceModel(nn.Linear(4, 2), poptorch.Options().replicationFactor(100))
model(torch.ones(100, 4))
""",
        "Start several processes: [PopRun](poprun.md). Or use fewer replicas.",
        """
model = poptorch.inferenceModel(nn.Linear(4, 2), poptorch.Options().replicationFactor(2))
model(torch.ones(100, 4))
""",
    ),
    Entry(
        "PT4003",
        "A number of IPUs that is no power of two",
        "Systems hand out 1, 2, 4, 8 … IPUs. A model on three of them has to reserve four.",
        """
class Three(nn.Module):
    def forward(self, x):
        for ipu in range(3):
            with poptorch.Block(f"stage {ipu}", ipu_id=ipu):
                x = x * 2
        return x

options = poptorch.Options().deviceIterations(3).autoRoundNumIPUs(False)
poptorch.inferenceModel(Three(), options)(torch.ones(3))
""",
        "Divide the model otherwise, or let it reserve more with `autoRoundNumIPUs(True)`.",
        """
class Three(nn.Module):
    def forward(self, x):
        for ipu in range(3):
            with poptorch.Block(f"stage {ipu}", ipu_id=ipu):
                x = x * 2
        return x

options = poptorch.Options().deviceIterations(3).autoRoundNumIPUs(True)
poptorch.inferenceModel(Three(), options)(torch.ones(3))
""",
    ),
    Entry(
        "PT4004",
        "Too few micro-batches for a pipeline",
        "A pipeline of n stages needs n micro-batches in each call for inference, and 2n − 1 in each accumulation "
        "for training.",
        _STAGES
        + """
poptorch.inferenceModel(TwoStages())(torch.ones(8, 4))
""",
        "Raise `deviceIterations` for inference, `Training.gradientAccumulation` for training: "
        "[Several IPUs](parallel.md).",
        _STAGES
        + """
poptorch.inferenceModel(TwoStages(), poptorch.Options().deviceIterations(2))(torch.ones(8, 4))
""",
    ),
    Entry(
        "PT4005",
        "Gradient accumulation for inference",
        "An inference model has no gradients. Options of a training model were given to it.",
        """
options = poptorch.Options()
options.Training.gradientAccumulation(4)
poptorch.inferenceModel(nn.Linear(4, 2), options)(torch.ones(8, 4))
""",
        "Set `deviceIterations` instead, which fills a pipeline as well.",
        """
options = poptorch.Options().deviceIterations(4)
poptorch.inferenceModel(nn.Linear(4, 2), options)(torch.ones(8, 4))
""",
    ),
    Entry(
        "PT4006",
        "A stage needs a value of a later stage",
        "Data flows through the stages of a pipeline in their order. The loss is in an early stage, for instance.",
        """
class Backwards(nn.Module):
    def forward(self, x):
        with poptorch.Block("late"):
            y = x * 2
        with poptorch.Block("early"):
            return y + 1

stages = [poptorch.Stage("early").ipu(0), poptorch.Stage("late").ipu(1)]
options = poptorch.Options().deviceIterations(2)
options.setExecutionStrategy(poptorch.PipelinedExecution(*stages))
poptorch.inferenceModel(Backwards(), options)(torch.ones(8, 4))
""",
        "List the stages in the order of the data. Two stages may be on the same IPU.",
        """
class Forwards(nn.Module):
    def forward(self, x):
        with poptorch.Block("early"):
            y = x * 2
        with poptorch.Block("late"):
            return y + 1

stages = [poptorch.Stage("early").ipu(0), poptorch.Stage("late").ipu(1)]
options = poptorch.Options().deviceIterations(2)
options.setExecutionStrategy(poptorch.PipelinedExecution(*stages))
poptorch.inferenceModel(Forwards(), options)(torch.ones(8, 4))
""",
    ),
    Entry(
        "PT4007",
        "No tensor of this name",
        "An anchor names a tensor that the program does not have.",
        """
options = poptorch.Options()
options.anchorTensor("out", "layer.weihgt")
poptorch.inferenceModel(nn.Linear(4, 2), options)(torch.ones(8, 4))
""",
        "Use a name that `getTensorNames()` of the compiled model lists: [Debugging](debugging.md).",
        """
model = poptorch.inferenceModel(nn.Linear(4, 2))
model(torch.ones(8, 4))
model.getTensorNames()
""",
    ),
    Entry(
        "PT4008",
        "A module in two blocks",
        "`BeginBlock` was called on a module that begins a block already.",
        """
layer = nn.Linear(4, 2)
poptorch.BeginBlock(layer, ipu_id=0)
poptorch.BeginBlock(layer, ipu_id=1)
""",
        "Annotate each module once, or call `poptorch.removeBlocks(model)` first.",
        """
layer = nn.Linear(4, 2)
poptorch.BeginBlock(layer, ipu_id=0)
poptorch.removeBlocks(layer)
poptorch.BeginBlock(layer, ipu_id=1)
""",
    ),
)
