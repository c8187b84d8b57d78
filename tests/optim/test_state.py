"""State dictionaries, copies, and the conversation between an optimizer and an executor."""

from __future__ import annotations

import copy
import gc
import io
import pickle

import pytest
import torch

import poptorch
from poptorch.optim import bridge
from poptorch.optim.replacement import check_update
from poptorch.optim.spec import describe

P, T = poptorch.optim, torch.optim
ALL = (P.SGD, P.Adam, P.AdamW, P.RMSprop, P.LAMB)


class SmallExecutor:
    """Does with an optimizer what the table in ``poptorch.optim.bridge`` says, and notes what it transfers."""

    def __init__(self, optimizer, weights):
        self.names = {w: f"w{i}" for i, w in enumerate(weights)}
        self.optimizer, self.spec, self.events = optimizer, describe(optimizer, None), []
        self.states = None
        bridge.connect(optimizer, self)

    def read_state(self):
        self.events.append("state to host")
        return {name: t.clone() for name, t in self.spec.named_state(self.names, self.states).items()}

    def read_params(self):
        return {name: t.clone() for name, t in self.params.items()}

    def compile(self):
        self.states, self.params = self.spec.init_state(), self.spec.named_params(self.names)
        bridge.after_compile(self.optimizer)
        self.attach()

    def attach(self):
        bridge.expect_upload(self.optimizer)
        self.upload()

    def upload(self):
        pending = bridge.pending_state(self.optimizer)
        if pending is not None:
            self.events += ["weights to host", "state to device"]
            bridge.write_state(self.spec.named_state(self.names, self.states), self.params, pending)
            bridge.uploaded(self.optimizer)

    def __call__(self, grads):
        if self.states is None:
            self.compile()
        self.upload()
        params = [[p.detach() for p in group.parameters] for group in self.spec.groups]
        self.spec.update_(params, [grads], self.states, self.spec.hyper())
        bridge.before_run(self.optimizer)

    def set_optimizer(self, new):
        spec = check_update(self.spec, describe(new, None))
        bridge.replace(self.optimizer, new, self)
        changed = spec != self.spec
        self.optimizer, self.spec = new, spec
        if changed:
            self.events.append("hyper-parameters")
            self.params = self.spec.named_params(self.names)
        self.upload()

    def detach(self):
        bridge.read_back(self.optimizer)

    def destroy(self):
        bridge.read_back(self.optimizer)
        bridge.disconnect(self.optimizer)


def make(kind, weights, **arguments):
    momentum = {"momentum": 0.9} if kind is P.SGD else {}
    return kind(weights, lr=0.1, **momentum, **arguments)


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


class TestStructure:
    @pytest.mark.parametrize("kind", ALL)
    def test_before_compilation(self, kind, weights):
        optimizer = make(kind, weights)
        state = optimizer.state_dict()
        assert set(state) == {"ipu_state", "ipu_param", "state", "param_groups"}
        assert state["ipu_state"] is state["ipu_param"] is None
        assert state["state"] == {}
        assert not optimizer.has_state()
        assert not optimizer.ipu_state_is_dirty
        assert not optimizer.host_state_is_dirty

    @pytest.mark.parametrize("kind", ALL)
    def test_after_compilation_and_run(self, kind, weights, gradients):
        optimizer = make(kind, weights)
        executor = SmallExecutor(optimizer, weights)
        executor.compile()
        assert optimizer.host_state_is_dirty
        first = optimizer.state_dict()
        assert first["ipu_param"]
        assert set(first["ipu_state"]) == set(executor.spec.named_state(executor.names, executor.states))
        assert not optimizer.host_state_is_dirty
        executor(gradients(0, 0, 0))
        second = optimizer.state_dict()
        assert equal(first["ipu_param"], second["ipu_param"])
        assert not equal(first["ipu_state"], second["ipu_state"])

    def test_velocity_less_sgd_has_no_state_but_parameters(self, weights):
        optimizer = P.SGD(weights, lr=0.1)
        executor = SmallExecutor(optimizer, weights)  # the optimizer does not keep it alive
        executor.compile()
        state = optimizer.state_dict()
        assert state["ipu_state"] == {}
        assert state["ipu_param"]
        assert optimizer.has_state()

    def test_native_optimizers_are_left_alone(self, weights, gradients):
        optimizer = T.Adam(weights, lr=0.1)
        executor = SmallExecutor(optimizer, weights)
        executor(gradients(0, 0, 0))
        executor.detach()
        assert set(optimizer.state_dict()) == {"state", "param_groups"}
        assert executor.events == []


