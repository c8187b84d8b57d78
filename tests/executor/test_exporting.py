"""Executors written to files and read again (spec: executor §14)."""

from __future__ import annotations

import ctypes
import importlib
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

import poptorch
import preloaded
from closeness import assert_close_sums
from poptorch.executable import file as container
from poptorch.executable.file import File

EXAMPLES = Path(__file__).parents[2] / "examples" / "custom_op"
CUBED = "docs.exporting"


class Net(nn.Module):
    """A layer, noise, and a loss if there is a target."""

    def __init__(self, dropout: float = 0.5) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, target=None):
        y = self.dropout(self.fc(x))
        return y if target is None else (y, nn.functional.mse_loss(y, target))


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count += 1
        return x + self.count


class Doubled(nn.Module):
    def forward(self, x):
        return poptorch.custom_op([x], "Double", CUBED, 1, [x])[0]


@pytest.fixture
def net():
    torch.manual_seed(3)
    return Net()


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "model.poptorch")


def training(net, **options):
    optimizer = poptorch.optim.AdamW(net.parameters(), lr=0.05)
    return poptorch.trainingModel(net, poptorch.Options().randomSeed(7), optimizer)


def losses(executor, batch, count=3):
    return [executor(*batch)[1].item() for _ in range(count)]


# ---- the scenarios of the specification ------------------------------------------------------------------------------


def test_save_load_continue(net, batch, path):
    executor = training(net)
    losses(executor, batch)
    executor.save(path)
    expected = losses(executor, batch)
    executor.destroy()
    loaded = poptorch.load(path)
    assert losses(loaded, batch) == expected
    assert "fc.weight" in "".join(loaded.getTensorNames())


def test_saving_does_not_disturb(batch, path):
    results = []
    for saves in (False, True):
        torch.manual_seed(3)
        executor = training(Net())
        found = losses(executor, batch)
        if saves:
            executor.save(path)
        results.append(found + losses(executor, batch))
    assert results[0] == results[1]


def test_programs_loaded_separately_share_weights_implicitly(net, batch, tmp_path):
    train_file, valid_file = str(tmp_path / "train.poptorch"), str(tmp_path / "valid.poptorch")
    training(net).compileAndExport(train_file, *batch)
    net.destroy()
    poptorch.inferenceModel(net.eval()).compileAndExport(valid_file, batch[0])
    train = poptorch.load(train_file)
    validate = poptorch.inferenceModel(train)
    validate.model.eval()
    validate.loadExecutable(valid_file)
    before = validate(batch[0])
    losses(train, batch)
    after = validate(batch[0])
    assert not torch.equal(before, after)
    train.model.eval()
    assert_close_sums(after, train.model(batch[0]), terms=8)


def test_two_loaded_programs_do_not_share(net, batch, tmp_path):
    train_file, valid_file = str(tmp_path / "train.poptorch"), str(tmp_path / "valid.poptorch")
    training(net).compileAndExport(train_file, *batch)
    net.destroy()
    poptorch.inferenceModel(net.eval()).compileAndExport(valid_file, batch[0])
    train, validate = poptorch.load(train_file), poptorch.load(valid_file)
    before = validate(batch[0])
    losses(train, batch)
    assert torch.equal(validate(batch[0]), before)
    train.copyWeightsToHost()
    validate.load_state_dict(train.model.state_dict())
    assert_close_sums(validate(batch[0]), train.model.eval()(batch[0]), terms=8, steps=3)


def test_state_dict_into_a_program_loaded_again(net, batch, tmp_path, path):
    poptorch.trainingModel(Net(0.0), poptorch.Options(), None).compileAndExport(path, *batch)
    executor = poptorch.load(path)
    losses(executor, batch, 10)
    torch.save(executor.model.state_dict(), tmp_path / "weights.pt")
    expected = executor(*batch)[1]
    executor.destroy()
    executor = poptorch.load(path)
    executor.load_state_dict(torch.load(tmp_path / "weights.pt"))
    assert torch.equal(executor(*batch)[1], expected)


