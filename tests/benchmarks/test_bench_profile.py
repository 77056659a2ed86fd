"""The kernel table: names find their kinds, times are of one step, and the costliest comes first."""

from types import SimpleNamespace

import pytest
import torch

from benchmarks import profile
from benchmarks.profile import kernels_of, kind_of


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("norm_moments_kernel", "batch norm and ReLU"),
        ("void at::native::batch_norm_backward_reduce_channels_last_kernel<4>(...)", "batch norm and ReLU"),
        ("forward_kernel", "nonlocal stage"),
        ("pytorch_flash::flash_bwd_kernel", "nonlocal stage"),
        ("sm80_xmma_wgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc", "convolutions"),
        ("void at::native::multi_tensor_apply_kernel<FusedSgdMathFunctor>", "optimizer and casts"),
        ("nvjet_tst_64x8_64x16_2x1_v_bz_TNT", "matrix products"),
        ("void at::native::vectorized_elementwise_kernel<8, AddFunctor>", "element-wise"),
        ("Memset (Device)", "copies and fills"),
        ("mystery", "other"),
    ],
)
def test_kinds(name, kind):
    assert kind_of(name) == kind


def made_up():
    events = [
        SimpleNamespace(key="norm_sums_kernel", count=40, self_device_time_total=100.0),
        SimpleNamespace(key="mystery", count=10, self_device_time_total=600.0),
        SimpleNamespace(key="norm_relu_kernel", count=20, self_device_time_total=300.0),
    ]
    row = {"network": "preresnet20/baseline", "batch_size": 128, "precision": "bfloat16"}
    return row | kernels_of(events, steps=10)


def test_a_profile_is_of_one_step():
    row = made_up()
    assert [one["name"] for one in row["kernels"]] == ["mystery", "norm_relu_kernel", "norm_sums_kernel"]
    assert (row["microseconds"], row["launches"]) == (100, 7)
    assert [(one["kind"], one["calls"], one["microseconds"]) for one in row["kinds"]] == [
        ("other", 1, 60),
        ("batch norm and ReLU", 6, 40),
    ]


def test_the_table_shows_kinds_kernels_and_what_it_leaves_out():
    text = profile.table([made_up()], most=2)
    assert "0.100 ms of kernels in 7 launches a step" in text
    assert "| batch norm and ReLU |" in text
    assert "60.0 %" in text
    assert "and 1 more, 10.0 µs in all" in text


@pytest.mark.gpu
def test_cuda_profile_of_a_baseline():
    row = profile.profile("preresnet20/baseline", torch.device("cuda"), batch_size=32)
    kinds = {one["kind"]: one for one in row["kinds"]}
    # 19 batch norms, some of whose gradients are inside convolutions.
    names = ("norm_gradient_kernel", "pointwise_conv_gradient_kernel")
    gradients = [one["calls"] for one in row["kernels"] if one["name"] in names]
    assert sum(gradients) == pytest.approx(19)
    assert kinds["convolutions"]["microseconds"] > 0
    assert kinds.get("other") is None or kinds["other"]["microseconds"] < 0.1 * row["microseconds"]
