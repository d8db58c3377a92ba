"""What a Python says of itself under the preload. Its text is run by the Python that is asked, of any version, so it parses
under all of them; it imports nothing of ours and nothing heavy, and prints one line of JSON."""

PROBE = r"""
import json, os, sys
def maps():
    try:
        with open("/proc/self/maps") as file:
            return sorted(set(line.split(None, 5)[5].strip() for line in file if len(line.split(None, 5)) > 5))
    except Exception:
        return []
def version(name):
    try:
        from importlib import metadata
        return metadata.version(name)
    except Exception:
        return None
def cudart():
    found = [path for path in maps() if "libcudart" in path]
    for folder in sys.path:
        for part in ("nvidia/cuda_runtime/lib", "nvidia/cu13/lib"):
            try:
                names = os.listdir(os.path.join(folder, part))
            except Exception:
                continue
            found += [os.path.join(folder, part, name) for name in names if name.startswith("libcudart.so")]
    return found
def cuda():
    try:
        import ctypes
        ctypes.CDLL("libcuda.so.1")
        return None
    except Exception:
        return str(sys.exc_info()[1])
print("BSGUARD-PROBE " + json.dumps({
    "version": "%d.%d.%d" % sys.version_info[:3],
    "library": [path for path in maps() if os.path.basename(path) == "libbsguard.so"],
    "adapter": "bsguard_paddle.post_import" in sys.modules,
    "isolated": bool(getattr(sys.flags, "isolated", 0)),
    "ignore_environment": bool(sys.flags.ignore_environment),
    "no_site": bool(sys.flags.no_site),
    "paddle": version("paddlepaddle-gpu") or version("paddlepaddle"),
    "paddle_gpu": version("paddlepaddle-gpu") is not None,
    "cudart": cudart(),
    "cuda": cuda(),
}))
"""
MARK = "BSGUARD-PROBE "
