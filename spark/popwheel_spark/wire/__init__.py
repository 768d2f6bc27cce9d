"""The way to a cluster: calls of proxies and of the admin API, and what their answers are as rows."""
