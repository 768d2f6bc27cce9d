"""The programs beside this file: built from official clients by the package tool of each language, and run."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.harness.programs import Outcome, run_words
from tests.harness.standalone import ROOT
from tests.interop.clients.plan import Plan

SOURCES = Path(__file__).parent
BUILDS = ROOT / "build" / "interop"

BUILD_TIMEOUT_S = 1800.0
"""Of one step. The longest, with nothing in the package tool's cache, compiles some 300 Rust libraries."""

RUN_TIMEOUT_S = 120.0

_SHOWN_CHARACTERS = 4_000


class LanguageMissingError(Exception):
    """Programs of this language cannot be had here; the text says why."""


@dataclass(frozen=True)
class Language:
    """An official client, and the program that uses it.

    Args:
        name: of the language, and of the folder with the program.
        version: of the client.
        tools: commands that must be there.
        build: what makes the program, in a copy of the folder.
        run: the words that run it, in that copy; `{home}` is a folder of its own.
        log: the client's log, below its home.
        offers: what the client can do beyond sending and receiving.
        environment: variables for build and run.
    """

    name: str
    version: str
    tools: tuple[str, ...]
    build: tuple[tuple[str, ...], ...]
    run: tuple[str, ...]
    log: str
    offers: frozenset[str]
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def folder(self) -> Path:
        """Where it is built."""
        return BUILDS / self.name

    def install(self) -> None:
        """Have the program built, from what is in the caches where that is possible.

        Raises:
            LanguageMissingError: a tool is missing, or one of its steps fails.
        """
        missing = [tool for tool in self.tools if shutil.which(tool) is None]
        if missing:
            raise LanguageMissingError(f"{self.name}: {' and '.join(missing)} missing on this machine")
        shutil.copytree(SOURCES / self.name, self.folder, dirs_exist_ok=True)
        for words in self.build:
            done = subprocess.run(
                words,
                cwd=self.folder,
                env=self._variables(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=BUILD_TIMEOUT_S,
                check=False,
            )
            if done.returncode != 0:
                raise LanguageMissingError(f"{' '.join(words)}: {done.stdout[-_SHOWN_CHARACTERS:]}")

    def play(self, plan: Plan, scratch: Path, *, authority: Path | None = None, patience_s: float = 0.0) -> Outcome:
        """Run the program.

        Args:
            plan: what it is to do.
            scratch: a folder of its own, its home.
            authority: certificates that it is to trust, where the client lets it.
            patience_s: seconds after which it is killed.
        """
        scratch.mkdir(parents=True, exist_ok=True)
        file = scratch / "plan.json"
        file.write_text(json.dumps(asdict(plan)))
        words = [word.format(folder=self.folder, home=scratch) for word in self.run]
        trusted = {} if authority is None else {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(authority)}
        return run_words(
            [*words, str(file)],
            scratch,
            log=self.log,
            environment={**self._variables(), **trusted, "HOME": str(scratch)},
            timeout_s=patience_s or RUN_TIMEOUT_S,
        )

    def _variables(self) -> Mapping[str, str]:
        own = {key: value.format(folder=self.folder) for key, value in self.environment}
        return {**os.environ, **own}


LANGUAGES = {
    each.name: each
    for each in (
        Language(
            "go",
            "5.1.4",
            ("go",),
            (("go", "mod", "tidy"), ("go", "build", "-o", "client", ".")),
            ("{folder}/client",),
            "logs/rocketmq/rocketmq_client_go.log",
            frozenset({"push", "tls", "priority", "lite"}),
            (("GOFLAGS", "-buildvcs=false"),),
        ),
        Language(
            "java",
            "5.2.0",
            ("java", "mvn"),
            (("mvn", "--batch-mode", "--quiet", "package"),),
            ("java", "-Duser.home={home}", "-cp", "{folder}/target/classes:{folder}/target/dependency/*", "Client"),
            "logs/rocketmq/rocketmq-client.log",
            frozenset({"push", "tls", "priority", "lite"}),
        ),
        Language(
            "node",
            "1.0.8",
            ("node", "npm"),
            (("npm", "install", "--no-audit", "--no-fund"),),
            ("node", "{folder}/client.js"),
            "logs/rocketmq/rocketmq_client_nodejs.log",
            frozenset({"push", "tls", "priority", "lite"}),
        ),
        Language(
            "rust",
            "5.0.0",
            ("cargo", "cc"),
            (("nice", "cargo", "build"),),
            ("{folder}/target/debug/popwheel-interop",),
            "",
            frozenset(),
            (("CARGO_TARGET_DIR", "{folder}/target"), ("CARGO_TERM_COLOR", "never")),
        ),
    )
}
