"""Configuration files are read, not run."""

from __future__ import annotations

import pytest

import poptorch


@pytest.fixture
def load(tmp_path):
    def load(text, **how):
        path = tmp_path / "tmp.conf"
        path.write_text(text)
        return poptorch.Options().loadFromFile(str(path), **how)

    return load


ATTACKS = [
    "deviceIterations(__import__('os').system('touch {proof}'))",
    "deviceIterations(open('{proof}', 'w').write('x'))",
    "deviceIterations(eval(\"open('{proof}', 'w').write('x')\"))",
    "deviceIterations(exec(\"open('{proof}', 'w')\"))",
    "__class__.__init__.__globals__['__builtins__']['open']('{proof}', 'w')",
    "deviceIterations((lambda: open('{proof}', 'w'))())",
    "deviceIterations([open('{proof}', 'w') for _ in [1]])",
    "deviceIterations(1); import os; os.mknod('{proof}')",
    "deviceIterations(1); poptorch.buildCustomOp('x', ['{proof}'])",
    "deviceIterations(poptorch._logging)",
    "deviceIterations(poptorch.options)",
    "deviceIterations(poptorch.PoplarExecutor)",
    "deviceIterations(poptorch.load('{proof}'))",
    "deviceIterations(poptorch.OutputMode.__class__)",
    "deviceIterations(poptorch.OutputMode.from_bytes(b'1', 'big'))",
    "deviceIterations('{{0.__class__}}'.format(1))",
    "deviceIterations(f'{{open(1)}}')",
    "deviceIterations('x' * 10 ** 10)",
    "modelName('x' * 1000000000)",
    "deviceIterations(2 ** 1000000000)",
    "deviceIterations(options.clone())",
    "_freeze()",
    "_unfreeze()",
    "_is_frozen = False",
    "__class__ = poptorch.Stage",
    "clone().deviceIterations(3)",
    "deleteIfExists('device_iterations')",
    "Training.__dict__.clear()",
    "loadFromFile('{proof}', trusted=True)",
    "loadFromFile('{proof}', **{{'trusted': True}})",
    "device_iterations += open('{proof}', 'w')",
    "deviceIterations(options.source_location_excludes.append(1))",
    "deviceIterations(1 if 1 else 2)",
    "deviceIterations([1][0])",
    "source_location_excludes[0] = 1",
    "deviceIterations(a := 3)",
]


@pytest.mark.parametrize("line", ATTACKS)
def test_code_is_refused_with_its_line_and_nothing_is_applied(line, load, tmp_path):
    proof = tmp_path / "proof"
    options = poptorch.Options()
    path = tmp_path / "tmp.conf"
    path.write_text(f"# comment\nreplicationFactor(2)\n\n{line.format(proof=proof)}\n")
    with pytest.raises(poptorch.ConfigFileError) as caught:
        options.loadFromFile(str(path))
    assert isinstance(caught.value, poptorch.Error)
    assert "line 2 of tmp.conf" in str(caught.value).lower()
    assert "Line 4 of the file" in str(caught.value)
    assert "trusted=True" in str(caught.value)
    assert not proof.exists()


def test_static_refusals_come_before_anything_is_applied(load, tmp_path):
    options = poptorch.Options()
    path = tmp_path / "tmp.conf"
    path.write_text("replicationFactor(2)\ndeviceIterations(open('x'))\n")
    with pytest.raises(poptorch.ConfigFileError):
        options.loadFromFile(str(path))
    assert options.replication_factor == 1


