"""Results that share memory: which of them require gradients, and where gradients go, as in eager mode."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tools.pytorch import compiled  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh_torch")


def of_sine(function):
    return lambda x: function(torch.sin(x))


def changed_in_place(x):
    y = torch.sin(x)
    seen = y[0:4]
    seen.mul_(2)
    return y, seen, y.detach()


def changed_by_detached(x):
    y = torch.sin(x)
    detached = y.detach()
    detached.add_(1)
    return y[0:4], detached


def without_gradients(x):
    with torch.no_grad():
        y = torch.sin(x)
    return y[0:4], x[0:4], x.detach()[1:], x * y


FORMS = {
    "a part": of_sine(lambda y: (y[0:4], y.detach())),
    "two parts": of_sine(lambda y: (y[0:4], y[4:8], y.detach())),
    "detached first": of_sine(lambda y: (y.detach(), y[0:4], y[4:8])),
    "a part of detached": of_sine(lambda y: (y[0:4], y[4:8], y.detach()[2:])),
    "twice": of_sine(lambda y: (y[0:4], y.detach(), y.detach().detach())),
    "shapes": of_sine(lambda y: (y.view(2, 4), y.view(4, 2).t(), y.detach().reshape(4, 2))),
    "data": of_sine(lambda y: (y[0:4], y[4:8], y.data)),
    "expanded": of_sine(lambda y: (y.expand(2, 8), y[4:8], y.detach().expand(3, 8))),
    "bits": of_sine(lambda y: (y[0:4], y.view(torch.int32), y.detach().view(torch.int32)[1:])),
    "strided": of_sine(lambda y: (y[0:4], y.detach().as_strided((2, 2), (1, 2)))),
    "made to require": of_sine(lambda y: (y[:4], y.detach().requires_grad_())),
    "crossed": lambda x: (lambda y, z: (y[0:4], z.detach(), z[1:], y.detach()))(torch.sin(x), torch.cos(x)),
    "positions": of_sine(lambda y: (y[:4], *y.topk(3), y.detach().argmax())),
    "product": lambda x: (lambda y: (y[:, 0:2], y[:, 2:4], y.detach()))(x.view(2, 4).t() @ x.view(2, 4)),
    "input": lambda x: (x.view(2, 4), x.detach().view(4, 2), x.data, torch.sin(x)),
    "changed in place": changed_in_place,
    "changed by detached": changed_by_detached,
    "without gradients": without_gradients,
}


@pytest.mark.parametrize("form", FORMS)
def test_results_require_gradients_as_in_eager_mode(form):
    """Each result is weighted by a part of the next one, so that a gradient through what is detached would be seen."""

    def reported(function):
        x = torch.linspace(0.1, 0.8, 8, requires_grad=True)
        made = function(x)
        weights = [t.detach().float().flatten()[0] for t in (*made[1:], made[0])]
        sum((t * w * k).sum() for k, (t, w) in enumerate(zip(made, weights), 1) if t.grad_fn is not None).backward()
        shared = [[t.untyped_storage().data_ptr() == u.untyped_storage().data_ptr() for t in made] for u in made]
        return [(t.requires_grad, t.grad_fn is None, t.is_leaf) for t in made], shared, x.grad

    properties, shared, gradient = reported(FORMS[form])
    found = reported(compiled(FORMS[form]))
    assert found[:2] == (properties, shared)
    torch.testing.assert_close(found[2], gradient)


def test_a_detached_result_is_an_array():
    x = torch.linspace(0.1, 0.8, 8, requires_grad=True)
    part, detached = compiled(of_sine(lambda y: (y[0:4], y.detach())))(x)
    assert detached.numpy().tolist()[:4] == part.tolist()
