"""Block, BeginBlock, BlockFunction and removeBlocks during and outside a capture."""

import copy

import numpy
import pytest
import torch
from torch import nn

import poptorch
import preloaded
from poptorch import ambient
from poptorch.ambient import CaptureContext, CaptureSettings, Placement
from poptorch.placement import PipelinedExecution, SerialPhasedExecution, Stage


def capture(function, *args, strategy=None):
    """Run ``function`` the way a capture does; returns the context with the traces it left."""
    settings = CaptureSettings(strategy=strategy if strategy is not None else PipelinedExecution())
    with ambient.capturing(CaptureContext(settings=settings)) as context:
        function(*args)
    return context


def ids(context):
    return [start.block for start in context.block_starts]


class Spy(nn.Module):
    """Notes the placement under which it ran."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        context = ambient.current()
        self.seen.append(context.placement if context else "not captured")
        return x * 2


# --- the state machine ------------------------------------------------------------------------------------


def test_capture_begins_on_ipu_0():
    context = capture(lambda: None)
    assert context.placement == Placement(0, 0, 0)
    assert context.block_starts == []


def test_scopes_do_not_nest():
    def forward():
        context = ambient.current()
        with poptorch.Block("outer", ipu_id=0):
            with poptorch.Block("inner", ipu_id=1):
                assert context.placement == Placement(1, 0, 1, "inner")
            assert context.placement is None

    context = capture(forward)
    assert context.placement is None
    assert ids(context) == ["outer", "inner"]


def test_block_enters_with_nothing_and_lets_exceptions_through():
    def forward():
        with poptorch.Block(ipu_id=0) as entered:
            assert entered is None
        with pytest.raises(KeyError), poptorch.Block(ipu_id=0):
            raise KeyError
        assert ambient.current().placement is None

    capture(forward)


def test_start_stays_open():
    def forward():
        poptorch.Block.start("a", ipu_id=1)
        assert ambient.current().placement.block == "a"
        poptorch.Block.start("b", 2)

    assert capture(forward).placement == Placement(2, 0, 2, "b")


def test_automatic_ids_skip_named_blocks():
    def forward():
        for user_id in (None, "mid", "", None):
            poptorch.Block.start(user_id, ipu_id=0)
        poptorch.Block.useAutoId()
        with poptorch.Block(ipu_id=0):
            pass

    assert ids(capture(forward)) == ["0", "mid", "1", "2", "0"]


def test_every_capture_numbers_alike():
    model = nn.Sequential(poptorch.BeginBlock(Spy(), ipu_id=0), Spy())

    def forward():
        model(1)
        poptorch.Block.start(ipu_id=1)

    assert ids(capture(forward)) == ids(capture(forward)) == ["0", "1"]


def test_phased_block_without_ipu_leaves_no_block_open():
    context = capture(lambda: poptorch.Block.start("a"), strategy=SerialPhasedExecution("a"))
    assert context.placement is None
    assert context.block_starts == []


def test_unknown_block_is_named():
    with pytest.raises(AssertionError, match="Unknown Block 'typo'"):
        capture(lambda: poptorch.Block.start("typo"), strategy=PipelinedExecution(Stage("a")))


@pytest.mark.parametrize("ipu_id", [-1, "one", "-1", 0.5])
def test_ipu_must_be_an_index(ipu_id):
    with pytest.raises(poptorch.Error, match="Block 'a' asks for ipu_id="):
        capture(lambda: poptorch.Block.start("a", ipu_id))


@pytest.mark.parametrize("ipu_id", [numpy.int64(3), f"{1 + 2}"])
def test_indices_may_be_computed(ipu_id):
    context = capture(lambda: poptorch.Block.start("a", ipu_id))
    assert context.placement == Placement(3, 0, 3, "a")
    assert type(context.placement.ipu) is int


def test_without_options_the_default_strategy_counts():
    with ambient.capturing(CaptureContext()) as context:
        poptorch.Block.start("a", 1)
        poptorch.Block.start("a", 2)
    assert context.placement == Placement(1, 0, 2, "a")


def test_outside_capture_nothing_happens():
    poptorch.Block.useAutoId()
    poptorch.Block.start("a", ipu_id="nonsense")
    with poptorch.Block():
        pass
    layer = poptorch.BeginBlock(Spy())
    layer(1)
    assert layer.seen == ["not captured"]


# --- BlockFunction ----------------------------------------------------------------------------------------


class Decorated(nn.Module):
    @poptorch.BlockFunction("first", ipu_id=1)
    def first(self, x, *, add):
        """Adds."""
        self.during = ambient.current() and ambient.current().placement
        return x + add

    def forward(self, x):
        return self.first(x, add=2)


def test_block_function_passes_arguments_and_closes():
    model = Decorated()
    context = capture(model, 1)
    assert model.during == Placement(1, 0, 1, "first")
    assert context.placement is None
    assert model(1) == 3
    assert Decorated.first.__doc__ == "Adds."


def test_block_function_closes_after_an_exception():
    @poptorch.BlockFunction(ipu_id=0)
    def fails():
        raise KeyError

    with ambient.capturing(CaptureContext()) as context:
        with pytest.raises(KeyError):
            fails()
        assert context.placement is None


# --- BeginBlock -------------------------------------------------------------------------------------------


def test_begin_block_is_in_place_and_invisible():
    layer = nn.Linear(2, 3)
    before = layer.state_dict()
    names = set(dir(layer))
    assert poptorch.BeginBlock(layer, "a", ipu_id=1) is layer
    assert type(layer) is nn.Linear
    assert set(dir(layer)) == names
    assert list(layer.state_dict()) == list(before)
    layer.load_state_dict(before, strict=True)
    layer.register_buffer("extra", torch.zeros(1))
    layer.register_parameter("more", nn.Parameter(torch.zeros(1)))


def test_block_stays_open_for_siblings():
    model = nn.Sequential(*(Spy() for _ in range(4)))
    poptorch.BeginBlock(model[1], "b", ipu_id=1)
    poptorch.BeginBlock(model[3], "d", ipu_id=2)
    capture(model, 1)
    assert [spy.seen[0].ipu for spy in model] == [0, 1, 1, 2]


def test_automatic_stages_leave_stage_0_to_the_first_layers():
    model = nn.Sequential(*(Spy() for _ in range(4)))
    for layer, ipu in zip(model[1:], (1, 2, 1), strict=True):
        poptorch.BeginBlock(layer, ipu_id=ipu)
    poptorch.inferenceModel(model, options_of(poptorch.AutoStage.AutoIncrement))(torch.ones(4))
    assert [spy.seen[0].stage for spy in model] == [0, 1, 2, 3]
    capture(model, 1)
    assert [spy.seen[1].stage for spy in model] == [0, 1, 2, 1]


def options_of(stages):
    strategy = PipelinedExecution(stages)
    return poptorch.Options().deviceIterations(4).autoRoundNumIPUs(True).setExecutionStrategy(strategy)


def scoped(blocks, before=lambda x: x):
    class Scoped(nn.Module):
        def forward(self, x):
            x = before(x)
            for _ in range(blocks):
                with poptorch.Block():
                    x = x * 2
            return x

    return Scoped()


@pytest.mark.parametrize(
    ("before", "stages"),
    [
        (lambda x: x, [0, 1, 2]),
        (lambda x: x.view(1), [0, 1, 2]),  # moves no data and computes nothing
        (lambda x: x + 1, [0, 1, 2, 3]),
    ],
)
def test_automatic_stages_start_at_0(before, stages):
    executor = poptorch.inferenceModel(scoped(3, before), options_of(poptorch.AutoStage.AutoIncrement))
    assert executor(torch.ones(4)).numel() == 4
    assert sorted({(p.stage, p.ipu) for p in executor.program.placements()}) == [(n, n) for n in stages]
    assert len(executor.plan.parts) == len(stages)


def test_two_blocks_are_two_stages():
    options = options_of(poptorch.AutoStage.AutoIncrement).deviceIterations(1)
    with pytest.raises(
        poptorch.Error,
        match=r"pipeline stages \(2\).*Stages: 0 on IPU 0 \(block '0'\); 1 on IPU 1 \(block '1'\)\.",
    ):
        poptorch.inferenceModel(scoped(2), options)(torch.ones(1))


def test_a_stage_without_operations_does_not_count():
    class Idle(nn.Module):
        def forward(self, x):
            for name, ipu in (("idle", 0), ("a", 1), ("idle too", 2), ("b", 1)):
                poptorch.Block.start(name, ipu)
                if len(name) == 1:
                    x = x * 2
            return x

    options = options_of(poptorch.AutoStage.AutoIncrement).deviceIterations(1)
    assert poptorch.inferenceModel(Idle(), options)(torch.ones(1)).item() == 4.0


def test_hooks_keep_their_order():
    layer, seen = Spy(), []

    def note(*_):
        seen.append(ambient.current().placement.ipu)

    layer.register_forward_pre_hook(note)
    poptorch.BeginBlock(layer, ipu_id=1)
    layer.register_forward_pre_hook(note)
    capture(layer, 1)
    assert seen == [0, 1]


def test_automatic_id_is_drawn_once_per_module():
    layer = poptorch.BeginBlock(Spy(), ipu_id=0)

    def forward():
        poptorch.Block.start(ipu_id=0)
        layer(1)
        layer(1)
        poptorch.Block.start(ipu_id=0)

    assert ids(capture(forward)) == ["0", "1", "1", "2"]


def test_copies_draw_their_own_ids():
    layer = poptorch.BeginBlock(Spy(), ipu_id=0)
    capture(layer, 1)
    twin = copy.deepcopy(layer)
    assert ids(capture(nn.Sequential(layer, twin), 1)) == ["0", "1"]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_annotation_survives_copies(duplicate):
    model = nn.Sequential(Spy(), Spy())
    poptorch.BeginBlock(model[1], "late", ipu_id=1)
    poptorch.BeginBlock(model, "whole", ipu_id=0)
    assert ids(capture(duplicate(model), 1)) == ["whole", "late"]


def test_annotation_survives_a_file_and_another_process(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    poptorch.BeginBlock(model[0], "a", ipu_id=1)
    hook_id = next(iter(model[0]._forward_pre_hooks))
    path = tmp_path / "model.pt"
    torch.save(model, path)
    # Enough hooks to reach the number that the annotation had: none of them may replace it.
    script = f"""
