# %% [markdown]
# # First steps
#
# From a folder of good parts to verdicts and heat maps, in Python. The part is a machined flange that the package
# renders, so that this notebook runs without images of your own; put your folder in the place of `parts`.

# %%
from pathlib import Path

from procon import Detector, evaluate, to_pandas
from procon.demo import write_set

write_set(Path("parts"), train=24, good=4, defects_per_kind=2)
sorted(str(path) for path in Path("parts").glob("*/*"))

# %% [markdown]
# ## Fit
#
# Good parts are all it takes: here 24. Nothing is trained. The detector selects typical patches, and scores each
# training part as if it were new, to know what is usual. From that follows the threshold.

# %%
detector = Detector(backbone="dinov2-small").fit("parts/train/good")
detector

# %% [markdown]
# ## Inspect
#
# One image in, one prediction out; a folder or a list in, a list out. A score above the threshold is anomalous; the
# p-value is the share of good images that score as high.

# %%
results = detector.predict("parts/test/*/*.png")
table = to_pandas(results)
table["part"] = [str(Path(source).relative_to("parts/test")) for source in table["source"]]
table[["part", "score", "relative_score", "p_value", "is_anomalous"]].round(3)

# %% [markdown]
# A prediction shows itself: the part, its heat map, and its score among those of good images.

# %%
worst = max(results, key=lambda result: result.score)
worst.plot()

# %% [markdown]
# Its regions are boxes with their peak, largest score first; `heatmap` has a value for each pixel of the image.

# %%
for region in worst.regions:
    print("box", region.box, "area", region.area, "peak", round(region.peak, 3))
print("heat map", worst.heatmap.shape, worst.heatmap.dtype)

# %% [markdown]
# ## How good is it?
#
# With labelled images, `evaluate` counts found defects and false alarms at the threshold of the model.

# %%
print(evaluate(detector, "parts"))

# %% [markdown]
# ## Keep it
#
# One file holds the memory, the threshold and the log of all changes. Loading it runs no code.

# %%
detector.save("flange.procon")
again = Detector.load("flange.procon")
[again.predict(result.source).score == result.score for result in results[:3]]