def test_pickled_model_into_a_loaded_validation_program(net, batch, tmp_path, path):
    poptorch.inferenceModel(Net(0.0).eval()).compileAndExport(path, batch[0])
    train = training(net)
    losses(train, batch)
    torch.save(train.model, tmp_path / "model.pt")
    validate = poptorch.load(path)
    validate.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=False).state_dict())
    assert_close_sums(validate(batch[0]), net.eval()(batch[0]), terms=8, steps=3)


def test_offline_export_runs_elsewhere(net, batch, path):
    options = poptorch.Options().useOfflineIpuTarget().randomSeed(5)
    executor = poptorch.trainingModel(net, options, poptorch.optim.AdamW(net.parameters()))
    executor.compileAndExport(path, *batch)
    with pytest.raises(AssertionError, match="Trying to run a model on an offline device"):
        executor(*batch)
    loaded = poptorch.load(path)
    assert loaded.rng_state == [5]
    assert len(losses(loaded, batch)) == 3
    assert loaded.options.connection_type == poptorch.ConnectionType.Always


def test_options_can_be_edited(net, batch, path):
    poptorch.inferenceModel(net).compileAndExport(path, batch[0])
    loaded = poptorch.load(path, edit_opts_fn=lambda opts: opts.useIpuId(1))
    assert loaded.options.ipu_id == 1
    assert loaded.isAttachedToDevice()
    with pytest.raises(AttributeError, match="frozen"):
        loaded.options.deviceIterations(2)


def test_without_the_model(batch, path):
    class Local(Net):
        pass

    model = Local(0.0)
    with pytest.raises(poptorch.Error, match="export_model=False"):
        poptorch.inferenceModel(model).compileAndExport(path, batch[0])
    poptorch.inferenceModel(model).compileAndExport(path, batch[0], export_model=False)
    with pytest.raises(AssertionError, match=r"export_model=False.*\n?.*loadExecutable"):
        poptorch.load(path)
    other = Local(0.0)
    executor = poptorch.inferenceModel(other)
    executor.loadExecutable(path)
    assert executor.isCompiled()
    assert_close_sums(executor(batch[0]), other(batch[0]), terms=8, steps=3)


def test_state_of_an_inference_program_is_exported_and_the_host_left_alone(path):
    model = Counter()
    executor = poptorch.inferenceModel(model)
    x = torch.zeros(1)
    assert [executor(x).item() for _ in range(3)] == [1, 2, 3]
    executor.save(path)
    assert model.count.item() == 0
    assert executor(x).item() == poptorch.load(path)(x).item() == 4


def test_random_state_is_optional(net, batch, path):
    executor = training(net)
    losses(executor, batch)
    executor.save(path, save_rng_state=False)
    assert "rng" not in File(path)
    assert poptorch.load(path).rng_state == [7]


def test_log_phrases(net, batch, path, log):
    executor = training(net)
    losses(executor, batch)
    log.clear()
    executor.save(path)
    for phrase in ("Reading RNG state", "Writing weights from IPU to host", "optimiser state tensors from IPU to host"):
        assert phrase in log.text
    executor.destroy()
    log.clear()
    loaded = poptorch.load(path)
    for phrase in (
        "Setting RNG state",
        "Writing weights from host to IPU memory",
        "Writing optimiser state tensors from host to IPU memory",
    ):
        assert phrase in log.text
    log.clear()
    loaded(*batch)
    assert "Writing" not in log.text


@pytest.mark.parametrize("structure", ["tuple", "dict", "constants"])
def test_example_arguments_of_all_kinds(path, structure):
    class Sum(nn.Module):
        def forward(self, x, scale=1.0, name="plus"):
            values = list(x.values()) if isinstance(x, dict) else list(x)
            return scale * sum(values) if name == "plus" else values[0]

    given = {
        "tuple": (((torch.ones(2), torch.ones(2)),), {}),
        "dict": (({"a": torch.ones(2), "b": torch.ones(2)},), {}),
        "constants": (([torch.ones(2)],), {"scale": float("inf"), "name": "plus"}),
    }
    args, kwargs = given[structure]
    poptorch.inferenceModel(Sum()).compileAndExport(path, *args, export_model=False, **kwargs)
    executor = poptorch.inferenceModel(Sum())
    executor.loadExecutable(path)
    assert torch.equal(executor(*args, **kwargs), Sum()(*args, **kwargs))


