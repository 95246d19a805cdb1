# %% [markdown]
# # A Fourier neural operator
#
# The operator learns to tell the flow of Burgers' equation after one unit of time from the flow at the beginning. It works on
# Fourier coefficients, so that it can be trained on a coarse grid and used on a finer one. This page was made by a short run on
# a CPU; `python -m examples.fno_burgers` trains it fully.

# %%
import inspect

import numpy as np

import tlrt
from examples import fno_burgers
from pages import plots

print(inspect.getsource(fno_burgers.FNO1d))

# %% [markdown]
# ## The data
#
# Smooth functions are drawn at random, and a pseudo-spectral scheme integrates the equation. Slopes that go down become
# steeper, and viscosity smooths them.

# %%
start = fno_burgers.draw_initial(3, 256, np.random.default_rng(1))
flow = fno_burgers.integrate(start, 0.05)
figure, axes = plots.new_figure(3, height=2.2)
for place, before, after in zip(axes, start, flow, strict=True):
    place.plot(before, color=plots.COLOURS[0], linewidth=1.2, label="at 0")
    place.plot(after, color=plots.COLOURS[1], linewidth=1.2, label="at 1")
axes[0].legend(frameon=False, fontsize=8)
plots.Plot(figure, "Flows at time 0 and at time 1")

# %% [markdown]
# ## Training
#
# The loss is the mean relative distance between the predicted and the true flow.

# %%
session = tlrt.Session("cpu", seed=0)
changed = {"steps": 600, "functions": 200, "tests": 20, "width": 16, "layers": 3}
settings = fno_burgers.PRESETS["small"] | changed
program = fno_burgers.build(session, settings)
losses = plots.train(session, program, settings["steps"])
figures = program.evaluate()
identity = {"answering the first flow": figures["relative_l2_error_of_the_identity"]}
plots.curves({"training": losses}, "step", "relative error", identity)

# %% [markdown]
# The error on a grid twice as fine as that of the training is nearly the same:

# %%
figures

# %%
program.optimizer.close()
session.close()
