"""An optimizer step that runs out of memory goes on where it stopped: caches are given back, and no parameter is updated
twice. The micro-batch is never halved for it: the moments do not grow with the batch.

The step has two parts. Clipping and regularisation may scale gradients in place, so they are run again only while no
gradient has been written to. The update loop remembers which parameters it has updated and passes over them when it is
run again: that serves where the moments are made, which is where memory is taken. An OOM inside the update of a parameter
(or of many, where it is fused) before its operator has begun is one like those; later it may have come before or after
something was written, and is resumed only where all results are known to be there (inplace.py).
"""

from . import again, inplace, keep, native
from .gradients import grad_of
from .neighbours import Tries
from .oom import Failure, is_oom
from .runtime import runtime
from .steps import parameters_of

_WHY = "what the optimizer keeps for each parameter did not fit, and no smaller batch makes it less"

_applying = {}  # id of an optimizer whose step runs -> [True once its update loop has begun]
_updated = {}  # id of an optimizer whose update loop runs -> names of the parameters that it has updated
_UNCERTAIN = ""  # among them: an update, or what comes after the loop, has begun and not ended


def patch(kinds):
    """Wraps the two parts of the step, and the update of one parameter, in each of these optimizer classes."""
    for kind in kinds:
        own = vars(kind)
        if "_apply_optimize" in own:
            kind._apply_optimize = _retrying(own["_apply_optimize"])
        if "_create_optimization_pass" in own:
            kind._create_optimization_pass = _resuming(own["_create_optimization_pass"])
        if "_append_optimize_op" in own:
            kind._append_optimize_op = _once(own["_append_optimize_op"])
        if "_append_optimize_multi_tensor_op" in own:
            kind._append_optimize_multi_tensor_op = _fused(own["_append_optimize_multi_tensor_op"])
        if "_finish_update" in own:
            kind._finish_update = _noted(own["_finish_update"])


def _versions(optimizer):
    """What tells whether a gradient was written to: an operator that failed half-way counts no version, but may have put
    its result into other memory already."""
    return [_version(grad_of(parameter)) for parameter in parameters_of(optimizer)]


def _version(gradient):
    if gradient is None:
        return None
    dense = gradient._is_initialized() and not gradient.is_selected_rows()
    return gradient.inplace_version, str(gradient.place), gradient.data_ptr() if dense else None


def _tried(function, may):
    """function(), once more after an OOM for as long as may() says that nothing would be done twice."""
    tries = Tries(native.OPTIMIZER, _WHY)
    while True:
        try:
            result = function()
        except Exception as error:
            if not is_oom(error) or again.is_reported(error) or not may():
                raise
            failure = Failure(error)
        else:
            tries.went_through("the optimizer's step")
            return result
        keep.drop()
        tries.note(failure)
        tries.wait()


def _retrying(original):
    def _apply_optimize(self, *args, **kwargs):
        if id(self) in _applying or not runtime.guarding or not runtime.paddle.in_dynamic_mode():
            return original(self, *args, **kwargs)
        before = _versions(self)
        begun = _applying[id(self)] = [False]

        def may():
            return not begun[0] and _versions(self) == before

        try:
            return _tried(lambda: original(self, *args, **kwargs), may)
        finally:
            del _applying[id(self)]

    _apply_optimize.__doc__ = original.__doc__
    return _apply_optimize


def _resuming(original):
    def _create_optimization_pass(self, *args, **kwargs):
        if id(self) in _updated or not runtime.guarding or not runtime.paddle.in_dynamic_mode():
            return original(self, *args, **kwargs)
        _updated[id(self)] = set()
        _applying.get(id(self), [False])[0] = True

        def may():
            return _UNCERTAIN not in _updated[id(self)]

        try:
            return _tried(lambda: original(self, *args, **kwargs), may)
        finally:
            del _updated[id(self)]

    _create_optimization_pass.__doc__ = original.__doc__
    return _create_optimization_pass


def _once(original):
    def _append_optimize_op(self, block, param_and_grad, *args, **kwargs):
        done = _updated.get(id(self))
        if done is None:
            return original(self, block, param_and_grad, *args, **kwargs)
        pair = param_and_grad["params"] if isinstance(param_and_grad, dict) else param_and_grad
        parameter = pair[0]
        if parameter.name in done:
            return None
        done.add(_UNCERTAIN)
        begun, failure, result = inplace.begun(), None, None
        try:
            result = original(self, block, param_and_grad, *args, **kwargs)
        except Exception as error:
            if not is_oom(error) or again.is_reported(error):
                raise
            if inplace.begun() == begun and _is_paddles(self):
                done.discard(_UNCERTAIN)
                raise
            failure = Failure(error)
        if failure is not None and not inplace.bring_home(_written_with(self, parameter)):
            failure.throw()
        done.discard(_UNCERTAIN)
        done.add(parameter.name)
        return result

    _append_optimize_op.__doc__ = original.__doc__
    return _append_optimize_op


def _is_paddles(optimizer):
    """True for an optimizer whose updates write by the operators alone that inplace.py counts."""
    kind = type(optimizer)
    return kind._append_optimize_op.__module__ == __name__ and kind.__module__.startswith("paddle.")


def _written_with(optimizer, parameter):
    """What an update of this parameter may write to: itself, its moments, its master weight."""
    master = (getattr(optimizer, "_master_weights", None) or {}).get(parameter.name)
    found = [parameter] if master is None else [parameter, master]
    for kept in (optimizer._accumulators or {}).values():
        for owner in found[:2]:
            one = kept.get(owner.name)
            found.extend(one if isinstance(one, list) else [] if one is None else [one])
    return found


def _fused(original):
    def _append_optimize_multi_tensor_op(self, *args, **kwargs):
        done = _updated.get(id(self))
        if done is None:
            return original(self, *args, **kwargs)
        done.add(_UNCERTAIN)
        begun = inplace.begun()
        try:
            result = original(self, *args, **kwargs)
        except Exception:
            if inplace.begun() == begun:
                done.discard(_UNCERTAIN)
            raise
        done.discard(_UNCERTAIN)
        return result

    _append_optimize_multi_tensor_op.__doc__ = original.__doc__
    return _append_optimize_multi_tensor_op


def _noted(original):
    def _finish_update(self, *args, **kwargs):
        if id(self) in _updated:
            _updated[id(self)].add(_UNCERTAIN)
        return original(self, *args, **kwargs)

    _finish_update.__doc__ = original.__doc__
    return _finish_update
