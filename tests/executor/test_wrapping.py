"""What wrapping does and does not do: options, identity, forwarding, life cycle (spec: executor §1 to §4)."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

import poptorch
from closeness import assert_close_sums
from poptorch import MeanReductionStrategy, OutputMode


class Affine(nn.Module):
    """A model with everything that can be forwarded: a child, a root parameter, a buffer, a value, a method."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.scale = nn.Parameter(torch.ones(2))
        self.register_buffer("shift", torch.zeros(2))
        self.note = "plain"

    def forward(self, x):
        return poptorch.identity_loss((self.fc(x) * self.scale + self.shift).pow(2).mean(), reduction="none")

    def describe(self, suffix):
        return self.note + suffix


class Training(nn.Module):
    """Returns the flag of the root and of a child, as seen while the model is captured."""

    def __init__(self):
        super().__init__()
        self.child = nn.Dropout(0.0)

    def forward(self, x):
        return x + 1, self.training, self.child.training


WRAPPERS = [poptorch.trainingModel, poptorch.inferenceModel]


class TestNothingHappensEarly:
    @pytest.mark.parametrize("wrap", WRAPPERS)
    def test_wrapping_runs_and_compiles_nothing(self, wrap):
        class Explosive(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.ones(1))

            def forward(self, x):
                raise RuntimeError("not yet")

        executor = wrap(Explosive())
        assert isinstance(executor, poptorch.PoplarExecutor)
        assert not isinstance(executor, nn.Module)
        assert not executor.isCompiled()
        assert not executor.isAttachedToDevice()

    def test_missing_loss_is_no_construction_error(self):
        poptorch.trainingModel(nn.Linear(1, 1))

    def test_default_optimizer_is_sgd(self):
        torch.manual_seed(0)
        model = Affine()
        reference = copy.deepcopy(model)
        poptorch.trainingModel(model)(torch.ones(1, 3))
        optimizer = torch.optim.SGD(reference.parameters(), lr=0.01)
        reference(torch.ones(1, 3)).backward()
        optimizer.step()
        for name, value in reference.state_dict().items():
            assert_close_sums(model.state_dict()[name], value, terms=1)

    def test_modes_do_not_touch_the_training_flag(self):
        for flag in (True, False):
            model = Affine().train(flag)
            poptorch.trainingModel(model)(torch.ones(1, 3))
            assert model.training is flag
            assert model.fc.training is flag
            poptorch.inferenceModel(model)(torch.ones(1, 3))
            assert model.training is flag


