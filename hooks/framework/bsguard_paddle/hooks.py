"""Gradient hooks: which tensors have any, and how a parameter's are told once of the whole of its gradient where a backward
reaches it in several pieces, or more than once.

Known limit: where a backward ran out of memory in a network with a PyLayer, hooks that were told before are told again.
"""

import functools
import weakref

from . import gradients
from .graph import node_of
from .runtime import runtime, thread

_ABSENT = "absent"
_ZERO = "zero"

_hooks = {}  # id of a parameter -> (weak reference to it, [_Hook])
_engine_hooked = {}  # id of a parameter -> weak reference to it: told of each accumulation into it
_watched = {}  # id of another tensor -> weak reference to it: somebody waits for its gradient
_arrived = set()  # ids of parameters with hooks whose gradient has been accumulated since they were last looked at
_MOST_WATCHED = 1 << 12  # of these the dead are forgotten then


def patch():
    """Watches the ways in which somebody asks to be told of a gradient."""
    parameter = runtime.paddle.base.framework.EagerParamBase
    tensor = runtime.paddle.base.core.eager.Tensor
    register, engine_hook = tensor.register_hook, tensor._register_backward_hook
    _Hook.register = register

    def register_hook(self, hook):
        one = _Hook(hook, register(self, hook))
        known = _hooks.get(id(self))
        if known is None or known[0]() is not self:
            known = _hooks[id(self)] = weakref.ref(self), []
            # Called once the gradient is in `.grad`, hooks and all.
            engine_hook(self, functools.partial(_arrived.add, id(self)))
        known[1].append(one)
        return one

    register_hook.__doc__ = register.__doc__
    parameter.register_hook = register_hook

    def _register_backward_hook(self, hook):
        _engine_hooked[id(self)] = weakref.ref(self)
        return engine_hook(self, hook)

    parameter._register_backward_hook = _register_backward_hook
    for name in ("register_hook", "retain_grads"):
        setattr(tensor, name, _watching(getattr(tensor, name), parameter))


def _watching(original, parameter):
    def method(self, *args):
        if not thread.ours and not isinstance(self, parameter):  # which keep their gradients anyway
            thread.hooks += 1
            if len(_watched) >= _MOST_WATCHED:
                for key in [key for key, reference in _watched.items() if reference() is None]:
                    del _watched[key]
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


def watched_nodes():
    """The nodes of all such tensors. Their ids are valid while they are held."""
    known = [reference() for reference in list(_watched.values())]
    return [node for node in (node_of(tensor) for tensor in known if tensor is not None) if node is not None]


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


def hooked():
    """All parameters with hooks."""
    known = [reference() for reference, _ in list(_hooks.values())]
    return [parameter for parameter in known if parameter is not None and has_hooks(parameter)]


class Told:
    """Parameters whose hooks have seen the whole of their gradient, in a backward that may fail half-way."""

    def __init__(self, parameters, aside):
        self._parameters = [p for p in parameters if has_hooks(p) and not aside.holds(p)]
        _arrived.difference_update(map(id, self._parameters))

    def now(self):
        """Those of them whose gradient is in `.grad`."""
        return [parameter for parameter in self._parameters if id(parameter) in _arrived]


class HooksAside:
    """Gradient hooks of some parameters, kept from firing while a backward reaches them in more than one piece.

    What arrives meanwhile is summed in `.grad`, apart from what was there; settle() hands it on as one gradient, so that
    each hook sees the whole of it, once.
    """

    def __init__(self):
        self._kept = {}  # id of a parameter -> _Kept or _Finished, in the order in which they came

    def add(self, parameters):
        """Sets aside the hooks of these from here on. Where memory runs out it may be called again."""
        for parameter in parameters:
            hooks = [] if self.holds(parameter) else hooks_of(parameter)
            grad = gradients.grad_of(parameter) if hooks else None
            if hooks and not (grad is not None and grad.is_selected_rows()):  # of these Paddle has no copy
                kept = _Kept(parameter, hooks)
                self._kept[id(parameter)] = kept
                kept.begin()

    def finish(self, parameters):
        """For those whose hooks have seen the whole of this backward's gradient: what comes after it is dropped."""
        self._kept.update((id(parameter), _Finished(parameter, hooks_of(parameter))) for parameter in parameters)

    def holds(self, parameter):
        """True if the hooks of this one are set aside."""
        return id(parameter) in self._kept

    def abandon(self):
        """Puts the hooks and the gradients back; what arrived is lost."""
        while self._kept:
            self._kept.pop(next(iter(self._kept))).end()

    def settle(self, take, rest):
        """Puts them back and hands over what arrived. take(function): function(), once more where memory runs out. rest:
        further arguments of this Paddle's run_backward."""
        while self._kept:
            key, kept = next(iter(self._kept.items()))
            gradient = take(kept.arrived)
            del self._kept[key]
            kept.end()
            if gradient is not None:
                runtime.run_backward([kept.parameter], [gradient], False, *rest)


class _Kept:
    """One parameter of HooksAside."""

    def __init__(self, parameter, hooks):
        self.parameter = parameter
        self._hooks = hooks
        # Copies: what `.grad` gives is the gradient itself, and follows it.
        before = gradients.grad_of(parameter)
        self._before = _ABSENT if before is None else _ZERO if gradients.is_clean(parameter) else before.clone()
        self._arrived = False
        self._marker = None

    def begin(self):
        """Hooks off, and zeros in the place of what was there."""
        for hook in self._hooks:
            hook.set_aside()
        self._marker = _Hook.register(self.parameter, self._mark)
        if self._before is not _ABSENT and self._before is not _ZERO:
            gradients.blank(self.parameter)

    def _mark(self, gradient):
        self._arrived = True

    def arrived(self):
        """A copy of the gradient that arrived, None where none did."""
        gradient = gradients.grad_of(self.parameter) if self._arrived else None
        return None if gradient is None else gradient.clone()

    def end(self):
        """Everything as it was."""
        self._marker.remove()
        if self._before is _ABSENT:
            gradients.release(self.parameter)
        elif self._before is _ZERO:
            gradients.zero([self.parameter])
        else:
            gradients.grad_of(self.parameter).copy_(self._before, True)
        gradients.touched([self.parameter])
        _put_back(self.parameter, self._hooks)


class _Finished:
    """One that gets no more."""

    def __init__(self, parameter, hooks):
        self.parameter = parameter
        self._hooks = hooks
        for hook in hooks:
            hook.set_aside()
        self._marker = _Hook.register(parameter, runtime.paddle.zeros_like)

    def arrived(self):
        """As _Kept.arrived()."""
        return None

    def end(self):
        """As _Kept.end()."""
        self._marker.remove()
        _put_back(self.parameter, self._hooks)


def _put_back(parameter, hooks):
    stopped = parameter.stop_gradient
    parameter.stop_gradient = False  # frozen meanwhile: the hooks are still there
    for hook in hooks:
        if not hook.removed:
            hook.put_back(parameter)
    parameter.stop_gradient = stopped
