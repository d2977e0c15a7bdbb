"""Modules: registration, state dicts, hooks, conversion, containers, printing."""

from __future__ import annotations

import copy
from collections import OrderedDict

import pytest

import flambeau as fb
from flambeau import nn
from flambeau.core.epoch import epoch


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.scale = nn.Parameter(fb.ones(1))
        self.register_buffer("mean", fb.zeros(2))
        self.register_buffer("scratch", fb.zeros(2), persistent=False)
        self.nothing = None

    def forward(self, x):
        x = self.fc(x)
        for layer in self.layers:
            x = layer(x).relu()
        return x * self.scale


NAMES = ["scale", "fc.weight", "fc.bias", "layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"]


# ------------------------------------------------------------------ registration
def test_attributes_are_sorted_by_kind():
    net = Net()
    assert [n for n, _ in net.named_parameters()] == NAMES
    assert [n for n, _ in net.named_buffers()] == ["mean", "scratch"]
    assert [n for n, _ in net.named_modules()] == ["", "fc", "layers", "layers.0", "layers.1"]
    assert [n for n, _ in net.named_children()] == ["fc", "layers"]
    assert list(net.state_dict()) == ["scale", "mean", *NAMES[1:]]
    net.tied = net.fc
    assert len(list(net.parameters())) == 7 and len(list(net.named_parameters(remove_duplicate=False))) == 9
    net.scale = None
    assert net.scale is None and "scale" not in dict(net.named_parameters())
    del net.fc, net.tied
    assert not hasattr(net, "fc")
    net.extra = nn.Buffer(fb.ones(1), persistent=False)
    assert "extra" in dict(net.named_buffers()) and "extra" not in net.state_dict()


def test_wrong_registrations():
    net = Net()
    for call, kind in (
        (lambda: setattr(net, "scale", fb.ones(1)), TypeError),
        (lambda: setattr(net, "fc", 3), TypeError),
        (lambda: setattr(net, "mean", "x"), TypeError),
        (lambda: net.register_parameter("a.b", nn.Parameter(fb.ones(1))), KeyError),
        (lambda: net.register_parameter("", None), KeyError),
        (lambda: net.register_buffer("fc", fb.ones(1)), KeyError),
        (lambda: net.register_parameter("p", nn.Parameter(fb.ones(1)) * 2), TypeError),
        (lambda: net.add_module("m", 3), TypeError),
        (lambda: net.get_submodule("fc.nothing"), AttributeError),
        (lambda: net.get_parameter("mean"), AttributeError),
        (lambda: net.missing, AttributeError),
        (lambda: nn.Module(1), TypeError),
        (lambda: net.train("yes"), ValueError),
        (lambda: nn.Parameter(fb.arange(3)), RuntimeError),
    ):
        with pytest.raises(kind):
            call()

    class Forgetful(nn.Module):
        def __init__(self):
            self.fc = nn.Linear(1, 1)

    with pytest.raises(AttributeError, match="before Module.__init__"):
        Forgetful()
    with pytest.raises(NotImplementedError, match="forward"):
        nn.Module()()


def test_paths():
    net = Net()
    assert (
        net.get_submodule("layers.1") is net.layers[1]
        and net.get_parameter("fc.bias") is net.fc.bias
        and net.get_buffer("mean") is net.mean
    )
    net.set_submodule("layers.1", nn.Identity())
    assert isinstance(net.layers[1], nn.Identity)


def test_the_epoch_counts_changes():
    net = Net()
    for change in (
        lambda: net.eval(),
        lambda: setattr(net, "nothing", 3),
        lambda: delattr(net, "nothing"),
        lambda: net.register_forward_hook(lambda *a: None),
        lambda: net.half(),
        lambda: net.layers.append(nn.Identity()),
    ):
        before = epoch.value
        change()
        assert epoch.value > before
    before = epoch.value
    net(fb.ones(1, 3).half()) if False else net.float()(fb.ones(1, 3))
    after = epoch.value
    net(fb.ones(1, 3))
    assert epoch.value == after > before


# ------------------------------------------------------------------ state dicts
def test_state_dicts_round():
    a, b = Net(), Net()
    assert str(b.load_state_dict(a.state_dict())) == "<All keys matched successfully>"
    assert all((p == q).all() for p, q in zip(a.parameters(), b.parameters()))
    state = a.state_dict()
    assert not state["scale"].requires_grad and a.state_dict(keep_vars=True)["scale"] is a.scale
    assert state._metadata["fc"] == {"version": 1}
    a.scale.data.fill_(5)
    assert state["scale"].item() == 5  # the values are shared


