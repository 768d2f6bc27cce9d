"""The real process over real sockets: what is promised across stops, crashes and full disks."""
