"""Names that programs ask for before anything else: devices, defaults, limits, constructors by type."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import flambeau
import flambeau as torch


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_devices_that_are_not_there(kind: str) -> None:
    module = getattr(torch, kind)
    assert module.is_available() is False
    assert module.device_count() == 0
    module.manual_seed_all(0)
    module.empty_cache()
    with pytest.raises(AssertionError, match=rf"{kind}.synchronize: needs a {kind.upper()} device.*is_available"):
        module.synchronize()
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = module.nonsense
    assert torch.device(kind if module.is_available() else "cpu") == torch.device("cpu")


def test_moving_to_a_gpu_says_there_is_none() -> None:
    with pytest.raises(AssertionError, match="not compiled with CUDA enabled"):
        torch.ones(2).cuda()
    with pytest.raises(AssertionError, match="not compiled with CUDA enabled"):
        torch.nn.Linear(1, 1).cuda()
    assert torch.cuda.memory_allocated() == 0
    assert torch.version.cuda is None


def test_backends() -> None:
    for name in ("cudnn", "mkl", "mkldnn", "mps", "openmp"):
        assert getattr(torch.backends, name).is_available() is False
    cudnn = importlib.import_module("flambeau.backends.cudnn")
    before = cudnn.deterministic
    with cudnn.flags(deterministic=True, benchmark=True):
        assert torch.backends.cudnn.deterministic
    assert torch.backends.cudnn.deterministic is before
    torch.backends.cuda.matmul.allow_tf32 = True
    assert torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    with pytest.raises(AttributeError, match="Did you mean allow_tf32"):
        torch.backends.cuda.matmul.allow_tf3 = True
    assert torch.backends.cpu.get_cpu_capability() in ("AVX512", "AVX2", "DEFAULT")


def test_default_dtype() -> None:
    whole = torch.tensor([1, 2])
    assert (whole / 2).dtype is torch.float32
    try:
        torch.set_default_dtype(torch.float64)
        assert (whole / 2).dtype is torch.ones(1).dtype is torch.tensor(1.0).dtype is torch.float64
        torch.set_default_tensor_type("torch.FloatTensor")
        assert (whole / 2).dtype is torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
    with pytest.raises(TypeError, match="floating"):
        torch.set_default_dtype(torch.int64)


def test_switches_are_kept() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    assert not torch.are_deterministic_algorithms_enabled()
    torch.set_float32_matmul_precision("high")
    assert torch.get_float32_matmul_precision() == "high"
    torch.set_float32_matmul_precision("highest")
    with pytest.raises(RuntimeError, match="one of highest, high, medium"):
        torch.set_float32_matmul_precision("most")
    with pytest.raises(RuntimeError, match="must be 'cpu'"):
        torch.set_default_device("sim")


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_finfo(name: str) -> None:
    mine, theirs = torch.finfo(getattr(torch, name)), np.finfo(name)
    for field in ("bits", "eps", "max", "min", "tiny", "smallest_normal"):
        assert getattr(mine, field) == float(getattr(theirs, field)), field
    assert torch.finfo(torch.bfloat16).max == 3.3895313892515355e38
    assert torch.finfo(torch.complex64).dtype == "float32"
    with pytest.raises(TypeError, match="Use iinfo"):
        torch.finfo(torch.int32)


@pytest.mark.parametrize("name", ["uint8", "int8", "int16", "int32", "int64"])
def test_iinfo(name: str) -> None:
    mine, theirs = torch.iinfo(getattr(torch, name)), np.iinfo(name)
    assert (mine.min, mine.max, mine.bits) == (theirs.min, theirs.max, theirs.bits)
    with pytest.raises(TypeError, match="Use finfo"):
        torch.iinfo(torch.float32)


def test_constructors_by_type() -> None:
    assert torch.Tensor([1, 2]).dtype is torch.float32
    assert torch.Tensor(2, 3).shape == (2, 3)
    assert torch.Tensor().shape == (0,)
    assert torch.Tensor(torch.Size([2, 1])).shape == (2, 1)
    assert torch.Tensor((2, 1)).tolist() == [2, 1]
    assert torch.Tensor(np.ones(2)).tolist() == [1, 1]
    assert torch.LongTensor([1.5]).tolist() == [1]
    assert torch.BoolTensor([1, 0]).tolist() == [True, False]
    assert isinstance(torch.ones(1), torch.FloatTensor)
    assert not isinstance(torch.ones(1), torch.LongTensor)
    x = torch.ones(2)
    assert torch.Tensor(x).data_ptr() == x.data_ptr()
    with pytest.raises(TypeError, match="must have dtype int64"):
        torch.LongTensor(x)
    for wrong in ((True,), ([1], [2]), (2, "a"), (2.5,)):
        with pytest.raises(TypeError, match="sizes"):
            torch.Tensor(*wrong)


def test_subclasses_are_constructed() -> None:
    class Mine(torch.Tensor):
        pass

    assert type(Mine([1.0, 2.0])) is Mine
    assert type(Mine(torch.ones(2))) is Mine


def test_type_of_tensor() -> None:
    x = torch.ones(2)
    assert x.type() == torch.typename(x) == "torch.FloatTensor"
    assert (
        x.type(torch.LongTensor).dtype is x.type("torch.LongTensor").dtype is x.type(torch.int64).dtype is torch.int64
    )
    assert x.type_as(torch.zeros(1, dtype=torch.int32)).dtype is torch.int32
    assert x.new(3).shape == (3,)
    assert x.layout is torch.strided
    with pytest.raises(ValueError, match="invalid type"):
        x.type("torch.cuda.FloatTensor")


def test_questions() -> None:
    x = torch.ones(2, 3)
    assert torch.numel(x) == 6
    assert torch.is_tensor(x) and not torch.is_tensor(3)
    assert torch.is_floating_point(x) and not torch.is_complex(x) and torch.is_signed(x)
    assert torch.is_same_size(x, x) and not torch.is_same_size(x, x.T)
    assert torch.result_type(torch.tensor([1]), 1.5) is torch.float32
    assert torch.is_nonzero(torch.ones(1))
    with pytest.raises(RuntimeError, match="ambiguous"):
        x.is_nonzero()
    assert x.T.dim_order() == (1, 0)
    with pytest.raises(TypeError, match="must be a tensor"):
        torch.numel([1, 2])


def test_elements_by_python() -> None:
    assert torch.ones(2).apply_(lambda a: a * 3).tolist() == [3, 3]
    assert torch.ones(2).map_(torch.full((2,), 2.0), lambda a, b: a + b).tolist() == [3, 3]
    square = torch.zeros(7, 3).fill_diagonal_(2, wrap=True)
    expected = np.zeros((7, 3))
    np.fill_diagonal(expected, 2, wrap=True)
    np.testing.assert_array_equal(square.numpy(), expected)
    with pytest.raises(RuntimeError, match="equal length"):
        torch.zeros(2, 3, 2).fill_diagonal_(1)


def test_memory_of_a_buffer() -> None:
    raw = bytearray(np.arange(4, dtype=np.float32).tobytes())
    x = torch.frombuffer(raw, dtype=torch.float32, offset=4)
    x[0] = 9
    assert np.frombuffer(raw, np.float32)[1] == 9
    with pytest.raises(ValueError, match="multiple of 4"):
        torch.frombuffer(raw, dtype=torch.float32, offset=3)


def test_unravel_index() -> None:
    found = torch.unravel_index(torch.tensor([7, 22]), (4, 6))
    for got, wanted in zip(found, np.unravel_index([7, 22], (4, 6))):
        np.testing.assert_array_equal(got.numpy(), wanted)


def test_suggestions_are_public_names() -> None:
    with pytest.raises(AttributeError) as caught:
        _ = flambeau.install_method
    assert "Did you mean _" not in str(caught.value)
    with pytest.raises(AttributeError, match="Did you mean softmax"):
        _ = flambeau.sofmax


def test_words_of_numpy() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    for name in ("sum", "mean", "amax", "prod", "logsumexp", "var", "std", "all", "argmax"):
        ours = getattr(x, name)(dim=1, keepdim=True)
        for call in (getattr(x, name), lambda *a, name=name, **k: getattr(torch, name)(x, *a, **k)):
            got = call(axis=1, keepdims=True)
            assert got.shape == (2, 1), name
            assert got.tolist() == ours.tolist(), name
    assert x.max(axis=0).values.tolist() == [3, 4, 5]
    assert x.softmax(axis=0).shape == torch.softmax(x, axis=0).shape == (2, 3)
    assert torch.cat([x, x], axis=1).shape == (2, 6)
    assert torch.stack([x, x], axis=-1).shape == (2, 3, 2)
    assert [t.shape for t in x.unbind(axis=1)] == [(2,)] * 3
    assert x.clone().cumsum_(axis=1).tolist() == x.cumsum(1).tolist()
    with pytest.raises(TypeError, match="softmax: argument 'dim' is missing"):
        torch.softmax(x)
    with pytest.raises(TypeError, match="not both"):
        x.max(dim=0, axis=0)


def test_numbers_from_tensors() -> None:
    assert float(torch.tensor([2.5])) == 2.5
    for kind in (int, float, complex):
        with pytest.raises(ValueError, match="only one element"):
            kind(torch.ones(2))


def test_numpy_reads_tensors() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    assert np.array(x).dtype == np.float32
    np.testing.assert_array_equal(np.array(x.T), x.numpy().T)
    assert np.asarray(x).ctypes.data == x.data_ptr()
    assert np.array(x).ctypes.data != x.data_ptr()
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    root = np.sqrt(x)
    assert isinstance(root, torch.Tensor) and root.shape == (2, 3)
    assert np.concatenate([x, x]).shape == (4, 3)
    assert float(np.array(torch.tensor(3))) == 3
    assert np.mean(x).item() == 2.5
    with pytest.raises(RuntimeError, match="detach"):
        np.array(torch.ones(2, requires_grad=True))


def test_types_of_python_as_dtypes() -> None:
    x = torch.ones(2)
    assert [x.to(t).dtype for t in (float, int, bool, complex)] == [
        torch.float64,
        torch.int64,
        torch.bool,
        torch.complex128,
    ]
    with pytest.raises(RuntimeError, match="device"):
        x.to("float32")
    with pytest.raises(TypeError, match="a dtype, a device or a tensor"):
        x.to(3)


def test_variable_is_a_tensor() -> None:
    from flambeau.autograd import Variable

    x = torch.ones(2)
    v = Variable(x, requires_grad=True)
    assert isinstance(v, Variable) and isinstance(x, Variable) and not isinstance(3, Variable)
    assert v.requires_grad and not x.requires_grad and v.data_ptr() == x.data_ptr()
    with pytest.raises(TypeError, match="must be a tensor"):
        Variable([1.0])
    (g,) = torch.autograd.grad(outputs=(v * 2).sum(), inputs=v, only_inputs=True)
    assert g.tolist() == [2, 2]


def test_no_process_groups() -> None:
    assert torch.distributed.is_available() is False
    assert not torch.distributed.is_initialized()
    with pytest.raises(AttributeError, match="is_available"):
        _ = torch.distributed.init_process_group


def _work(rank: int, path: str) -> None:
    if rank > 1:
        raise ValueError("rank two")
    with open(f"{path}/{rank}", "w") as file:
        file.write(str(torch.ones(2).sum().item()))


def test_spawn(tmp_path) -> None:
    torch.multiprocessing.spawn(_work, (str(tmp_path),), nprocs=2)
    assert [(tmp_path / str(i)).read_text() for i in range(2)] == ["2.0", "2.0"]
    with pytest.raises(torch.multiprocessing.ProcessRaisedException, match="process 2 .*(?s:.*)rank two"):
        torch.multiprocessing.spawn(_work, (str(tmp_path),), nprocs=3)
    with pytest.raises(ValueError, match="file_system"):
        torch.multiprocessing.set_sharing_strategy("file_descriptor")


def test_sequential_schedules_do_not_warn(recwarn: pytest.WarningsRecorder) -> None:
    schedules = torch.optim.lr_scheduler
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0)
    whole = schedules.SequentialLR(
        optimizer, [schedules.ConstantLR(optimizer, 0.1), schedules.ExponentialLR(optimizer, 0.5)], [2]
    )
    rates = []
    for _ in range(4):
        optimizer.step()
        rates.append(optimizer.param_groups[0]["lr"])
        whole.step()
    assert rates == pytest.approx([0.1, 0.1, 1.0, 0.5])
    assert not [w for w in recwarn.list if "epoch" in str(w.message)]


def test_dtypes_and_sizes_of_factories() -> None:
    for make in (torch.zeros, torch.ones, torch.empty, torch.rand, torch.randn):
        assert make(size=(2, 3)).shape == make(2, 3).shape == make([2, 3]).shape == (2, 3)
        with pytest.raises(TypeError, match=f"{make.__name__}: sizes must be ints"):
            make("a")
        with pytest.raises(RuntimeError, match=f"{make.__name__}: sizes must not be negative"):
            make(-1)
        assert make(2, dtype=float).dtype is torch.float64
    assert torch.tensor([1.5], dtype=int).tolist() == [1]
    assert torch.arange(3, dtype=float).dtype is torch.full((2,), 1, dtype=float).dtype is torch.float64
    with pytest.raises(TypeError, match="Write flambeau.float32"):
        torch.zeros(2, dtype="float32")


def test_new_tensors() -> None:
    x = torch.ones(2, dtype=torch.float64)
    for made, shape in (
        (x.new_zeros(3), (3,)),
        (x.new_ones(2, 3), (2, 3)),
        (x.new_empty((2, 3)), (2, 3)),
        (x.new_full((2,), 7), (2,)),
        (x.new_zeros(size=(4,)), (4,)),
        (x.new_zeros(()), ()),
        (x.new_empty_strided((2, 3), (1, 2)), (2, 3)),
        (x.new_tensor([1, 2, 3]), (3,)),
    ):
        assert made.shape == shape
        assert made.dtype is torch.float64
    assert x.new_zeros(1, dtype=torch.int32).dtype is torch.int32
    assert x.new_zeros(1, requires_grad=True).requires_grad
    with pytest.raises(TypeError, match="new_zeros: no argument named 'dtyp'. Did you mean dtype"):
        x.new_zeros(1, dtyp=torch.int32)


def test_lists_of_numpy_scalars_and_tensors() -> None:
    for data, wanted in (
        ([np.float64(1.0), 2.0], torch.float64),
        ([np.float32(1.0)], torch.float32),
        ([np.float16(1.0)], torch.float16),
        ([np.int32(1), np.int32(2)], torch.int32),
        ([np.bool_(True)], torch.bool),
        ([1, np.float64(2.0)], torch.float64),
        ([np.array([1.0, 2.0]), np.array([3.0, 4.0])], torch.float64),
        ([torch.tensor(1.0, dtype=torch.float64), 2], torch.float64),
        ([1.5, 2], torch.float32),
    ):
        assert torch.tensor(data).dtype is wanted, data
    assert torch.tensor([np.array([1, 2]), np.array([3, 4])]).tolist() == [[1, 2], [3, 4]]


def test_where_with_a_condition_alone() -> None:
    rows, columns = torch.where(torch.tensor([[True, False], [False, True]]))
    assert rows.tolist() == columns.tolist() == [0, 1]
    assert torch.where(torch.tensor([True, False]), 1, 0).tolist() == [1, 0]


def test_kinds_of_errors() -> None:
    for call, kind in (
        (lambda: torch.cat([]), ValueError),
        (lambda: torch.stack([]), RuntimeError),
        (lambda: torch.device(3.5), TypeError),
        (lambda: torch.tensor([1, "a"]), TypeError),
        (lambda: torch.tensor([None]), RuntimeError),
    ):
        with pytest.raises(kind, match=": "):
            call()


def test_choice_of_attention() -> None:
    from flambeau.nn.attention import SDPBackend, sdpa_kernel

    q = torch.arange(24.0).reshape(1, 2, 3, 4)
    attend = torch.nn.functional.scaled_dot_product_attention
    for choice in (SDPBackend.MATH, [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        with sdpa_kernel(choice):
            assert torch.equal(attend(q, q, q), attend(q, q, q))
    with pytest.raises(TypeError, match="SDPBackend.MATH"), sdpa_kernel("math"):
        pass


def test_modules_near_a_name() -> None:
    with pytest.raises(AttributeError, match="Did you mean Conv2d"):
        _ = torch.nn.Conv2D
    for name in dir(torch.nn):
        getattr(torch.nn, name)
    for name in dir(torch.nn.utils):
        getattr(torch.nn.utils, name)
