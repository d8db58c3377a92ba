"""The `.grad` of parameters: knowing without a look whether one holds only zeros, and putting them back after a backward
that failed half-way.

A copy of every gradient would cost as much memory as the model at the worst moment. After `clear_grad` (which zeroes
rather than drops) nothing needs copying, as long as nobody has touched the gradient since: no backward, no access to
`.grad`. When unsure, copy.

Known limit: a handle to `.grad` taken before the clear and written to after it is not noticed.
"""

import functools
import weakref

from .runtime import runtime

_ABSENT = "absent"
_ZERO = "zero"
_ROWS = "selected rows"  # of a sparse embedding: Paddle has no copy of these

_clean = {}  # id of a parameter -> weak reference to it: new or zeroed, and untouched since


def patch():
    """Watches the ways in which a parameter's gradient is cleared, read or assigned."""
    parameter = runtime.paddle.base.framework.EagerParamBase
    tensor = runtime.paddle.base.core.eager.Tensor
    make = parameter.__init__
    clear = tensor.clear_gradient
    getset = tensor.grad

    @functools.wraps(make)
    def init(self, *args, **kwargs):
        make(self, *args, **kwargs)
        _clean[id(self)] = weakref.ref(self)

    parameter.__init__ = init

    def clear_gradient(self, set_to_zero=True):
        clear(self, set_to_zero)
        _clean[id(self)] = weakref.ref(self)

    clear_gradient.__doc__ = clear.__doc__
    clear_gradient.__name__ = "clear_gradient"
    parameter.clear_gradient = clear_gradient

    def get(self):
        _clean.pop(id(self), None)
        return getset.__get__(self, type(self))

    def put(self, value):
        _clean.pop(id(self), None)
        getset.__set__(self, value)

    parameter.grad = property(get, put, doc=getset.__doc__)
    for name in ("_set_grad_ivar", "_grad_ivar"):
        original = getattr(tensor, name, None)
        if original is not None:
            setattr(parameter, name, _touching(original))


def _touching(original):
    def method(self, *args):
        _clean.pop(id(self), None)
        return original(self, *args)

    method.__name__ = original.__name__
    return method


def grad_of(tensor):
    """`.grad` without marking it as touched."""
    return runtime.paddle.base.core.eager.Tensor.grad.__get__(tensor, type(tensor))


def release(tensor):
    """Drops `.grad` altogether."""
    runtime.paddle.base.core.eager.Tensor.clear_gradient(tensor, False)


def blank(parameter):
    """Zeros in the place of a gradient that is to be put back. After `clear_gradient` what comes next would take its place
    instead of being added to it, whatever was put back meanwhile."""
    with runtime.paddle.no_grad():
        grad_of(parameter).zero_()


def touched(parameters=None):
    """A backward has run: into these parameters, or (None) into nobody knows which."""
    if parameters is None:
        _clean.clear()
    else:
        for parameter in parameters:
            _clean.pop(id(parameter), None)


def untouched_but(keep):
    """A backward has run into parameters unknown, but not into those of `keep`."""
    kept = {id(p): _clean[id(p)] for p in keep if id(p) in _clean}
    _clean.clear()
    _clean.update(kept)


def zeroed():
    """All parameters that have no gradient or one of zeros, as far as that is known."""
    return [parameter for parameter in (reference() for reference in list(_clean.values())) if parameter is not None]


def zero(parameters):
    """Undoes what a backward has added to gradients that held only zeros."""
    for parameter in parameters:
        parameter.clear_gradient(True)


def is_clean(parameter):
    reference = _clean.get(id(parameter))
    return reference is not None and reference() is parameter


class Saved:
    """The gradients of some parameters, as they were when this was made."""

    def __init__(self, parameters):
        self._entries = []
        self._clean = []
        for parameter in parameters:
            grad = grad_of(parameter)
            if grad is None:
                self._entries.append((parameter, _ABSENT))
            elif is_clean(parameter):
                self._entries.append((parameter, _ZERO))
                self._clean.append(parameter)
            elif grad.is_selected_rows():
                self._entries.append((parameter, _ROWS))
            else:
                self._entries.append((parameter, grad.clone()))

    def is_whole(self):
        """True if all of them can be put back."""
        return not any(saved is _ROWS for _, saved in self._entries)

    def restore(self, but=()):
        """Puts them back, but for those in `but`. Returns why that could not be done, None where it was."""
        tensor = runtime.paddle.base.core.eager.Tensor
        why, skipped = None, {id(parameter) for parameter in but}
        for parameter, saved in self._entries:
            if id(parameter) in skipped:
                continue
            if saved is _ABSENT:
                tensor.clear_gradient(parameter, False)
            elif saved is _ROWS:
                why = "the sparse gradient of %s, of which there is no copy, may hold a part of it" % parameter.name
            elif saved is _ZERO:
                tensor.clear_gradient(parameter, True)
            else:
                grad_of(parameter).copy_(saved, True)
        for parameter in (one for one in self._clean if id(one) not in skipped):
            _clean[id(parameter)] = weakref.ref(parameter)
        return why
