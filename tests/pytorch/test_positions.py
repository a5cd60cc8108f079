"""Operations at positions that are computed: samples, windows of several extents, scans' extremes, masks and strides."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

import tilec.torch  # noqa: E402
from tests.pytorch.translated import right  # noqa: E402
from tilec.torch.aten import costs  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")
F, aten = torch.nn.functional, torch.ops.aten
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("outside", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_samples_of_images(mode, outside, corners):
    """Positions far outside, on the edges and on elements are among them."""
    x, grid = torch.randn(2, 3, 5, 4), torch.rand(2, 4, 3, 2) * 3.1 - 1.5
    grid[0, 0] = torch.tensor([[-1.0, 1.0], [40.0, -33.0], [0.26, -1.4]])
    right(lambda x, g: F.grid_sample(x, g, mode, outside, corners), x, grid)
    if mode != "bicubic":
        cube = torch.cat([grid, torch.rand(2, 4, 3, 1) * 3 - 1.5], -1).unsqueeze(1)
        right(lambda x, g: F.grid_sample(x, g, mode, outside, corners), torch.randn(2, 3, 4, 5, 3), cube)


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("size", [(9, 4), (3, 11), (1, 5), (6, 7)])
def test_cubic_resampling(size, corners):
    right(lambda x: F.interpolate(x, size, mode="bicubic", align_corners=corners), torch.randn(2, 3, 6, 5))


@pytest.mark.slow
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("size", [(5, 7), (1, 1), (13, 4), (20, 31), (9, 12), (8, 2)])
@pytest.mark.parametrize("shape", [(2, 3, 9, 12), (2, 2, 1, 5)])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_resampling_with_antialiasing_has_gradients(mode, shape, size, corners):
    """(Of columns, images of width 1, PyTorch's own results are wrong on a CPU: the first row is in all.)"""
    right(lambda x: F.interpolate(x, size, mode=mode, align_corners=corners, antialias=True), torch.randn(shape))
    backward = getattr(aten, f"_upsample_{mode}2d_aa_backward")
    right(lambda g: backward(g, size, shape, corners, None, None), torch.randn(*shape[:2], *size))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_antialiasing_of_columns_is_that_of_rows(mode):
    resized = lambda x, size: F.interpolate(x, size, mode=mode, antialias=True)  # noqa: E731
    x = torch.randn(2, 3, 9, 12)
    found = torch.compile(lambda x: resized(x, (4, 1)), backend="tilec")(x)
    torch.testing.assert_close(found, resized(x.mT, (1, 4)).mT, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.3, 0.77, 1.7])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_antialiasing_by_a_scale_that_is_no_ratio_of_sizes(mode, scale):
    call = lambda x: F.interpolate(x, scale_factor=scale, mode=mode, antialias=True)  # noqa: E731
    x = torch.randn(1, 2, 13, 17)
    right(call, x)
    sizes = call(x).shape[2:], x.shape, False, scale, scale
    right(lambda g: getattr(aten, f"_upsample_{mode}2d_aa_backward")(g, *sizes), torch.randn_like(call(x)))


def test_what_a_filter_does_not_reach_takes_no_part():
    x = torch.randn(1, 1, 12, 12)
    x[..., 4, 7], x[..., 11, 11] = INF, NAN
    found = torch.compile(lambda x: F.interpolate(x, (7, 5), mode="bilinear", antialias=True), backend="tilec")(x)
    expected = F.interpolate(x, (7, 5), mode="bilinear", antialias=True)
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert 0 < expected.isfinite().sum() < expected.numel() and tilec.torch.report().share == 1


@pytest.mark.parametrize("size", [(3, 4), (7, 2), (1, 1), (9, 11)])
def test_adaptive_pools_have_positions_and_gradients(size):
    x = torch.randn(2, 3, 7, 8)
    x[0, 0, 2] = x[1, 2] = -INF
    x[1, 1, 4, 3:] = NAN
    right(lambda x: F.adaptive_max_pool2d(x, size, return_indices=True), x)
    right(lambda x: F.adaptive_max_pool3d(x, (*size, 2), return_indices=True), torch.stack([x, x.flip(3), x], -1))
    y, chosen = F.adaptive_max_pool2d(torch.randn(2, 3, 7, 8), size, return_indices=True)
    right(lambda g, x, i: aten.adaptive_max_pool2d_backward(g, x, i), torch.randn_like(y), torch.randn(2, 3, 7, 8), chosen)
    right(lambda g, x: aten._adaptive_avg_pool2d_backward(g, x), torch.randn_like(y), torch.randn(2, 3, 7, 8))


