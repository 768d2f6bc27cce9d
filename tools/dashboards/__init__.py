"""The Grafana dashboards, written as code: `make dashboards` writes them as JSON for the chart (docs/dashboards.md)."""
