"""The `.grad` of parameters: knowing without a look whether one holds only zeros, and putting them back after a backward
that failed half-way.

A copy of every gradient would cost as much memory as the model at the worst moment. After `clear_grad` (which zeroes
rather than drops) nothing needs copying, as long as nobody has touched the gradient since: no backward, no access to
`.grad`. When unsure, copy.

Known limit: a handle to `.grad` taken before the clear and written to after it is not noticed.
"""

import functools
import weakref

from .runtime import runtime, thread

_ABSENT = "absent"
_ZERO = "zero"
_ROWS = "selected rows"  # of a sparse embedding: Paddle has no copy of these

_clean = {}  # id of a parameter -> weak reference to it: new or zeroed, and untouched since
_hooks = {}  # id of a parameter -> (weak reference to it, [_Hook])
_engine_hooked = {}  # id of a parameter -> weak reference to it: told of each accumulation into it
_watched = {}  # id of another tensor -> weak reference to it: somebody waits for its gradient


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
    register = tensor.register_hook

    def register_hook(self, hook):
        one = _Hook(hook, register(self, hook))
        known = _hooks.get(id(self))
        if known is None or known[0]() is not self:
            known = _hooks[id(self)] = weakref.ref(self), []
        known[1].append(one)
        return one

    register_hook.__doc__ = register.__doc__
    parameter.register_hook = register_hook
    engine_hook = tensor._register_backward_hook

    def _register_backward_hook(self, hook):
        _engine_hooked[id(self)] = weakref.ref(self)
        return engine_hook(self, hook)

    parameter._register_backward_hook = _register_backward_hook
    for name in ("register_hook", "retain_grads"):
        setattr(tensor, name, _watching(getattr(tensor, name)))
    _Hook.register = register
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


def _watching(original):
    def method(self, *args):
        if not thread.ours:
            thread.hooks += 1
            _watched[id(self)] = weakref.ref(self)
        return original(self, *args)

    method.__name__, method.__doc__ = original.__name__, original.__doc__
    return method


def has_engine_hook(parameter):
    """True if somebody is told of each accumulation into this parameter, as DataParallel is."""
    reference = _engine_hooked.get(id(parameter))
    return reference is not None and reference() is parameter


def is_watched(tensor):
    """True if somebody registered a gradient hook on this tensor, which is no parameter, or asked to keep its gradient."""
    reference = _watched.get(id(tensor))
    return reference is not None and reference() is tensor


class _Hook:
    """A gradient hook of a parameter, and the user's handle to remove it."""

    register = None  # Paddle's own register_hook

    def __init__(self, function, helper):
        self.function = function
        self._helper = helper
        self.removed = False

    def remove(self):
        """As the handle that Paddle gives."""
        if self.removed:
            return False
        self.removed = True
        return self._helper.remove()

    def set_aside(self):
        """Off, but not for the user."""
        self._helper.remove()

    def put_back(self, parameter):
        """On again."""
        self._helper = _Hook.register(parameter, self.function)


def mark(parameter, function):
    """Has function(gradient) called for each gradient that arrives; returns a handle with remove(). No hook of the user's."""
    return _Hook.register(parameter, function)


def hooks_of(parameter):
    """The user's gradient hooks on a parameter, [_Hook]."""
    known = _hooks.get(id(parameter))
    if known is None or known[0]() is not parameter:
        return []
    return [hook for hook in known[1] if not hook.removed]


def has_hooks(parameter):
    """True if gradient hooks are registered on this parameter."""
    return bool(hooks_of(parameter))


class HooksAside:
    """Gradient hooks of some parameters, kept from firing while a backward reaches them in more than one piece.

    What arrives meanwhile is summed in `.grad`, apart from what was there; settle() hands it on as one gradient, so that
    each hook sees the whole of it, once.
    """

    def __init__(self):
        self._kept = []

    def add(self, parameters):
        """Sets aside the hooks of these from here on."""
        known = {id(kept.parameter) for kept in self._kept}
        for parameter in parameters:
            hooks = [] if id(parameter) in known else hooks_of(parameter)
            grad = grad_of(parameter) if hooks else None
            if hooks and not (grad is not None and grad.is_selected_rows()):  # of these Paddle has no copy
                known.add(id(parameter))
                self._kept.append(_Kept(parameter, hooks))
                self._kept[-1].begin()

    def holds(self, parameter):
        """True if the hooks of this one are set aside."""
        return any(kept.parameter is parameter for kept in self._kept)

    def _put_back(self):
        kept, self._kept = self._kept, []
        return [(one.parameter, one.end()) for one in kept]

    def abandon(self):
        """Puts the hooks and the gradients back; what arrived is lost."""
        self._put_back()

    def settle(self, rest):
        """Puts them back and hands over what arrived. rest: further arguments of this Paddle's run_backward."""
        for parameter, gradient in self._put_back():
            if gradient is not None:
                runtime.run_backward([parameter], [gradient], False, *rest)


class _Kept:
    """One parameter of HooksAside."""

    def __init__(self, parameter, hooks):
        self.parameter = parameter
        self._hooks = hooks
        # Copies: what `.grad` gives is the gradient itself, and follows it.
        before = grad_of(parameter)
        self._before = _ABSENT if before is None else _ZERO if _is_clean(parameter) else before.clone()
        self._arrived = False
        self._marker = None

    def begin(self):
        """Hooks off, and zeros in the place of what was there."""
        for hook in self._hooks:
            hook.set_aside()
        self._marker = _Hook.register(self.parameter, self._mark)
        if self._before is not _ABSENT and self._before is not _ZERO:
            blank(self.parameter)

    def _mark(self, gradient):
        self._arrived = True

    def end(self):
        """Everything as it was; returns the gradient that arrived, None where none did."""
        self._marker.remove()
        gradient = grad_of(self.parameter) if self._arrived else None
        gradient = None if gradient is None else gradient.clone()
        if self._before is _ABSENT:
            release(self.parameter)
        elif self._before is _ZERO:
            runtime.paddle.base.core.eager.Tensor.clear_gradient(self.parameter, True)
        else:
            grad_of(self.parameter).copy_(self._before, True)
        touched([self.parameter])
        stopped = self.parameter.stop_gradient
        self.parameter.stop_gradient = False  # frozen meanwhile: the hooks are still there
        for hook in self._hooks:
            if not hook.removed:
                hook.put_back(self.parameter)
        self.parameter.stop_gradient = stopped
        return gradient


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


def _is_clean(parameter):
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
            elif _is_clean(parameter):
                self._entries.append((parameter, _ZERO))
                self._clean.append(parameter)
            elif grad.is_selected_rows():
                self._entries.append((parameter, _ROWS))
            else:
                self._entries.append((parameter, grad.clone()))

    def is_whole(self):
        """True if all of them can be put back."""
        return not any(saved is _ROWS for _, saved in self._entries)

    def restore(self):
        """Puts them back. Returns why that could not be done, None where it was."""
        tensor = runtime.paddle.base.core.eager.Tensor
        why = None
        for parameter, saved in self._entries:
            if saved is _ABSENT:
                tensor.clear_gradient(parameter, False)
            elif saved is _ROWS:
                why = "the sparse gradient of %s, of which there is no copy, may hold a part of it" % parameter.name
            elif saved is _ZERO:
                tensor.clear_gradient(parameter, True)
            else:
                grad_of(parameter).copy_(saved, True)
        for parameter in self._clean:
            _clean[id(parameter)] = weakref.ref(parameter)
        return why