@pytest.mark.parametrize("name", ["cummax", "cummin"])
@pytest.mark.parametrize("dim", [0, 1])
def test_positions_of_the_extremes_so_far(name, dim):
    """Of equal elements the last one, and of NaNs."""
    x = torch.tensor([[1.0, 3, 3, 2, 3, -INF, NAN, 5], [2, 2, NAN, 9, NAN, INF, 1, 1], [-INF, -INF, 0, 0, INF, INF, 0, 1]])
    right(lambda x: getattr(torch, name)(x, dim), x)
    right(lambda x: getattr(torch, name)(x, dim), torch.tensor([[True, False, True], [False, False, True]]))
    right(lambda x: getattr(torch, name)(x, dim), torch.randint(-3, 3, (4, 9), dtype=torch.int8))


def test_running_sums_of_exponentials():
    x = torch.tensor([[-INF, -INF, 3.0, 1000.0, -2.0], [800.0, -800.0, 1.0, -INF, INF]])
    right(lambda x: torch.logcumsumexp(x, 1), x)
    right(lambda x: torch.logcumsumexp(x, 0), torch.randn(7, 3, 4) * 30)


def test_writes_by_masks_strides_and_positions():
    x, mask = torch.randn(3, 4, 5), torch.rand(4, 5) > 0.5
    right(lambda x, m, s: x.masked_scatter(m, s), x, mask, torch.randn(70))
    right(lambda x, s: torch.as_strided_scatter(x, s, (2, 3), (20, 2), 7), x, torch.randn(2, 3))
    right(lambda x, s: torch.as_strided_scatter(x, s, (3, 2), (1, 30), 4), x, torch.randn(3, 2))
    index = torch.tensor([[3, -1], [59, 7]])
    right(lambda x, i, s: x.put(i, s), x, index, torch.randn(2, 2))
    right(lambda x, i, s: x.put(i, s, accumulate=True), x, index.clone().fill_diagonal_(7), torch.randn(2, 2))


@pytest.mark.parametrize("kernel, stride, dilation", [((3, 2), (1, 1), (1, 1)), ((3, 3), (2, 3), (1, 2)), ((2, 3), (3, 2), (2, 1))])
def test_columns_become_images(kernel, stride, dilation):
    shape = {"kernel_size": kernel, "stride": stride, "dilation": dilation, "padding": (1, 2)}
    columns = F.unfold(torch.randn(2, 3, 9, 10), **shape)
    right(lambda c: F.fold(c, (9, 10), **shape), columns)


def test_what_is_pooled_is_unpooled():
    y, chosen = F.max_pool2d(torch.randn(2, 3, 8, 6), 2, return_indices=True)
    right(lambda y, i: F.max_unpool2d(y, i, 2), y, chosen)
    y, chosen = F.max_pool3d(torch.randn(2, 3, 4, 6, 4), 2, return_indices=True)
    right(lambda y, i: F.max_unpool3d(y, i, 2, output_size=(4, 6, 5)), y, chosen)


def test_distances_and_products_of_three():
    x, y = torch.randn(2, 5, 3), torch.randn(2, 4, 3)
    for p in (0.0, 1.0, 2.0, 3.5, INF):
        right(lambda x, y: torch.cdist(x, y, p), x, y)  # noqa: B023
        right(lambda x, y: torch.dist(x, y[:, :1], p), x, y)  # noqa: B023
    right(lambda a, w, b: F.bilinear(a, b, w), torch.randn(6, 3), torch.randn(4, 3, 2), torch.randn(6, 2))


@pytest.mark.parametrize("order", range(7))
def test_derivatives_of_digamma(order):
    right(lambda x: torch.polygamma(order, x), torch.rand(90) * 20 - 6 + 1e-3, rtol=2e-4, atol=1e-4)
    if order < 2:  # PyTorch has NaN of the others, which are 0
        right(lambda x: torch.polygamma(order, x), torch.tensor([40.0, 1e4, 0.5, INF]))


def test_the_cpu_leaves_many_reads_to_pytorch():
    with costs.cutting():
        assert costs.reads_pay(torch.device("cpu"), 1000) and not costs.reads_pay(torch.device("cpu"), 10**6)
        assert costs.reads_pay(torch.device("cuda"), 10**6)