def test_state_dict_errors_list_everything():
    net = Net()
    state = net.state_dict()
    del state["fc.weight"]
    state["other"] = fb.ones(1)
    state["fc.bias"] = fb.ones(7)
    state["mean"] = 3
    with pytest.raises(RuntimeError) as e:
        net.load_state_dict(state)
    text = str(e.value)
    assert text.startswith("Error(s) in loading state_dict for Net:")
    assert (
        'Missing key(s) in state_dict: "fc.weight". ' in text and 'Unexpected key(s) in state_dict: "other". ' in text
    )
    assert "size mismatch for fc.bias" in text and 'parameter named "mean", expected torch.Tensor' in text
    del state["fc.bias"], state["mean"]
    found = net.load_state_dict(state, strict=False)
    assert found.missing_keys == ["mean", "fc.weight", "fc.bias"] and found.unexpected_keys == ["other"]
    with pytest.raises(TypeError, match="dict-like"):
        net.load_state_dict([1])


def test_assignment_takes_the_tensors():
    net = Net()
    state = {k: v.double() for k, v in net.state_dict().items()}
    net.load_state_dict(state, assign=True)
    assert net.fc.weight.dtype is fb.float64 and isinstance(net.fc.weight, nn.Parameter) and net.fc.weight.requires_grad
    state["scale"].fill_(3)
    assert net.scale.item() == 3


def test_extra_state_and_state_hooks():
    class Counter(nn.Linear):
        count = 0

        def get_extra_state(self):
            return {"count": self.count}

        def set_extra_state(self, state):
            self.count = state["count"]

    a, b = Counter(1, 1), Counter(1, 1)
    a.count = 4
    b.load_state_dict(a.state_dict())
    assert b.count == 4 and list(a.state_dict()) == ["weight", "bias", "_extra_state"]
    calls = []
    net = Net()
    net.register_state_dict_pre_hook(lambda m, prefix, keep: calls.append("pre"))
    net._register_state_dict_hook(lambda m, state, prefix, meta: state.update(hooked=fb.ones(1)))
    net._register_load_state_dict_pre_hook(lambda state, *rest: state.pop("hooked"))
    net.register_load_state_dict_post_hook(lambda m, keys: calls.append(list(keys.missing_keys)))
    assert "hooked" in net.state_dict()
    net.load_state_dict(net.state_dict())
    assert calls == ["pre", "pre", []]


# ------------------------------------------------------------------ hooks
def test_forward_hooks():
    net, log = nn.Linear(2, 2), []
    net.register_forward_pre_hook(lambda m, args: (args[0] * 0,))
    h = net.register_forward_hook(lambda m, args, out: log.append(args[0].tolist()) or out + 1)
    with fb.no_grad():
        net.bias.zero_()
    assert net(fb.ones(1, 2)).tolist() == [[1.0, 1.0]] and log == [[[0.0, 0.0]]]
    h.remove()
    assert net(fb.ones(1, 2)).tolist() == [[0.0, 0.0]]
    net.register_forward_hook(lambda m, args, kwargs, out: log.append(kwargs), with_kwargs=True)
    net(input=fb.ones(1, 2)) if False else net(fb.ones(1, 2))
    assert log[-1] == {}
    first = []
    net.register_forward_hook(lambda *a: first.append(2))
    net.register_forward_hook(lambda *a: first.append(1), prepend=True)
    net(fb.ones(1, 2))
    assert first == [1, 2]


def test_hooks_that_always_run():
    class Broken(nn.Module):
        def forward(self, x):
            raise RuntimeError("broken")

    log, net = [], Broken()
    net.register_forward_hook(lambda m, args, out: log.append(out), always_call=True)
    net.register_forward_hook(lambda m, args, out: log.append("not this"))
    with pytest.raises(RuntimeError, match="broken"):
        net(1)
    assert log == [None]