# ---- where it goes ---------------------------------------------------------------------------------------------------


def test_directories(net, batch, tmp_path, log):
    executor = poptorch.inferenceModel(net)
    executor.compile(batch[0])
    executor.save(str(tmp_path))
    assert (tmp_path / "model.poptorch").is_file()
    assert "existing directory" in log.text
    executor.save(str(tmp_path / "a" / "b" / "c.poptorch"))
    assert (tmp_path / "a" / "b" / "c.poptorch").is_file()
    (tmp_path / "file").write_text("")
    with pytest.raises(AssertionError, match="not a directory"):
        executor.save(str(tmp_path / "file" / "c.poptorch"))
    assert not list(tmp_path.rglob(".*")), "temporary files stayed"


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_not_compiled(net, path):
    with pytest.raises(poptorch.Error, match="Model has not been compiled or has been destroyed"):
        poptorch.inferenceModel(net).save(path)


def test_nothing_to_export(path):
    class Constant(nn.Module):
        def forward(self):
            return torch.ones(1)

    with pytest.raises(poptorch.Error, match="Nothing to export"):
        poptorch.inferenceModel(Constant()).compileAndExport(path, export_model=False)


def rewritten(path, **changes):
    """The file with other metadata, or without a section."""
    file = File(path)
    sections = {name: file.bytes(name) for name in file.names() if changes.get(name, "") is not None}
    if changes.get("metadata"):
        sections["metadata"] = {**file.json("metadata"), **changes["metadata"]}
    container.write(path, sections)


@pytest.fixture
def exported(net, batch, path):
    poptorch.inferenceModel(net).compileAndExport(path, batch[0])
    return path


def test_other_version(net, exported):
    rewritten(exported, metadata={"poptorch": "0.0.0"})
    with pytest.raises(AssertionError, match=r"Invalid file .*: PopTorch version mismatch"):
        poptorch.load(exported)
    with pytest.raises(poptorch.Error, match=r"Invalid file .*: PopTorch version mismatch"):
        poptorch.inferenceModel(net).loadExecutable(exported)


def test_missing_inputs(net, exported):
    rewritten(exported, inputs=None)
    with pytest.raises(AssertionError, match="Executable inputs are missing"):
        poptorch.load(exported)
    with pytest.raises(poptorch.Error, match="Executable inputs are missing"):
        poptorch.inferenceModel(net).loadExecutable(exported)


def test_foreign_missing_and_unreadable_files(net, tmp_path):
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"\x7fELF" * 100)
    for name, phrase in ((foreign, "does not contain Poptorch metadata"), (tmp_path / "no", "Cannot open")):
        with pytest.raises(poptorch.Error, match=phrase):
            poptorch.load(str(name))
        with pytest.raises(poptorch.Error, match=phrase):
            poptorch.inferenceModel(net).loadExecutable(str(name))