class TestOptions:
    @pytest.mark.parametrize("wrap", WRAPPERS)
    def test_the_callers_object_is_frozen_with_all_groups(self, wrap):
        options = poptorch.Options()
        executor = wrap(Affine(), options)
        changes = [
            lambda o: o.deviceIterations(2),
            lambda o: o.randomSeed(1),
            lambda o: o.Training.gradientAccumulation(2),
            lambda o: o.Precision.enableStochasticRounding(True),
            lambda o: o.Distributed.configureProcessId(0, 1),
            lambda o: o.TensorLocations.numIOTiles(32),
            lambda o: o._Popart.set("autoRecomputation", 1),
            lambda o: setattr(o, "replication_factor", 2),
        ]
        for frozen in (options, executor.options):
            for change in changes:
                with pytest.raises(AttributeError, match="Can't modify frozen Options"):
                    change(frozen)

    def test_the_executor_has_a_copy(self):
        options = poptorch.Options()
        assert poptorch.inferenceModel(Affine(), options).options is not options
        with pytest.raises(AttributeError, match="Can't modify frozen Options"):
            poptorch.inferenceModel(Affine()).options.set(random_seed=3)

    def test_one_object_serves_both_wrappers(self):
        options = poptorch.Options()
        training = poptorch.trainingModel(Affine(), options)
        inference = poptorch.inferenceModel(Affine(), options)
        assert options.defaultOutputMode()
        assert training.options.output_mode == OutputMode.Final
        assert inference.options.output_mode == OutputMode.All

    def test_an_explicit_output_mode_stays(self):
        options = poptorch.Options().outputMode(OutputMode.Sum)
        assert poptorch.trainingModel(Affine(), options).options.output_mode == OutputMode.Sum

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda o: o.clone()])
    def test_copies_thaw(self, duplicate):
        options = poptorch.Options().deviceIterations(3)
        poptorch.inferenceModel(Affine(), options)
        again = duplicate(options).replicationFactor(2)
        again.Training.gradientAccumulation(4)
        assert (again.device_iterations, again.replication_factor) == (3, 2)
        assert options.replication_factor == 1

    @pytest.mark.parametrize(
        ("optimizer", "strategy"),
        [
            (lambda p: poptorch.optim.SGD(p, lr=0.1, accum_type=torch.float16, use_combined_accum=False), "Running"),
            (lambda p: poptorch.optim.SGD(p, lr=0.1, use_combined_accum=True), "Post"),
            (lambda p: poptorch.optim.Adam(p, lr=0.1, accum_type=torch.float16), "Running"),
            (lambda p: poptorch.optim.Adam(p, lr=0.1), "Post"),
            (lambda p: torch.optim.Adam(p, lr=0.1), "Post"),
        ],
    )
    def test_half_accumulation_takes_the_running_mean(self, optimizer, strategy):
        model = Affine()
        options = poptorch.Options()
        executor = poptorch.trainingModel(model, options, optimizer(model.parameters()))
        chosen = executor.options.Training.meanAccumulationAndReplicationReductionStrategy
        assert chosen == MeanReductionStrategy[strategy]

    def test_anchors_inherit_the_resolved_mode(self):
        options = poptorch.Options().outputMode(OutputMode.EveryN, 2).deviceIterations(4)
        options.anchorTensor("a", "some tensor")
        options.anchorTensor("b", "another", OutputMode.All, 3)
        anchors = poptorch.inferenceModel(Affine(), options).options.anchored_tensors
        assert anchors["a"][2:] == [OutputMode.EveryN, 2]
        assert anchors["b"][2:] == [OutputMode.All, 1]


class TestConstructionErrors:
    @pytest.mark.parametrize("wrap", WRAPPERS)
    def test_options_of_another_type(self, wrap):
        with pytest.raises(poptorch.Error, match=r"Invalid type: 'options' is of type .*Expected poptorch") as e:
            wrap(Affine(), {"deviceIterations": 2})
        assert e.value.type == "poptorch_py_error"
        assert e.value.location == ""
        assert str(e.value) == f"'poptorch_py_error': {e.value.message}"

    @pytest.mark.parametrize("wrap", WRAPPERS)
    @pytest.mark.parametrize("thing", [lambda x: x, "model", None, 3, Affine])
    def test_no_module(self, wrap, thing):
        with pytest.raises((TypeError, AttributeError), match=r"Expected a torch.nn.Module"):
            wrap(thing)

    def test_accumulation_in_inference(self):
        options = poptorch.Options()
        options.Training.gradientAccumulation(4)
        phrase = r"You must set poptorch.Options\(\).Training.gradientAccumulation to 1"
        with pytest.raises(poptorch.Error, match=phrase) as pipelined:
            poptorch.inferenceModel(Affine(), options)
        assert "poptorch.Options().deviceIterations" in str(pipelined.value)
        sharded = poptorch.Options().setExecutionStrategy(poptorch.ShardedExecution())
        sharded.Training.gradientAccumulation(4)
        with pytest.raises(poptorch.Error, match=phrase) as plain:
            poptorch.inferenceModel(Affine(), sharded)
        assert "deviceIterations" not in str(plain.value)

    def test_optimizers_that_cannot_be_compiled(self):
        model = Affine()
        with pytest.raises(AssertionError, match="Unsupported optimizer type"):
            poptorch.trainingModel(model, optimizer=torch.optim.Adagrad(model.parameters()))
        with pytest.raises(AssertionError, match="Unsupported optimizer type"):
            poptorch.trainingModel(model, optimizer="sgd")
        with pytest.raises(ValueError, match="Only non-amsgrad"):
            poptorch.trainingModel(model, optimizer=torch.optim.Adam(model.parameters(), amsgrad=True))
        strict = poptorch.Options().strictCompatibility(True)
        nesterov = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        with pytest.raises(ValueError, match="Nesterov momentum is currently not supported"):
            poptorch.trainingModel(model, strict, nesterov)
        assert type(model) is Affine
        poptorch.trainingModel(model)(torch.ones(1, 3))

    def test_a_failed_wrap_leaves_the_model_alone(self):
        model = Affine()
        model.register_buffer("odd", nn.Parameter(torch.ones(1)))
        options = poptorch.Options()
        with pytest.raises(poptorch.Error, match="All buffers must be an instance"):
            poptorch.trainingModel(model, options)
        assert type(model) is Affine
        assert type(model.fc.weight) is nn.Parameter
        options.deviceIterations(2)
        del model.odd
        poptorch.trainingModel(model)(torch.ones(1, 3))