def test_backward_hooks():
    net, log = nn.Linear(2, 1), []
    net.register_full_backward_pre_hook(lambda m, go: (go[0] * 2,))
    net.register_full_backward_hook(lambda m, gi, go: log.append((gi[0].tolist(), go[0].tolist())) or (gi[0] * 10,))
    with fb.no_grad():
        net.weight.copy_(fb.tensor([[1.0, 3.0]]))
    x = fb.ones(1, 2, requires_grad=True)
    net(x).sum().backward()
    assert (
        log == [([[2.0, 6.0]], [[2.0]])]
        and x.grad.tolist() == [[20.0, 60.0]]
        and net.weight.grad.tolist() == [[2.0, 2.0]]
    )
    with pytest.raises(RuntimeError, match="Cannot use both"):
        net.register_backward_hook(lambda *a: None)
    log.clear()
    net(fb.ones(1, 2)).sum().backward() if False else None
    other = nn.Linear(2, 1)
    other.register_full_backward_hook(lambda m, gi, go: log.append(gi))
    other(fb.ones(1, 2)).sum().backward()  # no input needs a gradient
    assert log == [(None,)]


def test_hooks_of_every_module():
    from flambeau.nn.modules.module import register_module_forward_hook, register_module_parameter_registration_hook

    log = []
    with register_module_forward_hook(lambda m, args, out: log.append(type(m).__name__)):
        nn.Sequential(nn.ReLU(), nn.Tanh())(fb.ones(1))
    nn.ReLU()(fb.ones(1))
    assert log == ["ReLU", "Tanh", "Sequential"]
    with register_module_parameter_registration_hook(lambda m, name, p: log.append(name)):
        nn.Linear(1, 1)
    assert log[-2:] == ["weight", "bias"]


# ------------------------------------------------------------------ conversion and modes
def test_conversion_keeps_the_objects():
    net = Net()
    net.register_buffer("count", fb.zeros((), dtype=fb.int64))
    weight = net.fc.weight
    net(fb.ones(1, 3)).sum().backward()
    net.double()
    assert net.fc.weight is weight and weight.dtype is fb.float64 and weight.grad.dtype is fb.float64 and weight.is_leaf
    assert net.count.dtype is fb.int64 and net.mean.dtype is fb.float64
    assert net.to(fb.float16).fc.weight.dtype is fb.float16 and net.to("cpu", fb.float32).mean.dtype is fb.float32
    assert net.bfloat16().float().scale.dtype is fb.float32 and net.to(fb.ones(1).double()).scale.dtype is fb.float64
    with pytest.raises(TypeError, match="floating point"):
        net.to(fb.int32)
    with pytest.raises(AssertionError, match="needs a CUDA device"):
        net.cuda()


def test_modes_and_gradients():
    net = Net()
    assert net.eval() is net and not net.layers[0].training and net.train().layers[1].training
    net(fb.ones(1, 3)).sum().backward()
    net.zero_grad(set_to_none=False)
    assert net.scale.grad.tolist() == [0.0]
    net.zero_grad()
    assert net.scale.grad is None
    assert not any(p.requires_grad for p in net.requires_grad_(False).parameters())
    seen = []
    net.apply(lambda m: seen.append(type(m).__name__))
    assert seen == ["Linear", "Linear", "Linear", "ModuleList", "Net"]


def test_copies_are_independent():
    net = Net()
    other = copy.deepcopy(net)
    other.scale.data.fill_(9)
    assert (
        net.scale.item() == 1
        and [n for n, _ in other.named_parameters()] == NAMES
        and isinstance(other.fc.weight, nn.Parameter)
    )
    shared = nn.Linear(2, 2)
    twice = copy.deepcopy(nn.ModuleList([shared, shared]))
    assert twice[0] is twice[1]


# ------------------------------------------------------------------ containers
def test_sequential():
    s = nn.Sequential(OrderedDict(a=nn.Linear(2, 3), b=nn.ReLU()))
    assert s.a is s[0] and list(s.state_dict()) == ["a.weight", "a.bias"] and len(s[:1]) == 1
    s = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    s.append(nn.Tanh()).insert(1, nn.Identity())
    assert [type(m).__name__ for m in s] == ["Linear", "Identity", "ReLU", "Tanh"] and s[-1] is s[3]
    del s[1]
    s[0] = nn.Linear(2, 2)
    assert len(s) == 3 and s.pop(0).out_features == 2 and list(s._modules) == ["0", "1"]
    assert len(s + s) == 4 and len(s * 3) == 6 and len(s.extend([nn.ReLU()])) == 3
    with pytest.raises(IndexError):
        s[9]
    with pytest.raises(ValueError):
        s + [1]


