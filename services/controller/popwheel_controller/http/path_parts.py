"""Parts of paths that stand for names, as routes take them."""

from typing import Annotated

from fastapi import Path

TopicName = Annotated[str, Path(description="Name of the topic.")]
GroupName = Annotated[str, Path(description="Name of the consumer group.")]
BrokerName = Annotated[str, Path(description="Name of the broker group.")]
MessageId = Annotated[str, Path(max_length=255, description="Id of the message.")]
QuarantineId = Annotated[str, Path(description="Id in the quarantine of this broker group.")]
