"""What one seed came to."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one seed came to.

    Args:
        seed: the seed.
        digest: hash of the trace.
        violations: what broke; empty if all is well.
        counts: the verdict's sets by size, and how much there was.
        story: what was drawn, and if something broke, the trace.
        module: whose seed it is: what comes after `python -m`.
    """

    seed: int
    digest: str
    violations: tuple[str, ...]
    counts: str
    story: tuple[str, ...]
    module: str = "tests.sim"

    def report(self, lines: int = 60) -> str:
        """For people: what broke, how it came to that, how to see it again."""
        return "\n".join(
            [
                f"seed {self.seed} {self.digest} {self.counts}",
                *self.violations[:20],
                *self.story[:1],
                *self.story[max(1, len(self.story) - lines) :],
                f"again, with the whole trace: python -m {self.module} --seed {self.seed} --trace",
            ]
        )
