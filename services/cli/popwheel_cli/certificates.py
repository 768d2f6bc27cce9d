"""`popwheel certificates`: renews the services' certificate in a Secret of Kubernetes."""

import asyncio
import base64
import binascii
import datetime
from collections.abc import Sequence

import click

from popwheel_cli.certificate_set import CertificateSet, next_step
from popwheel_cli.errors import CommandError, WrongUseError
from popwheel_common.clock import Clock
from popwheel_common.errors import ConfigurationError
from popwheel_common.extras import MissingExtraError
from popwheel_controller.kubernetes.api import (
    SECRETS,
    ApiAwayError,
    ApiConflictError,
    ClientKubernetesApi,
    KubernetesApi,
    Resource,
)

_TRIES = 3
_OURS = {"app.kubernetes.io/managed-by": "popwheel"}
_FILES = {"certificate": "tls.crt", "key": "tls.key", "authorities": "ca.crt", "authority_key": "ca.key"}


def renew_certificates(secret: str, namespace: str, names: Sequence[str], clock: Clock) -> None:
    """Take the next step of a Secret of the Kubernetes cluster, if any; return it in words.

    Args:
        secret: its name.
        namespace: where it is; empty: that of this pod.
        names: host names that the certificate must be good for.
        clock: the time.

    Raises:
        CommandError: it cannot be done (WrongUseError: the extra `kubernetes` is not installed).
    """
    try:
        said = asyncio.run(_renew_in_cluster(secret, namespace, names, clock))
    except MissingExtraError as error:
        raise WrongUseError(f"no Kubernetes cluster can be asked here: {error.remedy}") from error
    except ConfigurationError as error:
        raise CommandError(f"no Kubernetes cluster can be asked here: {error.__cause__}") from error
    except ApiAwayError as error:
        raise CommandError(str(error)) from error
    click.echo(f"{secret}: {said}")


async def _renew_in_cluster(secret: str, namespace: str, names: Sequence[str], clock: Clock) -> str:
    api = ClientKubernetesApi(namespace)
    try:
        return await take_step(api, secret, names, clock)
    finally:
        await api.close()


async def take_step(api: KubernetesApi, secret: str, names: Sequence[str], clock: Clock) -> str:
    """Take the next step; return it in words.

    Args:
        api: the API server.
        secret: name of the Secret.
        names: host names that the certificate must be good for.
        clock: the time.

    Raises:
        ApiAwayError: the API server cannot be asked.
        CommandError: the Secret is not ours, has other content, or is changed by others all the time.
    """
    for _ in range(_TRIES):
        found = await api.get(SECRETS, secret)
        now = datetime.datetime.fromtimestamp(clock.wall_ms() / 1000, datetime.UTC)
        try:
            step = next_step(_current(found, secret), names, now)
        except (ValueError, TypeError) as error:
            raise CommandError(
                f"the Secret {secret} holds what cannot be renewed ({error}): delete it, and all is made anew"
            ) from error
        if step is None:
            return "no renewal is due"
        try:
            await _store(api, found, secret, step.made)
        except ApiConflictError:
            continue  # another process was faster
        return step.why
    raise CommandError(f"the Secret {secret} was changed by others {_TRIES} times meanwhile; try again")


def _current(found: Resource | None, secret: str) -> CertificateSet:
    if found is None:
        return CertificateSet()
    labels = found["metadata"].get("labels") or {}
    if not _OURS.items() <= labels.items():
        raise CommandError(f"the Secret {secret} is not of our making: delete it, or have the chart use it as it is")
    data = found.get("data") or {}
    try:
        current = {name: base64.b64decode(data.get(file, ""), validate=True) for name, file in _FILES.items()}
    except binascii.Error as error:
        raise ValueError(str(error)) from error
    return CertificateSet(**current)


async def _store(api: KubernetesApi, found: Resource | None, secret: str, made: CertificateSet) -> None:
    data = {file: base64.b64encode(getattr(made, name)).decode() for name, file in _FILES.items()}
    if found is not None:
        change = {"metadata": {"resourceVersion": found["metadata"]["resourceVersion"]}, "data": data}
        await api.patch(SECRETS, secret, change)
        return
    metadata = {"name": secret, "labels": _OURS}
    await api.create(
        SECRETS, {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": data}
    )
