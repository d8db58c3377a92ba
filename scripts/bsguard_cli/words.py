"""How figures and foreign text are written. No text out of a file reaches a terminal or a page but through clean()."""

from __future__ import annotations

import re
from typing import Optional

NOT_RECORDED = "not recorded"
SIZE_FORMS = "an integer with an optional KB, MB, GB, KiB, MiB or GiB, such as 24GB or 8GiB"
NO_BATCH = "batch not recorded"
# Controls (terminal escapes among them), lone surrogates, and what turns the direction of text around or hides it.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\ufff9-\ufffb]"
)
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def clean(text: object, most: int = 500) -> str:
    """Foreign text for one line of a terminal: what could act on it is shown as \\xNN, and what is too long is cut."""
    words = str(text)
    cut = words if len(words) <= most else words[: most - 3] + "..."
    return _UNSAFE.sub(lambda match: f"\\x{ord(match[0]):02x}", cut)


def known(value: Optional[object], most: int = 500) -> str:
    """A field that may be missing."""
    return NOT_RECORDED if value is None else clean(value, most)


def size(count: Optional[float]) -> str:
    """Bytes as people write them, in binary units with one decimal, as the library does."""
    if count is None:
        return NOT_RECORDED
    value, unit = float(count), 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    return f"{value:.0f} bytes" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def seconds(count: Optional[float]) -> str:
    """A duration."""
    if count is None:
        return NOT_RECORDED
    if count < 120:
        return f"{count:.1f} s"
    minutes, hours = divmod(int(count) // 60, 60)[::-1]
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {int(count) % 60} s"


def plural(count: int, word: str) -> str:
    """ "1 OOM", "2 OOMs" """
    return f"{count} {word}{'' if count == 1 else 's'}"


def a(word: str) -> str:
    """ "a report", "an event" """
    return f"{'an' if word[:1] in 'aeiou' else 'a'} {word}"


def of_batch(batch: Optional[int], micro_batch: Optional[int], steps: Optional[int]) -> str:
    """ "batch 256 as 4 x 64" """
    return NO_BATCH if batch is None else f"batch {split(batch, micro_batch, steps)}"


def split(batch: Optional[int], micro_batch: Optional[int], steps: Optional[int]) -> str:
    """A batch and its pieces: "256 as 4 x 64"."""
    if batch is None:
        return NO_BATCH
    if micro_batch is None or steps is None:
        return str(batch)
    return f"{batch} as {steps} x {micro_batch}"


def parse_size(text: str) -> Optional[int]:
    """Bytes of an integer with an optional unit, as the library reads its options; None where it is no size."""
    match = re.fullmatch(r"(\d{1,18}) *(|B|KB|MB|GB|TB|KiB|MiB|GiB|TiB)", text.strip(), re.IGNORECASE)
    if not match:
        return None
    unit = match[2].upper()
    power = "KMGT".find(unit[:1]) + 1 if unit and unit != "B" else 0
    value = int(match[1]) * (1024 if "I" in unit else 1000) ** power
    return value if value < 2**63 else None
