"""What stops the lab; its message is one line for a person."""


class LabError(Exception):
    """A step of the lab failed; where, why and what to do about it."""


class OutsideError(LabError):
    """This machine, or what is fetched from outside, cannot do what is asked: exit 3."""
