"""The model's file: what we write others read, and the other way round."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import fedtaper as ft
from fedtaper.storage import tensors

KINDS = st.sampled_from([np.float32, np.float64, np.float16, np.int64, np.int32, np.uint8, bool])
ARRAYS = st.dictionaries(
    st.text("abc._xyz", min_size=1, max_size=8),
    arrays.arrays(KINDS, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)),
    min_size=1,
    max_size=4,
)


@given(ARRAYS)
@settings(max_examples=60, deadline=None)
def test_there_and_back(found):
    back = tensors.unpacked(tensors.packed(found, {"by": "test"}))
    assert sorted(back) == sorted(found)
    for name, array in found.items():
        assert back[name].dtype == array.dtype and back[name].shape == array.shape
        assert back[name].tobytes() == array.tobytes()


@given(ARRAYS)
@settings(max_examples=30, deadline=None)
def test_the_package_agrees(found):
    other = pytest.importorskip("safetensors.numpy")
    theirs, ours = other.load(tensors.packed(found)), tensors.unpacked(other.save(found))
    assert theirs.keys() == ours.keys() == found.keys()
    for name, array in theirs.items():
        assert array.tobytes() == found[name].tobytes() and array.shape == found[name].shape
    for name, array in ours.items():
        assert array.tobytes() == found[name].tobytes() and array.dtype == found[name].dtype


@given(st.binary(max_size=60))
@settings(max_examples=100, deadline=None)
def test_what_is_no_such_file_is_refused(content):
    with pytest.raises(ft.FedtaperError, match="safetensors"):
        tensors.unpacked(content)


def test_a_cut_file_is_refused(tmp_path):
    whole = tensors.packed({"w": np.arange(6.0)})
    for end in (3, 20, len(whole) - 1):
        (tmp_path / "m").write_bytes(whole[:end])
        with pytest.raises(ft.FedtaperError, match=r"not a \.safetensors file"):
            tensors.read(tmp_path / "m")
    with pytest.raises(ft.FedtaperError, match="cannot be read"):
        tensors.read(tmp_path / "none")
    with pytest.raises(ft.FedtaperError, match="cannot hold"):
        tensors.packed({"w": np.zeros(2, dtype=complex)})
