"""The id of a cluster: a name that is made once with the cluster's state, to distinguish two clusters (pure).

It is the cluster's name, a dash and 16 hexadecimal digits. Each replica of a broker keeps it in its data folder. Calls
between services name it in a header. A service refuses whoever belongs to another cluster.
"""

import hashlib
import re
from typing import Final

from popwheel_common.errors import InconsistentClusterIdError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code

CLUSTER_HEADER: Final = "popwheel-cluster"
"""Names the cluster that a caller belongs to, between our own services; absent if it knows of none."""
_CLUSTER_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}-[0-9a-f]{16}")


def new_cluster_id(name: str, receipt_key: bytes) -> str:
    """Return the id of a cluster whose state was just made.

    Args:
        name: of the cluster.
        receipt_key: the key that was drawn with the state; the id follows from it and does not betray it.
    """
    digest = hashlib.sha256(b"popwheel cluster id" + receipt_key).hexdigest()
    return f"{name}-{digest[:16]}"


def checked_cluster_id(text: str) -> str:
    """Return a cluster id from outside; it may be empty.

    Raises:
        StatusError: BAD_REQUEST.
    """
    if text and _CLUSTER_ID.fullmatch(text) is None:
        raise StatusError(Code.BAD_REQUEST, f"{text[:64]!r} is not the id of a cluster: a name, '-' and 16 hex digits")
    return text


def can_belong_to(cluster_id: str, name: str) -> bool:
    """Check whether a cluster of this name that has no id yet may take over an id: that of a state that it lost."""
    return cluster_id.rpartition("-")[0] == name


def check_same_cluster(theirs: str, ours: str, who: str, advice: str) -> None:
    """Refuse one who belongs to another cluster; one who knows of none is let in.

    Args:
        theirs: the id of the cluster that it belongs to.
        ours: the id of this service's own.
        who: the refused one, as the sentence begins.
        advice: what is to be done, as the sentence ends.

    Raises:
        InconsistentClusterIdError: they are two.
    """
    if theirs and ours and theirs != ours:
        raise InconsistentClusterIdError(
            f"INCONSISTENT_CLUSTER_ID: {who} belongs to the cluster {theirs}, and this is the cluster {ours}; {advice}"
        )
