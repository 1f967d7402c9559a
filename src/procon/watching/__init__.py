"""Score images as they arrive and hand the results on, without losing one. Needs no torch with an exported model."""
