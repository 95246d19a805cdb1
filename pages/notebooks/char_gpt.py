# %% [markdown]
# # A small GPT
#
# A transformer learns to continue a text, character by character. The text is Python's own reference, which every Python has.
# This page was made by a short run on a CPU; `python -m examples.char_gpt` trains it fully.

# %%
import inspect

import tlrt
from examples import char_gpt, text
from pages import plots

corpus = text.topics()
print(inspect.getsource(char_gpt.CharGPT))

# %% [markdown]
# ## Training
#
# The loss is in nats per character. The dashed line is what the frequencies of single characters reach: whoever knows only how
# often each character occurs, has this loss.

# %%
session = tlrt.Session("cpu", seed=0)
settings = char_gpt.PRESETS["small"] | {"steps": 600, "width": 64, "context": 32, "tests": 2}
program = char_gpt.build(session, settings)
losses = plots.train(session, program, settings["steps"])
figures = program.evaluate()
levels = {"frequencies of characters": figures["unigram_loss"]}
plots.curves({"training": losses}, "step", "nats per character", levels)

# %%
figures

# %% [markdown]
# ## What it writes
#
# After so few steps the model knows the lengths of words and some short words. The random numbers of the text come from a seed,
# so the text is the same whenever it is drawn.

# %%
model = program.kept["model"]


def logits(numbers):
    last = model(numbers[None]).numpy()[0, -1]
    session.reset()
    return last


with session.no_grad():
    print(text.sample(corpus, logits, 200, settings["context"], seed=0))

# %%
program.optimizer.close()
session.close()