class TestForwarding:
    @pytest.mark.parametrize("wrap", WRAPPERS)
    def test_reads_reach_the_model(self, wrap):
        model = Affine()
        executor = wrap(model)
        assert executor.note == "plain"
        assert executor.describe("!") == "plain!"
        assert executor.fc is model.fc
        assert executor.fc.weight is model.fc.weight
        assert torch.equal(executor.shift, model.shift)
        assert list(executor.state_dict()) == list(model.state_dict())
        assert [n for n, _ in executor.named_parameters()] == [n for n, _ in model.named_parameters()]
        assert executor.training is True
        with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
            _ = executor.nonsense

    @pytest.mark.parametrize("wrap", WRAPPERS)
    def test_writes_stay_with_the_executor(self, wrap):
        model = Affine()
        executor = wrap(model)
        executor.note = "mine"
        executor.extra = 1
        assert executor.note == "mine"
        assert model.note == "plain"
        assert not hasattr(model, "extra")

    @pytest.mark.parametrize("wrap", WRAPPERS)
    def test_train_and_eval_are_the_modules(self, wrap):
        executor = wrap(Affine())
        assert executor.eval() is executor.model
        assert executor.training is False
        assert executor.train() is executor.model
        assert executor.training is True

    def test_a_replaced_method_is_used_by_the_machinery(self, linear, batch):
        executor = poptorch.trainingModel(linear)
        executor(*batch)
        calls = []
        original = executor.copyWeightsToHost
        executor.copyWeightsToHost = lambda: (calls.append(1), original())
        list(linear.parameters())
        assert calls == [1]

    def test_repr_is_the_module_tree_with_blocks(self):
        model = Affine()
        poptorch.BeginBlock(model.fc, user_id="first", ipu_id=0)
        shown = repr(poptorch.inferenceModel(model))
        assert shown.startswith("Affine(\n")
        assert "BeginBlock(user_id=first, ipu_id=0) " in shown
        plain = repr(poptorch.inferenceModel(nn.Sequential(nn.Linear(1, 2), nn.ReLU())))
        assert plain == repr(nn.Sequential(nn.Linear(1, 2), nn.ReLU()))

    def test_members_that_do_not_exist(self):
        executor = poptorch.inferenceModel(Affine())
        for name in ("resetOptimizer", "__enter__", "__exit__"):
            assert not hasattr(executor, name)