import torch, poptorch
from poptorch import ambient
model = torch.load({str(path)!r}, weights_only=False)
for _ in range({hook_id + 2}):
    model[0].register_forward_pre_hook(lambda *_: None)
with ambient.capturing(ambient.CaptureContext()) as context:
    model(torch.ones(1, 2))
print(context.block_starts, poptorch.module_repr(model[0]).count("BeginBlock(user_id=a, ipu_id=1) "))
poptorch.removeBlocks(model)
with ambient.capturing(ambient.CaptureContext()) as context:
    model(torch.ones(1, 2))
print(context.block_starts)
"""
    done = preloaded.run(["-c", script])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{[Placement(1, 0, 1, 'a')]} 1", "[]"]


def test_functions_come_back_wrapped():
    wrapped = poptorch.BeginBlock(lambda x, y=0: x - y, "f", ipu_id=1)
    assert isinstance(wrapped, nn.Module)
    assert (wrapped._user_id, wrapped._ipu_id) == ("f", 1)
    assert wrapped(5, y=2) == 3
    assert ids(capture(wrapped, 5)) == ["f"]


@pytest.mark.parametrize("thing", [None, 3, "layer", [nn.ReLU()]])
def test_other_things_cannot_be_annotated(thing):
    with pytest.raises(poptorch.Error, match=r"module is not an instance of torch\.nn\.Module or function\."):
        poptorch.BeginBlock(thing)


def test_a_module_has_one_annotation():
    layer = poptorch.BeginBlock(nn.ReLU(), "a")
    with pytest.raises(poptorch.Error, match="module has already been assigned to a block"):
        poptorch.BeginBlock(layer, "b")


def test_remove_blocks_leaves_other_hooks():
    model = nn.Sequential(Spy(), nn.Sequential(Spy()))
    called = []
    model[0].register_forward_pre_hook(lambda *_: called.append(1))
    for layer in (model, model[0], model[1][0]):
        poptorch.BeginBlock(layer, ipu_id=1)
    assert poptorch.removeBlocks(model) is None
    assert ids(capture(model, 1)) == []
    assert called == [1]
    poptorch.BeginBlock(model[0], "again", ipu_id=1)
    assert ids(capture(model, 1)) == ["again"]


def test_remove_blocks_asserts_a_module():
    with pytest.raises(AssertionError):
        poptorch.removeBlocks(lambda x: x)


def test_module_repr_shows_annotations():
    model = nn.Sequential(nn.Linear(1, 2), nn.ReLU())
    poptorch.BeginBlock(model[0], ipu_id=1)
    poptorch.BeginBlock(model[1], 3, ipu_id=2)
    text = poptorch.module_repr(model)
    assert "(0): BeginBlock(user_id=None, ipu_id=1) Linear(in_features=1" in text
    assert "(1): BeginBlock(user_id=3, ipu_id=2) ReLU()" in text
