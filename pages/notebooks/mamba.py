# %% [markdown]
# # A selective state space model
#
# A Mamba block reads a text from left to right and keeps a state, in place of looking back at all characters as attention does.
# This page was made by a short run on a CPU; `python -m examples.mamba` trains it fully.

# %%
import inspect

import numpy as np

import tlrt
from examples import mamba
from pages import plots
from tlrt import nn

print(inspect.getsource(nn.MambaBlock))

# %% [markdown]
# ## Training

# %%
session = tlrt.Session("cpu", seed=0)
settings = mamba.PRESETS["small"] | {"steps": 500, "width": 32, "context": 32, "tests": 2}
program = mamba.build(session, settings)
losses = plots.train(session, program, settings["steps"])
figures = program.evaluate()
plots.curves({"training": losses}, "step", "nats per character", {"frequencies of characters": figures["unigram_loss"]})

# %%
figures

# %% [markdown]
# ## The scan by itself
#
# The heart of the block is a scan: a state that decays and takes in what it reads. Here three channels read a single impulse,
# each with another decay A. The state after a step is A times the state before, plus the input.

# %%
impulse = np.zeros((40, 3))
impulse[5] = 1.0
decays, ones, zeros = [0.5, 0.8, 0.95], np.ones(3), np.zeros(3)
states = session.selective_scan_diag(*map(session.const, (decays, ones, impulse, zeros))).numpy()
plots.curves({f"A = {a}": states[:, j] for j, a in enumerate(decays)}, "step", "state")

# %%
program.optimizer.close()
session.close()
