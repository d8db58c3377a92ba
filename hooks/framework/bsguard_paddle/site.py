"""A boundary: one outermost trainable layer, and what is known of it for good."""

import weakref

from . import proof
from .call import one_backward
from .runtime import device_of, inside, runtime
from .state import batch_norms, layer_form

_NUMBERS_PROVEN = 8
_MOST_NUMBERS = 1 << 12

_sites = {}  # id of a layer -> Site
_counts = {}  # class name -> layers of it that were boundaries so far

_MOST_LOOKS = 8  # a layer with no parameter on a device in so many calls is one of the host


class Site:
    """What is remembered of a layer between its calls."""

    def __init__(self, layer):
        key = id(layer)
        self.layer = weakref.ref(layer, lambda _: _sites.pop(key, None))
        self.name = _name_for(layer)
        self.encoded_name = self.name.encode("utf-8", "replace")
        self.off = None  # why this layer is left alone for good; None: it is not
        self.looked = False  # for layers that exchange data with other ranks
        self.parallels = 0, ()  # see ranks.within()
        self.sizes = {}  # signature -> arming.Size
        self.foresights = {}  # signature -> speculate.Foresight
        self.rooms = {}  # (signature, batch, chunks) -> keep.Room
        self.said = set()  # what was said of how exact its runs in chunks are
        self._proofs = {}
        self._numbers = {}  # key of a proof -> numbers among the inputs that were met
        self._witness = None  # a parameter that was trainable, or on a device, at the last look
        self._looks = 0  # at all of its parameters, for one that is on a device

    def trainable(self):
        """True if any parameter takes a gradient now."""
        witness = self._witness and self._witness()
        if witness is not None and not witness.stop_gradient:
            return True
        for parameter in self.layer().parameters():
            self._witness = weakref.ref(parameter)
            if not parameter.stop_gradient:
                return True
        return False

    def device(self):
        """CUDA ordinal of the device that its parameters are on; -1: none, or it has none."""
        witness = self._witness and self._witness()
        if witness is not None:
            device = device_of(witness)
            if device >= 0 or self._looks >= _MOST_LOOKS:
                return device
        # One may be elsewhere: an embedding kept on the host, a recurrent layer's weights until the first update.
        self._looks += 1
        for parameter in self.layer().parameters():
            device = device_of(parameter)
            if device >= 0:
                self._witness = weakref.ref(parameter)
                return device
        return -1

    def batch_norms(self):
        """Its BatchNorm layers, as they are now."""
        return batch_norms(self.layer())

    def proof(self, inputs, mode, smallest):
        """The split proof for inputs like these and the layer as it is now, tried once.

        smallest: samples of the smallest chunk wanted. A number among the inputs may choose what is computed, or count
        steps: the first few are proven each, then one of twice as many.
        """
        key, numbers = self._key(inputs, mode)
        seen = self._numbers.setdefault(key, set())
        known = self._proofs.get(key)
        fresh = numbers not in seen and len(seen) < _MOST_NUMBERS
        if fresh:
            seen.add(numbers)
            fresh = len(seen) <= _NUMBERS_PROVEN or not len(seen) & (len(seen) - 1)
        if known is None or (known.why is None and (fresh or smallest < known.smallest)):
            # The generators are the whole process's: two trials at once would take each other's draws for their own.
            with one_backward, inside():
                tried = proof.prove(self.layer(), inputs, mode, smallest)
            if not tried.fits:
                if fresh:
                    seen.discard(numbers)
                return tried
            known = self._proofs[key] = tried
        return known

    def is_closed(self, inputs, mode):
        """True if it is shown that backwards which parts of it run by themselves (recompute) reach its own weights alone."""
        return inputs.batch > 1 and self.proof(inputs, mode, inputs.batch).closed

    def _key(self, inputs, mode):
        form, numbers = inputs.form()
        settings = mode.is_mixed(), mode.hooked, mode.records()
        return (inputs.signature, form, settings, layer_form(self.layer())), numbers

    def cannot_split(self, inputs, mode, why):
        """What the proof has shown did not hold: inputs of this signature are not split any more, and it is said why."""
        self._proofs[self._key(inputs, mode)[0]] = proof.Proof(why)
        runtime.library.refused(self.name, why)

    def give_up(self, why, aloud=True):
        """Leaves this layer alone from now on, and says so, unless it was said of another one."""
        if self.off is None:
            self.off = why
            if aloud:
                runtime.library.disarmed(self.name, None, why, True)

    def fault(self, error):
        """An error of bsguard's own: this layer is left alone from now on, in one line."""
        self.give_up("internal error: %s: %s" % (type(error).__name__, (str(error).splitlines() or [""])[0][:200]))


def _name_for(layer):
    """The class, and from the second layer of a class on its number: sizes of one must not be taken for another's."""
    kind = type(layer).__name__
    if kind == "DataParallel":
        kind = type(layer._layers).__name__
    _counts[kind] = _counts.get(kind, 0) + 1
    return kind if _counts[kind] == 1 else "%s#%d" % (kind, _counts[kind])


def site_of(layer):
    """The Site of a layer."""
    site = _sites.get(id(layer))
    if site is None or site.layer() is not layer:
        site = _sites[id(layer)] = Site(layer)
    return site
