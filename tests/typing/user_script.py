"""A training script as users write it."""

import torch
from torch import nn

import popdist
import popdist.poptorch
import poptorch


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = poptorch.BeginBlock(nn.Linear(4, 8), "first", ipu_id=0)
        self.second = poptorch.BeginBlock(nn.Linear(8, 3), ipu_id=1)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, rows: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with poptorch.Block("begin", ipu_id=0):
            hidden = torch.relu(self.first(rows))
        hidden = poptorch.recomputationCheckpoint(hidden)
        scores = self.second(hidden)
        poptorch.set_available_memory(scores, 0.5)
        return scores, poptorch.identity_loss(self.loss(scores, labels), reduction="none")


def make_options() -> poptorch.Options:
    options = poptorch.Options()
    options.deviceIterations(4).replicationFactor(1).outputMode(poptorch.OutputMode.All)
    options.Training.gradientAccumulation(2).accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
    options.Precision.setPartialsType(torch.float32)
    options.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
    options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    options.randomSeed(42).enableExecutableCaching("cache")
    return options


def main() -> None:
    options = make_options()
    dataset = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randint(0, 3, (64,)))
    loader = poptorch.DataLoader(options, dataset, batch_size=2, shuffle=True, mode=poptorch.DataLoaderMode.Async)
    model = Classifier()
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=1e-3, bias_correction=True)
    trainer = poptorch.trainingModel(model, options, optimizer=optimizer)
    for rows, labels in loader:
        scores, loss = trainer(rows, labels)
        print(scores.argmax(dim=1), loss.mean().item())
    trainer.setOptimizer(poptorch.optim.SGD(model.parameters(), lr=0.1))
    trainer.copyWeightsToHost()
    trainer.save("model.poptorch")
    inference = poptorch.inferenceModel(model.eval(), options.clone())
    inference.compile(torch.zeros(8, 4), torch.zeros(8, dtype=torch.long))
    print(poptorch.ipuHardwareIsAvailable(), popdist.getNumTotalReplicas(), poptorch.__version__)
    if popdist.isPopdistEnvSet():
        popdist.poptorch.Options()
    try:
        inference.destroy()
    except poptorch.Error as error:
        print(error.message)


if __name__ == "__main__":
    main()
