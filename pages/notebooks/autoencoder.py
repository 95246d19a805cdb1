# %% [markdown]
# # An autoencoder
#
# A convolutional network squeezes an image of 64 pixels into 8 numbers, the code, and draws the image again from them. This
# page was made by a short run on a CPU; `python -m examples.autoencoder` trains it fully.

# %%
import inspect

import tlrt
from examples import autoencoder, images
from pages import plots

print(inspect.getsource(autoencoder.build))

# %% [markdown]
# ## Training
#
# The loss is the mean squared error of a pixel. The dashed lines are what two simple methods reach on unseen images: answering
# the mean image, and the 8 leading principal components, which are the best linear code of 8 numbers.

# %%
session = tlrt.Session("cpu", seed=0)
settings = autoencoder.PRESETS["small"] | {"steps": 600}
program = autoencoder.build(session, settings)
losses = plots.train(session, program, settings["steps"])
figures = program.evaluate()
levels = {"the mean image": figures["mean_image_mse"], "8 principal components": figures["principal_components_mse"]}
plots.curves({"training": losses}, "step", "mean squared error", levels)

# %%
figures

# %% [markdown]
# ## Which digits are hard
#
# The loss of a single image is the error of its pixels. Among 60 images that the training did not see, these have the smallest
# and the largest errors:

# %%
(_, _), (x_test, _) = images.digits()
errors = []
with session.no_grad():
    for image in x_test[:60]:
        errors.append(program.loss(image[None]).item())
        session.reset()
order = sorted(range(60), key=lambda i: errors[i])
plots.images([x_test[order[:8], 0], x_test[order[-8:], 0]], ["smallest error", "largest error"])

# %%
program.optimizer.close()
session.close()
