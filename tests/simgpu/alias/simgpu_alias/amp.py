"""Mixed precision: Paddle's CPU wheel has no float16 or bfloat16 kernel for matmul or convolutions, so AMP runs in float32.

That is said once, in a warning. The loss scaler stays on, as it would on a GPU; parameters keep float32 under O2 too.
"""

import contextlib
import functools
import inspect
import warnings

__all__ = ["patch"]


def patch(paddle):
    auto_cast, decorate = paddle.amp.auto_cast, paddle.amp.decorate
    signature = inspect.signature(auto_cast)

    def warn():
        warnings.warn("the simulated GPU has no float16 or bfloat16 kernels: AMP computes in float32", stacklevel=4)

    @contextlib.contextmanager
    @functools.wraps(auto_cast)
    def patched_auto_cast(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        if bound.arguments["enable"]:
            warn()
            bound.arguments["enable"] = False
        with auto_cast(*bound.args, **bound.kwargs):
            yield

    @functools.wraps(decorate)
    def patched_decorate(models, optimizers=None, *args, **kwargs):
        warn()
        return models if optimizers is None else (models, optimizers)

    paddle.amp.auto_cast, paddle.amp.decorate = patched_auto_cast, patched_decorate
