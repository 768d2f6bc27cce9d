"""Names at the edge, for tests of whoever takes names."""

from collections.abc import Mapping

from popwheel_common.contract.names import Kind

_NO_NAMES = (
    "",
    " ",
    "a b",
    "a/b",
    "..",
    "/../",
    "../../x",
    "a\\b",
    "a\0b",
    "a\nb",
    "a\n",
    "a\x7f",
    "a.b",
    "a+b",
    "naïve",
    "a\u202eb",
    "😀",
    "\ud800",
    "n" * 256,
    "n" * 100_000,
)
BAD_GROUPS = (*_NO_NAMES, "g" * 121)
"""What no consumer group is called."""

_G, _T = "g" * 60, "t" * 60

BAD_TOPICS = (
    *_NO_NAMES,
    "t" * 128,
    "%RETRY%",
    "%RETRY%g",
    "%RETRY%g_t",
    "%RETRY%g+",
    "%RETRY%+t",
    "%RETRY%g+a b",
    "%RETRY%g+/../x",
    "%RETRY%g+..",
    "%RETRY%g+t+u",
    "%RETRY%g+rmq_sys_x",
    "%RETRY%g+%DLQ%",
    "%RETRY%g+%RETRY%h+t",
    f"%RETRY%{_G}+%RETRY%{_T}+{'u' * 120}",
    f"%RETRY%g+{'t' * 128}",
    f"%RETRY%{'g' * 121}+t",
    "%RETRY%g+" + "n" * 100_000,
    "%DLQ%",
    "%DLQ%a b",
    "%DLQ%/../x",
    f"%DLQ%{'g' * 121}",
    "rmq_sys_",
)
"""What no topic is called."""

OF_KIND: Mapping[Kind, tuple[str, ...]] = {
    Kind.USER: ("t", "t" * 127, "shop%t", "%", "_", "-", "RETRY%g", "%DLQ"),
    Kind.RETRY: ("%RETRY%g+t", f"%RETRY%{'g' * 120}+{'t' * 127}", "%RETRY%g+%DLQ%h", f"%RETRY%{_G}+%DLQ%{_T}"),
    Kind.DEAD_LETTER: ("%DLQ%g", f"%DLQ%{'g' * 120}"),
    Kind.SYSTEM: ("rmq_sys_x", "rmq_sys_wheel_timer", "rmq_sys_REVIVE_LOG_popwheel"),
    Kind.LITE: ("t+l", f"{'t' * 127}+{'l' * 64}", "%+%"),
}
"""Good names of each kind, the longest among them."""