def test_lists_and_dicts():
    m = nn.ModuleList([nn.ReLU()]) + [nn.Tanh()]
    m.insert(0, nn.Identity())
    assert [type(x).__name__ for x in m] == ["Identity", "ReLU", "Tanh"] and len(m[1:]) == 2
    del m[0]
    m += [nn.ReLU()]
    assert isinstance(m.pop(-1), nn.ReLU) and len(m) == 2
    d = nn.ModuleDict({"a": nn.ReLU()})
    d.update([("b", nn.Tanh())])
    assert list(d.keys()) == ["a", "b"] and "a" in d and isinstance(d.pop("a"), nn.ReLU) and len(d) == 1
    p = nn.ParameterList([fb.ones(2), nn.Parameter(fb.zeros(1)), 3])
    assert (
        isinstance(p[0], nn.Parameter)
        and len(p) == 3
        and p[2] == 3
        and len(list(p.parameters())) == 2
        and list(p.state_dict()) == ["0", "1"]
    )
    q = nn.ParameterDict({"x": fb.ones(2)})
    q["y"] = fb.zeros(1)
    assert (
        list(q) == ["x", "y"]
        and isinstance(q["y"], nn.Parameter)
        and (q | nn.ParameterDict({"z": fb.ones(1)})).keys() == {"x": 0, "y": 0, "z": 0}.keys()
    )
    with pytest.raises(TypeError, match="key/value"):
        d.update(3)


def test_lazy_modules():
    net = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyBatchNorm1d())
    assert nn.parameter.is_lazy(net[0].weight)
    with pytest.raises(RuntimeError, match="uninitialized"):
        print(net[0].weight.shape)
    net(fb.ones(2, 3))
    assert type(net[0]) is nn.Linear and net[0].weight.shape == (4, 3) and type(net[2]) is nn.BatchNorm1d
    assert nn.LazyConv2d(5, 3)(fb.ones(1, 2, 4, 4)).shape == (1, 5, 2, 2)
    target = nn.LazyLinear(4)
    target.load_state_dict(net[0].state_dict())
    assert target.weight.shape == (4, 3)


# ------------------------------------------------------------------ printing
def test_representation():
    assert repr(nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.1))) == (
        "Sequential(\n  (0): Linear(in_features=2, out_features=3, bias=True)\n  (1): Dropout(p=0.1, inplace=False)\n)"
    )
    assert (
        repr(nn.ModuleList([nn.ReLU(), nn.ReLU(), nn.Tanh()])) == "ModuleList(\n  (0-1): 2 x ReLU()\n  (2): Tanh()\n)"
    )
    assert repr(nn.Parameter(fb.ones(2))) == "Parameter containing:\ntensor([1., 1.], requires_grad=True)"
    assert repr(nn.Identity()) == "Identity()"


# ------------------------------------------------------------------ training
def test_a_network_learns():
    fb.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    x = fb.rand(128, 2) * 2 - 1
    y = (x[:, 0] * x[:, 1] > 0).long()
    optimizer = fb.optim.Adam(net.parameters(), lr=0.05)
    first = None
    for _ in range(80):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        first = first or loss.item()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.3 * first


@pytest.mark.parametrize("bad", [1.5, -0.5, float("nan")])
def test_binary_cross_entropy_takes_probabilities(bad):
    good, other = fb.tensor([0.5, 0.5]), fb.tensor([0.5, bad])
    for name, pair in (("input", (other, good)), ("target", (good, other))):
        with pytest.raises(RuntimeError, match=f"all elements of {name} should be between 0 and 1"):
            fb.nn.BCELoss()(*pair)
    compiled = fb.compile(fb.nn.BCELoss(), fullgraph=True)
    assert compiled(good, good).item() == pytest.approx(fb.nn.BCELoss()(good, good).item())


@pytest.mark.parametrize(
    "make",
    [
        lambda: fb.empty(3, device="meta"),
        lambda: fb.randn(3, device="meta"),
        lambda: fb.ones(3).to("meta"),
        lambda: fb.nn.Linear(2, 3, device="meta"),
    ],
)
def test_the_meta_device_says_that_it_is_not_there(make):
    with pytest.raises(NotImplementedError, match="meta device are not implemented"):
        make()
