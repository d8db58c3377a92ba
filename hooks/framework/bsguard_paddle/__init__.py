"""The half of bsguard that lives inside PaddlePaddle.

It is loaded by libbsguard.so's injection (see ../inject), knows Paddle, and of bsguard only the interface of bsguard.h.
Reading order: adapter.py (what is patched), boundary.py (where a batch is cut), backward.py (the way back), chunks.py
(running in pieces), again.py (trying once more where there is nothing to split), proof.py and outputs.py (may it be cut at
all), state.py, gradients.py and hooks.py (what must be put back).
"""
