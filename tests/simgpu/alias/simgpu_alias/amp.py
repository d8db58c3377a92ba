"""Mixed precision: Paddle's CPU kernels have no float16, so what a script does in float16 is done in bfloat16.

The loss scaler is left as it would be on a GPU: Paddle switches it off for bfloat16, so it is told float16.
"""
import contextlib
import functools
import inspect

__all__ = ["patch"]


def _translator(function):
    """(arguments with float16 turned to bfloat16, whether they were) of a call of `function`."""
    signature = inspect.signature(function)

    def translate(args, kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        dtype = bound.arguments.get("dtype")
        if str(dtype).rpartition(".")[2].lower() not in ("float16", "fp16"):
            return args, kwargs, False
        bound.arguments["dtype"] = "bfloat16"
        return bound.args, bound.kwargs, True

    return translate


def patch(paddle):
    state = paddle.amp.auto_cast.__globals__["amp_global_state"]
    auto_cast, decorate = paddle.amp.auto_cast, paddle.amp.decorate
    of_auto_cast, of_decorate = _translator(auto_cast), _translator(decorate)

    @contextlib.contextmanager
    @functools.wraps(auto_cast)
    def patched_auto_cast(*args, **kwargs):
        args, kwargs, translated = of_auto_cast(args, kwargs)
        with auto_cast(*args, **kwargs):
            if translated:
                state().amp_dtype = "float16"
            yield

    @functools.wraps(decorate)
    def patched_decorate(*args, **kwargs):
        args, kwargs, _ = of_decorate(args, kwargs)
        return decorate(*args, **kwargs)

    paddle.amp.auto_cast, paddle.amp.decorate = patched_auto_cast, patched_decorate
