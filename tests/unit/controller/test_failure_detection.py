"""Who is taken for living, and when no more."""

from popwheel_controller.broker_groups.failure_detector import FailureDetector, Liveness

DETECTION_S = 3.0


def detector() -> FailureDetector[str]:
    return FailureDetector(DETECTION_S, DETECTION_S / 2)


def test_silence_makes_suspect_and_then_dead() -> None:
    watch = detector()
    assert watch.liveness("a", 0.0) is Liveness.DEAD
    watch.reported("a", 10.0)
    assert watch.liveness("a", 11.4) is Liveness.LIVING
    assert watch.liveness("a", 11.6) is Liveness.SILENT
    assert watch.liveness("a", 13.0) is Liveness.DEAD
    assert watch.silent_for_s("a", 13.0) == 3.0
    watch.reported("a", 20.0)
    assert watch.liveness("a", 20.0) is Liveness.LIVING


def test_who_is_expected_has_the_detection_time_to_come() -> None:
    watch = detector()
    watch.expect("a", 0.0)
    watch.expect("a", 2.0)  # no more than once
    assert watch.liveness("a", 2.9) is Liveness.UNSURE
    assert watch.liveness("a", 3.0) is Liveness.DEAD
    watch.reported("b", 0.0)
    watch.expect("b", 1.0)
    assert watch.liveness("b", 1.0) is Liveness.LIVING


def test_a_broken_stream_is_probed() -> None:
    watch = detector()
    for key in "abc":
        watch.reported(key, 0.0)
    probes = {key: watch.broke(key) for key in "abc"}
    assert watch.liveness("a", 0.1) is Liveness.UNSURE
    watch.refused("a", probes["a"])
    watch.answered("b", probes["b"], 0.2)
    assert [watch.liveness(key, 3.1) for key in "abc"] == [Liveness.DEAD, Liveness.UNSURE, Liveness.DEAD]
    assert watch.liveness("b", 3.2) is Liveness.DEAD  # it did not come back


def test_the_outcome_of_an_old_probe_counts_no_more() -> None:
    watch = detector()
    watch.reported("a", 0.0)
    first = watch.broke("a")
    watch.reported("a", 0.1)
    watch.refused("a", first)
    assert watch.liveness("a", 0.2) is Liveness.LIVING
    second = watch.broke("a")
    watch.refused("a", first)
    assert watch.liveness("a", 0.2) is Liveness.UNSURE
    watch.refused("a", second)
    watch.answered("a", second, 0.3)
    assert watch.liveness("a", 0.3) is Liveness.DEAD
    watch.refused("nobody", 1)
    watch.answered("nobody", 1, 0.0)


def test_who_said_goodbye_is_dead_at_once() -> None:
    watch = detector()
    watch.reported("a", 0.0)
    watch.left("a")
    assert watch.liveness("a", 0.0) is Liveness.DEAD
    watch.left("nobody")


def test_while_this_process_stood_still_nobody_was_silent() -> None:
    watch = detector()
    watch.time_passed(0.0)
    watch.reported("a", 0.0)
    watch.expect("b", 0.0)
    for tick in range(1, 5):
        watch.time_passed(tick / 4)
    watch.time_passed(61.0)
    assert [watch.liveness(key, 61.0) for key in "ab"] == [Liveness.LIVING, Liveness.UNSURE]
    watch.reported("a", 61.0)
    watch.time_passed(121.0)
    assert watch.silent_for_s("a", 121.0) == 0.0  # not in the future
    watch.forget_all()
    assert watch.silent_for_s("a", 121.0) is None
