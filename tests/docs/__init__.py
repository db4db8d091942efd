"""The guides against the code: what they tell people to type can be typed, where they point there is something."""