class TestTiming:
    def test_second_reading_uses_the_cache(self, weights, gradients, caplog):
        poptorch.setLogLevel("DEBUG")
        try:
            optimizer = P.Adam(weights, lr=0.1)
            executor = SmallExecutor(optimizer, weights)
            executor(gradients(0, 0, 0))
            optimizer.state_dict()
            assert "Writing optimiser state tensors from IPU to host." in caplog.text
            optimizer.state_dict()
            assert "Using cached optimiser state dict" in caplog.text
        finally:
            poptorch.setLogLevel("WARN")
        assert executor.events == ["state to host"]

    def test_get_state_dict_never_asks_the_device(self, weights, gradients):
        optimizer = P.Adam(weights, lr=0.1)
        executor = SmallExecutor(optimizer, weights)
        executor(gradients(0, 0, 0))
        assert optimizer.get_state_dict()["ipu_state"] is None
        assert executor.events == []

    def test_detach_reads_back_and_attach_writes(self, weights, gradients):
        optimizer = P.Adam(weights, lr=0.1)
        executor = SmallExecutor(optimizer, weights)
        executor(gradients(0, 0, 0))
        executor.detach()
        executor.attach()
        assert executor.events == ["state to host", "weights to host", "state to device"]
        executor(gradients(1, 0, 0))
        assert len(executor.events) == 3

    @pytest.mark.filterwarnings("error:Detected call of `lr_scheduler.step")
    def test_changed_learning_rate_moves_no_state(self, weights, gradients):
        optimizer = P.Adam(weights, lr=1.0)
        scheduler = T.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
        executor = SmallExecutor(optimizer, weights)
        executor(gradients(0, 0, 0))
        scheduler.step()
        executor.set_optimizer(optimizer)
        executor.set_optimizer(optimizer)
        assert executor.events == ["hyper-parameters"]
        assert optimizer.state_dict()["ipu_param"]["learningRate___specific___w0"] == 0.5

    def test_destroy_reads_back(self, weights, gradients):
        optimizer = P.Adam(weights, lr=0.1)
        executor = SmallExecutor(optimizer, weights)
        executor(gradients(0, 0, 0))
        executor.destroy()
        del executor
        gc.collect()
        assert optimizer.state_dict()["ipu_state"]["Step___w0"] == 1.0

    def test_executor_that_vanished(self, weights, gradients):
        optimizer = P.Adam(weights, lr=0.1)
        executor = SmallExecutor(optimizer, weights)
        executor(gradients(0, 0, 0))
        del executor
        gc.collect()
        with pytest.raises(poptorch.Error, match=r"Model has not been compiled or has been destroyed\."):
            optimizer.state_dict()

    def test_both_dirty_is_an_error(self, weights):
        optimizer = P.Adam(weights)
        optimizer.ipu_state_is_dirty = optimizer.host_state_is_dirty = True
        with pytest.raises(poptorch.Error, match=r"Both host and ipu states cannot be dirty at the same time\."):
            optimizer.state_dict()


