"""Errors about optimizers and data loading."""

from poptorch.error_catalogue.entry import Entry

_LOSS = """
class WithLoss(nn.Linear):
    def forward(self, x, y):
        return nn.functional.mse_loss(super().forward(x), y)

layer, x, y = WithLoss(4, 2), torch.ones(8, 4), torch.zeros(8, 2)
""".lstrip("\n")

ENTRIES = (
    Entry(
        "PT6000",
        "An optimizer that cannot be compiled",
        "A value of an optimizer is out of its range, or its state does not fit the model.",
        _LOSS
        + """
optimizer = poptorch.optim.SGD(layer.parameters(), lr=0.1, loss_scaling=0.0)
poptorch.trainingModel(layer, optimizer=optimizer)(x, y)
""",
        "[Optimizers](optimizers.md) lists what each takes.",
        _LOSS
        + """
optimizer = poptorch.optim.SGD(layer.parameters(), lr=0.1, loss_scaling=128.0)
poptorch.trainingModel(layer, optimizer=optimizer)(x, y)
""",
    ),
    Entry(
        "PT6001",
        "A new optimizer that the program cannot follow",
        "`setOptimizer` changes values, such as learning rates. The kind of optimizer, and values that were "
        "compiled as constants, are part of the program.",
        _LOSS
        + """
model = poptorch.trainingModel(layer, optimizer=torch.optim.SGD(layer.parameters(), lr=0.1))
model(x, y)
model.setOptimizer(torch.optim.Adam(layer.parameters(), lr=0.1))
""",
        "Mark what will change as variable *before* the first call, with `variable_attrs.markAsVariable`, or "
        "`destroy()` the model and wrap it anew: [Optimizers](optimizers.md).",
        _LOSS
        + """
model = poptorch.trainingModel(layer, optimizer=torch.optim.SGD(layer.parameters(), lr=0.1))
model(x, y)
model.setOptimizer(torch.optim.SGD(layer.parameters(), lr=0.01))
""",
    ),
    Entry(
        "PT6002",
        "An optimizer for another model",
        "None of the parameters of the optimizer belongs to the model. Often the model was copied or made anew in "
        "between.",
        _LOSS
        + """
optimizer = torch.optim.SGD(WithLoss(4, 2).parameters(), lr=0.1)
poptorch.trainingModel(layer, optimizer=optimizer)(x, y)
""",
        "Create the optimizer with the `parameters()` of the model that you wrap.",
        _LOSS
        + """
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
poptorch.trainingModel(layer, optimizer=optimizer)(x, y)
""",
    ),
    Entry(
        "PT6003",
        "Something that is no optimizer",
        "A scheduler, or another object, was given in the place of an optimizer.",
        _LOSS
        + """
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
model = poptorch.trainingModel(layer, optimizer=optimizer)
model.setOptimizer(torch.optim.lr_scheduler.StepLR(optimizer, 10))
""",
        "Pass the optimizer that a scheduler changes, after each step of the scheduler.",
        _LOSS
        + """
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
model = poptorch.trainingModel(layer, optimizer=optimizer)
model(x, y)
optimizer.step = lambda: None  # PopTorch steps on the IPU; this one only keeps the scheduler from complaining
scheduler.step()
model.setOptimizer(optimizer)
""",
    ),
    Entry(
        "PT6004",
        "amsgrad",
        "Adam with `amsgrad=True` has no counterpart on IPUs.",
        _LOSS
        + """
poptorch.trainingModel(layer, optimizer=torch.optim.Adam(layer.parameters(), amsgrad=True))
""",
        "Leave out `amsgrad=True`.",
        _LOSS
        + """
poptorch.trainingModel(layer, optimizer=torch.optim.Adam(layer.parameters()))
""",
    ),
    Entry(
        "PT7000",
        "A data set or loader cannot be used",
        "The arguments of a data loader contradict each other, or the state that it shall go on from is of another "
        "loader.",
        """
rows = torch.utils.data.TensorDataset(torch.ones(8, 4))
sampler = torch.utils.data.BatchSampler(range(8), batch_size=2, drop_last=True)
poptorch.DataLoader(poptorch.Options(), rows, batch_size=2, batch_sampler=sampler)
""",
        "[Data loading](data.md) has an example of each way to load data.",
        """
rows = torch.utils.data.TensorDataset(torch.ones(8, 4))
loader = poptorch.DataLoader(poptorch.Options(), rows, batch_size=2)
list(loader)
""",
    ),
    Entry(
        "PT7001",
        "The data set is too small for all processes",
        "Each process needs rows for at least one call.",
        """
rows = torch.utils.data.TensorDataset(torch.ones(3, 4))
options = poptorch.Options()
options.Distributed.configureProcessId(0, 2)
poptorch.DataLoader(options, rows, batch_size=4)
""",
        "Use smaller batches or fewer processes, or repeat the data.",
        """
rows = torch.utils.data.TensorDataset(torch.ones(8, 4))
options = poptorch.Options()
options.Distributed.configureProcessId(0, 2)
poptorch.DataLoader(options, rows, batch_size=4)
""",
    ),
    Entry(
        "PT7002",
        "The background process of a loader did not start",
        "With `DataLoaderMode.Async` another process loads the data. It runs the script anew as a module, or gets "
        "the data set as pickle.",
        """
rows = [lambda: 1]
loader = poptorch.DataLoader(poptorch.Options(), rows, batch_size=1, mode=poptorch.DataLoaderMode.Async)
list(loader)
""",
        'Put what the script does under `if __name__ == "__main__":`, and define data sets at the top level of a '
        "module: [Data loading](data.md).",
        """
rows = torch.utils.data.TensorDataset(torch.ones(8, 4))
list(poptorch.DataLoader(poptorch.Options(), rows, batch_size=2))
""",
    ),
)
