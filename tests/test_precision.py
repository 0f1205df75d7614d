"""Torch's settings for a GPU, which can be made where there is none: set, consistent, restored."""

import itertools

import pytest
import torch

from fedtaper.engines.precision import captured_kernels, single_precision

there = torch.backends
pytestmark = pytest.mark.skipif(torch.__version__ < "2.9", reason="it has the old switches alone")


def new_products():
    there.cuda.matmul.fp32_precision = "tf32"


def new_convolutions():
    there.cudnn.conv.fp32_precision = "ieee"


def new_both():
    there.cudnn.conv.fp32_precision = there.cudnn.rnn.fp32_precision = "ieee"


def old_products():
    there.cuda.matmul.allow_tf32 = True


def old_convolutions():
    there.cudnn.allow_tf32 = False


def old_by_name():
    torch.set_float32_matmul_precision("medium")


USERS = (new_products, new_convolutions, new_both, old_products, old_convolutions, old_by_name)


def named(changes):
    return "-".join(change.__name__ for change in changes)


def read(switch):
    """The old switches cannot be read where the new ones disagree with them."""
    try:
        return switch()
    except RuntimeError:
        return "mixed"


def settings():
    units = (there.cuda.matmul, there.mkldnn.matmul, there.cudnn.conv, there.cudnn.rnn)
    old = (
        torch.get_float32_matmul_precision,
        lambda: there.cuda.matmul.allow_tf32,
        lambda: there.cudnn.allow_tf32,
    )
    return [unit.fp32_precision for unit in units] + [read(switch) for switch in old]


@pytest.fixture
def restored():
    products, convolutions = torch.get_float32_matmul_precision(), there.cudnn.allow_tf32
    on_the_cpu = there.mkldnn.matmul.fp32_precision
    yield
    torch.set_float32_matmul_precision(products)
    there.cudnn.allow_tf32 = convolutions
    there.mkldnn.matmul.fp32_precision = on_the_cpu


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("user", list(itertools.permutations(USERS, 2)), ids=named)
def test_both_kinds_of_switches_agree_inside_and_are_the_users_afterwards(user, exact, restored):
    for change in user:
        change()
    before = settings()
    with single_precision("cuda", exact):
        inside = settings()
    assert "mixed" not in inside
    tf32 = [inside[i] == "tf32" for i in (0, 2, 3)] + inside[5:]
    assert tf32 == [not exact] * 5
    assert settings() == before


def test_the_cpu_changes_nothing_and_an_error_restores_all(restored):
    new_convolutions()
    before = settings(), there.cudnn.benchmark, torch._dynamo.config.recompile_limit
    with single_precision("cpu", exact=True):
        assert settings() == before[0]
    with pytest.raises(ValueError), captured_kernels(exact=True, compiled=True):
        assert there.cudnn.benchmark and torch._dynamo.config.recompile_limit == 64
        raise ValueError
    assert before == (settings(), there.cudnn.benchmark, torch._dynamo.config.recompile_limit)