class TestReplacing:
    def test_fresh_optimizer_keeps_momenta_on_the_device(self, weights, gradients):
        old, new = P.Adam(weights, lr=0.1), P.Adam(weights, lr=0.2)
        executor = SmallExecutor(old, weights)
        executor(gradients(0, 0, 0))
        executor.set_optimizer(new)
        assert executor.events == ["state to host", "hyper-parameters"]
        assert new.state_dict()["ipu_state"] is None
        assert old.state_dict()["ipu_state"]["Step___w0"] == 1.0
        executor(gradients(1, 0, 0))
        assert new.state_dict()["ipu_state"]["Step___w0"] == 2.0
        assert old.state_dict()["ipu_state"]["Step___w0"] == 1.0

    @pytest.mark.parametrize("combined", [False, True])
    def test_copy_can_be_set(self, combined, weights, gradients):
        optimizer = P.SGD(
            weights,
            lr=0.01,
            momentum=0.9,
            loss_scaling=0.05,
            use_combined_accum=combined,
            **({"velocity_scaling": 128.1} if combined else {}),
        )
        executor = SmallExecutor(optimizer, weights)
        executor(gradients(0, 0, 0))
        optimizer.state_dict()
        duplicate = copy.copy(optimizer)
        assert duplicate.ipu_state_is_dirty
        assert not duplicate.host_state_is_dirty
        executor.set_optimizer(duplicate)
        executor(gradients(1, 0, 0))
        assert duplicate.loss_scaling == 0.05
        assert executor.events == ["state to host", "weights to host", "state to device"]


class TestCopies:
    @pytest.mark.parametrize("kind", ALL)
    @pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
    def test_everything_survives(self, kind, how, weights, gradients):
        optimizer = make(kind, weights, loss_scaling=4.0, accum_type=torch.float16)
        optimizer.remark = "mine"
        T.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)  # wraps methods of the object
        executor = SmallExecutor(optimizer, weights)
        executor(gradients(0, 0, 0))
        state = optimizer.state_dict()
        duplicate = how(optimizer)
        assert duplicate.loss_scaling == 4.0
        assert duplicate.accum_type == torch.float16
        assert duplicate.remark == "mine"
        assert not duplicate.variable_attrs.isConstant("loss_scaling")
        assert equal(duplicate.state_dict()["ipu_state"], state["ipu_state"])
        assert duplicate.ipu_state_is_dirty
        duplicate.variable_attrs.markAsConstant("loss_scaling")
        assert not optimizer.variable_attrs.isConstant("loss_scaling")

    def test_copied_lamb_steps_on_the_cpu(self, weights):
        optimizer = copy.copy(P.LAMB(weights, lr=0.1, max_weight_norm=3.0))
        assert optimizer.max_weight_norm == 3.0
        weights[0].grad = torch.ones_like(weights[0])
        optimizer.step()

    def test_copy_without_state_is_clean(self, weights):
        assert not copy.copy(P.SGD(weights, lr=0.1)).ipu_state_is_dirty