def test_every_truncation_and_every_flipped_bit_is_noticed(exported):
    data = Path(exported).read_bytes()
    step = max(1, len(data) // 60)
    for size in range(0, len(data), step):
        Path(exported).write_bytes(data[:size])
        with pytest.raises(poptorch.Error, match="Invalid file"):
            poptorch.load(exported)
    program = len(data) - len(File.bytes(_restored(exported, data), "program"))
    for position in [*range(0, len(data), step), program]:
        Path(exported).write_bytes(data[:position] + bytes([data[position] ^ 64]) + data[position + 1 :])
        with pytest.raises(poptorch.Error):
            _read_all(exported)


def _read_all(path):
    file = File(path)
    return [file.bytes(name) for name in file.names()]


def _restored(path, data):
    Path(path).write_bytes(data)
    return File(path)


def test_another_model(batch, exported):
    other = poptorch.inferenceModel(Net().eval())
    with pytest.raises(poptorch.Error, match="exported from another program: the model's graph"):
        other.loadExecutable(exported)
    assert not other.isCompiled()
    assert other(batch[0]).shape == (4, 2)
    with pytest.raises(poptorch.Error, match="exported from another program: its example arguments"):
        poptorch.inferenceModel(nn.Linear(3, 2)).loadExecutable(exported)


def test_other_options(net, batch, exported):
    executor = poptorch.inferenceModel(net, poptorch.Options().outputMode(poptorch.OutputMode.Sum))
    with pytest.raises(poptorch.Error, match="the loop of this model differs"):
        executor.loadExecutable(exported)


def test_loading_twice(net, batch, exported):
    executor = poptorch.inferenceModel(net)
    executor.loadExecutable(exported)
    with pytest.raises(poptorch.Error, match="compiled already"):
        executor.loadExecutable(exported)


def test_loading_an_executable_unpickles_nothing(net, batch, exported, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a pickle was read")

    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr("pickle.loads", refuse)
    monkeypatch.setattr("pickle.Unpickler", refuse)
    executor = poptorch.inferenceModel(net)
    executor.loadExecutable(exported)
    assert executor.isCompiled()


# ---- custom operators ------------------------------------------------------------------------------------------------


def test_a_python_operator_that_is_missing(path, monkeypatch):
    from poptorch.ops.custom import registry

    poptorch.registerCustomOp("Double", CUBED, 1, lambda x: 2 * x)
    poptorch.inferenceModel(Doubled()).compileAndExport(path, torch.ones(2))
    assert poptorch.load(path)(torch.ones(2)).tolist() == [2, 2]
    registry.remove(registry.OperatorKey(CUBED, "Double", 1))
    with pytest.raises(poptorch.Error, match=r"docs.exporting.Double, version 1: register it with .*registerCustomOp"):
        poptorch.load(path)


def test_the_file_says_which_library_it_needs(path, request, tmp_path):
    folder = request.config.cache.mkdir("custom_ops")
    library = poptorch.buildCustomOp("custom_cube_op", EXAMPLES / "cube_op.cpp", folder)
    ctypes.cdll.LoadLibrary(library)

    class Cube(nn.Module):
        def forward(self, x, bias):
            return poptorch.custom_op([x, bias], "Cube", "com.acme", 1, [x, x])

    poptorch.inferenceModel(Cube()).compileAndExport(path, torch.ones(2), torch.ones(2), export_model=False)
    assert File(path).json("metadata")["custom_ops"][0]["library"] == library
    script = f"""
        import ctypes, poptorch, torch
        class Cube(torch.nn.Module):
            def forward(self, x, bias):
                return poptorch.custom_op([x, bias], "Cube", "com.acme", 1, [x, x])
        model = poptorch.inferenceModel(Cube())
        try:
            model.loadExecutable({path!r})
        except poptorch.Error as error:
            print(error.message)
        ctypes.cdll.LoadLibrary({library!r})
        model.loadExecutable({path!r})
        print(model(torch.full((2,), 2.0), torch.ones(2))[1].tolist())
    """
    done = preloaded.run(["-c", textwrap.dedent(script)])
    assert done.returncode == 0, done.stderr
    assert f"com.acme.Cube, version 1, from {library}: load that library first" in done.stdout
    assert f'ctypes.cdll.LoadLibrary("{library}")' in done.stdout
    assert done.stdout.splitlines()[-1] == "[8.0, 8.0]"


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.lstm = nn.LSTM(4, 3, batch_first=True)

    def forward(self, x, target):
        return nn.functional.mse_loss(self.lstm(x)[0], target)


def test_the_first_capture_of_a_recurrent_layer_is_like_the_others(path):
    torch._subclasses.FakeTensorMode.cache_clear()  # as in a new process
    x, target = torch.randn(2, 5, 4), torch.randn(2, 5, 3)
    losses = []
    for load in (False, True):
        model = Recurrent()
        executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        executor.loadExecutable(path) if load else executor.compileAndExport(path, x, target)
        losses.append([executor(x, target), executor(x, target)])
        executor.destroy()
    assert losses[0] == losses[1]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_attributes_of_native_optimizers_are_saved(path, kind, net):
    x, target = torch.randn(4, 3), torch.randn(4, 2)
    optimizer = kind(net.parameters(), lr=0.1)
    optimizer.loss_scaling, optimizer.max_grad_norm = 2.0, 0.5
    executor = poptorch.trainingModel(net, optimizer=optimizer)
    executor(x, target)
    executor.save(path)
    expected = executor(x, target)
    executor.destroy()
    loaded = poptorch.load(path)
    assert all(torch.equal(a, b) for a, b in zip(loaded(x, target), expected, strict=True))


def test_parametrized_models_say_what_to_do(path, net):
    net.fc = nn.utils.parametrizations.weight_norm(net.fc)
    x, target = torch.randn(4, 3), torch.randn(4, 2)
    executor = poptorch.trainingModel(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))
    executor(x, target)
    with pytest.raises(poptorch.Error, match=r"fc has parametrizations \(weight_norm.*export_model=False"):
        executor.save(path)
    executor.save(path, export_model=False)
    state = net.state_dict()
    executor.destroy()
    other = Net()
    other.fc = nn.utils.parametrizations.weight_norm(other.fc)
    other.load_state_dict(state)
    again = poptorch.trainingModel(other, optimizer=torch.optim.SGD(other.parameters(), lr=0.1))
    again.loadExecutable(path)
    again(x, target)


# ---- without capture -------------------------------------------------------------------------------------------------

WRITTEN = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(3, 2)

    def forward(self, x, factor=2.0):
        y = self.fc(x)
        return {"y": y, "more": (y * factor, None)}
"""


@pytest.fixture
def captures():
    """How often a model was captured."""
    count = []
    handle = poptorch.registerPreCompileHook(lambda: count.append(1))
    yield count
    handle.remove()


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A module with a model, in a file that may change."""
    file = tmp_path / "written_model.py"
    file.write_text(WRITTEN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "written_model", raising=False)
    yield importlib.import_module("written_model"), file
    sys.modules.pop("written_model", None)


def test_loading_captures_nothing(net, batch, path, captures):
    executor = training(net)
    losses(executor, batch)
    executor.save(path)
    expected = losses(executor, batch)
    executor.destroy()
    captures.clear()
    assert losses(poptorch.load(path), batch) == expected
    assert not captures


def test_structures_of_inputs_and_outputs_are_in_the_file(written, path, captures):
    module, _ = written
    executor = poptorch.inferenceModel(module.Model())
    executor.compileAndExport(path, torch.ones(4, 3), factor=3.0)
    captures.clear()
    loaded = poptorch.load(path)
    given, expected = loaded(torch.ones(4, 3), factor=3.0), executor(torch.ones(4, 3), factor=3.0)
    assert list(given) == ["y", "more"]
    assert torch.equal(given["y"], expected["y"])
    assert torch.equal(given["more"][0], expected["more"][0])
    assert given["more"][1] is None
    assert not captures
    with pytest.raises(poptorch.Error, match="Value mismatch for factor"):
        loaded(torch.ones(4, 3), factor=4.0)


def test_another_text_of_the_model_is_captured(written, path, captures, log):
    module, file = written
    poptorch.inferenceModel(module.Model()).compileAndExport(path, torch.ones(4, 3))
    captures.clear()
    file.write_text(WRITTEN + "# another line\n")
    assert list(poptorch.load(path)(torch.ones(4, 3))) == ["y", "more"]
    assert captures
    assert f"The model in {path} is captured again: there is other code in written_model" in log.text


def test_a_program_without_its_model_is_captured(net, batch, exported, captures):
    executor = poptorch.inferenceModel(net)
    captures.clear()
    executor.loadExecutable(exported)
    assert captures
