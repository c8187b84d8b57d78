"""Errors of wrapped models and their calls."""

from poptorch.error_catalogue.entry import Entry

ENTRIES = (
    Entry(
        "PT1000",
        "A wrapped model cannot do this",
        "A method of a wrapped model was called where it has no meaning, for instance one for training on an "
        "inference model.",
        """
model = poptorch.inferenceModel(nn.Linear(4, 2))
model.setOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
""",
        "Do what the message says. [The API reference](api/models.md) lists what each method needs.",
        """
layer = nn.Linear(4, 2)
model = poptorch.trainingModel(layer, optimizer=torch.optim.SGD(layer.parameters(), lr=0.1))
model.setOptimizer(torch.optim.SGD(layer.parameters(), lr=0.01))
""",
    ),
    Entry(
        "PT1001",
        "The model is not compiled",
        "A program is made in the first call, or by `compile()`, and ends with `destroy()`. Copying weights, "
        "saving and the names of tensors need it.",
        """
model = poptorch.inferenceModel(nn.Linear(4, 2))
model.copyWeightsToDevice()
""",
        "Call the model, or its `compile()`, with arguments first.",
        """
model = poptorch.inferenceModel(nn.Linear(4, 2))
model.compile(torch.ones(8, 4))
model.copyWeightsToDevice()
""",
    ),
    Entry(
        "PT1002",
        "Another shape than in the first call",
        "A compiled program has fixed shapes. The commonest reason is the last, smaller batch of a data set.",
        """
model = poptorch.inferenceModel(nn.Linear(4, 2))
model(torch.ones(8, 4))
model(torch.ones(5, 4))
""",
        "Leave the last batch out (`drop_last=True`, the default of `poptorch.DataLoader` for training), or pad "
        "it. For a second shape wrap the model a second time.",
        """
model = poptorch.inferenceModel(nn.Linear(4, 2))
model(torch.ones(8, 4))
rows = torch.ones(5, 4)
result = model(nn.functional.pad(rows, (0, 0, 0, 3)))[:5]
""",
    ),
    Entry(
        "PT1003",
        "The batch does not divide",
        "A call takes `deviceIterations × replicationFactor × gradientAccumulation` micro-batches of equal size. The "
        "first dimension of each input must be a multiple of that.",
        """
model = poptorch.inferenceModel(nn.Linear(4, 2), poptorch.Options().deviceIterations(3))
model(torch.ones(8, 4))
""",
        "Let `poptorch.DataLoader` make batches of the right size: [Batching](batching.md).",
        """
options = poptorch.Options().deviceIterations(3)
model = poptorch.inferenceModel(nn.Linear(4, 2), options)
rows = torch.utils.data.TensorDataset(torch.ones(12, 4))
for (x,) in poptorch.DataLoader(options, rows, batch_size=2):
    model(x)
""",
    ),
    Entry(
        "PT1004",
        "Another type of elements than in the first call",
        "A compiled program has fixed types: a float16 tensor is no input for a program that was compiled with "
        "float32.",
        """
model = poptorch.inferenceModel(nn.Linear(4, 2))
model(torch.ones(8, 4))
model(torch.ones(8, 4).half())
""",
        "Convert the input, or `destroy()` the model and call it anew.",
        """
model = poptorch.inferenceModel(nn.Linear(4, 2))
model(torch.ones(8, 4))
model(torch.ones(8, 4).half().float())
""",
    ),
    Entry(
        "PT1005",
        "An argument that is no tensor changed",
        "Numbers, texts and flags are constants of the program. It was compiled with their values in the first call.",
        """
class Scaled(nn.Module):
    def forward(self, x, factor):
        return x * factor

model = poptorch.inferenceModel(Scaled())
model(torch.ones(8), 2.0)
model(torch.ones(8), 3.0)
""",
        "Pass what varies as a tensor: [Constraints](constraints.md#only-tensors-vary).",
        """
class Scaled(nn.Module):
    def forward(self, x, factor):
        return x * factor

model = poptorch.inferenceModel(Scaled())
model(torch.ones(8), torch.tensor([2.0]))
model(torch.ones(8), torch.tensor([3.0]))
""",
    ),
    Entry(
        "PT1006",
        "Arguments are missing, or of another kind",
        "All calls must have the arguments of the first one: as many, with the same names, in the same structure.",
        """
class Doubled(nn.Module):
    def forward(self, x):
        return x * 2

model = poptorch.inferenceModel(Doubled())
model()
""",
        "Pass all arguments in each call, labels included. An argument with `None` as its default is another "
        "program, so wrap the model twice: once with labels, once without.",
        """
class Doubled(nn.Module):
    def forward(self, x):
        return x * 2

model = poptorch.inferenceModel(Doubled())
model(torch.ones(8))
""",
    ),
    Entry(
        "PT1007",
        "backward() was called",
        "A training model computes gradients and updates the weights in the call itself.",
        """
class WithLoss(nn.Linear):
    def forward(self, x, y):
        return nn.functional.mse_loss(super().forward(x), y)

layer = WithLoss(4, 2)
model = poptorch.trainingModel(layer, optimizer=torch.optim.SGD(layer.parameters(), lr=0.1))
model(torch.ones(8, 4), torch.zeros(8, 2)).backward()
""",
        "Leave out `backward()`, `zero_grad()` and `step()`: [ten minutes](first-steps.md).",
        """
class WithLoss(nn.Linear):
    def forward(self, x, y):
        return nn.functional.mse_loss(super().forward(x), y)

layer = WithLoss(4, 2)
model = poptorch.trainingModel(layer, optimizer=torch.optim.SGD(layer.parameters(), lr=0.1))
loss = model(torch.ones(8, 4), torch.zeros(8, 2))
""",
    ),
    Entry(
        "PT1008",
        "A wrapped model was moved to a device",
        "Virtual IPUs are cores of the CPU. There is no other place for a wrapped model.",
        """
model = poptorch.inferenceModel(nn.Linear(4, 2))
model.cuda()
""",
        "Leave out `.cuda()` and `.to('cuda')`, for the model and for its inputs.",
        """
model = poptorch.inferenceModel(nn.Linear(4, 2))
model(torch.ones(8, 4))
""",
    ),
    Entry(
        "PT1009",
        "A wrapped model inside of a model",
        "`forward` of a model that is compiled calls another wrapped model, which has a program of its own.",
        """
class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = [poptorch.inferenceModel(nn.Linear(4, 2))]

    def forward(self, x):
        return self.inner[0](x)

poptorch.inferenceModel(Outer())(torch.ones(8, 4))
""",
        "Use the plain module there. It becomes part of the outer program.",
        """
class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 2)

    def forward(self, x):
        return self.inner(x)

poptorch.inferenceModel(Outer())(torch.ones(8, 4))
""",
    ),
    Entry(
        "PT1010",
        "The model is wrapped for training already",
        "Two training models would both own the weights of one module.",
        """
layer = nn.Linear(4, 2)
first = poptorch.trainingModel(layer)
second = poptorch.trainingModel(layer)
""",
        "Call `destroy()` on the first one. A module can have a training model *and* inference models.",
        """
layer = nn.Linear(4, 2)
first = poptorch.trainingModel(layer)
first.destroy()
second = poptorch.trainingModel(layer)
""",
    ),
    Entry(
        "PT1011",
        "A tensor that no program takes",
        "An input is complex, quantised, sparse or nested, or lies on another device.",
        """
model = poptorch.inferenceModel(nn.Linear(4, 2))
model(torch.ones(8, 4).to_sparse())
""",
        "Pass dense tensors of the host: `to_dense()`, `torch.view_as_real()`, `.cpu()`.",
        """
model = poptorch.inferenceModel(nn.Linear(4, 2))
model(torch.ones(8, 4).to_sparse().to_dense())
""",
    ),
    Entry(
        "PT1012",
        "The model was changed after it was compiled",
        "Parameters, buffers or modules were added, removed or replaced by others of another shape or type.",
        """
model = nn.Sequential(nn.Linear(4, 2))
wrapped = poptorch.inferenceModel(model)
wrapped(torch.ones(8, 4))
model[0].weight = nn.Parameter(torch.ones(3, 4))
wrapped(torch.ones(8, 4))
""",
        "`destroy()` the wrapped model first; the next call compiles the new one. New *values* need nothing of this: "
        "write them with `copy_()`.",
        """
model = nn.Sequential(nn.Linear(4, 2))
wrapped = poptorch.inferenceModel(model)
wrapped(torch.ones(8, 4))
wrapped.destroy()
model[0] = nn.Linear(4, 3)
wrapped = poptorch.inferenceModel(model)
wrapped(torch.ones(8, 4))
""",
    ),
    Entry(
        "PT1013",
        "An offline model was run",
        "`useOfflineIpuTarget()` compiles for an IPU that is not there.",
        """
model = poptorch.inferenceModel(nn.Linear(4, 2), poptorch.Options().useOfflineIpuTarget())
model(torch.ones(8, 4))
""",
        "Export the program with `compileAndExport()`, or leave the option out to run it here.",
        """
model = poptorch.inferenceModel(nn.Linear(4, 2), poptorch.Options().useOfflineIpuTarget())
model.compileAndExport("model.poptorch", torch.ones(8, 4))
""",
        files=True,
    ),
    Entry(
        "PT1014",
        "item() of several values",
        "A call returns a loss for each replica, and in some output modes for each micro-batch and device iteration.",
        """
class WithLoss(nn.Linear):
    def forward(self, x, y):
        return nn.functional.mse_loss(super().forward(x), y)

layer = WithLoss(4, 2)
options = poptorch.Options().replicationFactor(2)
model = poptorch.trainingModel(layer, options, torch.optim.SGD(layer.parameters(), lr=0.1))
model(torch.ones(8, 4), torch.zeros(8, 2)).item()
""",
        "Take the mean: `loss.mean().item()`. [Batching](batching.md) shows what comes back in each output mode.",
        """
class WithLoss(nn.Linear):
    def forward(self, x, y):
        return nn.functional.mse_loss(super().forward(x), y)

layer = WithLoss(4, 2)
options = poptorch.Options().replicationFactor(2)
model = poptorch.trainingModel(layer, options, torch.optim.SGD(layer.parameters(), lr=0.1))
model(torch.ones(8, 4), torch.zeros(8, 2)).mean().item()
""",
    ),
)