class TestLoading:
    @pytest.mark.parametrize("kind", ALL)
    def test_five_and_five_steps_equal_ten(self, kind, weights, gradients, clone):
        through, resumed = clone(weights), clone(weights)
        executor = SmallExecutor(make(kind, through), through)
        for step in range(10):
            executor(gradients(step, 0, 0))
        first = make(kind, resumed)
        executor = SmallExecutor(first, resumed)
        for step in range(5):
            executor(gradients(step, 0, 0))
        file = io.BytesIO()
        torch.save({"weights": resumed, "optimizer": first.state_dict()}, file)
        file.seek(0)
        saved = torch.load(file, weights_only=False)
        second = make(kind, saved["weights"])
        second.load_state_dict(saved["optimizer"])
        executor = SmallExecutor(second, saved["weights"])
        for step in range(5, 10):
            executor(gradients(step, 0, 0))
        assert all(torch.equal(a, b) for a, b in zip(through, saved["weights"], strict=True))

    def test_loading_overwrites_groups_and_waits_for_upload(self, weights, gradients):
        optimizer = P.Adam(weights, lr=0.5)
        executor = SmallExecutor(optimizer, weights)
        executor(gradients(0, 0, 0))
        state = optimizer.state_dict()
        other = P.Adam(weights, lr=0.1)
        other.load_state_dict(state)
        assert other.param_groups[0]["lr"] == 0.5
        assert other.ipu_state_is_dirty
        assert other.get_state_dict()["ipu_state"] is state["ipu_state"]

    def test_random_values_round_trip(self, weights, gradients):
        optimizer = P.Adam(weights, lr=0.1, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1, loss_scaling=1.0)
        executor = SmallExecutor(optimizer, weights)
        executor.compile()
        state = optimizer.state_dict()
        for part in ("ipu_state", "ipu_param"):
            state[part] = {name: torch.rand_like(tensor) for name, tensor in state[part].items()}
        optimizer.load_state_dict(state)
        assert equal(optimizer.state_dict()["ipu_state"], state["ipu_state"])
        executor(gradients(0, 0, 0))
        after = optimizer.state_dict()
        assert equal(after["ipu_param"], state["ipu_param"])
        assert not equal(after["ipu_state"], state["ipu_state"])
        assert executor.events[-3:] == ["weights to host", "state to device", "state to host"]

    def test_partial_dictionaries(self, weights, gradients, caplog):
        optimizer = P.Adam(weights, lr=0.1)
        executor = SmallExecutor(optimizer, weights)
        executor(gradients(0, 0, 0))
        state = optimizer.state_dict()
        del state["ipu_state"]["Step___w0"], state["ipu_param"]["learningRate___specific___w1"]
        state["ipu_state"]["Foreign"] = torch.ones(1)
        optimizer.load_state_dict(state)
        assert "Step___w0" not in optimizer.state_dict()["ipu_state"]
        executor(gradients(1, 0, 0))
        assert "ignoring missing state Step___w0" in caplog.text
        assert "ignoring missing parameter learningRate___specific___w1" in caplog.text
        after = optimizer.state_dict()
        assert after["ipu_state"]["Step___w0"] == 2.0
        assert "Foreign" not in after["ipu_state"]

    def test_cpu_state_is_refused(self, weights):
        native = T.Adam(weights, lr=0.1)
        with pytest.raises(RuntimeError, match=r"Only IPU optimizer states can be loaded onto the IPU\."):
            P.Adam(weights, lr=0.1).load_state_dict(native.state_dict())

    def test_empty(self, weights):
        optimizer = P.Adam(weights)
        with pytest.raises(KeyError):
            optimizer.load_state_dict({})
        with pytest.raises(RuntimeError, match=r"Cannot load optimizer state dictionary because it is empty\."):
            optimizer.set_state_dict({})

    def test_other_number_of_groups_is_torchs_business(self, weights):
        two = P.Adam([{"params": weights[:1]}, {"params": weights[1:]}])
        with pytest.raises(ValueError, match="different number of parameter groups"):
            P.Adam(weights).load_state_dict(two.state_dict())

    def test_state_of_another_model_changes_nothing(self, weights, gradients):
        optimizer = P.Adam(weights, lr=0.1)
        executor = SmallExecutor(optimizer, weights)
        executor(gradients(0, 0, 0))
        state = optimizer.state_dict()
        before = {name: tensor.clone() for name, tensor in state["ipu_state"].items()}
        state["ipu_state"] = {name: tensor + 1 for name, tensor in before.items()}
        state["ipu_state"]["Accl2___w3"] = torch.ones(7)
        optimizer.load_state_dict(state)
        with pytest.raises(poptorch.Error, match=r"Accl2___w3 has shape \(7,\).*belongs to another model"):
            executor(gradients(1, 0, 0))
        assert equal(executor.read_state(), before)

    def test_state_of_other_types_is_refused(self, weights, gradients):
        optimizer = P.Adam(weights, lr=0.1)
        executor = SmallExecutor(optimizer, weights)
        executor(gradients(0, 0, 0))
        state = optimizer.state_dict()
        state["ipu_state"]["Accl1___w0"] = state["ipu_state"]["Accl1___w0"].half()
        optimizer.load_state_dict(state)
        with pytest.raises(poptorch.Error, match="other accumulation types"):
            executor(gradients(1, 0, 0))

    def test_state_saved_before_compilation_can_be_loaded(self, weights, gradients):
        optimizer = P.Adam(weights, lr=0.1)
        optimizer.load_state_dict(P.Adam(weights, lr=0.3).state_dict())
        assert optimizer.param_groups[0]["lr"] == 0.3
        executor = SmallExecutor(optimizer, weights)
        executor(gradients(0, 0, 0))
        assert optimizer.state_dict()["ipu_state"]["Step___w0"] == 1.0
