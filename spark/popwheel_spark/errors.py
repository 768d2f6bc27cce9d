"""Errors between Spark and Popwheel, each with its remedy."""


class PopwheelSparkError(Exception):
    """Base of these errors."""


class OptionError(PopwheelSparkError, ValueError):
    """Missing, misspelt or impossible option. Raised on the driver, before anything is read or written.

    Args:
        name: the option, as one writes it: `startingOffsets`.
        sentence: what is wrong with it, and what it may be.
    """

    def __init__(self, name: str, sentence: str) -> None:
        super().__init__(f"option {name}: {sentence}")
        self.name = name


class UnreachableError(PopwheelSparkError):
    """No answer of any proxy within `timeoutMs`."""


class RefusedError(PopwheelSparkError):
    """Refusal of a request by a proxy; a retry would not help."""


class DataLossError(PopwheelSparkError):
    """Loss of messages before they were read, with `failOnDataLoss`."""


class BadRecordError(PopwheelSparkError):
    """Message that cannot be decoded, with `badRecords=fail`."""


class FormatError(PopwheelSparkError):
    """Records of a newer release, which this one cannot read."""
