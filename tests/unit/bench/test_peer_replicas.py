"""A peer whose master can be killed takes part in the case of a failover; any other is left out, and told so."""

import asyncio
import io
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from bench import failover
from bench.__main__ import arguments, measure, peers_of
from bench.server import CommandFailedError, PeerServer, Server
from bench.steps import Figures, Scale

PEER = ("--peer", "127.0.0.1:1", "--peer-pids", "7,8")
COMMANDS = ("--peer-kill-master", "peer kill 'the master'", "--peer-in-sync", "peer in_sync")


def ending_with(code: int) -> Sequence[str]:
    return [sys.executable, "-c", f"raise SystemExit({code})"]


def test_commands_are_cut_into_words_as_a_shell_would() -> None:
    (peer,) = peers_of(arguments([*PEER, *COMMANDS]))
    assert peer.has_replicas
    assert peer.pids == [7, 8]
    options = arguments(COMMANDS)
    assert options.peer_kill_master == ["peer", "kill", "the master"]
    assert options.peer_in_sync == ["peer", "in_sync"]
    assert peers_of(options) == []


@pytest.mark.parametrize("words", [(), COMMANDS[:2], COMMANDS[2:]])
def test_one_command_without_the_other_is_none(words: Sequence[str]) -> None:
    (peer,) = peers_of(arguments([*PEER, *words]))
    assert not peer.has_replicas


async def test_a_peer_is_ready_when_its_command_ends_with_0() -> None:
    assert await PeerServer("", [], ending_with(0), ending_with(0)).in_sync()
    assert not await PeerServer("", [], ending_with(0), ending_with(3)).in_sync()


async def test_a_master_that_could_not_be_killed_ends_the_case() -> None:
    await PeerServer("", [], ending_with(0), ending_with(0)).kill_master()
    with pytest.raises(CommandFailedError, match="ended with 3: no master was killed"):
        await PeerServer("", [], ending_with(3), ending_with(0)).kill_master()


@pytest.mark.parametrize(
    ("case", "words", "measured", "reported"),
    [
        ("failover-kill", COMMANDS, ["2-replicas", "peer"], False),
        ("failover-kill", (), ["2-replicas"], True),
        ("failover-switchover", COMMANDS, ["2-replicas"], False),
    ],
)
async def test_who_takes_part(
    case: str,
    words: Sequence[str],
    measured: Sequence[str],
    reported: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[str, int]] = []

    async def noted(server: Server, scale: Scale) -> Figures:
        await asyncio.sleep(0)
        seen.append((server.name, scale.failovers))
        return {}

    async def nothing(server: Server) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr("bench.__main__.CASES", dict.fromkeys(failover.CASES, noted))
    monkeypatch.setattr("bench.cluster.ClusterServer.start", nothing)
    monkeypatch.setattr("bench.cluster.ClusterServer.stop", nothing)
    given = [
        "--case",
        case,
        "--runs",
        "1",
        "--failovers",
        "3",
        "--peer-warm-up",
        "0",
        "--json",
        str(tmp_path / "lines"),
    ]
    said = io.StringIO()
    runs = await measure(arguments([*given, *PEER, *words]), tmp_path, Console(file=said, width=200))

    assert [run.server for run in runs] == measured
    assert seen == [(name, 3) for name in measured]
    assert ("leaves the peer out: it needs --peer-kill-master and --peer-in-sync" in said.getvalue()) is reported
