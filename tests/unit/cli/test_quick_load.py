"""What a service does not load before it answers the first send, so that it starts sooner."""

import gc
import subprocess
import sys

import pytest

from popwheel_cli.process.garbage_collection import GarbageCollection
from popwheel_cli.process.quick_load import loads_quickly

OF_CALLERS = ("httpx", "popwheel_cli.admin.commands", "popwheel_cli.messages", "popwheel_rpc.client.socket_channel")
OF_LOGS = ("attr", "pygments", "rich")
OF_HTTP = ("authlib", "fastapi", "jinja2", "starlette", "uvicorn", "popwheel_common.http", "popwheel_console")
OF_SETTINGS = (
    "popwheel_controller.kubernetes.mirror",
    "popwheel_controller.kubernetes.reconciler",
    "grpc",
    "kubernetes",
    "opentelemetry",
    "redis",
    "cryptography",
)

OF_A_VERB = """
from popwheel_cli.process.quick_load import loads_quickly

@loads_quickly
def load():
    import popwheel_cli.options, popwheel_cli.process.run, popwheel_cli.process.standalone
    return 0

load()

from popwheel_cli.options import StandaloneOptions
from popwheel_common.settings.config import load as settings_of

settings_of(StandaloneOptions, assignments=["broker.flush=async", "proxy.grpc_port=0"])
"""


def loaded(program: str, *names: str) -> list[str]:
    """Those of some modules that a program loads."""
    words = [sys.executable, "-c", f"import sys\n{program}\nprint(*[name for name in {names} if name in sys.modules])"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split()


def test_the_command_alone_loads_little() -> None:
    """A service must not start later because the command can do more."""
    others = ("pydantic", "structlog", "asyncio", "google.protobuf")
    assert loaded("import popwheel_cli.main", *OF_CALLERS, *OF_LOGS, *OF_HTTP, *OF_SETTINGS, *others) == []


def test_a_server_loads_what_a_send_needs_and_hardly_more() -> None:
    assert loaded(OF_A_VERB, *OF_CALLERS, *OF_LOGS, *OF_HTTP, *OF_SETTINGS) == []


@pytest.mark.skipif(sys.platform != "linux", reason="/proc has the threads")
def test_what_a_server_loads_starts_no_threads() -> None:
    assert loaded(f"{OF_A_VERB}\nimport os\nprint(len(os.listdir('/proc/self/task')))") == ["1"]


def test_rich_can_be_loaded_later() -> None:
    assert loaded(f"{OF_A_VERB}\nimport rich.console, structlog", "rich", "structlog") == ["rich", "structlog"]


@pytest.fixture
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYDANTIC_DISABLE_PLUGINS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "as it is")


@pytest.mark.usefixtures("_as_before")
def test_the_collector_rests_only_while_a_verb_runs() -> None:
    rested = []

    @loads_quickly
    def verb() -> int:
        rested.append(not gc.isenabled())
        raise KeyError("cannot start")

    with pytest.raises(KeyError):
        verb()
    assert rested == [True]
    assert gc.isenabled()


def test_the_collector_works_once_all_is_loaded() -> None:
    threshold = gc.get_threshold()
    gc.disable()
    try:
        GarbageCollection.freeze_loaded()
        assert gc.isenabled()
    finally:
        gc.enable()
        gc.unfreeze()
        gc.set_threshold(*threshold)
