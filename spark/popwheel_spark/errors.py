"""Errors between Spark and Popwheel, each with a sentence that says what to do."""


class PopwheelSparkError(Exception):
    """Any of these errors."""


class OptionError(PopwheelSparkError, ValueError):
    """An option that is missing, misspelt or impossible. Raised on the driver, before anything is read or written.

    Args:
        name: the option, as one writes it: `startingOffsets`.
        sentence: what is wrong with it, and what it may be.
    """

    def __init__(self, name: str, sentence: str) -> None:
        super().__init__(f"option {name}: {sentence}")
        self.name = name


class UnreachableError(PopwheelSparkError):
    """Error: no proxy gave an answer for as long as `timeoutMs` says."""


class RefusedError(PopwheelSparkError):
    """A proxy refused a request for what it is; asking again would not help."""


class DataLossError(PopwheelSparkError):
    """Messages that were to be read are not there any more, and `failOnDataLoss` is true."""


class BadRecordError(PopwheelSparkError):
    """A message that cannot be decoded, and `badRecords` is `fail`."""


class FormatError(PopwheelSparkError):
    """Records that this release cannot read, as they are of a newer one."""
