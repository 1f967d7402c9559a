# %% [markdown]
# # From a false alarm to evidence to an update
#
# The detector flags a part that is good. Why, and what to do about it? The parts are flanges that the package renders.
# Since Monday an inspector puts a green dot on every part that passes. No part had one when the detector was fitted.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image, ImageDraw

from procon import Detector
from procon.demo import render_part, write_set

write_set(Path("parts"), train=24, good=0, defects_per_kind=1)
Path("marked").mkdir(exist_ok=True)
for number in range(4):
    part = Image.fromarray(render_part("good", 100 + number).image)
    x, y = np.random.default_rng(number).integers(-8, 9, 2) + np.array([350, 224])
    ImageDraw.Draw(part).ellipse((x - 14, y - 14, x + 14, y + 14), fill=(40, 120, 60))
    part.save(f"marked/{number}.png")

detector = Detector(backbone="dinov2-small").fit("parts/train/good")
detector

# %% [markdown]
# ## The false alarm

# %%
alarm = detector.predict("marked/0.png")
print(f"score {alarm.score:.3f}, threshold {alarm.threshold:.3f}, anomalous: {alarm.is_anomalous}")
alarm.plot()

# %% [markdown]
# ## The evidence
#
# `explain` names the normal patches that the highest patch was compared with: none of them has paint.

# %%
why = detector.explain("marked/0.png")


def crop(path, box, around=24):
    left, top, right, bottom = box
    return Image.open(path).crop((left - around, top - around, right + around, bottom + around))


figure, axes = plt.subplots(1, 5, figsize=(10, 2.4))
axes[0].imshow(crop("marked/0.png", why.box))
axes[0].set_title("this patch")
for axis, patch in zip(axes[1:], why.normal_patches(), strict=False):
    axis.imshow(crop(patch.image, patch.box))
    axis.set_title(f"weight {patch.weight:.0%}")
for axis in axes:
    axis.axis("off")

# %% [markdown]
# The dot is new and harmless: a kind of good part that the memory does not know. (If it were a defect, the alarm would
# be right, and nothing would have to change.)
#
# ## The update
#
# `partial_fit` adds good parts to the memory, and computes the threshold again: three marked parts, and not the one
# that was flagged.

# %%
before = {path: detector.predict(path) for path in ("marked/0.png", "parts/test/rust/000.png")}
detector.partial_fit(["marked/1.png", "marked/2.png", "marked/3.png"])
for path, old in before.items():
    new = detector.predict(path)
    print(
        f"{path}: {old.relative_score:.2f} x threshold, then {new.relative_score:.2f} x; anomalous: {new.is_anomalous}"
    )

# %%
detector.predict("marked/0.png").plot()

# %% [markdown]
# ## What remains
#
# The log of the model says what was done. `forget` takes a part out again, with all its patches.

# %%
for change in detector.history:
    print(change.what, change.count, "images;", change.note)
detector.save("flange.procon")
