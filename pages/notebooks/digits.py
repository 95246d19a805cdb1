# %% [markdown]
# # Handwritten digits
#
# A small convolutional network learns to read handwritten digits of 8 by 8 pixels, which scikit-learn brings along. This page
# was made by running it for a few steps on a CPU; `python -m examples.digits` trains it fully.

# %%
import inspect

import tlrt
from examples import digits, images
from pages import plots

(x, y), (x_test, y_test) = images.digits()
plots.images([x[:10, 0], x[10:20, 0]], ["first ten", "next ten"])

# %% [markdown]
# ## The model
#
# The function below makes the layers, the optimiser, the batches and the loss on a session. It is the whole example:

# %%
print(inspect.getsource(digits.build))

# %% [markdown]
# ## Training
#
# The session chooses the device. The loop takes a batch, computes its loss, then the gradients, and changes the parameters:

# %%
print(inspect.getsource(plots.train))

# %%
session = tlrt.Session("cpu", seed=0)
settings = digits.PRESETS["small"] | {"steps": 200}
program = digits.build(session, settings)
losses = plots.train(session, program, settings["steps"])
plots.curves({"training": losses}, "step", "loss")

# %% [markdown]
# ## What it learned
#
# The figures are of images that the training did not see. Chance is an accuracy of 0.1.

# %%
program.evaluate()

# %% [markdown]
# The same seed gives the same bits when the training runs again:

# %%
with tlrt.Session("cpu", seed=0) as again:
    repeated = plots.train(again, digits.build(again, settings), settings["steps"])
repeated == losses

# %%
program.optimizer.close()
session.close()
