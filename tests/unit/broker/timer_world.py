"""A broker's core with its timer, moved on step by step."""

from pathlib import Path

from popwheel_broker.delay.message_timer import Step
from popwheel_broker.delay.service import TimerService
from popwheel_broker.delay.timer_state import slot_of
from popwheel_broker.log.record import RecordKind
from popwheel_broker.options import BrokerOptions, LogOptions, TimerOptions
from popwheel_common.contract.put import MessageRun, PutKind
from popwheel_common.contract.recall_handle import RecallHandle
from tests.unit.broker.world import FOLDER, World, run_now, wire_message

TIMER_FOLDER = FOLDER / "timer"
TOPIC = "orders"
_LONGEST_STEP_MS = 500


def timer_options(segment_bytes: int = 4096, **timer: int) -> BrokerOptions:
    """A wheel of 16 slots, and what else is to be different."""
    settings = {"slots": 16, "roll_window_ms": 2000, "log_file_bytes": 4096, "delay_ms_max": 2 * 24 * 3_600_000}
    return BrokerOptions(
        log=LogOptions(segment_bytes=segment_bytes, index_entries_max=16, queue_entries_in_memory=4),
        timer=TimerOptions.model_validate(settings | timer),
    )


class TimerWorld(World):
    """A core that fires, and can crash; it begins at a whole second and knows the topic `orders`.

    Args:
        options: the broker's.
    """

    def __init__(self, options: BrokerOptions | None = None) -> None:
        self.failures: list[Exception] = []
        super().__init__(options=timer_options() if options is None else options)
        self.begin_ms = slot_of(self.clock.wall_ms())
        self.add_topic(TOPIC)
        self.flush()

    def start(self) -> None:
        super().start()
        self.timer = self.core.timer
        self.service = TimerService(self.timer, self.disk, self.clock, self._sync, lambda: None, self.failures.append)
        self.save_timer()

    async def _sync(self) -> None:
        self.flush()

    def save_timer(self) -> None:
        """Save timer log, wheel and checkpoint."""
        run_now(self.service.save())

    def send(self, body: bytes, due_ms: int, flushed: bool = True, topic: str = TOPIC) -> int:
        """Send a message that is due so long after the beginning; the position of its record."""
        return self.send_many([body], [due_ms], flushed, topic)[0]

    def send_many(self, bodies: list[bytes], dues_ms: list[int], flushed: bool = True, topic: str = TOPIC) -> list[int]:
        """Send messages in one run."""
        wired = [wire_message(topic, body) for body in bodies]
        run = MessageRun(
            topic,
            0,
            [payload for payload, _ in wired],
            [properties for _, properties in wired],
            [""] * len(bodies),
            PutKind.AT_TIME,
            [self.begin_ms + due_ms for due_ms in dues_ms],
        )
        batch = self.timer.intake.batch()
        batch.accept(run)
        appended = self.core.store.put(batch.records)
        self.timer.intake.stored(batch)
        if flushed:
            self.flush()
        return list(appended.positions)

    def recall(self, position: int, body: bytes, due_ms: int, topic_id: int | None = None) -> None:
        """Take a message back, of the topic as it is now if no id is said; raises as `TimerIntake.recall` does."""
        of_topic = self.timer.intake.topic_id(TOPIC) if topic_id is None else topic_id
        handle = RecallHandle("b", position, self.begin_ms + due_ms, body.hex(), topic_id=of_topic)
        record = self.timer.intake.recall(TOPIC, handle)
        if record is not None:
            self.core.store.put([record])
            self.flush()

    def turn(self) -> Step:
        """Go on until there is nothing to do at this moment."""
        while True:
            step = self.timer.step()
            self.flush()
            if not step.busy:
                return step

    def pass_to(self, time_ms: int) -> None:
        """Let time pass to so long after the beginning, stopping wherever there is something to do."""
        self.turn()
        while (left_ms := self.begin_ms + time_ms - self.clock.wall_ms()) > 0:
            next_ms = self.timer.next_time_ms()
            wait_ms = left_ms if next_ms is None else next_ms - self.clock.wall_ms()
            self.clock.advance(max(1, min(left_ms, wait_ms, _LONGEST_STEP_MS)))
            self.turn()

    def fired(self) -> list[tuple[bytes, int]]:
        """What was delivered, in its order: ids as the sender's bodies, and when, after the beginning."""
        return [
            (found.payload, found.store_time_ms - self.begin_ms)
            for _, found in self.held(TOPIC)
            if found.kind == RecordKind.MESSAGE
        ]

    def fired_bodies(self) -> list[bytes]:
        """The bodies of what was delivered."""
        return [payload[-1:] for payload, _ in self.fired()]

    def remove_timer_files(self) -> None:
        """Lose all the timer's files, between two lives."""
        for path in list(self.disk.files()):
            if TIMER_FOLDER in path.parents:
                self.disk.remove(Path(path))
