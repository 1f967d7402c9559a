"""What a setting is to a run: shared by all variants, or of no effect on raw results."""

SHARED = ("backbone", "weights", "image_size", "patch_budget", "max_scale", "resize", "aspect", "tile", "precision")
"""Settings that all variants of a run share; the others tell its variants apart."""
THRESHOLD_SETTINGS = ("false_alarm_rate", "threshold_rule")
"""Settings that no raw result depends on: thresholds are computed from stored scores, at any rate and by any rule."""