class TestShallowCopy:
    def test_which_object_is_the_model(self):
        model = Affine()
        assert poptorch.trainingModel(model).model is model
        inference = poptorch.inferenceModel(model)
        assert inference.model is not model
        assert inference.model.fc is model.fc
        assert inference.model._parameters is model._parameters

    def test_an_executor_stands_for_its_model(self):
        model = Affine()
        training = poptorch.trainingModel(model)
        inference = poptorch.inferenceModel(training)
        assert inference.model.fc is model.fc
        assert poptorch.inferenceModel(inference).model.fc is model.fc

    def test_new_children_and_parameters_are_seen(self):
        class Late(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(2, 2)

            def forward(self, x):
                return self.layer(x)

        model = Late()
        executor = poptorch.inferenceModel(model)
        model.layer = nn.Identity()
        assert executor(torch.ones(1, 2)).tolist() == [[1, 1]]

    def test_root_flag_is_private_and_children_share_theirs(self):
        model = Training()
        executor = poptorch.inferenceModel(model)
        model.eval()
        _, root, child = executor(torch.ones(1))
        assert (root, child) == (True, False)

    def test_plain_attributes_of_the_root_are_private(self):
        class Factor(nn.Module):
            factor = 2

            def forward(self, x):
                return x * self.factor

        model = Factor()
        model.factor = 3
        executor = poptorch.inferenceModel(model)
        model.factor = 5
        assert executor(torch.ones(1)).item() == 3


class TestLifeCycle:
    NOT_COMPILED = "Model has not been compiled or has been destroyed"

    def refused(self, executor):
        actions = [
            executor.copyWeightsToHost,
            executor.copyWeightsToDevice,
            executor.copyNamedBuffersToDevice,
            executor.attachToDevice,
            executor.detachFromDevice,
            lambda: executor.rng_state,
            lambda: setattr(executor, "rng_state", [1]),
        ]
        for action in actions:
            with pytest.raises(poptorch.Error, match=self.NOT_COMPILED):
                action()

    @pytest.mark.parametrize("wrap", WRAPPERS)
    def test_states(self, wrap):
        executor = wrap(Affine())
        x = torch.ones(1, 3)
        self.refused(executor)
        executor.compile(x)
        assert executor.isCompiled()
        assert executor.isAttachedToDevice()
        with pytest.raises(poptorch.Error, match="Device is already attached"):
            executor.attachToDevice()
        executor(x)
        executor.detachFromDevice()
        assert executor.isCompiled()
        assert not executor.isAttachedToDevice()
        with pytest.raises(poptorch.Error, match="Device is not attached"):
            executor.detachFromDevice()
        with pytest.raises(poptorch.Error):
            executor.copyWeightsToHost()
        with pytest.raises(poptorch.Error):
            executor.copyWeightsToDevice()
        executor.attachToDevice()
        assert executor.isAttachedToDevice()
        executor.detachFromDevice()
        executor(x)
        assert executor.isAttachedToDevice()
        executor.destroy()
        assert not executor.isCompiled()
        assert not executor.isAttachedToDevice()
        self.refused(executor)
        executor.destroy()
        executor(x)
        assert executor.isCompiled()

    def test_a_second_compile_is_ignored_with_a_warning(self, caplog):
        executor = poptorch.inferenceModel(nn.ReLU())
        executor.compile(torch.ones(1))
        executor.compile(torch.ones(7))
        assert "Call to compile() ignored" in caplog.text
        assert executor(torch.ones(1)).tolist() == [1]

    def test_compile_uploads_the_weights(self):
        model = nn.Linear(1, 1)
        executor = poptorch.inferenceModel(model)
        executor.compile(torch.ones(1, 1))
        with torch.no_grad():
            model.weight.zero_()
            model.bias.zero_()
        assert executor(torch.ones(1, 1)).item() != 0

    def test_training_goes_on_after_destroy(self, linear, batch):
        """The executor may be called again: the model is wrapped again by it, weights flow as before."""
        reference = copy.deepcopy(linear)
        executor = poptorch.trainingModel(linear, optimizer=torch.optim.SGD(linear.parameters(), lr=0.1))
        for _ in range(2):
            executor(*batch)
            executor.destroy()
            assert type(linear) is type(reference)
        optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            reference(*batch)[1].backward()
            optimizer.step()
        executor(*batch)
        assert_close_sums(linear.fc.weight.data.clone(), reference.fc.weight.data, terms=8, steps=5)

    def test_training_after_destroy_is_refused_when_another_executor_owns_the_model(self, linear, batch):
        first = poptorch.trainingModel(linear)
        first(*batch)
        first.destroy()
        second = poptorch.trainingModel(linear)
        with pytest.raises(RuntimeError, match="Model has already been wrapped"):
            first(*batch)
        second(*batch)

    def test_destroy_of_a_model_whose_class_was_changed_behind_our_back(self, linear, batch):
        original = type(linear)
        executor = poptorch.trainingModel(linear)
        executor(*batch)
        linear.__class__ = original
        with pytest.raises(poptorch.Error, match="model was never wrapped"):
            executor.destroy()
        assert not executor.isCompiled()
        poptorch.inferenceModel(nn.ReLU())(torch.ones(1))

    @pytest.mark.parametrize("wrap", WRAPPERS)
    def test_nothing_keeps_a_dropped_executor_alive(self, wrap):
        model = Affine()
        executor = wrap(model)
        executor(torch.ones(1, 3))
        gone = weakref.ref(executor)
        del executor
        gc.collect()
        assert gone() is None

    def test_a_dropped_training_executor_leaves_its_results_and_an_unwrappable_model(self, linear, batch):
        before = linear.fc.weight.detach().clone()
        executor = poptorch.trainingModel(linear)
        executor(*batch)
        del executor
        gc.collect()
        assert not torch.equal(linear.fc.weight, before)
        assert linear.copyWeightsToHostIfNeeded() is False
        with pytest.raises(RuntimeError, match="Model has already been wrapped"):
            poptorch.trainingModel(linear)
        linear.destroy()
        poptorch.trainingModel(linear)(*batch)

    @pytest.mark.filterwarnings("ignore:Output expected")
    def test_no_device_operation_at_all(self):
        class Constant(nn.Module):
            def forward(self):
                return torch.tensor([1.0, 2.0])

        executor = poptorch.inferenceModel(Constant(), poptorch.Options().deviceIterations(3))
        for _ in range(2):
            assert executor().tolist() == [1, 2]
        assert executor.isCompiled()
        assert executor.isAttachedToDevice()

    def test_load_state_dict_of_a_part_keeps_the_training_of_the_rest(self, trained, batch):
        executor, model = trained
        executor(*batch)
        fresh = copy.deepcopy(model).state_dict()
        executor(*batch)
        executor.load_state_dict({"fc.bias": torch.zeros(2)}, strict=False)
        assert not torch.equal(model.fc.weight, fresh["fc.weight"])
        assert not model.fc.bias.any()
        executor.copyWeightsToHost()
        assert not model.fc.bias.any()

    def test_load_state_dict_reports_and_refuses(self, trained):
        executor, _model = trained
        result = executor.load_state_dict({"fc.bias": torch.zeros(2), "other": torch.ones(1)}, strict=False)
        assert result.missing_keys == ["fc.weight"]
        assert result.unexpected_keys == ["other"]
        with pytest.raises(RuntimeError, match="Missing key"):
            executor.load_state_dict({})


class TestHooks:
    def test_compile_hooks_surround_capture_in_order(self):
        order = []

        class Model(nn.Module):
            def forward(self, x):
                order.append("forward")
                return x + 1

        handles = [
            poptorch.registerPreCompileHook(lambda: order.append("pre 1")),
            poptorch.registerPreCompileHook(lambda: order.append("pre 2")),
            poptorch.registerPostCompileHook(lambda: order.append("post 1")),
            poptorch.registerPostCompileHook(lambda: order.append("post 2")),
        ]
        try:
            executor = poptorch.inferenceModel(Model())
            executor(torch.ones(1))
            executor(torch.ones(1))
            assert order == ["pre 1", "pre 2", "forward", "post 1", "post 2"]
        finally:
            for handle in handles:
                handle.remove()
        poptorch.inferenceModel(Model())(torch.ones(1))
        assert order[5:] == ["forward"]

    def test_post_hooks_run_when_capture_fails(self):
        class Bad(nn.Module):
            def forward(self, x):
                raise KeyError("mine")

        order = []
        handle = poptorch.registerPostCompileHook(lambda: order.append("post"))
        try:
            with pytest.raises(KeyError, match="mine"):
                poptorch.inferenceModel(Bad())(torch.ones(1))
        finally:
            handle.remove()
        assert order == ["post"]

    def test_module_hooks_become_part_of_the_program(self):
        model = nn.Sequential(nn.Identity())
        model[0].register_forward_pre_hook(lambda m, args: (args[0] + 1,))
        model.register_forward_hook(lambda m, args, output: output * 10)
        executor = poptorch.inferenceModel(model)
        for value in (1.0, 2.0):
            assert executor(torch.tensor([value])).item() == (value + 1) * 10


def test_is_running_on_ipu_only_while_captured():
    seen = []

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            seen.append(poptorch.isRunningOnIpu())

        def forward(self, x):
            seen.append(poptorch.isRunningOnIpu())
            return x + 1 if poptorch.isRunningOnIpu() else x - 1

    model = Model()
    assert model(torch.ones(1)).item() == 0
    executor = poptorch.inferenceModel(model)
    assert executor(torch.ones(1)).item() == 2
    assert model(torch.ones(1)).item() == 0
    assert executor(torch.ones(1)).item() == 2
    assert seen == [False, False, True, False]
    assert not poptorch.isRunningOnIpu()


def test_weights_and_results_print_as_plain_tensors(trained, batch):
    executor, model = trained
    assert repr(model.fc.bias) == repr(nn.Parameter(model.fc.bias.data.clone()))
    assert repr(executor(*batch)[1]).startswith("tensor(")


def test_weights_fetched_while_another_model_is_captured(trained, batch):
    """A teacher's weights are constants of the student's program, and fresh ones."""
    executor, teacher = trained

    class Student(nn.Module):
        def forward(self, x):
            return x * poptorch.isRunningOnIpu() + teacher.fc.weight.detach().sum()

    before = teacher.fc.weight.detach().clone()
    executor(*batch)
    result = poptorch.inferenceModel(Student())(torch.zeros(1))
    assert not torch.equal(teacher.fc.weight, before)
    assert_close_sums(result.item(), teacher.fc.weight.sum().item(), terms=8)
    executor(*batch)


def test_executors_dropped_while_another_model_is_captured(linear, batch):
    executors = [poptorch.trainingModel(linear)]
    executors[0](*batch)
    before = copy.copy(next(iter(linear.__dict__["_modules"].values())))
    old = {k: v.clone() for k, v in before.state_dict().items()}
    executors[0](*batch)

    class Dropping(nn.Module):
        def forward(self, x):
            executors.clear()
            gc.collect()
            return x + 1

    assert poptorch.inferenceModel(Dropping())(torch.ones(1)).item() == 2
    assert not torch.equal(linear.fc.weight, old["weight"])


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_gradient_contexts_of_the_caller_do_not_matter(linear, batch, context):
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            self.count += 1
            return x + self.count

    counter = poptorch.inferenceModel(Counter())
    training = poptorch.trainingModel(linear, optimizer=torch.optim.SGD(linear.parameters(), lr=0.1, momentum=0.9))
    x = torch.zeros(1)
    with context():
        values = [counter(x).item()]
        losses = [training(*batch)[1].item()]
    values.append(counter(x).item())
    losses.append(training(*batch)[1].item())
    list(linear.parameters())
    with context():
        values.append(counter(x).item())
        losses.append(training(*batch)[1].item())
        linear.fc.weight.sum()
    assert values == [1, 2, 3]
    assert losses == sorted(losses, reverse=True)
    counter.copyWeightsToHost()
    training.copyWeightsToDevice()
    training(*batch)


def test_an_inference_executor_takes_no_optimizer():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(AssertionError, match="Optimizer should be None for inference"):
        poptorch.PoplarExecutor(model, None, False, optimizer=optimizer)
