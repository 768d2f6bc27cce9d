"""The Grafana dashboards, as code: `make dashboards` writes their JSON for the chart (docs/operate/monitor.md)."""