@pytest.mark.parametrize(
    ("line", "same"),
    [
        ("deviceIterations(4)", lambda o: o.deviceIterations(4)),
        ("deviceIterations(2 * 8 - 4 // 2 + 7 % 4)", lambda o: o.deviceIterations(17)),
        ("deviceIterations(device_iterations=4)", lambda o: o.deviceIterations(4)),
        ("deviceIterations(4).replicationFactor(2)", lambda o: o.deviceIterations(4).replicationFactor(2)),
        ("deviceIterations(*[4])", lambda o: o.deviceIterations(4)),
        ("deviceIterations(**{'device_iterations': 4})", lambda o: o.deviceIterations(4)),
        ("deviceIterations(options.replication_factor)", lambda o: o.deviceIterations(1)),
        ("device_iterations = 4", lambda o: o.deviceIterations(4)),
        ("deviceIterations(4); options.replicationFactor(2)", lambda o: o.deviceIterations(4).replicationFactor(2)),
        ("outputMode(poptorch.OutputMode.EveryN, 3)", lambda o: o.outputMode(poptorch.OutputMode.EveryN, 3)),
        ("outputMode(poptorch.OutputMode(0))", lambda o: o.outputMode(poptorch.OutputMode(0))),
        ("outputMode(poptorch.AnchorMode.All)", lambda o: o.outputMode(poptorch.OutputMode.All)),
        ("outputMode(poptorch.enums.OutputMode.All)", lambda o: o.outputMode(poptorch.OutputMode.All)),
        ("setAvailableMemoryProportion({'IPU0': 0.5, 'IPU1': -0.5 + 1})",
         lambda o: o.setAvailableMemoryProportion({"IPU0": 0.5, "IPU1": 0.5})),
        ("_Popart.set('autoRecomputation', 3)", lambda o: o._Popart.set("autoRecomputation", 3)),
        ("Training.gradientAccumulation(8)", lambda o: o.Training.gradientAccumulation(8)),
        ("appendToLocationExcludes('a', 'b')", lambda o: o.appendToLocationExcludes("a", "b")),
        ("from_json('{\"deviceIterations\": 3}')", lambda o: o.deviceIterations(3)),
        ("TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))",
         lambda o: o.TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))),
    ],
)  # fmt: skip
def test_what_files_may_say(line, same, load):
    expected = poptorch.Options()
    same(expected)
    assert repr(load(line)) == repr(expected)


def test_strategies(load):
    strategy = load("setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))")
    assert isinstance(strategy.execution_strategy, poptorch.PipelinedExecution)
    phases = "poptorch.Phase(poptorch.Stage('a')), poptorch.Phase(poptorch.Stage('b').ipu(1))"
    serial = load(f"setExecutionStrategy(poptorch.SerialPhasedExecution({phases}))")
    assert isinstance(serial.execution_strategy, poptorch.SerialPhasedExecution)


def test_files_may_load_other_files_but_not_themselves(load, tmp_path):
    (tmp_path / "other.conf").write_text("deviceIterations(7)\n")
    assert load(f"loadFromFile({str(tmp_path / 'other.conf')!r})").device_iterations == 7
    with pytest.raises(poptorch.ConfigFileError, match="loaded by a file that it loads itself"):
        load(f"loadFromFile({str(tmp_path / 'tmp.conf')!r})")


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe", b"deviceIterations(4)\0", b"deviceIterations(" + b"-" * 9000 + b"1)", b"x" * (2 << 20),
     b"deviceIterations(" + b"(" * 3000 + b")" * 3000 + b")", b"a" + b".a" * 4500,
     b"deviceIterations(" + b"9" * 9000 + b")",
     b"deviceIterations(" + b"1+" * 4500 + b"1)", b"deviceIterations(4" + b"0" * 20_000 + b")"],
)  # fmt: skip
def test_files_that_no_line_of_which_can_be_read(content, tmp_path):
    path = tmp_path / "tmp.conf"
    path.write_bytes(content)
    with pytest.raises((poptorch.Error, AttributeError)) as caught:
        poptorch.Options().loadFromFile(str(path))
    assert "tmp.conf" in str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    assert len(str(caught.value)) < 1000


def test_trusted_files_are_code(load, tmp_path):
    proof = tmp_path / "proof"
    load(f"deviceIterations(open({str(proof)!r}, 'w').write('x'))", trusted=True)
    assert proof.read_text() == "x"
